"""Samples without owners, dealt out to clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import FederatedData, partition
from ..errors import check, unknown

PARTITIONS = ("iid", "shards", "dirichlet", "dirichlet_balanced", "dirichlet_repeated", "quantity")
Pair = tuple[NDArray[Any], NDArray[Any]]


def dealt(train: Pair, test: Pair, clients: int, how: str, alpha: float, seed: int) -> FederatedData:
    """The training samples among clients, by one of the partitions on labels; alpha belongs to the Dirichlet ones.

    With any of them `alpha=0` is one class per client, in blocks of equal size.

    >>> x, y = np.zeros((60, 1)), np.repeat(np.arange(3), 20)
    >>> data = dealt((x, y), (x, y), clients=6, how="dirichlet_repeated", alpha=0, seed=0)
    >>> [len(set(data.y[begin : begin + 10].tolist())) for begin in data.offsets[:-1]]
    [1, 1, 1, 1, 1, 1]
    """
    if how not in PARTITIONS:
        raise unknown("partition", str(how), PARTITIONS)
    x, y = train
    if not how.startswith("dirichlet"):
        return FederatedData.from_arrays(x, y, partition.PARTITIONS[how](y, clients=clients, seed=seed), test)
    if how == "dirichlet_repeated" and alpha != 0:
        held = partition.dirichlet_repeated(y, clients, alpha, seed=seed)
        index, offsets = np.concatenate(held), np.cumsum([0, *map(len, held)])
        return FederatedData(x[index], y[index], offsets, test=test)
    make = partition.dirichlet_balanced if how == "dirichlet_balanced" else partition.dirichlet
    return FederatedData.from_arrays(x, y, make(y, clients, alpha, seed), test)


def choose(task: str, model: str, known: tuple[str, ...]) -> str:
    """A model's name when the task can be trained with it."""
    check(model in known, task, "model", f"one of {', '.join(known)}", model)
    return model
