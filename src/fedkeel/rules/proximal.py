"""FedProx: stay near the model that was received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..algorithm import At, Rule
from ..errors import check, is_number


@dataclass(frozen=True, repr=False)
class Proximal(Rule):
    """Adds the gradient of (mu/2) ||y - x||^2, before it enters the momentum (Li et al. 2020).

        g <- g + mu (y - x)

    >>> Proximal(0.01)
    Proximal(mu=0.01)
    """

    mu: float = 0.01

    reference: ClassVar[str] = "Li et al. 2020, Federated optimization in heterogeneous networks (arXiv 1812.06127)"
    formulas: ClassVar[dict[str, str]] = {"gradient": "g <- g + mu (y - x)"}

    def __post_init__(self) -> None:
        check(is_number(self.mu) and self.mu >= 0, self, "mu", ">= 0", self.mu)

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        return g.add_(y - at.x, alpha=self.mu) if self.mu else g

    def penalty(self, y: Tensor, at: At) -> Tensor:
        return self.mu / 2 * (y - at.x).square().sum(1, keepdim=True)

    def shadow(self, s: Tensor) -> Tensor:
        return self.mu * s
