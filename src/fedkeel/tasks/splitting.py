"""Samples without owners, dealt out to clients."""

from typing import Any

from numpy.typing import NDArray

from ..data import FederatedData, partition
from ..errors import unknown

PARTITIONS = (
    "iid",
    "shards",
    "dirichlet",
    "dirichlet_balanced",
    "dirichlet_by_label",
    "dirichlet_repeated",
    "quantity",
)
Pair = tuple[NDArray[Any], NDArray[Any]]


def dealt(train: Pair, test: Pair, clients: int, how: str, alpha: float, seed: int) -> FederatedData:
    """The training samples among clients, by one of the partitions on labels; alpha belongs to the Dirichlet ones.

    With any of them `alpha=0` is one class per client, in blocks of equal size.

    >>> import numpy as np
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
    make = partition.PARTITIONS["dirichlet" if alpha == 0 else how]
    return FederatedData.from_arrays(x, y, make(y, clients, alpha, seed=seed), test)
