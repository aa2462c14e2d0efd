"""Folders of pictures (needs Pillow), with a CSV or a text file that names their owners."""

import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...files import damaged, reading
from .files import library, optional
from .tables import numbered, whole_number

ENDINGS = (".jpg", ".jpeg", ".png")
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP")  # by content; Pillow hands some others to other programs
PIXELS = 2**26  # of one picture


def picture(file: Path, size: int) -> NDArray[np.uint8]:
    """One picture in colour as `[3, size, size]`: the largest square in its middle, scaled."""
    image, ops = (optional(f"PIL.{name}", "Pillow", "images", "Reading pictures") for name in ("Image", "ImageOps"))
    bombs = image.DecompressionBombError, image.DecompressionBombWarning
    with library(file, "a picture", *bombs), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about details that are damaged or unknown
        warnings.simplefilter("error", image.DecompressionBombWarning)
        with image.open(file, formats=FORMATS) as opened:
            width, height = opened.size
            if not 0 < width * height <= PIXELS:
                raise damaged(file, f"it has {width} x {height} pixels; 1 to {PIXELS:,} are allowed")
            square = ops.fit(opened.convert("RGB"), (size, size))
        return np.asarray(square, np.uint8).transpose(2, 0, 1)


def pictures(files: Iterable[Path], size: int) -> NDArray[np.uint8]:
    """Pictures as `[n, 3, size, size]`."""
    return np.stack([picture(file, size) for file in files])


def by_stem(folder: Path) -> dict[str, Path]:
    """All pictures at or below a folder, by name without ending (GLDv2 keeps abc123.jpg in a/b/c/)."""
    with reading(folder, "a folder of pictures"):
        found = {file.stem: file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS}
    if not found:
        raise damaged(folder, "it holds no pictures")
    return found


def identities(file: Path) -> dict[str, int]:
    """Picture -> person, from CelebA's `identity_CelebA.txt` (`000001.jpg 2880`, line by line)."""
    found: dict[str, int] = {}
    for number, line in numbered(file, "CelebA identities"):
        with reading(file, f"a picture and a person in line {number}"):
            name, person = line.split()
            if name in found or Path(name).name != name:
                raise damaged(file, f"line {number} names {name!r}, which is named before or not in the same folder")
            found[name] = whole_number(person)
    if not found:
        raise damaged(file, "it is empty")
    return found


def attribute(file: Path, wanted: str) -> dict[str, int]:
    """Picture -> 0 or 1, one column of CelebA's `list_attr_celeba.txt` (a count, the names, then 1 or -1 each)."""
    content = [line.split() for _, line in numbered(file, "CelebA attributes")]
    if len(content) < 3 or wanted not in content[1]:
        raise damaged(file, f"its second line does not name '{wanted}'")
    column = content[1].index(wanted) + 1
    for number, row in enumerate(content[2:], 3):
        if len(row) != len(content[1]) + 1 or row[column] not in ("1", "-1"):
            raise damaged(file, f"line {number} is not a picture with {len(content[1])} values of 1 or -1")
    return {row[0]: int(row[column] == "1") for row in content[2:]}
