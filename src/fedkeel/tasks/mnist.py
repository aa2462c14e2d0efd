"""Small grey pictures: Fashion-MNIST."""

from __future__ import annotations

from functools import lru_cache
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


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


def fmnist(
    alpha: float = 0.1, clients: int = 100, partition: str = "dirichlet", model: str = "cnn", seed: int = 0
) -> Task:
    """Fashion-MNIST in the setting of the Delta-SGD paper: 100 clients, batches of 64, one local epoch."""
    check(model in ("cnn",), "fmnist", "model", "cnn", model)
    return Task(
        model=cnn,
        loss=cross_entropy,
        data=_data(store.folder("fmnist"), alpha, clients, partition, seed),
        name="fmnist",
        batch_size=64,
        lr=0.01,
        budget=Epochs(1),
        spec=spec(fmnist, alpha=alpha, clients=clients, partition=partition, model=model, seed=seed),
    )


@lru_cache(maxsize=2)
def _data(folder: Path, alpha: float, clients: int, partition: str, seed: int) -> FederatedData:
    (x, y), test = (_images(folder, part) for part in ("train", "t10k"))
    return FederatedData.from_arrays(x, y, split(y, clients, partition, alpha, seed), test=test)


def _images(folder: Path, part: str) -> tuple[NDArray[np.float32], NDArray[Any]]:
    x = read.idx(folder / f"{part}-images-idx3-ubyte.gz")
    scaled: NDArray[np.float32] = np.divide(x[:, None], np.float32(255), dtype=np.float32)
    return scaled, read.idx(folder / f"{part}-labels-idx1-ubyte.gz")
