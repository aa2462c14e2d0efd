"""The binary version of CIFAR: rows of one or two label bytes and 3,072 pixels, colour by colour."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...files import damaged, reading
from .files import opened

Bytes = NDArray[np.uint8]
PIXELS = 3 * 32 * 32


def cifar10(*files: Path) -> tuple[Bytes, Bytes]:
    """Images `[n, 3, 32, 32]` and labels 0..9 of these files, one after the other.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "data_batch_1.bin")
    ...     _ = file.write_bytes(bytes([6]) + bytes(PIXELS) + bytes([9]) + bytes(PIXELS))
    ...     x, y = cifar10(file)
    >>> x.shape, y.tolist()
    ((2, 3, 32, 32), [6, 9])
    """
    parts = [_rows(file, (10,)) for file in files]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return x, y[:, 0]


def cifar100(file: Path) -> tuple[Bytes, Bytes, Bytes]:
    """Images, fine labels 0..99 and coarse labels 0..19 of one file."""
    x, labels = _rows(file, (20, 100))
    return x, labels[:, 1], labels[:, 0]


def _rows(file: Path, classes: tuple[int, ...]) -> tuple[Bytes, Bytes]:
    with reading(file, "CIFAR binary"), opened(file) as stream:
        content = np.frombuffer(stream.read(), np.uint8)
    width = len(classes) + PIXELS
    if not len(content) or len(content) % width:
        raise damaged(file, f"{len(content):,} bytes are not a whole number of rows of {width:,}")
    rows = content.reshape(-1, width)
    labels = rows[:, : len(classes)]
    for column, limit in enumerate(classes):
        if (high := int(labels[:, column].max())) >= limit:
            raise damaged(file, f"it has label {high}; labels are 0..{limit - 1}")
    return rows[:, len(classes) :].reshape(-1, 3, 32, 32), labels
