"""The files of TensorFlow Federated: HDF5 (needs h5py) and SQLite, client by client."""

import sqlite3
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .files import broken, optional, reading

Fields = dict[str, Any]  # one entry per field: the values of all samples of a client


def hdf5(file: Path, fields: tuple[str, ...], clients: int | None = None) -> Iterator[tuple[str, Fields]]:
    """(client, its fields as arrays) for every client, or for the first `clients` by name.

    The layout is `examples/CLIENT/FIELD`, the first axis of a field counting samples.
    """
    with reading(file, "HDF5"), open(file, "rb"):
        pass  # h5py's message for a missing file is long
    h5py = optional("h5py", "h5py", "hdf5", "Reading HDF5")
    with reading(file, "HDF5"), h5py.File(file, "r") as content:
        if "examples" not in content:
            raise broken(file, "it has no 'examples'")
        for client in sorted(content["examples"])[:clients]:
            group = content["examples"][client]
            if missing := [name for name in fields if name not in group]:
                raise broken(file, f"client '{client}' has no '{missing[0]}'")
            found = {name: np.asarray(group[name]) for name in fields}
            if len({len(values) for values in found.values()}) > 1:
                raise broken(file, f"the fields of client '{client}' have different lengths")
            yield client, found


def sqlite(
    file: Path, split: str, fields: tuple[str, ...], clients: int | None = None, limit: int | None = None
) -> Iterator[tuple[str, Fields]]:
    """(client, its fields as lists) of one split; `limit` samples per client at most.

    Table `client_metadata` lists clients, table `examples` holds their samples as tf.Example messages.
    """
    with reading(file, "SQLite"), open(file, "rb"):
        pass  # sqlite3 would create a missing file
    # immutable: no lock and no journal beside a file that may be read-only
    base = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    ask = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid LIMIT ?"
    every = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id LIMIT ?"
    try:
        for (client,) in base.execute(every, (split, -1 if clients is None else clients)).fetchall():
            samples = base.execute(ask, (split, client, -1 if limit is None else limit)).fetchall()
            parsed = [_example(file, client, message) for (message,) in samples]
            for one in parsed:
                if missing := [name for name in fields if name not in one]:
                    raise broken(file, f"a sample of client '{client}' has no '{missing[0]}'")
            yield str(client), {name: [one[name] for one in parsed] for name in fields}
    except sqlite3.Error as error:
        raise broken(file, str(error)) from error
    finally:
        base.close()


def _example(file: Path, client: str, message: bytes) -> dict[str, list[Any]]:
    """A tf.Example: {field: list of bytes, floats or integers}, in protocol-buffer wire format."""
    try:
        found: dict[str, list[Any]] = {}
        for features in _fields(message, 1):
            for entry in _fields(features, 1):
                (name,), (value,) = _fields(entry, 1), _fields(entry, 2)
                found[name.decode()] = _values(value)
        return found
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise broken(file, f"a sample of client '{client}' is not a tf.Example") from error


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
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
