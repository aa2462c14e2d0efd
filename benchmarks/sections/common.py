"""What the sections share: their arguments, and the length of a fedkeel round."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path

from workloads import WORKLOADS

import fedkeel as fk


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="where it has some")
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
