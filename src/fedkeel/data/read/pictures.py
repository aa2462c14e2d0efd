"""Folders of pictures (needs Pillow), with a CSV or a text file that names their owners."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .files import broken, optional, reading
from .tables import numbered

ENDINGS = (".jpg", ".jpeg", ".png")


def picture(file: Path, size: int) -> NDArray[np.uint8]:
    """One picture in colour as `[3, size, size]`: the largest square in its middle, scaled."""
    image, ops = (optional(f"PIL.{name}", "Pillow", "images", "Reading pictures") for name in ("Image", "ImageOps"))
    with reading(file, "a picture"):
        try:
            with image.open(file) as opened:
                square = ops.fit(opened.convert("RGB"), (size, size))
        except (SyntaxError, image.DecompressionBombError) as error:  # how Pillow reports some damage
            raise broken(file, str(error)) from error
    return np.asarray(square, np.uint8).transpose(2, 0, 1)


def pictures(files: Iterable[Path], size: int) -> NDArray[np.uint8]:
    """Pictures as `[n, 3, size, size]`."""
    return np.stack([picture(file, size) for file in files])


def by_stem(folder: Path) -> dict[str, Path]:
    """All pictures at or below a folder, by name without ending (GLDv2 keeps abc123.jpg in a/b/c/)."""
    found = {file.stem: file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS}
    if not found:
        raise broken(folder, "it holds no pictures")
    return found


def identities(file: Path) -> dict[str, int]:
    """Picture -> person, from CelebA's `identity_CelebA.txt` (`000001.jpg 2880`, line by line)."""
    found = {}
    for number, line in numbered(file, "CelebA identities"):
        with reading(file, f"a picture and a person in line {number}"):
            name, person = line.split()
            found[name] = int(person)
    if not found:
        raise broken(file, "it is empty")
    return found


def attribute(file: Path, wanted: str) -> dict[str, int]:
    """Picture -> 0 or 1, one column of CelebA's `list_attr_celeba.txt` (a count, the names, then 1 or -1 each)."""
    content = [line.split() for _, line in numbered(file, "CelebA attributes")]
    if len(content) < 3 or wanted not in content[1]:
        raise broken(file, f"its second line does not name '{wanted}'")
    column = content[1].index(wanted) + 1
    for number, row in enumerate(content[2:], 3):
        if len(row) != len(content[1]) + 1 or row[column] not in ("1", "-1"):
            raise broken(file, f"line {number} is not a picture with {len(content[1])} values of 1 or -1")
    return {row[0]: int(row[column] == "1") for row in content[2:]}
