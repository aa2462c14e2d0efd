"""Pictures of users in folders: `CLIENT/CLASS/picture.png`, or `CLASS/picture.png`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError, check
from ..files import reading
from ..ranges import Range, check_memory
from .convert import Array
from .read.pictures import ENDINGS, pictures

Place = str | os.PathLike[str]
SIZE = Range(1, 4096, whole=True)


@dataclass(frozen=True)
class Pictures:
    """Pictures `[n, 3, size, size]` in 0..1 with their classes, and whose they are."""

    x: Array
    y: Array
    clients: list[str]
    classes: list[str]


def read_folder(path: Place, size: int, of_clients: bool, classes: Sequence[str] | None = None) -> Pictures:
    """All pictures of a folder; classes: those of the training data, else the names found, sorted.

    of_clients: the folder has a folder for each client, and those have one for each class.
    """
    check(size in SIZE, "from_folder", "size", str(SIZE), size)
    root = Path(path).expanduser()
    depth = 3 if of_clients else 2
    shape = "CLIENT/CLASS/picture.png" if of_clients else "CLASS/picture.png"
    with reading(root, "a folder of pictures"):
        if not root.is_dir():
            raise InputError(f"{root} is not a folder.")
        files = sorted(file for file in root.glob("/".join("*" * depth)) if file.suffix.lower() in ENDINGS)
    if not files:
        how = "with partition= " if of_clients else "without partition= "
        other = "CLASS/picture.png" if of_clients else "CLIENT/CLASS/picture.png"
        raise InputError(f"{root} holds no pictures as {shape}; {how}they may lie as {other}.")
    known = sorted({file.parent.name for file in files}) if classes is None else list(classes)
    if strange := [file for file in files if file.parent.name not in known]:
        raise InputError(f"{strange[0]} is of a class that does not occur in the training data.")
    check_memory(f"{len(files):,} pictures of {size} x {size}", 12 * size**2 * len(files), "use a smaller size")
    place = {name: number for number, name in enumerate(known)}
    x = np.divide(pictures(files, size), np.float32(255), dtype=np.float32)
    y = np.array([place[file.parent.name] for file in files], dtype=np.int64)
    return Pictures(x, y, [file.parent.parent.name for file in files], known)
