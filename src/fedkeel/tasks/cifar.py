"""CIFAR-10 and CIFAR-100 dealt out to 100 clients, as in the GHBM paper, and a small CIFAR-10 for quick studies."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..data import FederatedData, read, store
from ..errors import check
from ..task import Task, cross_entropy
from ..world import Epochs
from .naming import spec
from .splitting import split

# Of the training pixels, colour by colour, on the scale 0..255.
MEAN = np.array([125.307, 122.950, 113.865], np.float32).reshape(3, 1, 1)
STD = np.array([62.993, 62.089, 66.705], np.float32).reshape(3, 1, 1)


def lenet(channels: tuple[int, int], flat: int, hidden: tuple[int, int], classes: int) -> nn.Module:
    first, second = channels
    return nn.Sequential(
        nn.Conv2d(3, first, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(flat, hidden[0]), nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]), nn.ReLU(), nn.Linear(hidden[1], classes),
    )  # fmt: skip


def cifar10(
    alpha: float = 0, clients: int = 100, partition: str = "dirichlet", model: str = "lenet", seed: int = 0
) -> Task:
    """CIFAR-10 in the setting of the GHBM paper: 100 clients of 500 pictures, batches of 64, one local epoch.

    alpha: 0 gives every client one class; larger is more alike. seed: of the partition.
    """
    check(model in ("lenet",), "cifar10", "model", "lenet", model)
    return Task(
        model=partial(lenet, (64, 64), 1600, (384, 192), 10),
        loss=cross_entropy,
        data=_data(store.folder("cifar10"), alpha, clients, partition, seed, False),
        name="cifar10",
        batch_size=64,
        lr=0.01,
        budget=Epochs(1),
        spec=spec(cifar10, alpha=alpha, clients=clients, partition=partition, model=model, seed=seed),
    )


def cifar10_small(alpha: float = 0, clients: int = 100, partition: str = "dirichlet", seed: int = 0) -> Task:
    """CIFAR-10 shrunk to 16x16 with a LeNet of 16 and 32 channels (22,362 parameters): the same problem in minutes."""
    return Task(
        model=partial(lenet, (16, 32), 32, (96, 48), 10),
        loss=cross_entropy,
        data=_data(store.folder("cifar10"), alpha, clients, partition, seed, True),
        name="cifar10-small",
        batch_size=64,
        lr=0.05,
        budget=Epochs(1),
        spec=spec(cifar10_small, alpha=alpha, clients=clients, partition=partition, seed=seed),
    )


@lru_cache(maxsize=2)
def _data(folder: Path, alpha: float, clients: int, partition: str, seed: int, small: bool) -> FederatedData:
    x, y = read.cifar10(*(folder / f"data_batch_{i}.bin" for i in range(1, 6)))
    tx, ty = read.cifar10(folder / "test_batch.bin")
    owner = split(y, clients, partition, alpha, seed)
    return FederatedData.from_arrays(pixels(x, small), y, owner, test=(pixels(tx, small), ty))


def pixels(x: NDArray[Any], small: bool) -> NDArray[np.float32]:
    """Centred and scaled by colour; small: means of 2x2 squares, 16x16 in all."""
    if small:
        x = x.reshape(len(x), 3, 16, 2, 16, 2).mean((3, 5), dtype=np.float32)
    scaled: NDArray[np.float32] = (x.astype(np.float32) - MEAN) / STD
    return scaled
