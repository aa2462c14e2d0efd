"""The files of TensorFlow Federated: HDF5 (needs h5py) and SQLite, client by client."""

import io
import math
import re
import sqlite3
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import damaged, reading
from .files import FREE, check_size, library, optional

Fields = dict[str, Any]  # one entry per field: the values of all samples of a client
TEXTS = 256  # texts read at a time: their length is known only then
ENTRY = 16  # bytes of a text's entry in an HDF5 file
TABLES = {"client_metadata": ("client_id", "split_name"),
          "examples": ("client_id", "split_name", "serialized_example_proto")}  # fmt: skip


def hdf5(file: Path, fields: tuple[str, ...], clients: int | None = None) -> Iterator[tuple[str, Fields]]:
    """(client, its fields as arrays) for every client, or for the first `clients` by name.

    The layout is `examples/CLIENT/FIELD`, the first axis of a field counting samples. Links to other places and other
    files are refused.
    """
    with reading(file, "HDF5"), open(file, "rb"):
        pass  # h5py's message for a missing file is long
    h5py = optional("h5py", "h5py", "hdf5", "Reading HDF5")
    with library(file, "HDF5", RuntimeError), CheckedHeaps(file) as stream, h5py.File(stream, "r") as content:
        examples = _member(h5py, file, content, "examples", h5py.Group)
        held = 0
        for client in sorted(examples)[:clients]:
            group = _member(h5py, file, examples, client, h5py.Group)
            found = {}
            for name in fields:
                found[name], size = _values_of(h5py, file, _member(h5py, file, group, name, h5py.Dataset), held)
                held += size
            if len({len(values) for values in found.values()}) > 1:
                raise damaged(file, f"the fields of client {client!r} have different lengths")
            yield client, found


