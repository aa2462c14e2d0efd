"""Serial, batched and compiled as models grow, so that size bounds stand where a measurement puts them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import fedkeel as fk
from fedkeel.engine.gradients import lockstep
from fedkeel.engine.kernels import chain
from fedkeel.flat import FlatModel, flops
from fedkeel.models import LSTM, deltasgd_cnn
from sections.common import arguments, round_seconds

Make = Callable[[], nn.Module]
FEATURES, CLASSES, CHARACTERS, CLIENTS, HELD, COHORT, STEPS = 60, 10, 50, 100, 100, 20, 10
WIDTHS = (0, 32, 128, 256, 512, 1024, 4096, 14_000)  # of the hidden layer: from 610 to 1e6 parameters
BATCHES = (5, 20)
WRITTEN = (512, 1024)  # hidden units of a perceptron that is a class of its own
CONVOLUTIONS, HIDDEN, LENGTHS = ((4, 8, 16), (8, 16, 32)), (8, 32), (10, 80)  # channels and units; units, characters
WIDE, WIDE_CLASSES, WIDE_BATCHES = 784, 62, (20, 40, 100)  # large products, where C falls behind


def perceptron(width: int) -> nn.Module:
    if width == 0:
        return nn.Linear(FEATURES, CLASSES)
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


class Written(nn.Module):
    """A perceptron that an engine has to follow, as it does any model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


class Reader(nn.Module):
    """The class of a line of characters."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(CHARACTERS, 8), LSTM(8, hidden)
        self.scores = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.lstm(self.embedding(x))[:, -1])


def conv_net(first: int, second: int, units: int) -> nn.Module:
    """Two convolutions of 5 x 5 with pools, on 28 x 28."""
    return nn.Sequential(
        nn.Conv2d(1, first, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * second, units), nn.ReLU(), nn.Linear(units, CLASSES),
    )  # fmt: skip


def small_cnn() -> nn.Module:
    return deltasgd_cnn(dropout=False)


def compare(make: Make, x: torch.Tensor, batch: int, seconds: float, compiled: bool) -> dict[str, float]:
    """Local steps per second of the modes; compiled where that is C, which it is for chains."""
    data = fk.FederatedData(x, torch.arange(len(x)) % CLASSES, list(range(0, len(x) + 1, HELD)))
    task = fk.Task(make, fk.cross_entropy, data, batch_size=batch)
    world = fk.World(cohort=COHORT, budget=fk.FixedSteps(STEPS))
    modes = {mode: fk.Local(mode) for mode in ("serial", "batched")}
    if compiled:
        modes["compiled"] = fk.Local("batched", compile=True)
    done = COHORT * STEPS
    return {
        mode: done / round_seconds(task, "fedavgcm:lr=0.001", world, seconds, engine) for mode, engine in modes.items()
    }


if __name__ == "__main__":
    given = arguments()
    chain.LARGEST = 2**62  # C beyond its bound, too: that is what shows where the bound belongs
    samples = CLIENTS * HELD
    numbers, images, wide = (torch.randn(samples, *shape) for shape in ((FEATURES,), (1, 28, 28), (WIDE,)))
    arms: list[tuple[str, Make, torch.Tensor, tuple[int, ...]]] = [
        *(("perceptron", partial(perceptron, width), numbers, BATCHES) for width in WIDTHS),
        ("784 inputs, 62 classes", partial(nn.Linear, WIDE, WIDE_CLASSES), wide, WIDE_BATCHES),
        *(("perceptron, a class of its own", partial(Written, width), numbers, BATCHES) for width in WRITTEN),
        *(("conv net", partial(conv_net, *sizes), images, BATCHES) for sizes in CONVOLUTIONS),
        ("conv net", small_cnn, images, BATCHES),
    ]
    for length in LENGTHS:
        lines = torch.randint(CHARACTERS, (samples, length))
        arms += [(f"LSTM, {length} characters", partial(Reader, hidden), lines, BATCHES) for hidden in HIDDEN]
    rows = []
    for kind, make, x, batches in arms:
        known = {"model": kind, "parameters": sum(p.numel() for p in make().parameters())}
        known["operations"] = flops(FlatModel(make()), x[:2])
        for batch in batches:
            found = compare(make, x, batch, given.seconds / 6, lockstep.chain(make()) is not None)
            rows.append(known | {"operations": batch * known["operations"], "batch": batch, **found})
    print(json.dumps({"rows": rows}))
