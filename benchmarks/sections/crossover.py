"""Serial, batched and compiled as models grow, so that size bounds stand where a measurement puts them."""

from __future__ import annotations

import json
import warnings

import torch
from torch import nn

import fedkeel as fk
from fedkeel.engine import chain
from fedkeel.errors import EngineWarning
from fedkeel.models import deltasgd_cnn
from sections.common import arguments, round_seconds

FEATURES, CLASSES, CLIENTS, HELD, COHORT, STEPS = 60, 10, 100, 100, 20, 10
WIDTHS = (0, 32, 128, 256, 512, 1024, 4096, 14_000)  # of the hidden layer: from 610 to 1e6 parameters
BATCHES = (5, 20)
WIDE, WIDE_CLASSES, WIDE_BATCHES = 784, 62, (20, 40, 100)  # large products, where C falls behind


def perceptron(width: int) -> nn.Module:
    if width == 0:
        return nn.Linear(FEATURES, CLASSES)
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


def small_cnn() -> nn.Module:
    return deltasgd_cnn(dropout=False)


def compare(make: object, shape: tuple[int, ...], batch: int, seconds: float) -> dict[str, float]:
    """Local steps per second of the modes; compiled where that is C, which it is for perceptrons."""
    x = torch.randn(CLIENTS * HELD, *shape)
    data = fk.FederatedData(x, torch.arange(len(x)) % CLASSES, list(range(0, len(x) + 1, HELD)))
    task = fk.Task(make, fk.cross_entropy, data, batch_size=batch)  # type: ignore[arg-type]
    world = fk.World(cohort=COHORT, budget=fk.FixedSteps(STEPS))
    modes = {mode: fk.Local(mode) for mode in ("serial", "batched")}
    if len(shape) == 1:
        modes["compiled"] = fk.Local("batched", compile=True)
    done = COHORT * STEPS
    return {
        mode: done / round_seconds(task, "fedavgcm:lr=0.001", world, seconds, engine) for mode, engine in modes.items()
    }


if __name__ == "__main__":
    given = arguments()
    warnings.simplefilter("error", EngineWarning)  # what could not be compiled is no speed of compiled
    chain.LARGEST = 2**62  # C beyond its bound, too: that is what shows where the bound belongs
    rows = []
    arms = [("perceptron", lambda w=width: perceptron(w), (FEATURES,)) for width in WIDTHS]
    cells = [(*arm, batch) for batch in BATCHES for arm in [*arms, ("conv net", small_cnn, (1, 28, 28))]]
    cells += [("784 inputs, 62 classes", lambda: nn.Linear(WIDE, WIDE_CLASSES), (WIDE,), b) for b in WIDE_BATCHES]
    for kind, make, shape, batch in cells:
        size = sum(p.numel() for p in make().parameters())
        rows.append(
            {"model": kind, "parameters": size, "batch": batch, **compare(make, shape, batch, given.seconds / 6)}
        )
    print(json.dumps({"rows": rows}))