class CheckedHeaps(io.FileIO):
    """An HDF5 file whose heaps of texts are checked before the HDF5 library sees them.

    A heap is `GCOL`, a version, its size, and its objects: number, references, size. The library would wait forever at
    free space (number 0) of no size, as a block of zeros has it.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.file, self.checked = file, set[int]()

    def readinto(self, buffer: Any) -> int:
        begin, view, count = self.tell(), memoryview(buffer), 0
        while count < len(view) and (more := super().readinto(view[count:])):  # at most 2 GiB at a time
            count += more
        for found in re.finditer(rb"GCOL\x01\0\0\0", view):
            if (place := begin + found.start()) not in self.checked:
                self.checked.add(place)
                self._check(place)
        return count

    def _check(self, place: int) -> None:
        self.seek(place + 8)
        size = int.from_bytes(self.read(8), "little")
        self.seek(place)
        heap, at = self.read(min(size, self.file.stat().st_size)), 16
        while at + 16 <= len(heap):
            number, length = struct.unpack_from("<H6xQ", heap, at)
            if number == length == 0:
                raise damaged(self.file, f"its heap of texts at byte {place:,} is not whole")
            at += 16 + -(-length // 8) * 8 if number else length


def _member(h5py: Any, file: Path, group: Any, name: str, kind: Any) -> Any:
    """A member of a group that is really in this file, and of this kind."""
    shown = f"{group.name}/{name}".replace("//", "/")
    if (link := group.get(name, getlink=True)) is None:
        raise damaged(file, f"it has no {shown!r}")
    found = group[name] if isinstance(link, h5py.HardLink) else None
    if not isinstance(found, kind) or (kind is h5py.Dataset and (found.is_virtual or found.external)):
        raise damaged(file, f"{shown!r} is not a {kind.__name__.lower()} of this file")
    return found


def _values_of(h5py: Any, file: Path, field: Any, held: int) -> tuple[NDArray[Any], int]:
    """The numbers or texts of a field, and their bytes; `held`: bytes of the fields before it."""
    text = h5py.check_string_dtype(field.dtype)
    if field.ndim < 1 or (field.dtype.kind not in "biufS" and text is None):
        raise damaged(file, f"{field.name!r} has {field.ndim} axes of {field.dtype}; numbers or texts are needed")
    chunk = math.prod(field.chunks or (0,)) * field.dtype.itemsize
    check_size(file, max(held + field.nbytes, chunk), "its fields need")
    if field.dtype.kind != "O":
        return np.asarray(field), field.nbytes
    _check_lengths(file, field)
    parts, size = [np.empty((0, *field.shape[1:]), object)], 0
    for begin in range(0, len(field), TEXTS):
        parts.append(field[begin : begin + TEXTS])
        size += sum(map(len, parts[-1].flat))
        check_size(file, held + size, "its texts need")
    return np.concatenate(parts), size + field.nbytes


def _check_lengths(file: Path, field: Any) -> None:
    """Refuse texts that claim to be longer than the file: the HDF5 library allocates a length before it reads the text.

    A text's entry is its length, the address of its heap and its number there. Compressed entries are not looked at.
    """
    whole = file.stat().st_size
    blocks = [(field.id.get_offset(), field.size * ENTRY)]
    if field.chunks is not None:
        stored = [field.id.get_chunk_info(index) for index in range(field.id.get_num_chunks())]
        plain = not field.id.get_create_plist().get_nfilters()
        blocks = [(one.byte_offset, one.size) for one in stored] if plain else []
    with open(file, "rb") as content:
        for place, size in blocks:
            if place is not None:  # nothing is stored where nothing was written
                content.seek(place)
                entries = content.read(min(size, whole))
                lengths = np.frombuffer(entries, "<u4", len(entries) // ENTRY * (ENTRY // 4))[:: ENTRY // 4]
                if len(lengths) and lengths.max() > whole:
                    raise damaged(file, f"{field.name!r} has a text of {lengths.max():,} bytes, more than the file")


def sqlite(
    file: Path, split: str, fields: tuple[str, ...], clients: int | None = None, limit: int | None = None
) -> Iterator[tuple[str, Fields]]:
    """(client, its fields as lists) of one split; `limit` samples per client at most.

    Table `client_metadata` lists clients, table `examples` holds their samples as tf.Example messages.
    """
    with reading(file, "SQLite"), open(file, "rb"):
        pass  # sqlite3 would create a missing file
    ask = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid LIMIT ?"
    every = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id LIMIT ?"
    with library(file, "SQLite", sqlite3.Error):
        # immutable: no lock and no journal beside a file that may be read-only
        base = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, FREE)
            _check_tables(file, base)
            for (client,) in base.execute(every, (split, -1 if clients is None else clients)).fetchall():
                samples = base.execute(ask, (split, client, -1 if limit is None else limit)).fetchall()
                parsed = [_example(file, client, message) for (message,) in samples]
                for one in parsed:
                    if missing := [name for name in fields if name not in one]:
                        raise damaged(file, f"a sample of client {client!r:.100} has no '{missing[0]}'")
                yield str(client), {name: [one[name] for one in parsed] for name in fields}
        finally:
            base.close()


def _check_tables(file: Path, base: sqlite3.Connection) -> None:
    """Both tables must be plain ones: views, virtual tables and computed columns may give values without end."""
    for table, columns in TABLES.items():
        ask = "SELECT sql FROM sqlite_master WHERE lower(name) = ? AND type = 'table'"
        made = base.execute(ask, (table,)).fetchall()
        if len(made) != 1 or not made[0][0].upper().startswith("CREATE TABLE"):
            raise damaged(file, f"it has no table '{table}'")
        plain = {column[1].lower() for column in base.execute(f"PRAGMA table_xinfo({table})") if column[6] == 0}
        if missing := [column for column in columns if column not in plain]:
            raise damaged(file, f"its table '{table}' has no column '{missing[0]}'")


def _example(file: Path, client: Any, message: Any) -> dict[str, list[Any]]:
    """A tf.Example: {field: list of bytes, floats or integers}, in protocol-buffer wire format."""
    try:
        found: dict[str, list[Any]] = {}
        for features in _fields(message, 1):
            for entry in _fields(features, 1):
                (name,), (value,) = _fields(entry, 1), _fields(entry, 2)
                found[name.decode()] = _values(value)
        return found
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise damaged(file, f"a sample of client {client!r:.100} is not a tf.Example") from error


def _values(feature: bytes) -> list[Any]:
    """A Feature holds one of: 1 a list of bytes, 2 of floats (packed), 3 of integers (packed)."""
    for kind, content in _walk(feature):
        if kind == 1:
            return _fields(content, 1)
        if kind == 2:
            packed = b"".join(_fields(content, 1))
            return list(struct.unpack(f"<{len(packed) // 4}f", packed))
        if kind == 3:
            return list(chain.from_iterable(map(_varints, _fields(content, 1))))
    return []


def _fields(message: bytes, wanted: int) -> list[bytes]:
    return [content for number, content in _walk(message) if number == wanted]


def _walk(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(field number, content) of a message whose fields are all length-delimited."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 != 2:
            raise ValueError("not a length-delimited field")
        size, at = _varint(message, at)
        if at + size > len(message):
            raise ValueError("it ends too early")
        yield key >> 3, message[at : at + size]
        at += size


def _varints(block: bytes) -> list[int]:
    found, at = [], 0
    while at < len(block):
        value, at = _varint(block, at)
        found.append(value - 2**64 if value >= 2**63 else value)  # negative ones are two's complement
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):  # 64 bits
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")
