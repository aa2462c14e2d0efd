"""MOON: representations stay near the received model's and away from the client's last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..ranges import COEFFICIENT, POSITIVE, keep
from ..rule import End, Losses, Me, Rule, Tensors, Up


@dataclass(frozen=True, repr=False)
class Contrastive(Rule):
    """Model-contrastive learning (Li, He, Song 2021), MOON.

        loss <- loss + mu * -log(e^a / (e^a + e^b)),    a = cos(z, z_received)/T,   b = cos(z, z_previous)/T

    z is what the model being trained makes of a sample, z_received what the received model does, z_previous what
    the client's model at the end of its last round does. At a client's first participation that is the received
    model, and the term has no gradient. Where a model has a z for each place of a text, the term is the mean over
    places. An `nn.Sequential` that ends in a linear layer, and our ResNets and LSTMs, are cut before the last layers;
    any other model must have `represent(x) -> z` and `classify(z) -> output`, with
    `forward(x) = classify(represent(x))`:

        class Net(nn.Module):
            def represent(self, x): return self.head(self.body(x))
            def classify(self, z): return self.last(z)
            def forward(self, x): return self.classify(self.represent(x))

    >>> Contrastive(mu=5.0)
    Contrastive(mu=5.0, temperature=0.5)
    """

    mu: float = 1.0
    temperature: float = 0.5

    represents: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "mu")
        keep(self, POSITIVE, "temperature")

    def remember(self, me: Me) -> Tensors:
        return {"previous": me.x}

    def loss(self, f: Losses, me: Me, z: Tensor | None, output: Tensor, target: Tensor) -> Tensor:
        losses = f(z, output, target)
        if not self.mu:
            return losses
        assert z is not None
        previous = me.memory["previous"]
        received = me.site.represent(me.x.expand_as(previous))
        found = contrast(z, received, me.site.represent(previous), self.temperature)
        if found.ndim > losses.ndim:  # a representation for each place of a text: their mean
            found = found.flatten(losses.ndim).mean(-1)
        return losses + self.mu * found

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        return Up(memory={"previous": y})


def contrast(z: Tensor, toward: Tensor, away: Tensor, temperature: float) -> Tensor:
    """-log(e^a / (e^a + e^b)) per sample, with a, b the cosines of z toward and away over the temperature.

    >>> z, toward, away = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), torch.tensor([-1.0, 1.0])
    >>> round(contrast(z, toward, away, 0.5).item(), 6)
    0.322094
    """
    # One operation on both, so that equal cosines give gradients that cancel exactly
    both = cosine_similarity(z.unsqueeze(-2), torch.stack([toward, away], -2), dim=-1) / temperature
    a, b = both.unbind(-1)
    return torch.logaddexp(a, b) - a
