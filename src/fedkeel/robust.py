"""Robust aggregation: what at most so many bad clients of a round can do to the update is bounded.

    Median, Trimmed      coordinate by coordinate; every one stays between the honest clients' least and largest
    Krum, MultiKrum      whole updates, those with the nearest neighbours

None of them weighs by samples, which a bad client could claim: every client counts the same. All clients are assumed to
train the same model from the same point, so clients with unlike data pull less than they do in a mean. `docs/robust.md`
has the bounds and their proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .aggregate import WEIGHTS, Weights
from .messages import Update
from .ranges import COUNT, Range, keep

BLOCK = 2**16  # coordinates sorted at a time


def _rows(updates: Sequence[Update]) -> Tensor:
    """The updates of all clients, `[clients, params]`."""
    return torch.cat([update.delta for update in updates if update.delta is not None])


def middle_mean(rows: Tensor, cut: int) -> Tensor:
    """The mean of each column without its `cut` smallest and `cut` largest values; never outside those that are left.

    >>> middle_mean(torch.tensor([[1.0], [2.0], [4.0], [1e30]]), 1)
    tensor([3.])
    """
    found = []
    for block in torch.split(rows, BLOCK, 1):
        kept = block.sort(0).values[cut : len(rows) - cut]
        found.append(kept.mean(0).clamp(kept[0], kept[-1]))  # the mean may round, or overflow, beyond them
    return torch.cat(found)


@dataclass(frozen=True)
class Median(Weights):
    """The median of every coordinate, the mean of the two in the middle for an even number (Yin et al. 2018).

    With fewer than half of n clients bad, every coordinate lies between the least and the largest of the honest ones.

    >>> Median().least()
    3
    """

    stacks: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    def combine(self, updates: Sequence[Update]) -> Tensor:
        rows = _rows(updates)
        return middle_mean(rows, (len(rows) - 1) // 2)

    def least(self) -> int:
        return 3  # the median of two clients is their mean


@dataclass(frozen=True)
class Trimmed(Weights):
    """The mean of every coordinate without its smallest and largest values (Yin et al. 2018).

    share: the part of the clients cut at each end, rounded up to whole clients (never so many that none is left).
    count: how many clients instead. With at most as many bad clients, every coordinate lies between the least and the
    largest of the honest ones.

    >>> Trimmed(share=0.1).cut(10), Trimmed(share=0.1).cut(11), Trimmed(count=2).least()
    (1, 2, 5)
    """

    share: float = 0.1
    count: int | None = None

    stacks: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep(self, Range(1e-9, 0.5, below=True), "share")
        keep(self, COUNT, "count")

    def cut(self, clients: int) -> int:
        """The clients cut at each end."""
        asked = self.count or math.ceil(self.share * clients - 1e-9)  # 0.07 * 100 is more than 7
        return min(asked, (clients - 1) // 2)

    def combine(self, updates: Sequence[Update]) -> Tensor:
        rows = _rows(updates)
        return middle_mean(rows, self.cut(len(rows)))

    def least(self) -> int:
        return 2 * (self.count or 1) + 1


def by_score(rows: Tensor, bad: int) -> Tensor:
    """The clients by Krum's score, the best one first: the squared distances to its n - bad - 2 nearest others.

    The smaller update wins a tie, so the order of the clients does not matter.

    >>> by_score(torch.tensor([[0.0], [1.0], [1.5], [9.0], [2.0]]), bad=1).tolist()
    [2, 1, 4, 0, 3]
    """
    exact = rows.double()  # squares of large float32 numbers would overflow
    distances = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = distances.sort(1).values[:, 1 : len(rows) - bad - 1]  # the first is the client's own, 0
    order: Tensor = torch.linalg.vector_norm(exact, dim=1).argsort(stable=True)
    return order[nearest.sum(1)[order].argsort(stable=True)]


@dataclass(frozen=True)
class Krum(Weights):
    """The one update whose n - bad - 2 nearest others are nearest to it (Blanchard et al. 2017).

    bad: the number of bad clients to withstand; needs n >= 2 bad + 3. The update chosen is an honest client's, or no
    farther from one than D sqrt((n - bad - 2) / (n - 2 bad - 1)), where D is the largest distance between two honest.

    >>> Krum(bad=2).least()
    7
    """

    bad: int = 1

    stacks: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep(self, COUNT, "bad")

    def combine(self, updates: Sequence[Update]) -> Tensor:
        rows = _rows(updates)
        return rows[by_score(rows, self.bad)[0]].clone()

    def least(self) -> int:
        return 2 * self.bad + 3


@dataclass(frozen=True)
class MultiKrum(Weights):
    """The mean of the `keep` updates with the best scores of Krum (Blanchard et al. 2017).

    keep: default n - bad - 2; needs n >= keep + bad and n >= 2 bad + 3. Krum's bound holds for each of them.

    >>> MultiKrum(bad=2, keep=6).least()
    8
    """

    bad: int = 1
    keep: int | None = None

    stacks: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep(self, COUNT, "bad", "keep")

    def combine(self, updates: Sequence[Update]) -> Tensor:
        rows = _rows(updates)
        keep = self.keep or len(rows) - self.bad - 2
        return rows[by_score(rows, self.bad)[:keep]].mean(0)

    def least(self) -> int:
        return max(2 * self.bad + 3, (self.keep or 1) + self.bad)


ROBUST: dict[str, type[Weights]] = {"median": Median, "trimmed": Trimmed, "krum": Krum, "multikrum": MultiKrum}
AGGREGATIONS = WEIGHTS | ROBUST  # by the name that configurations have
