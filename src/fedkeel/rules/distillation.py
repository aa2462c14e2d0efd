"""ScaleFL's self-distillation: early exits learn from the client's last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import check
from ..ranges import COEFFICIENT, FRACTION, POSITIVE, keep
from ..rule import Losses, Me, Rule


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

    keeps_linear: ClassVar[bool] = True  # it changes the objective; steps stay a fixed combination of its gradients

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "gamma")
        keep(self, POSITIVE, "temperature")
        keep(self, FRACTION, "after")
        check(self.mean in ("elements", "batch"), self, "mean", "'elements' or 'batch'", self.mean)
        check(isinstance(self.detach, bool), self, "detach", "true or false", self.detach)

    def loss(self, f: Losses, me: Me, z: Tensor | None, output: Tensor, target: Tensor) -> Tensor:
        losses = f(z, output, target)
        early = me.facts.round <= self.after * me.facts.rounds
        if not self.gamma or early or output.shape[-2] == 1:
            return losses
        return losses + self.gamma * self.divergence(output)

    def divergence(self, z: Tensor) -> Tensor:
        """The weighted T^2 KL of scores `[..., exits, classes]`, one value per sample."""
        exits, classes = z.shape[-2:]
        logs = torch.log_softmax(z / self.temperature, -1)
        teacher = logs[..., -1:, :].detach() if self.detach else logs[..., -1:, :]
        kl = (teacher.exp() * (teacher - logs[..., :-1, :])).sum(-1)
        l = torch.arange(1, exits, dtype=z.dtype, device=z.device)  # noqa: E741 - the paper's letter
        total = (l * kl).sum(-1) * self.temperature**2 / (exits * (exits + 1) / 2)
        return total / classes if self.mean == "elements" else total
