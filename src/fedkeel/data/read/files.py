"""What all readers share: opening a file, importing an optional package, and bounds on what a file may promise."""

import gzip
import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import InputError, MissingExtra
from ...files import damaged, reading

FREE, TIMES = 2**28, 200  # bytes that any file may become in memory, and how many times its size a larger one may


@contextmanager
def library(file: Path, what: str, *errors: type[BaseException]) -> Iterator[None]:
    """As `reading`, for a library that reports damage with exceptions of its own.

    >>> with library(Path("a.xyz"), "XYZ", RuntimeError):
    ...     raise RuntimeError("bad magic number")
    Traceback (most recent call last):
    fedkeel.errors.InputError: a.xyz cannot be read as XYZ: bad magic number.
    """
    with reading(file, what):
        try:
            yield
        except errors as error:
            raise ValueError(str(error)) from error


def most(file: Path) -> int:
    """How many bytes the contents of a file may have in memory; promises of more are refused before they are read."""
    return max(FREE, TIMES * file.stat().st_size)


def check_size(file: Path, size: int, what: str) -> None:
    """Refuse contents that are out of all proportion to their file."""
    if size > (allowed := most(file)):
        shown = f"{size:,}" if size < 10**18 else "more than 10**18"
        raise damaged(
            file, f"{what} {shown} bytes in memory; {allowed:,} are allowed ({TIMES} times the file, or {FREE:,})"
        )


class Bounded(io.RawIOBase):
    """The bytes of a decompressed stream, which ends in an InputError after `limit` of them."""

    def __init__(self, stream: Any, file: Path, limit: int) -> None:
        self.stream, self.file, self.limit, self.left = stream, file, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self.stream.readinto(buffer)
        self.left -= count
        if self.left < 0:
            more = f"unpacks to more than {self.limit:,} bytes"
            raise InputError(f"{self.file} {more}; if that is right, unpack it yourself.")
        return count

    def close(self) -> None:
        self.stream.close()
        super().close()


def opened(file: Path) -> BinaryIO:
    """The file's bytes, unzipped if its first bytes (not its name) say gzip."""
    with open(file, "rb") as handle:
        zipped = handle.read(2) == b"\x1f\x8b"
    if not zipped:
        return open(file, "rb")
    return io.BufferedReader(Bounded(gzip.open(file, "rb"), file, most(file)), 2**16)


def optional(module: str, package: str, extra: str, why: str) -> Any:
    """A module of an optional package, imported on use."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(package, extra, why) from error
