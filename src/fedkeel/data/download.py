"""Download one file over HTTP: resumed after an interruption, checked by SHA-256, renamed when complete."""

import errno
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..version import __version__

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, total bytes if the server gives them
BLOCK = 2**20
PATIENCE = 60  # seconds without a byte


def download(url: str, file: Path, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """Fetch `url` into `file`. A partial download is kept beside it, and the next call continues it.

    Nothing is kept after a wrong checksum or on a full disk.
    """
    if file.exists():  # only complete files have this name
        return file
    part, tag = file.with_name(file.name + ".part"), file.with_name(file.name + ".tag")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetch(url, part, tag, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _forget(part, tag)
            raise InputError(f"No space left in {file.parent} for {url}; make room or set FEDKEEL_DATA.") from error
        why = str(getattr(error, "reason", error)) or type(error).__name__  # urllib wraps the reason
        raise InputError(f"Cannot fetch {url}: {why}. Try again: it continues where it stopped.") from error
    except (http.client.HTTPException, ValueError) as error:  # an answer that is not HTTP
        if isinstance(error, InputError):
            raise
        raise InputError(f"Cannot fetch {url}: {type(error).__name__}. Try again.") from error
    with open(part, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if sha256 not in (None, found):
        _forget(part, tag)
        raise InputError(f"{url} is not the expected file: SHA-256 {found}, expected {sha256}. It was deleted.")
    os.replace(part, file)
    tag.unlink(missing_ok=True)
    return file


def _fetch(url: str, part: Path, tag: Path, progress: Progress | None) -> None:
    """Download the rest of the file into `part`."""
    answer, had = _ask(url, part, tag)
    with answer:
        begin, total = _extent(answer, had)
        tag.write_text(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
        done = begin
        with open(part, "r+b" if begin else "wb") as out:
            out.seek(begin)
            while block := answer.read(BLOCK):
                out.write(block)
                done += len(block)
                if progress is not None:
                    progress(part.name.removesuffix(".part"), done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection was cut after {done:,} of {total:,} bytes")


def _ask(url: str, part: Path, tag: Path) -> tuple[Any, int]:
    """The server's response to a request for the missing bytes, and the number of bytes already there."""
    had = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"fedkeel/{__version__}"}
    # The rest must come from the same version: without an ETag or a date to check it, start again.
    mark = tag.read_text(errors="replace") if tag.exists() else ""
    if had and mark and mark.isascii() and mark.isprintable():
        headers |= {"Range": f"bytes={had}-", "If-Range": mark}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE), had
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and had:  # no bytes after ours: start again
            _forget(part, tag)
            return _ask(url, part, tag)
        raise InputError(f"{url} answers {error.code} {error.reason}. See whether it has moved.") from error


def _extent(answer: Any, had: int) -> tuple[int, int | None]:
    """Where in the file this response begins, and the length of the whole file."""
    if answer.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if match and int(match[1]) == had:
            return had, None if match[2] == "*" else int(match[2])
        raise ConnectionError("the server sent another part of the file than requested")
    length = answer.headers.get("Content-Length", "")
    return 0, int(length) if re.fullmatch(r"\d{1,18}", length) else None


def _forget(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
