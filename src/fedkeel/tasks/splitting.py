"""Samples without owners, dealt out to clients by label."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import draws
from ..errors import InputError, check, is_count, is_number


def split(labels: NDArray[Any], clients: int, partition: str, alpha: float, seed: int) -> NDArray[np.int64]:
    """A client number for every sample.

    partition: "dirichlet" (label shares drawn with concentration alpha; 0 means one class per client) or "iid".
    """
    check(is_count(clients), "the task", "clients", "an integer >= 1", clients)
    check(is_number(alpha) and alpha >= 0, "the task", "alpha", "a number >= 0", alpha)
    check(is_count(seed, 0), "the task", "seed", "an integer >= 0", seed)
    generator = draws.generator(seed, "partition")
    if partition == "dirichlet" and alpha == 0:
        # Sorted by label and cut into contiguous blocks; who gets which block is drawn (drift spec, A12).
        order = np.argsort(labels, kind="stable")
        owner = np.empty(len(labels), np.int64)
        for client, block in zip(generator.permutation(clients), np.array_split(order, clients), strict=True):
            owner[block] = client
        return owner
    if partition == "iid":
        return generator.permutation(np.arange(len(labels)) % clients)
    raise InputError("alpha > 0 comes with fedkeel.data.partition")
