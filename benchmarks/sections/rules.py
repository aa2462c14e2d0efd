"""What a rule costs: algorithms against FedAvg, taking turns, on the workloads with real networks."""

from __future__ import annotations

import json
import statistics
import warnings
from pathlib import Path

from models import model, tensors
from workloads import WORKLOADS, load, store

import fedkeel as fk
from sections.common import arguments, ratios_in_turns

# Every arm does the same number of gradient steps; what survey or extra gradients cost is part of a rule's price.
# GEL's clients have momentum, so it is compared with FedAvg with momentum. FedAvg itself shows what is noise.
RULES = ("fedavg", "ghbm", "localghbm", "fedhbm", "scaffold", "feddyn", "fedprox", "mimelite", "deltasgd")
PAIRS = [("gel", "fedavgcm"), *((rule, "fedavg") for rule in RULES)]
NAMES = ("W2", "W3", "W4", "W5")
TURNS = 12  # rounds of every rule


def costs(name: str, folder: Path) -> dict[str, list[float]]:
    """A round's length over FedAvg's, one value per turn, of every rule."""
    work = WORKLOADS[name]
    data = load(work, folder)
    clients = 2 * work.cohort  # few, so that they have been there before
    last = data.offsets[clients]
    federated = fk.FederatedData(*(part[:last] for part in tensors(data)), data.offsets[: clients + 1])
    task = fk.Task(lambda: model(name), fk.cross_entropy, federated, batch_size=work.batch, lr=1e-3)
    world = fk.World(work.cohort, fk.FixedSteps(work.steps), expected_steps=work.steps + 5, sampler="cyclic")
    return ratios_in_turns(task, PAIRS, world, TURNS)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # rules warn of settings that are unstable in training; nothing is learned here
    given = arguments()
    rows = []
    for name in NAMES:
        store(WORKLOADS[name], given.data)
        for rule, ratios in costs(name, given.data).items():
            rows.append({"workload": name, "rule": rule, "ratio": statistics.median(ratios), "ratios": ratios})
    print(json.dumps({"rows": rows}))
