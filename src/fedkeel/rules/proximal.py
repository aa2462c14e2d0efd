"""FedProx: stay near the model that was received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..ranges import COEFFICIENT, keep
from ..rule import Me, Rule


@dataclass(frozen=True, repr=False)
class Proximal(Rule):
    """Adds the gradient of (mu/2) ||y - x||^2, before it enters the momentum (Li et al. 2020).

        g <- g + mu (y - x)

    >>> Proximal(0.01)
    Proximal(mu=0.01)
    """

    mu: float = 0.01

    keeps_linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "mu")

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        return g.add_(y - me.x, alpha=self.mu) if self.mu else g

    def penalty(self, y: Tensor, me: Me) -> Tensor:
        return self.mu / 2 * (y - me.x).square().sum(1, keepdim=True)
