"""fedkeel with one of its algorithms: few clients, who have been there before when the clock starts."""

from __future__ import annotations

import os
import warnings

from models import model, tensors
from workloads import Data, Workload

import fedkeel as fk
from drivers.common import Clock, Options, main

COHORT = 2 * len(os.sched_getaffinity(0))  # two clients per worker: turns are short
WARM_UP = 3  # rounds, in which everybody comes once


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> None:
    warnings.simplefilter("ignore")  # rules warn of settings that are unstable in training; nothing is learned here
    clients = WARM_UP * COHORT
    last = data.offsets[clients]
    federated = fk.FederatedData(*(part[:last] for part in tensors(data)), data.offsets[: clients + 1])
    task = fk.Task(lambda: model(work.name), fk.cross_entropy, federated, batch_size=work.batch, lr=1e-3)
    world = fk.World(COHORT, fk.FixedSteps(work.steps), expected_steps=work.steps + 5, sampler="cyclic")

    def watch(row: dict[str, float]) -> bool:
        return row["round"] >= WARM_UP and clock.round_done()

    fk.train(task, options["algorithm"], world, rounds=10**6, eval_every=10**6, callbacks=[watch])


if __name__ == "__main__":
    main(drive, ["fedkeel", "torch", "numpy"])
