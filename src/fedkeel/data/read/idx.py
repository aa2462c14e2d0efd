"""IDX, the format of MNIST, Fashion-MNIST, EMNIST and (as 32-bit integers) of the QMNIST labels."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import damaged, reading
from .files import check_size, opened

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def idx(file: Path) -> NDArray[Any]:
    """The array in an IDX file, plain or gzipped, in the machine's byte order.

    The header is two zero bytes, a type code, the number of axes, and each length as a big-endian 32-bit integer.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "labels-idx1-ubyte")
    ...     _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     idx(file).tolist()
    [7, 2, 1]
    """
    with reading(file, "IDX"), opened(file) as stream:
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES or not head[3]:
            raise damaged(file, f"it does not start like IDX (first bytes {head.hex(' ') or 'missing'})")
        axes = stream.read(4 * head[3])
        if len(axes) < 4 * head[3]:
            raise damaged(file, "it ends inside its header")
        shape = struct.unpack(f">{head[3]}I", axes)
        kind = np.dtype(TYPES[head[2]])
        size = math.prod(shape) * kind.itemsize
        check_size(file, size, "its header promises")
        content = stream.read(size + 1)
        if len(content) != size:
            found = "more" if len(content) > size else f"{len(content):,}"
            raise damaged(file, f"its header promises {size:,} bytes of values, it has {found}")
        return np.frombuffer(content, kind).reshape(shape).astype(kind.newbyteorder("="))
