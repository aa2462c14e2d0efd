"""Samples without owners, dealt out to clients; and a check of labels out of files."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import FederatedData, partition
from ..errors import InputError, unknown

PARTITIONS = tuple(name for name in partition.PARTITIONS if name != "natural")
Pair = tuple[NDArray[Any], NDArray[Any]]


def labels(file: Path, y: Any, classes: int) -> NDArray[Any]:
    """The labels of a file, which must be whole numbers in 0..classes-1.

    >>> labels(Path("a.csv"), [1, 2], 2)
    Traceback (most recent call last):
    fedkeel.errors.InputError: a.csv has labels that are not whole numbers in 0..1.
    """
    whole = isinstance(y, np.ndarray) or all(type(value) is int for value in y)
    found = np.asarray(y if whole else [])
    if found.ndim != 1 or found.dtype.kind not in "iu" or not found.size or found.min() < 0 or found.max() >= classes:
        raise InputError(f"{file} has labels that are not whole numbers in 0..{classes - 1}.")
    return found


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
    values: dict[str, Any] = {"clients": clients, "seed": seed}
    if how.startswith("dirichlet"):
        how, values["alpha"] = "dirichlet" if alpha == 0 else how, alpha
    return FederatedData.from_arrays(x, y, partial(partition.PARTITIONS[how], **values), test)
