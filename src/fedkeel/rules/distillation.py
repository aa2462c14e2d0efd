"""ScaleFL's self-distillation: early exits learn from the client's last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..algorithm import Algorithm, At, Rule
from ..capacity import Exits
from ..errors import check, is_number


@dataclass(frozen=True, repr=False)
class SelfDistillation(Rule):
    """After a share of the rounds, each exit also follows the softened last one (Ilhan, Su & Liu 2023).

        loss <- loss + sum_{l<L} l gamma T^2 KL(softmax(z_L/T) || softmax(z_l/T)) / (L (L + 1) / 2)

    gamma: its weight. after: the share of the rounds before it. mean: "elements" divides KL by the classes, as the
    authors' code does; "batch" does not. detach: the last exit is a fixed teacher.

    >>> SelfDistillation(gamma=0.1).temperature
    3.0
    """

    gamma: float = 0.05
    temperature: float = 3.0
    after: float = 0.25
    mean: str = "elements"
    detach: bool = False

    reference: ClassVar[str] = Exits.reference
    formulas: ClassVar[dict[str, str]] = {
        "loss": "loss <- loss + sum_{l<L} l gamma T^2 KL(softmax(z_L/T) || softmax(z_l/T)) / (L (L + 1) / 2)"
    }

    def __post_init__(self) -> None:
        check(is_number(self.gamma) and self.gamma >= 0, self, "gamma", ">= 0", self.gamma)
        check(is_number(self.temperature) and self.temperature > 0, self, "temperature", "> 0", self.temperature)
        check(is_number(self.after) and 0 <= self.after <= 1, self, "after", "in [0, 1]", self.after)
        check(self.mean in ("elements", "batch"), self, "mean", "'elements' or 'batch'", self.mean)
        check(isinstance(self.detach, bool), self, "detach", "true or false", self.detach)

    def loss(self, z: Tensor, at: At) -> Tensor | None:
        if not self.gamma or at.round <= self.after * at.rounds or z.shape[-2] == 1:
            return None
        return self.gamma * self.divergence(z)

    def divergence(self, z: Tensor) -> Tensor:
        """The weighted T^2 KL of scores `[..., exits, classes]`, one value per sample."""
        exits, classes = z.shape[-2:]
        logs = torch.log_softmax(z / self.temperature, -1)
        teacher = logs[..., -1:, :].detach() if self.detach else logs[..., -1:, :]
        kl = (teacher.exp() * (teacher - logs[..., :-1, :])).sum(-1)
        l = torch.arange(1, exits, dtype=z.dtype, device=z.device)  # noqa: E741 - the paper's letter
        total = (l * kl).sum(-1) * self.temperature**2 / (exits * (exits + 1) / 2)
        return total / classes if self.mean == "elements" else total

    def shadow(self, s: Tensor) -> Tensor:
        return torch.zeros_like(s)  # it belongs to the objective; steps stay a fixed combination of its gradients

    def refuse(self, algorithm: Algorithm) -> str | None:
        if isinstance(algorithm.capacity, Exits):
            return None
        return "Self-distillation is between early exits; use it with a capacity of exits, as scalefl does."
