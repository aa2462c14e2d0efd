"""Where the time of a round goes: what torch's profiler counts for each operation, with one worker and torch alone."""

from __future__ import annotations

import json
import time

from models import model, tensors
from torch.profiler import ProfilerActivity, profile
from workloads import WORKLOADS, Workload, load, store

import fedkeel as fk
from sections.common import arguments

LEAST = 0.03  # of a round's time: lines below are summed up
ROUNDS = {"W1": 30}  # that are watched, after the first
OURS = "outside torch's operations"


def shares(work: Workload, data: fk.FederatedData, rounds: int) -> dict[str, float]:
    """The share of the time that each operation takes itself, without what it calls."""
    task = fk.Task(lambda: model(work.name), fk.cross_entropy, data, batch_size=work.batch)
    world = fk.World(cohort=work.cohort, budget=fk.FixedSteps(work.steps))
    watching, times = profile(activities=[ProfilerActivity.CPU], acc_events=True), []

    def watch(row: dict[str, float]) -> bool:
        if row["round"] == 1:
            watching.start()
        if row["round"] in (1, 1 + rounds):
            times.append(time.perf_counter())
        return len(times) == 2

    algorithm = fk.Algorithm(client=fk.SGD(work.lr, momentum=work.momentum))
    engine = fk.Local(workers=1)
    fk.train(task, algorithm, world, rounds=10**6, engine=engine, eval_every=10**6, callbacks=[watch])
    watching.stop()
    length = times[1] - times[0]
    found = {event.key: event.self_cpu_time_total / 1e6 / length for event in watching.key_averages()}
    return {**found, OURS: max(0.0, 1 - sum(found.values()))}


if __name__ == "__main__":
    given = arguments()
    rows = []
    for name in given.workloads:
        work = WORKLOADS[name]
        store(work, given.data)
        read = load(work, given.data)
        found = shares(work, fk.FederatedData(*tensors(read), read.offsets), ROUNDS.get(name, 2))
        large = {line: share for line, share in found.items() if share >= LEAST}
        rest = sum(share for share in found.values() if share < LEAST)
        rows.append({"workload": name, "lines": large, "rest": rest})
    print(json.dumps({"rows": rows}))
