"""Damage a small file of every format of data sets, and read it the way users do.

Each format is read in a child process, since a library that meets damage may crash or hang; the case that was begun
last is then the failure. A case depends on format, seed and number alone: `python attack/read.py hdf5 0 17` shows it.
"""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import os
import random
import re
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fuzz
import mutate
from formats import FORMATS, NUMBERS

from fedkeel.errors import InputError

PATIENCE = 120  # seconds a case may take, on a machine that may be busy with other work
GROWTH = 2**30  # bytes of memory a case may need
TEXT = (".json", ".jsonl", ".csv", ".arff", ".data", ".xml", ".txt", ".word_count", "")
TOKENS = [
    "", "0", "-1", "1e400", "-1e39", "nan", "inf", "9" * 19, "9" * 30, "9" * 5000, "99999999", "4294967296", "0.5",
    "1_0", "\u0663", "\u00b2", "x", "?", "\x00", "\ufeff", "a" * 3000, "'", '"', ",", "\r", "\n", "{", "}", "[" * 2000,
    "../x", "null", "true", "[]", "<a>" * 500, "&a;", "\ud800",
]  # fmt: skip
UNDAMAGED = "undamaged"  # what the first case of a format is
MARKS: dict[bytes, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": (gzip.decompress, partial(gzip.compress, compresslevel=1)),
    b"BZ": (bz2.decompress, bz2.compress),
    b"\xfd7": (lzma.decompress, partial(lzma.compress, preset=0)),
}  # how a compressed file begins -> decompress, compress
Way = Callable[[bytes, random.Random], bytes]


@dataclass
class Counts(fuzz.Counts):
    """What became of the damaged files of one format."""

    skipped: str = ""


def number(content: bytes, draw: random.Random) -> bytes:
    """A number that means something to programs in the place of some bytes, often near an end."""
    width, order = draw.choice([1, 2, 4, 8]), draw.choice(["little", "big"])
    near = min(len(content), draw.choice([16, 64, 512, len(content)]))
    at = draw.randrange(near) if draw.random() < 0.7 else len(content) - 1 - draw.randrange(near)
    value = draw.choice(NUMBERS) % 2 ** (8 * width)
    return content[:at] + value.to_bytes(width, order) + content[at + width :]


def token(content: bytes, draw: random.Random) -> bytes:
    """Another number or word in the place of one."""
    places = [found.span() for found in re.finditer(rb"[^\s,:;{}\[\]\"'<>=]+", content)]
    begin, end = draw.choice(places) if places else (0, len(content))
    return content[:begin] + draw.choice(TOKENS).encode("utf-8", "surrogatepass") + content[end:]


BYTES: list[Way] = [*mutate.BYTES, number, number, number]
WORDS: list[Way] = [*mutate.TEXT, token, token, token]


def damage(file: Path, draw: random.Random) -> str:
    """Damage a file in place, compressed ones often inside; gives the ways."""
    if draw.random() < 0.02:
        file.unlink()
        if draw.random() < 0.5:
            file.mkdir()
        return "no file"
    content = file.read_bytes()
    unpack, pack = MARKS.get(content[:2] if draw.random() < 0.8 else b"", (bytes, bytes))
    content = unpack(content)
    names = []
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        way = draw.choice(WORDS if file.suffix in TEXT else BYTES)
        content = way(content, draw) if content else draw.randbytes(8)
        names.append(way.__name__)
    if file.suffix == ".png" and draw.random() < 0.8:
        content = with_checksums(content)
    file.write_bytes(pack(content))
    return " ".join(names)


def with_checksums(content: bytes) -> bytes:
    """A PNG whose checksums are right, so that the damage is read at all."""
    changed, at = bytearray(content), 8
    while at + 12 <= len(content):
        (size,) = struct.unpack_from(">I", content, at)
        end = at + 8 + size
        if end + 4 > len(content):
            break
        struct.pack_into(">I", changed, end, zlib.crc32(content[at + 4 : end]))
        at = end + 4
    return bytes(changed)


def prepare(kind: str, place: Path, seed: int, case: int) -> str:
    """Write a damaged folder; gives the way in a few words."""
    draw, known = random.Random(f"{kind} {seed} {case}"), FORMATS[kind]
    whole = place.parent / "whole"
    if not whole.exists():
        whole.mkdir(parents=True)
        known.write(whole)
    shutil.copytree(whole, place)
    if case == 0:
        return UNDAMAGED
    files = sorted(file for file in place.rglob("*") if file.is_file())
    file = draw.choice(files)
    if known.promise is not None and draw.random() < 0.3:
        known.promise(file, draw)
        return f"{file.name}: promise"
    return f"{file.name}: {damage(file, draw)}"


