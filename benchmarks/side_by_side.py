"""Whole runs side by side, one per core, against one run after another that has all cores: `fedkeel run --jobs`.

    python benchmarks/side_by_side.py [--workloads W2 W3] [--seconds 10] [--turns 3] [--compile]

Both are measured in processes of their own, in turns. Printed are rounds per second, of all runs that go on together,
and the median of their ratios: above 1, side by side is faster. What starting a process takes does not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import model, tensors
from workloads import WORKLOADS, load, store

import fedkeel as fk
from fedkeel.engine.threads import cores
from fedkeel.lab.processes import carry_out

WARM = 3  # rounds that do not count


@dataclass(frozen=True)
class Timed:
    """A run of some seconds in another process; gives its rounds per second."""

    name: str
    folder: Path
    seconds: float
    workers: int | None
    compile: bool

    def __call__(self, seed: int, stop: Any) -> str:
        work = WORKLOADS[self.name]
        data = load(work, self.folder)
        task = fk.Task(
            lambda: model(work.name), fk.cross_entropy, fk.FederatedData(*tensors(data), data.offsets),
            batch_size=work.batch, lr=work.lr,
        )  # fmt: skip
        world = fk.World(cohort=work.cohort, budget=fk.FixedSteps(work.steps))
        warnings.simplefilter("ignore", fk.StabilityWarning)  # the workloads have no test set
        ends: list[float] = []

        def watch(row: dict[str, float]) -> bool:
            ends.append(time.perf_counter())
            return len(ends) > WARM + 2 and ends[-1] - ends[WARM] > self.seconds

        place = fk.Local(workers=self.workers, compile=self.compile)
        fk.train(task, "fedavg", world, rounds=10**6, seed=seed, engine=place, eval_every=10**6, callbacks=[watch])
        rounds = [later - earlier for earlier, later in zip(ends[WARM:], ends[WARM + 1 :], strict=False)]
        return str(1 / statistics.median(rounds))


def together(work: Timed, runs: int) -> float:
    """Rounds per second of so many runs at the same time."""
    speeds: list[str] = []
    carry_out(
        runs,
        work,
        list(range(runs)),
        lambda index, speed: speeds.append(speed),
        lambda index: None,
        [work.name] * runs,
    )
    return sum(map(float, speeds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, metavar="W")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run; default 10")
    parser.add_argument("--turns", type=int, default=3, help="default 3")
    parser.add_argument("--compile", action="store_true", help="with C kernels")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.workloads:
            store(WORKLOADS[name], Path(folder))
            settings = (name, Path(folder), given.seconds)
            pairs = []
            for _ in range(given.turns):
                one = together(Timed(*settings, None, given.compile), 1)
                pairs.append((one, together(Timed(*settings, 1, given.compile), cores())))
            alone, beside = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
            ratio = statistics.median(each / one for one, each in pairs)
            print(f"{name}: one run {alone:.3g} rounds/s, {cores()} runs {beside:.3g}: ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
