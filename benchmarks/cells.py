"""One cell of a table: a process is started, watched and, past its cap, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VENVS, DATA, REQUIREMENTS = HERE / ".venvs", HERE / ".data", HERE / "requirements"
PATIENCE = 900.0  # seconds for one step of an installation
EVERY = 0.5  # seconds between two looks at the memory


def run(python: str, module: str, arguments: Sequence[str], cap: float) -> dict[str, Any]:
    """The line of JSON that `python -m module` prints, with the peak memory; or {"error": one line}."""
    paths = [str(HERE)] + ([str(HERE.parent / "src")] if python == sys.executable else [])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [python, "-m", module, *arguments], cwd=HERE, env=environment, stdout=out, stderr=told,
            start_new_session=True,
        )  # fmt: skip
        peak, began = 0, time.monotonic()
        try:
            while process.poll() is None and time.monotonic() - began < cap:
                peak = max(peak, tree_memory(process.pid))
                try:
                    process.wait(EVERY)
                except subprocess.TimeoutExpired:
                    continue
            capped = process.poll() is None
        finally:
            end(process)
        out.seek(0), told.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
        errors = told.read().strip().splitlines()
    if capped:
        return {"error": f"over the cap of {cap:g} s"}
    if process.returncode or not lines:
        return {"error": errors[-1][:200] if errors else f"exit code {process.returncode}, and no word"}
    return {**json.loads(lines[-1]), "memory_mb": peak / 2**20}


def end(process: subprocess.Popen[bytes]) -> None:
    """End this process and all it started."""
    for pid in reversed(descendants(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def descendants(pid: int) -> list[int]:
    """This process and those below it, parents first."""
    found, place = [pid], 0
    while place < len(found):
        tasks = Path(f"/proc/{found[place]}/task")
        try:
            for task in tasks.iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            pass
        place += 1
    return found


def tree_memory(pid: int) -> int:
    """Bytes of a process and all below it, shared pages counted once (PSS)."""
    total = 0
    for each in descendants(pid):
        try:
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return total


def python_of(peer: str | None) -> str:
    """The interpreter of a peer's own environment; the one that runs this for the project."""
    return sys.executable if peer is None else str(VENVS / peer / "bin" / "python")


def install(peer: str) -> str | None:
    """Make a peer's environment unless it is there; one line if that does not work."""
    where, wanted = VENVS / peer, REQUIREMENTS / f"{peer}.txt"
    stamp = where / ".installed"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return None
    print(f"installing {peer} ...", file=sys.stderr, flush=True)
    pip = [python_of(peer), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = [line for line in wanted.read_text().splitlines() if line.startswith("torch==")]
    commands = [
        [sys.executable, "-m", "venv", str(where)],
        *([[*pip, *torch]] if torch else []),  # with what its build needs
        [*pip, "--no-deps", "-r", str(wanted)],  # the list is complete: no torchvision, no CUDA comes in
    ]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return f"does not install within {PATIENCE:g} s"
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines()
            return f"does not install: {told[-1][:200] if told else done.returncode}"
    stamp.write_text(wanted.read_text())
    return None
