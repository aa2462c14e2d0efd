"""fedkeel through its public API; rounds are timed from a callback."""

from __future__ import annotations

from models import AnyModel, model, probe_loss, tensors
from torch import nn
from workloads import Data, Workload

import fedkeel as fk
from drivers.common import Clock, Losses, Options, main


def engine(options: Options) -> fk.Local:
    """The engine of this arm."""
    return fk.Local(options.get("mode", "auto"), compile=options.get("compile") == "yes")


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses:
    def make() -> nn.Module:
        return AnyModel() if options.get("model") == "any" else model(work.name)

    federated = fk.FederatedData(*tensors(data), data.offsets)
    task = fk.Task(make, fk.cross_entropy, federated, batch_size=work.batch, lr=work.lr)
    world = fk.World(cohort=work.cohort, budget=fk.FixedSteps(work.steps), expected_steps=work.steps + 5)
    algorithm = options.get("rule") or fk.Algorithm(client=fk.SGD(work.lr, momentum=work.momentum))

    def watch(row: dict[str, float]) -> bool:
        return row["round"] > 0 and clock.round_done()

    before = probe_loss(make(), data)
    run = fk.train(task, algorithm, world, rounds=10**6, engine=engine(options), eval_every=10**6, callbacks=[watch])
    return before, probe_loss(run.model(), data)


if __name__ == "__main__":
    main(drive, ["fedkeel", "torch", "numpy"])
