"""Unpack untrusted archives: nothing outside the target, no links, no more bytes than allowed."""

import bz2
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..errors import InputError

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
SINGLE: dict[str, Callable[[Path], Any]] = {".bz2": bz2.open, ".xz": lzma.open, ".lzma": lzma.open}
MEMBERS = 10_000_000
BLOCK = 2**20
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, NotImplementedError)


def unpack(archive: Path, into: Path, largest: int = 2**32) -> None:
    """Unpack a tar, a zip or a single compressed file; gzipped single files stay compressed, as readers accept them.

    largest: bytes all of its files may have together, counted while they are written.
    """
    left = largest
    try:
        for count, (name, stream) in enumerate(_members(archive)):
            if count >= MEMBERS:
                raise InputError(f"{archive} holds more than {MEMBERS:,} files; it was not unpacked.")
            if stream is None:
                continue
            target = _inside(into, name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as out:
                while block := stream.read(BLOCK):
                    left -= len(block)
                    if left < 0:
                        raise InputError(f"{archive} unpacks to more than {largest:,} bytes; it was not unpacked.")
                    out.write(block)
    except (*DAMAGED, OSError) as error:
        if getattr(error, "errno", None) is not None:  # an error of the disk, not of the archive
            raise
        raise InputError(f"{archive} is damaged or not an archive: {error}.") from error


def is_archive(file: Path) -> bool:
    """Whether the name is that of an archive.

    >>> is_archive(Path("a.tar.gz")), is_archive(Path("train-images-idx3-ubyte.gz"))
    (True, False)
    """
    return file.name.endswith((".zip", *TARS, *SINGLE))


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """The names and contents of an archive; a folder has no content."""
    if archive.name.endswith(TARS):
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.issym() or member.islnk() or member.isdev():
                    raise InputError(f"{archive} holds {member.name}, which is not a plain file; it was not unpacked.")
                yield member.name, tar.extractfile(member)
    elif archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                with packed.open(entry) as stream:
                    yield entry.filename, None if entry.is_dir() else stream
    else:
        with SINGLE[archive.suffix](archive) as stream:
            yield archive.stem, stream


def _inside(into: Path, name: str, archive: Path) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts:
        raise InputError(f"{archive} holds '{name}', which would land outside; it was not unpacked.")
    return into / path
