"""What all readers share: opening a file, importing an optional package, and errors that name the file."""

import gzip
import importlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from ...errors import InputError, MissingExtra


@contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Turn any error while reading `file` into a one-line InputError that names it.

    >>> with reading(Path("numbers.txt"), "a list of numbers"):
    ...     int("seven")
    Traceback (most recent call last):
    fedkeel.errors.InputError: numbers.txt cannot be read as a list of numbers: invalid literal for int() ...
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{file} is not there.") from error
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, OverflowError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{file} cannot be read as {what}: {why.rstrip('.')}.") from error


def opened(file: Path) -> BinaryIO:
    """The file's bytes, unzipped if its first bytes (not its name) say gzip."""
    with open(file, "rb") as handle:
        zipped = handle.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(file, "rb")) if zipped else open(file, "rb")


def optional(module: str, package: str, extra: str, why: str) -> Any:
    """A module of an optional package, imported on use."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(package, extra, why) from error


def broken(file: Path, why: str) -> InputError:
    """The error for a file that is not what it should be."""
    return InputError(f"{file} is damaged or not the expected file: {why}.")
