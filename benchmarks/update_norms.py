"""How far honest updates differ in size, and what the warning about large ones costs: the figures in docs/robust.md.

    python benchmarks/update_norms.py [--rounds 30] [--seconds 20]

Norms: the largest norm of a client's update over the usual one, as `run/norms.py` has it, in short runs of named tasks
in which every client is honest. Price: CPU seconds spent in `NormWatch` and in the norms it reads, over those of
the whole process, from round 2 on, on W1 and W2 of `workloads.py`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import models
import workloads
from torch import Tensor

import fedkeel as fk
from fedkeel import aggregate
from fedkeel.aggregate import Sums
from fedkeel.run import norms, training

TASKS = ("synthetic", "digits", "blobs-wide")
ALGORITHMS = ("fedavg", "gel:steps=5", "scaffold", "fedhbm", "deltasgd")
BUDGETS = {"one epoch": fk.Epochs(1), "1 to 20 steps": fk.UniformSteps(1, 20)}
SEEDS = {"synthetic": 4}  # of the other tasks one


class Watch(norms.NormWatch):
    """The watch of a run, which also keeps how far it saw norms differ and the CPU seconds that it and they took."""

    last: Watch  # of the run that was started last

    def __init__(self, algorithm: fk.Algorithm) -> None:
        super().__init__(algorithm)
        self.ratio = self.seconds = 0.0
        Watch.last = self

    def __call__(self, round: int, total: Sums) -> None:
        began = time.thread_time()
        super().__call__(round, total)
        self.seconds += time.thread_time() - began

    def compare(self, total: Sums) -> tuple[int, float, float]:
        client, norm, ratio = super().compare(total)
        self.ratio = max(self.ratio, ratio)
        return client, norm, ratio


def row_norms(rows: Tensor, plain: Callable[[Tensor], Tensor] = aggregate.row_norms) -> Tensor:
    """The norms of a worker's clients, timed; two workers that end together may lose a few microseconds of the sum."""
    began = time.thread_time()
    norms = plain(rows)
    Watch.last.seconds += time.thread_time() - began
    return norms


class Found(NamedTuple):
    """The largest ratio of a group of runs, and the run that had it."""

    ratio: float
    run: str


def largest(rounds: int, tasks: Sequence[str] = TASKS, algorithms: Sequence[str] = ALGORITHMS) -> dict[str, Found]:
    """The largest ratio of every algorithm over tasks, budgets and seeds."""
    found = dict.fromkeys(algorithms, Found(0.0, ""))
    for task, algorithm, (budget, steps) in product(tasks, algorithms, BUDGETS.items()):
        for seed in range(SEEDS.get(task, 1)):
            fk.train(fk.tasks.get(task), algorithm, fk.World(budget=steps), rounds, seed=seed, eval_every=rounds)
            found[algorithm] = max(found[algorithm], Found(Watch.last.ratio, f"{task}, {budget}, seed {seed}"))
    return found


def price(name: str, seconds: float) -> tuple[float, float]:
    """(share of the CPU time of a round, CPU milliseconds of a round) on a workload."""
    work = workloads.WORKLOADS[name]
    made = workloads.make(work)
    data = fk.FederatedData(made.x, made.y, made.offsets)
    task = fk.Task(models.MODELS[name], fk.cross_entropy, data, batch_size=work.batch, lr=work.lr)
    marks: list[tuple[float, float]] = []  # CPU seconds of the process and of the watch, after every round

    def mark(row: dict[str, float]) -> bool:
        marks.append((time.process_time(), Watch.last.seconds))
        return len(marks) > 3 and marks[-1][0] - marks[1][0] > seconds

    world = fk.World(work.cohort, fk.FixedSteps(work.steps))
    fk.train(task, f"fedavg:momentum={work.momentum}", world, rounds=10**6, eval_every=10**6, callbacks=[mark])
    (began, watched), (ended, in_all), rounds = marks[1], marks[-1], len(marks) - 2
    return (in_all - watched) / (ended - began), 1000 * (ended - began) / rounds


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds for each price")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", fk.StabilityWarning)  # the workloads have no test set
    training.NormWatch = Watch  # type: ignore[misc]  # of every run from here on
    aggregate.row_norms = row_norms
    print(f"largest norm over the usual one, {asked.rounds} rounds")
    for algorithm, found in largest(asked.rounds).items():
        print(f"  {algorithm:12} {found.ratio:6.1f}  ({found.run})", flush=True)
    print("CPU time in the warning over that of a round")
    for name in ("W1", "W2"):
        share, milliseconds = price(name, asked.seconds)
        print(f"  {name}  {100 * share:.3f} %  (a round takes {milliseconds:.1f} ms)", flush=True)


if __name__ == "__main__":
    main()
