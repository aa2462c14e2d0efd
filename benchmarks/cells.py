"""Cells of a table: processes are started, take turns, are watched and, past their caps, ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"  # the fedkeel that is measured, unless a cell is given another one
VENVS, DATA, REQUIREMENTS = HERE / ".venvs", HERE / ".data", HERE / "requirements"
PATIENCE = 900.0  # seconds for one step of an installation
TURNS = "{turns}"  # in a cell's arguments: where it asks for its next turn
EVERY, SELDOM = 0.5, 5.0  # seconds between two looks at the memory, which disturb; of one that measures by itself


class Cell:
    """A process that plays when it is its turn; also one that knows of no turns, and plays on to its end."""

    def __init__(
        self,
        python: str,
        module: str,
        arguments: Sequence[str],
        cap: float,
        every: float = EVERY,
        source: Path = SOURCE,
    ) -> None:
        self.cap, self.spent, self.peak = cap, 0.0, 0  # seconds it may take, and has; bytes
        self.every = every  # seconds between two looks at its memory
        self.files = ExitStack()
        self.out = self.files.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - `close` does
        self.told = self.files.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        turns = str(Path(self.files.enter_context(tempfile.TemporaryDirectory()), "turns"))
        self.line: socket.socket | None = None
        self.door = self.files.enter_context(socket.socket(socket.AF_UNIX))
        self.door.bind(turns)
        self.door.listen(1)
        self.door.settimeout(every)
        paths = [str(HERE)] + ([str(source)] if python == sys.executable else [])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [python, "-m", module, *(text.replace(TURNS, turns) for text in arguments)],
            cwd=HERE, env=environment, stdout=self.out, stderr=self.told, start_new_session=True,
        )  # fmt: skip

    def turn(self) -> bool:
        """Let it play until it asks for its next turn; False if it has ended, or is past its cap."""
        began = time.monotonic()
        if self.line is not None:
            with suppress(ConnectionError):  # it ended in between
                self.line.sendall(b".")
        while self.process.poll() is None and self.spent + time.monotonic() - began < self.cap:
            try:
                if self.line is None:
                    self.line = self.files.enter_context(self.door.accept()[0])
                    self.line.settimeout(self.every)
                if self.line.recv(1):
                    self.spent += time.monotonic() - began
                    return True
                self.process.wait(self.every)  # it has hung up, and ends
            except (TimeoutError, ConnectionError, subprocess.TimeoutExpired):
                self.peak = max(self.peak, tree_memory(self.process.pid))  # not in short turns, which it would disturb
        return False

    def close(self) -> dict[str, Any]:
        """The line of JSON it printed, with the peak memory; or {"error": one line}. Ends it if need be."""
        capped = self.process.poll() is None
        end(self.process)
        with self.files:
            self.out.seek(0), self.told.seek(0)
            lines = [line for line in self.out.read().splitlines() if line.startswith("{")]
            errors = self.told.read().strip().splitlines()
        if capped:
            return {"error": f"over the cap of {self.cap:g} s"}
        if self.process.returncode or not lines:
            return {"error": errors[-1][:200] if errors else f"exit code {self.process.returncode}, and no word"}
        return {**json.loads(lines[-1]), "memory_mb": self.peak / 2**20}


def in_turns(cells: Iterable[Cell]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, what came out) of each, as they finish: one starts after another, then they take turns."""
    playing: dict[int, Cell] = {}
    try:
        for number, cell in enumerate(cells):
            playing[number] = cell
            if not cell.turn():
                yield number, playing.pop(number).close()
        while playing:
            for number, cell in list(playing.items()):
                if not cell.turn():
                    yield number, playing.pop(number).close()
    finally:
        for cell in playing.values():
            cell.close()


def run(python: str, module: str, arguments: Sequence[str], cap: float) -> dict[str, Any]:
    """The same for one process alone, which may have processes of its own take turns."""
    ((_, found),) = in_turns([Cell(python, module, arguments, cap, SELDOM)])
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End this process and all it started."""
    for pid in reversed(descendants(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):  # those whose parent has ended, if they stayed in its session
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    """This process and those below it, parents first."""
    found, place = [pid], 0
    while place < len(found):
        for children in Path(f"/proc/{found[place]}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
                found += [int(child) for child in children.read_text().split()]
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
