"""Ways to damage a file, drawn at random: bytes, JSON values, lines, and another run's file in its place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRONG = [
    None, True, -1, 0, 1, 2, 99, 10**23, 10**400, 0.5, -0.0, 1e300, float("nan"), float("inf"), "", "x", "../..",
    "\x00", [], {}, [[]], "1e5", "fedavg", "\ud800",
]  # fmt: skip


def flip(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def grow(content: bytes, draw: random.Random) -> bytes:
    return content + draw.randbytes(draw.randint(1, 64))


def blank(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content))
    return content[:at] + bytes(min(512, len(content) - at)) + content[at + 512 :]


def insert(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content))
    return content[:at] + draw.randbytes(draw.randint(1, 16)) + content[at:]


def shuffle(content: bytes, draw: random.Random) -> bytes:
    a, b, c = sorted(draw.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def digit(content: bytes, draw: random.Random) -> bytes:
    """Another digit in the place of one: still valid JSON, another number."""
    places = [at for at, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return flip(content, draw)
    at = draw.choice(places)
    return content[:at] + bytes([48 + (content[at] - 48 + draw.randint(1, 9)) % 10]) + content[at + 1 :]


def lines(content: bytes, draw: random.Random) -> bytes:
    """A line twice, missing, or in another's place."""
    rows = content.splitlines(keepends=True)
    a, b = draw.randrange(len(rows)), draw.randrange(len(rows))
    how = draw.randrange(3)
    if how == 0:
        del rows[a]
    elif how == 1:
        rows.insert(a, rows[b])
    else:
        rows[a], rows[b] = rows[b], rows[a]
    return b"".join(rows)


def value(content: bytes, draw: random.Random) -> bytes:
    """A JSON value of another kind, a key less or more, or nesting as deep as the file is long."""
    text = content.decode(errors="replace")
    rows = text.splitlines()
    many = len(rows) > 1 and rows[0].startswith("{") and rows[0].endswith("}")  # JSON lines
    at = draw.randrange(len(rows)) if many else 0
    try:
        whole = json.loads(rows[at] if many else text)
    except (ValueError, RecursionError):  # changed before
        return insert(content, draw)
    if not isinstance(whole, dict | list):
        return insert(content, draw)
    if draw.random() < 0.05:
        deep = "[" * 100_000
        return deep.encode()
    _change(whole, draw)
    changed = json.dumps(whole)
    if many:
        rows[at] = changed
        changed = "\n".join(rows) + "\n"
    return changed.encode("utf-8", "surrogatepass")


def _change(whole: Any, draw: random.Random) -> None:
    inside: Any = whole
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(inside[key], dict | list) and inside[key] and draw.random() < 0.7:
            inside = inside[key]
            continue
        how = draw.random()
        if how < 0.2 and isinstance(inside, dict):
            del inside[key]
        elif how < 0.3 and isinstance(inside, dict):
            inside["surplus"] = draw.choice(WRONG)
        else:
            inside[key] = draw.choice(WRONG)
        return


BYTES: list[Callable[[bytes, random.Random], bytes]] = [flip, flip, cut, grow, blank, insert, shuffle]
TEXT: list[Callable[[bytes, random.Random], bytes]] = [*BYTES, digit, digit, lines, value, value]


def _same_json(file: Path, before: bytes, after: bytes) -> bool:
    """Whether only spaces or the order of keys changed."""
    try:
        return file.suffix == ".json" and bool(json.loads(before) == json.loads(after))
    except (ValueError, RecursionError):
        return False


def damage(file: Path, draw: random.Random, other: Path | None = None) -> str:
    """Damage a file in place, differently from what it was; gives the way in a word."""
    before = file.read_bytes()
    kinds = TEXT if file.suffix in (".json", ".jsonl", ".csv", ".toml") else BYTES
    for _ in range(20):
        way = draw.random()
        if way < 0.04:
            file.unlink()
            return "removed"
        if way < 0.06:
            file.unlink()
            file.mkdir()
            return "a folder"
        if way < 0.12 and other is not None and other.read_bytes() != before:
            file.write_bytes(other.read_bytes())
            return "another run's"
        do = draw.choice(kinds)
        after = do(before, draw) if before else draw.randbytes(8)
        if after != before and not _same_json(file, before, after):
            file.write_bytes(after)
            return do.__name__
    raise AssertionError(f"{file} cannot be damaged")
