"""What the sections share: their arguments, and the length of a fedkeel round."""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import fedkeel as fk

WARM_UP = 2  # rounds, in which everybody comes once


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    return parser.parse_args()


def round_seconds(
    task: fk.Task, algorithm: str, world: fk.World, seconds: float, engine: str | fk.Local = "auto", most: int = 1000
) -> float:
    """The median length of a round, over `seconds` of them after the first (two at least)."""
    ends: list[float] = []

    def watch(row: dict[str, float]) -> bool:
        if row["round"]:
            ends.append(time.perf_counter())
        return len(ends) > 2 and (ends[-1] - ends[0] > seconds or len(ends) > most)

    fk.train(task, algorithm, world, rounds=10**6, engine=engine, eval_every=10**6, callbacks=[watch])
    return statistics.median(after - before for before, after in itertools.pairwise(ends))


class Paced:
    """A training that plays one round when asked, so that several can take turns round by round."""

    def __init__(self, task: fk.Task, algorithm: str, world: fk.World) -> None:
        self.go, self.done, self.last = threading.Semaphore(0), threading.Semaphore(0), False
        self.error: Exception | None = None

        def watch(row: dict[str, float]) -> bool:
            self.done.release()
            self.go.acquire()
            return self.last

        def play() -> None:
            try:
                fk.train(task, algorithm, world, rounds=10**6, eval_every=10**6, callbacks=[watch])
            except Exception as error:
                self.error = error
            self.done.release()

        self.thread = threading.Thread(target=play, daemon=True)
        self.thread.start()
        self._wait()  # for the row of round 0: it is ready

    def _wait(self) -> None:
        self.done.acquire()
        if self.error is not None:
            raise self.error

    def round_seconds(self) -> float:
        """Play one round."""
        begin = time.perf_counter()
        self.go.release()
        self._wait()
        return time.perf_counter() - begin

    def end(self) -> None:
        self.last = True
        self.go.release()
        self.thread.join()


def ratios_in_turns(
    task: fk.Task, pairs: Sequence[tuple[str, str]], world: fk.World, turns: int
) -> dict[str, list[float]]:
    """For each (algorithm, base): a round's length over that of the base's rounds just before and after, per turn."""
    paced = {name: Paced(task, name, world) for name in dict.fromkeys(itertools.chain(*pairs))}
    for each in paced.values():
        for _ in range(WARM_UP):
            each.round_seconds()
    found: dict[str, list[float]] = {name: [] for name, _ in pairs}
    for _ in range(turns):
        played, length = "", 0.0  # the last base, whose round stands between two algorithms and serves both
        for name, base in pairs:
            before = length if base == played else paced[base].round_seconds()
            mine, played, length = paced[name].round_seconds(), base, paced[base].round_seconds()
            found[name].append(2 * mine / (before + length))
    for each in paced.values():
        each.end()
    return found
