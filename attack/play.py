"""Commands in forked processes that share one import of torch, so that a thousand of them take minutes.

The parent imports and never computes: a forked child starts its threads anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fedkeel.lab.report.page
import fedkeel.lab.reproduce.carry_out
import fedkeel.lab.sweep.run  # noqa: F401  imported before the fork
from fedkeel.cli import main

CRASHED = 70  # exit code of a child that ended in a traceback
SLOWEST = 120.0  # seconds after which a command counts as hanging


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: its exit code, None if it was killed."""

    code: int | None
    out: str
    err: str

    @property
    def crashed(self) -> bool:
        """Whether it ended in a traceback or by a signal that nobody sent."""
        return self.code is not None and (self.code == CRASHED or self.code < 0 or "Traceback" in self.err)

    @property
    def hung(self) -> bool:
        return self.code is None


def command(words: list[str]) -> Callable[[], int]:
    """`fedkeel WORDS` as a function."""
    return lambda: main(words)


def play(do: Callable[[], int], folder: Path, kill_after: float | None = None, group: bool = True) -> Ended:
    """Run a function in a child; kill it after so many seconds, with all its children or alone."""
    folder.mkdir(parents=True, exist_ok=True)
    out, err = folder / "stdout", folder / "stderr"
    child = os.fork()
    if child == 0:
        _be_a_child(do, out, err)
    limit = time.monotonic() + (SLOWEST if kill_after is None else kill_after)
    status: int | None = None
    while status is None and time.monotonic() < limit:
        done, found = os.waitpid(child, os.WNOHANG)
        status = found if done else None
        if status is None:
            time.sleep(0.002)
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL) if group else os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return Ended(code, *(file.read_text(errors="replace") for file in (out, err)))


def _be_a_child(do: Callable[[], int], out: Path, err: Path) -> None:
    """What the child does; never returns."""
    os.setsid()
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code = CRASHED
    try:
        code = do()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else CRASHED
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def here(words: list[str]) -> Ended:
    """`fedkeel WORDS` in this process, with its output caught; quicker than a fork where nothing is killed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else CRASHED
        except Exception:
            code = CRASHED
            traceback.print_exc(file=err)
    return Ended(code, out.getvalue(), err.getvalue())


def bits(folder: Path) -> dict[str, object]:
    """What must not differ: every model's bytes, and every history without its wall seconds."""
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("model.safetensors")):
        found[str(file.relative_to(folder))] = file.read_bytes()
    for file in sorted(folder.rglob("history.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found[str(file.relative_to(folder))] = [{**row, "wall_seconds": 0} for row in rows]
    return found
