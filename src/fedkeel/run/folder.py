"""Directories that fedkeel writes: what belongs in them, who may write them, and how they are emptied.

    .fedkeel.json         marks the directory as fedkeel's; locked while a process writes here, and names that process
    config.json           what was run, every value resolved
    environment.json      versions and machine
    history.jsonl         one row per round
    history.csv           the same as a table, when the run has ended or stopped
    model.safetensors     the model under its state_dict names, buffers included
    outcome.json          how the run ended, and the checksum of its history; written last
    checkpoint/           the state between rounds while rounds remain, and the one before it
    stop                  asks the run to stop after its round (the live page writes it); the run removes it

A comparison has `config.json`, `summary.json` and a run in each `ALGORITHM/seed-N/`; a sweep has `sweep.json`, too.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ..errors import InputError
from ..files import leftover, read_json

MARK, STOP = ".fedkeel.json", "stop"
CONFIG, HISTORY, TABLE, MODEL = "config.json", "history.jsonl", "history.csv", "model.safetensors"
ENVIRONMENT, OUTCOME, CHECKPOINTS = "environment.json", "outcome.json", "checkpoint"
STATE, PREVIOUS = Path(CHECKPOINTS, "state.safetensors"), Path(CHECKPOINTS, "previous.safetensors")
PATIENCE = 5.0  # seconds: the processes of a sweep that was killed finish the round they are in
FILES = {MARK, STOP, CONFIG, HISTORY, TABLE, MODEL, ENVIRONMENT, OUTCOME, "summary.json", "sweep.json", "report.html"}


# One writer at a time


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a directory for writing, and mark it as fedkeel's; refuse it while another process holds it.

    The kernel releases the lock when the process ends, however it ends. Readers take no lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(folder / MARK) as mark:
        _lock(mark, folder)
        mark.truncate(0)
        holder = {"fedkeel": "this directory", "host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        mark.write(json.dumps(holder) + "\n")
        mark.flush()
        sweep(folder)
        yield


def _opened(mark: Path) -> IO[str]:
    no_link = getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.fdopen(os.open(mark, os.O_RDWR | os.O_CREAT | os.O_APPEND | no_link, 0o644), "r+", encoding="utf-8")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{mark} is a link, which fedkeel does not follow; remove it.") from error
        raise


def _lock(mark: IO[str], folder: Path) -> None:
    limit = time.monotonic() + PATIENCE
    try:
        if fcntl is None:
            raise OSError("this system has no flock")
        while True:
            try:
                return fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > limit:
                    break
                time.sleep(0.05)
        raise InputError(f"{folder} is being written by {_holder(mark)}. Wait for it to end, or stop it.")
    except OSError as error:
        warnings.warn(
            f"{folder} cannot be locked ({error}): make sure that no other process writes there.", stacklevel=4
        )


def _holder(mark: IO[str]) -> str:
    """Which process holds the lock, as far as it is known."""
    try:
        mark.seek(0)
        about = json.loads(mark.read())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["since"]))
        return f"process {about['pid']} on {about['host']}, since {since}"
    except (ValueError, LookupError, TypeError, OverflowError, OSError):
        return "another process"


def sweep(folder: Path) -> None:
    """Remove what a killed process was writing; the caller holds the lock."""
    for place in (folder, folder / CHECKPOINTS):
        with suppress(OSError):
            for file in place.iterdir():
                if _is_ours(leftover(file.name), place.name):
                    file.unlink(missing_ok=True)


# New directories


def check_new(folder: Path, overwrite: bool) -> None:
    """Refuse a directory that cannot be created or is not empty; with `overwrite`, one that holds foreign files."""
    above = next(place for place in (folder, *folder.parents) if place.exists() or place.is_symlink())
    if not above.is_dir() or not os.access(above, os.W_OK):
        what = "is not writable" if above.is_dir() else "is a file" if above.exists() else "is a broken link"
        raise InputError(f"Cannot create {folder}: {above} {what}. Choose another --out.")
    if not folder.exists() or not any(name != MARK for name in os.listdir(folder)):
        return
    if not overwrite:
        raise InputError(
            f"{folder} is not empty. Choose another --out, or add --overwrite (in Python: overwrite=True)."
        )
    if folder.is_symlink():
        raise InputError(f"{folder} is a link, so it is not emptied. Choose another --out.")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise InputError(
            f"{folder} is the current directory or a parent of it, so it is not emptied. Choose another --out."
        )
    contents(folder)


def check_own(folder: Path) -> None:
    """Refuse to write over files of our names in a directory that fedkeel did not write."""
    for name in (*sorted(FILES - {STOP}), str(STATE), str(PREVIOUS)):
        if (folder / name).exists() and not _is_marked(folder):
            raise InputError(f"{folder / name} was not written by fedkeel. Choose another directory for the run.")


def new_folder(folder: Path, overwrite: bool) -> None:
    """Make room for a run: `check_new`, then empty the directory if it holds something."""
    check_new(folder, overwrite)
    if not folder.exists() or not any(folder.iterdir()):
        return
    with locked(folder):
        inside = contents(folder)
        for place in inside:
            if place.parent.name.startswith("seed-") and place.name == MARK:
                with locked(place.parent):  # refuses while a run below is being written
                    pass
        for place in reversed(inside):
            place.rmdir() if place.is_dir() else place.unlink(missing_ok=True)


def contents(folder: Path) -> list[Path]:
    """Everything in a directory that fedkeel wrote, folders before their contents, without the mark at its top.

    Refuses, by name, anything else: a foreign file, a link, a folder that holds no run.
    """
    if not _is_marked(folder):
        raise InputError(f"{folder} was not written by fedkeel, so it is not emptied. Choose another --out.")
    found: list[Path] = []
    _collect(folder, found)
    return [place for place in found if place != folder / MARK]


def _collect(folder: Path, found: list[Path]) -> None:
    """Add the contents of a run's or a comparison's directory."""
    for place in sorted(folder.iterdir()):
        found.append(place)
        if place.is_symlink() or not (place.is_dir() or _is_ours(leftover(place.name) or place.name, folder.name)):
            raise _foreign(place)
        if not place.is_dir():
            continue
        if place.name == CHECKPOINTS or re.fullmatch(r"seed-\d+", place.name):
            _collect(place, found)
        else:  # an algorithm's folder
            for run in sorted(place.iterdir()):
                found.append(run)
                if run.is_symlink() or not run.is_dir() or not re.fullmatch(r"seed-\d+", run.name):
                    raise _foreign(run)
                if any(run.iterdir()) and not _is_marked(run):
                    raise _foreign(run)
                _collect(run, found)


def _is_ours(name: str | None, folder: str) -> bool:
    """Whether fedkeel writes files of this name into such a folder."""
    return name in ({STATE.name, PREVIOUS.name} if folder == CHECKPOINTS else FILES)


def _is_marked(folder: Path) -> bool:
    """Whether fedkeel made this directory; version 0.1 left no mark but a configuration."""
    if (folder / MARK).is_file() and not (folder / MARK).is_symlink():
        return True
    try:
        return "fedkeel" in read_json(folder / CONFIG, edited=True)
    except InputError:
        return False


def _foreign(place: Path) -> InputError:
    return InputError(f"{place} was not written by fedkeel, so nothing was deleted. Move it, or choose another --out.")
