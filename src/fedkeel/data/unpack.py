"""Unpack untrusted archives: nothing outside the target, no links, no more bytes than allowed."""

import bz2
import errno
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..errors import InputError
from ..files import DAMAGE, damaged
from .read.files import Bounded, most

TARS: dict[str, Callable[..., Any]] = {
    ".tar": open, ".tar.gz": gzip.open, ".tgz": gzip.open, ".tar.bz2": bz2.open, ".tar.xz": lzma.open,
}  # fmt: skip
SINGLE: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".xz": lzma.open, ".lzma": lzma.open}
MEMBERS = 1_000_000
BLOCK = 2**20
PACKED = (*DAMAGE, tarfile.TarError, zipfile.BadZipFile, RuntimeError)  # the last: an encrypted zip
NAMES = (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.ENOENT)
Member = tuple[str, int, IO[bytes] | None]  # name, bytes it promises (and never exceeds), content


def unpack(archive: Path, into: Path, largest: int = 2**32) -> None:
    """Unpack a tar, a zip or a single compressed file; gzipped single files stay compressed, as readers accept them.

    largest: bytes all of its files may have together; fewer are allowed for a small archive, as for any file.
    """
    try:
        limit = left = min(largest, most(archive))
        for count, (name, promised, stream) in enumerate(_members(archive, limit)):
            if count >= MEMBERS:
                raise InputError(f"{archive} holds more than {MEMBERS:,} files; it was not unpacked.")
            if promised > left:
                raise InputError(f"{archive} unpacks to more than {limit:,} bytes; it was not unpacked.")
            left -= promised
            if stream is not None:
                _write(stream, _inside(into, name, archive))
    except InputError:
        raise
    except PACKED as error:
        if getattr(error, "errno", None) not in (None, *NAMES):  # an error of the disk, not of the archive
            raise
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{archive} is damaged or not an archive: {why:.300}.") from error


def _write(stream: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as out:
        while block := stream.read(BLOCK):
            out.write(block)


def is_archive(file: Path) -> bool:
    """Whether the name is that of an archive.

    >>> is_archive(Path("a.tar.gz")), is_archive(Path("train-images-idx3-ubyte.gz"))
    (True, False)
    """
    return file.name.endswith((".zip", *TARS, *SINGLE))


def _members(archive: Path, limit: int) -> Iterator[Member]:
    """The members of an archive; a folder has no content."""
    if archive.name.endswith(tuple(TARS)):
        return _tar(archive, limit)
    return _zip(archive) if archive.name.endswith(".zip") else _single(archive, limit)


def _tar(archive: Path, limit: int) -> Iterator[Member]:
    ending = max((ending for ending in TARS if archive.name.endswith(ending)), key=len)
    # as a stream, so that its bounds hold for headers too, whose promised sizes tarfile would read at once
    tar: Any
    with _bounded(TARS[ending], archive, 2 * limit) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        while (member := tar.next()) is not None:
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise InputError(f"{archive} holds {member.name!r}, which is not a plain file; it was not unpacked.")
            yield member.name, member.size, tar.extractfile(member) if member.isreg() else None
            tar.members.clear()  # they would add up


def _zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            if entry.flag_bits & 1:
                raise damaged(archive, "it is encrypted; unpack it and give the folder")
            if entry.is_dir():
                yield entry.filename, 0, None
                continue
            with packed.open(entry) as stream:
                yield entry.filename, entry.file_size, stream


def _single(archive: Path, limit: int) -> Iterator[Member]:
    with _bounded(SINGLE[archive.suffix], archive, limit) as stream:
        yield archive.stem, 0, stream


def _bounded(opening: Callable[..., Any], archive: Path, limit: int) -> io.BufferedReader:
    return io.BufferedReader(Bounded(opening(archive, "rb"), archive, limit), BLOCK)


def _inside(into: Path, name: str, archive: Path) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts:
        raise InputError(f"{archive} holds {name!r:.200}, which would land outside; it was not unpacked.")
    return into / path
