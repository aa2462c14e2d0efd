"""Processes that are started, watched and stopped: Flower's programs, with nothing of theirs left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError, install_command

# No telemetry, no look for newer versions, and nothing is installed because an app asks for it.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
PATIENCE = 5.0  # seconds that a process has to end when it is asked to


@dataclass
class Process:
    """A program of Flower's that runs in the background; its output goes to a file."""

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    running: subprocess.Popen[bytes] | None = None
    family: set[int] = field(default_factory=set)  # it and the processes that it has started

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it, or start it again. What it writes is readable by its owner alone, its database included."""
        with open(self.log, "ab") as out:
            self.running = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(self.environment),
                cwd=self.folder, start_new_session=True, umask=0o077,
            )  # fmt: skip

    def is_alive(self) -> bool:
        """Whether it runs; what it has started is noted, as those processes leave its group."""
        if self.running is None or self.running.poll() is not None:
            return False
        self.family |= {self.running.pid, *descendants(self.running.pid)}
        return True

    def ask_to_stop(self) -> None:
        """Ask it to end."""
        if self.is_alive() and self.running is not None:
            self.running.terminate()

    def kill(self) -> None:
        """End it at once, as a crash would, and leave what it has started."""
        if self.is_alive() and self.running is not None:
            self.running.kill()
            self.running.wait()

    def stop(self) -> None:
        """End it and whatever it has started."""
        self.ask_to_stop()
        if self.running is not None:
            with suppress(subprocess.TimeoutExpired):
                self.running.wait(PATIENCE)
            self.running.kill()
        for pid in self.family:
            if is_ours(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        if self.running is not None:
            self.running.wait()
        self.family.clear()


def program(name: str) -> str:
    """The path of one of Flower's programs, which stands beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise InputError(f"{name} is not installed beside {sys.executable}: {install_command('flower')}")
    return str(path)


def free_ports(number: int) -> list[int]:
    """So many ports of this machine that nobody uses now.

    >>> len(set(free_ports(3)))
    3
    """
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def listens(port: int) -> bool:
    """Whether somebody accepts connections on this port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for_port(port: int, process: Process, seconds: float = 60.0) -> None:
    """Wait until the process accepts connections."""
    end = time.monotonic() + seconds
    while not listens(port):
        if not process.is_alive() or time.monotonic() > end:
            raise InputError(f"{process.name} does not start; see {process.log}: {last_line(process.log)}")
        time.sleep(0.1)


def last_line(file: Path) -> str:
    """The last line of a text file that is not empty."""
    lines = file.read_text(errors="replace").split("\n") if file.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def descendants(pid: int) -> set[int]:
    """The processes that this one has started, and those that they have started; none where there is no /proc."""
    parents = {}
    for entry in _numbers(Path("/proc")):
        with suppress(OSError, ValueError, IndexError):
            parents[entry] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended; one whose parent has not asked for its end is a zombie.

    >>> runs(os.getpid())
    True
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        pass
    try:  # where there is no /proc
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_ours(pid: int) -> bool:
    """Whether a process is still one of Flower's, as numbers are used again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"flower-" in command or b"flwr-" in command or b"flwr" in command


def _numbers(folder: Path) -> Iterable[int]:
    return [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.exists() else []
