"""The engine ray beside the local one: rounds per second with 1 and 2 workers, overhead of a chunk, memory of a worker.

    python -m sections.scale_out DATA [--workloads W2 W3]        # below benchmarks/, needs the extra ray

All engines of a workload take turns in one process and share one cluster, so a slow minute of the machine hits them
all; what counts is the ratio. It is no part of `make bench`, which does not install Ray.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from models import model, tensors
from workloads import WORKLOADS, make

import fedkeel as fk
from fedkeel.engine.ray import STORE, Cluster
from sections.common import arguments, round_seconds

TURNS = 2
CHOSEN = ("W2", "W3", "W4", "W5")


def workload(name: str) -> tuple[fk.Task, fk.World]:
    """The task and the world of a workload."""
    work, data = WORKLOADS[name], make(WORKLOADS[name])
    federated = fk.FederatedData(*tensors(data), data.offsets)
    task = fk.Task(lambda: model(name), fk.cross_entropy, federated, batch_size=work.batch, lr=work.lr)
    return task, fk.World(cohort=work.cohort, budget=fk.FixedSteps(work.steps))


def in_turns(task: fk.Task, world: fk.World, algorithm: str, seconds: float) -> dict[str, float]:
    """Median seconds of a round by engine, over turns, and the ratios to the local engine with two threads."""
    places = {"local-2": fk.Local(workers=2), "local-1": fk.Local(workers=1)}
    places |= {f"ray-{count}": fk.Ray(workers=count) for count in (1, 2)}
    found: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(TURNS):
        for name, place in places.items():
            found[name].append(round_seconds(task, algorithm, world, seconds, place))
    ratios = {
        f"speed_{name}": statistics.median(a / b for a, b in zip(found["local-2"], lengths, strict=True))
        for name, lengths in found.items()
    }
    return {name: statistics.median(lengths) for name, lengths in found.items()} | ratios


def overhead(seconds: float) -> float:
    """Seconds that a chunk costs beside its clients' work: a model of 610 parameters, one step, a cohort of 200."""
    data = fk.FederatedData(torch.randn(1000, 60), torch.arange(1000) % 10, range(0, 1001, 5))
    task = fk.Task(lambda: model("W1"), fk.cross_entropy, data, batch_size=5)
    world = fk.World(cohort=200, budget=fk.FixedSteps(1))
    places = (fk.Local("serial", workers=1), fk.Ray(mode="serial", workers=1))
    local, ray = (round_seconds(task, "fedavg", world, seconds, place) for place in places)
    return (ray - local) / 200


def resident(pids: list[int]) -> list[float]:
    """Resident megabytes of processes; pages that processes share count in each of them."""
    lines = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in pids]
    return [int(next(line for line in text if line.startswith("VmRSS")).split()[1]) / 1024 for text in lines]


def memory(task: fk.Task, world: fk.World) -> list[float]:
    """Resident megabytes of each of two workers after two rounds."""
    found: list[float] = []
    place = fk.Ray(workers=2)

    class Watched(fk.Ray):
        def start(self, *given: Any) -> Any:
            engine = super().start(*given)
            usual = engine.close

            def close() -> None:
                ray = engine.pool.ray
                found.extend(resident(ray.get([actor.process.remote() for actor in engine.pool.all])))
                usual()

            engine.close = close  # type: ignore[method-assign]
            return engine

    fk.train(task, "fedavg", world, rounds=2, eval_every=2, engine=Watched(workers=place.workers))
    return found


def measured(names: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """The rows, one after the other."""
    for name in names:
        task, world = workload(name)
        yield {"what": name, **in_turns(task, world, "fedavg", seconds)}
        if name == "W2":
            yield {"what": "W2, SCAFFOLD", **in_turns(task, world, "scaffold", seconds)}
            large = fk.World(cohort=200, budget=fk.FixedSteps(2))
            yield {"what": "W2, cohort 200", **in_turns(task, large, "fedavg", seconds)}
            yield {"what": "W2, memory of a worker", "mb": memory(task, world)}
    yield {"what": "a chunk", "overhead_s": overhead(seconds)}


if __name__ == "__main__":
    given = arguments()
    cluster = Cluster("local", 2, STORE + 2**30)
    rows: list[dict[str, Any]] = []
    try:
        for row in measured([one for one in CHOSEN if one in given.workloads], given.seconds):
            rows.append(row | {"load": os.getloadavg()[0]})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    finally:
        cluster.close()
    print(json.dumps({"rows": rows}, indent=1))
