"""The one place where files meet the program.

Reading turns damage of any kind into an `InputError` that names the file and the reason. Writing is atomic: a file is
written beside its place, synced to the disk and renamed. JSON objects and tensors carry a checksum of their own, so
that a flipped bit is noticed; a checksum detects damage, it does not protect from somebody who wants to deceive.
"""

from __future__ import annotations

import csv
import hashlib
import json
import lzma
import os
import re
import struct
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from .errors import InputError
from .messages import header

BLOCK = 2**22  # numbers written or bytes read at a time
CHECKSUM = "sha256"  # the key of the checksum, in JSON objects and in the metadata of tensors
UNKNOWN = "0" * 64  # stands where the checksum will be, while it is computed

DAMAGE = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError,
    NotImplementedError, ZeroDivisionError, SyntaxError, struct.error, csv.Error, zlib.error, lzma.LZMAError,
    safetensors.SafetensorError,
)  # fmt: skip


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
    except FileNotFoundError:
        raise InputError(f"{file} is not there.") from None
    except DAMAGE as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{file} cannot be read as {what}: {why[:300].rstrip('.')}.") from error


def damaged(file: Path, why: str) -> InputError:
    """The error for a file whose contents are not what was written."""
    return InputError(f"{file} is damaged or not the expected file: {why}.")


@contextmanager
def writing(file: Path) -> Iterator[Path]:
    """Give a path beside `file` to write to, then sync and rename it; an error names `file` and leaves nothing."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        with open(beside, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(beside, file)
    except OSError as error:  # the system's own error does not name the file when the disk is full
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error
    finally:
        beside.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write a text file atomically."""
    with writing(file) as beside:
        beside.write_text(text, encoding="utf-8")


def leftover(name: str) -> str | None:
    """The name of the file that a killed process was writing here.

    >>> leftover(".config.json.4711"), leftover("config.json")
    ('config.json', None)
    """
    found = re.fullmatch(r"\.(.+)\.\d+", name)
    return None if found is None else found[1]


def remove_leftovers(file: Path) -> None:
    """Remove what killed processes were writing in the place of this file."""
    with suppress(OSError):
        for other in file.parent.iterdir():
            if leftover(other.name) == file.name:
                other.unlink(missing_ok=True)


# JSON and TOML


def plain(value: Any) -> Any:
    """A value as a JSON file gives it back.

    A user's own part may hold any object; such a run is marked as not rerunnable, so its repr is enough.
    """
    return json.loads(json.dumps(value, default=repr))


def checksum(value: Any) -> str:
    """The checksum of a JSON value, which does not depend on the order of keys or on spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its checksum."""
    known = plain({name: one for name, one in value.items() if name != CHECKSUM})
    write_text(file, json.dumps(known | {CHECKSUM: checksum(known)}, indent=2) + "\n")


def read_json(file: Path, edited: bool = False) -> dict[str, Any]:
    """Read a JSON object and compare it with its checksum, if it has one; `edited`: people may change this file."""
    with reading(file, "JSON"):
        value = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise InputError(f"{file} does not hold a JSON object.")
    known = value.pop(CHECKSUM, None)
    if not edited and known is not None and known != checksum(value):
        raise damaged(file, "its contents do not match their checksum")
    return value


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file."""
    with reading(file, "TOML"):
        return tomllib.loads(file.read_text(encoding="utf-8"))


# Tensors


def write_tensors(file: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """Write tensors and a JSON object as safetensors, block by block, as they may not fit into RAM twice.

    Gives the checksum, which covers the whole file, with zeros where the checksum itself stands.
    """
    head, order = header(tensors, {"fedkeel": json.dumps(about, default=repr), CHECKSUM: UNKNOWN})
    sum = hashlib.sha256(head)
    with writing(file) as beside, open(beside, "wb") as out, ThreadPoolExecutor(1) as beside_it:
        out.write(head)
        for name in order:
            for block in torch.split(tensors[name].detach().reshape(-1), BLOCK):
                content = block.cpu().contiguous().view(torch.uint8).numpy().data
                added = beside_it.submit(sum.update, content)  # while the block is written, so it costs little time
                out.write(content)
                added.result()
        out.seek(head.index(UNKNOWN.encode()))
        out.write(sum.hexdigest().encode())
    return sum.hexdigest()


def check_tensors(file: Path) -> dict[str, Any]:
    """Compare a file of tensors with its checksum; gives the JSON object it was written with, and the checksum."""
    with reading(file, "tensors"):
        with safetensors.safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
        if CHECKSUM not in about:
            raise damaged(file, "it has no checksum; fedkeel 0.1 wrote none")
        sum, known = hashlib.sha256(), about[CHECKSUM].encode()
        with open(file, "rb") as content:
            size = content.read(8)
            head = content.read(int.from_bytes(size, "little"))
            sum.update(size + head.replace(known, UNKNOWN.encode(), 1))
            while block := content.read(BLOCK):
                sum.update(block)
        if sum.hexdigest() != about[CHECKSUM]:
            raise damaged(file, "its contents do not match their checksum")
        value = json.loads(about["fedkeel"])
    if not isinstance(value, dict):
        raise damaged(file, "its description is not a JSON object")
    return value | {CHECKSUM: about[CHECKSUM]}


def prefix_checksum(file: Path, length: int) -> str | None:
    """The checksum of the first `length` bytes of a file, None if it is shorter."""
    with reading(file, "text"), open(file, "rb") as content:
        begin = content.read(length)
    return hashlib.sha256(begin).hexdigest() if len(begin) == length else None
