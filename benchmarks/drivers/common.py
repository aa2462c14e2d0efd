"""What every driver shares: its arguments, the clock around rounds, and the one line of JSON it prints."""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from workloads import WORKLOADS, Data, Workload, load

TURN = 1.0  # seconds, and at least one round, until others have theirs


class Clock:
    """Times rounds, in turns with other processes; enough is `seconds` of them after the first, and one at least."""

    def __init__(self, launched: float, seconds: float, turns: str | None = None, turn: float = TURN) -> None:
        self.launched, self.seconds, self.turn = launched, seconds, turn
        self.startup: float | None = None  # seconds from the launch to the end of the first round
        self.lengths: list[float] = []  # of every round after that
        self.line = None if turns is None else socket.socket(socket.AF_UNIX)
        if self.line is not None:
            self.line.connect(turns)

    @property
    def rounds(self) -> int:
        """How many have been played."""
        return len(self.lengths) + (self.startup is not None)

    def round_done(self) -> bool:
        """Call after every round; True means stop."""
        now = time.perf_counter()
        if self.startup is None:
            self.startup, self.since = time.time() - self.launched, -math.inf
        else:
            self.lengths.append(now - self.began)
        enough = bool(self.lengths) and sum(self.lengths) >= self.seconds
        self.began = now
        if self.line is not None and not enough and now - self.since >= self.turn:
            self.line.sendall(b".")  # the others' turn
            self.line.recv(1)
            self.began = self.since = time.perf_counter()
        return enough


Options = dict[str, str]
Losses = tuple[float, float]  # on the probe, of the global model before and after
Drive = Callable[[Workload, Data, Clock, Options], Losses | None]  # None: this one does not train


def threads(work: Workload) -> int:
    """What a framework of one process gets: one thread for the tiny model, which more slow down, else all cores."""
    return 1 if work.name == "W1" else len(os.sched_getaffinity(0))


def main(drive: Drive, packages: Sequence[str], quiet: bool = False) -> None:
    """Run one driver on one workload and print what came out (unless another process of the same driver does)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("data", type=Path, help="folder with the workloads' data")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--launched", type=float, default=time.time(), help="when the process was started")
    parser.add_argument("--turns", help="the socket to ask for the next turn; without one, nobody else plays")
    parser.add_argument("--turn", type=float, default=TURN, help="seconds of a turn; 0: a round, whose length is told")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    work = WORKLOADS[given.workload]
    clock = Clock(given.launched, given.seconds, None if quiet else given.turns, given.turn)
    options = dict(text.split("=", 1) for text in given.option)
    losses = drive(work, load(work, given.data), clock, options)
    line = json.dumps(report(work, clock, losses, packages))
    if not quiet:
        print(line, flush=True)


def report(work: Workload, clock: Clock, losses: Losses | None, packages: Sequence[str]) -> dict[str, object]:
    """The line a driver prints."""
    if losses is not None and not losses[1] < losses[0]:
        raise SystemExit("the loss went from {:.4f} to {:.4f}: this driver did not train".format(*losses))
    return {
        "steps_per_s": work.steps_per_round / statistics.median(clock.lengths),
        "rounds": clock.rounds,
        "steps": clock.rounds * work.steps_per_round,
        "startup_s": clock.startup,
        "losses": losses,
        "own_peak_mb": own_peak(),
        **({} if clock.turn else {"lengths": clock.lengths}),
        "versions": {name: _version(name) for name in packages},
    }


def own_peak() -> float | None:
    """The most memory this process has held (MB, resident), without its children; None where Linux does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # run from its sources
        return None
