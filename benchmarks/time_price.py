"""What simulated time costs in real time: a run without a fleet, with one, and an asynchronous one, in turns.

    python benchmarks/time_price.py [--workloads W1 W2] [--seconds 10]

All three train FedAvg with momentum 0.9 in this process and take turns of a quarter of a second, so whatever else the
machine does hits them alike. The asynchronous run has buffer = cohort and four times as many clients under way. Printed
are client steps per second as one over the median length of a round, and their ratio to the run without a fleet.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from models import model, tensors
from workloads import WORKLOADS, Workload, load, store

import fedkeel as fk

TURN = 0.25  # seconds
WARM = 3  # rounds that do not count


class Turns:
    """Lets one run go on at a time, a turn after another."""

    def __init__(self, names: list[str], seconds: float) -> None:
        self.names, self.seconds = names, seconds
        self.lengths: dict[str, list[float]] = {name: [] for name in names}
        self.free = threading.Condition()
        self.now, self.left = 0, len(names)

    def watch(self, place: int):  # type: ignore[no-untyped-def]
        """A callback for the run of this place."""
        begun, last, rounds = time.perf_counter(), time.perf_counter(), 0

        def done(row: dict[str, float]) -> bool:
            nonlocal begun, last, rounds
            here = time.perf_counter()
            rounds += 1
            if rounds > WARM + 1:
                self.lengths[self.names[place]].append(here - last)
            if here - begun >= TURN or rounds == 1:
                with self.free:
                    self.now = (self.now + 1) % len(self.names)
                    self.free.notify_all()
                    self.free.wait_for(lambda: self.now == place)
                begun = time.perf_counter()
            last = time.perf_counter()
            return all(sum(lengths) >= self.seconds for lengths in self.lengths.values())

        return done

    def leave(self, place: int) -> None:
        """This run has ended: the next one is let go on, to its own end."""
        with self.free:
            self.now = (place + 1) % len(self.names)
            self.free.notify_all()


def measure(work: Workload, folder: Path, seconds: float) -> dict[str, float]:
    """Client steps per second of each kind of run."""
    store(work, folder)
    data = load(work, folder)
    task = fk.Task(
        lambda: model(work.name), fk.cross_entropy, fk.FederatedData(*tensors(data), data.offsets),
        batch_size=work.batch, lr=work.lr,
    )  # fmt: skip
    plain = fk.World(cohort=work.cohort, budget=fk.FixedSteps(work.steps))
    fleet = fk.World(cohort=work.cohort, budget=fk.FixedSteps(work.steps), fleet="phones:dropout=0,available=always")
    pace = f"buffer={work.cohort},inflight={4 * work.cohort}"
    runs = {
        "no fleet": ("fedavg:momentum=0.9", plain),
        "fleet": ("fedavg:momentum=0.9", fleet),
        "asynchronous": (f"fedavg:momentum=0.9+buffered:{pace}", fleet),
    }
    turns = Turns(list(runs), seconds)

    def play(place: int, algorithm: str, world: fk.World) -> None:
        with turns.free:
            turns.free.wait_for(lambda: turns.now == place)
        watch = turns.watch(place)
        fk.train(task, algorithm, world, rounds=10**6, engine=fk.Local(), eval_every=10**6, callbacks=[watch])
        turns.leave(place)

    threads = [threading.Thread(target=play, args=(place, *given)) for place, given in enumerate(runs.values())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: work.steps_per_round / statistics.median(found) for name, found in turns.lengths.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2"], choices=WORKLOADS, metavar="W")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind of run; default 10")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.workloads:
            found = measure(WORKLOADS[name], Path(folder), given.seconds)
            base = found["no fleet"]
            parts = [f"{kind} {speed:,.0f} steps/s ({speed / base:.3f})" for kind, speed in found.items()]
            print(f"{name}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