def read_one(kind: str, place: Path, before: int) -> str:
    """Read a damaged folder: "accepted", "refused", or what is wrong."""
    try:
        FORMATS[kind].read(place)
        outcome = "accepted"
    except InputError as error:
        text = str(error)
        outcome = "refused" if "\n" not in text and len(text) < 2000 else f"not one short line: {text[:300]}"
        if not kind.startswith("task") and str(place) not in text:
            outcome = f"no file is named: {text[:300]}"
    except BaseException:
        outcome = traceback.format_exc()[-700:]
    grown = memory() - before
    return outcome if grown < GROWTH else f"{grown / 2**30:.1f} GiB more memory, {outcome}"


def memory() -> int:
    """The most bytes of memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(kind: str, folder: Path, seed: int, cases: range, end: float, out: int) -> None:
    """Read case after case, and report each when it begins and ends; a process ends after a case that failed."""
    resource.setrlimit(resource.RLIMIT_AS, (fuzz.MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    warnings.simplefilter("error")  # users would see them
    before = memory()
    for case in cases:
        if time.monotonic() >= end:
            return
        place = folder / f"case-{case}"
        way = prepare(kind, place, seed, case)
        os.write(out, json.dumps([case, way]).encode() + b"\n")
        outcome = read_one(kind, place, before)
        if way == UNDAMAGED and outcome == "refused":
            outcome = "an undamaged file is refused"
        os.write(out, json.dumps([case, outcome]).encode() + b"\n")
        if outcome not in ("accepted", "refused"):
            return
        for left in folder.glob(f"case-{case}*"):
            shutil.rmtree(left)


def watch(counts: Counts, process: int, source: int) -> int:
    """Count what a child reports until it ends; gives the number of the last case it began, or -1."""
    begun, last, text = "", -1, b""
    while True:
        ready, _, _ = select.select([source], [], [], PATIENCE)
        block = os.read(source, 2**16) if ready else b""
        if not block:
            break
        *rows, text = (text + block).split(b"\n")
        for case, what in map(json.loads, rows):
            if not begun:
                begun, last = what, case
                continue
            counts.cases += 1
            if what in ("accepted", "refused"):
                setattr(counts, what, getattr(counts, what) + 1)
            else:
                counts.failures.append(f"case {case}, {begun}: {what}")
            begun = ""
    if not ready:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if begun:
        counts.cases += 1
        why = f"the process ended with {code}" if ready else f"no end after {PATIENCE} s"
        counts.failures.append(f"case {last}, {begun}: {why}")
    elif code != 0:
        counts.failures.append(f"after case {last}: the process ended with {code}")
    return last


def fuzz_format(kind: str, seconds: float, folder: Path, seed: int, cases: int | None) -> Counts:
    """Damaged files of one format, for so many seconds or cases."""
    counts, needs = Counts(kind), FORMATS[kind].needs
    if needs is not None and importlib.util.find_spec(needs) is None:
        counts.skipped = f"{needs} is not installed"
        return counts
    end, most, first = time.monotonic() + seconds, 10**9 if cases is None else cases, 0
    while first < most and time.monotonic() < end and len(counts.failures) < 20:
        source, out = os.pipe()
        process = os.fork()
        if process == 0:
            be_a_child(partial(child, kind, folder, seed, range(first, most), end, out))
        os.close(out)
        last = watch(counts, process, source)
        os.close(source)
        if last < 0:
            break
        first = last + 1
    return counts


def be_a_child(do: Callable[[], None]) -> None:
    """Run a function and leave the process."""
    code = 1
    try:
        do()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def fuzz_readers(seconds: float, folder: Path, seed: int = 0, cases: int | None = None) -> list[Counts]:
    """Damaged files of every format, for so many seconds in all, or so many cases of each; failed ones are kept."""
    found = []
    end = time.monotonic() + seconds
    for done, kind in enumerate(FORMATS):
        share = (end - time.monotonic()) / (len(FORMATS) - done)
        found.append(fuzz_format(kind, share, folder / re.sub(r"\W+", "-", kind), seed, cases))
    return found


def main(words: list[str]) -> None:
    """Show one case: the way, and what reading does."""
    kind, seed, case = words[0], int(words[1]), int(words[2])
    place = Path(tempfile.mkdtemp(prefix="fedkeel-case-")) / "case"
    print(place, prepare(kind, place, seed, case), read_one(kind, place, memory()), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
