"""Early exits: the first few of a model as one output, and the loss over them."""

from typing import Any

import torch
from torch import Tensor, nn


class Heads(nn.Module):
    """The scores at a model's first exits, `[batch, exits, classes]`; rules see them as the representation of a sample.

    The model has `exits(x, depth) -> list of scores`.
    """

    def __init__(self, model: Any, depth: int) -> None:
        super().__init__()
        self.model, self.depth = model, depth

    def represent(self, x: Tensor) -> Tensor:
        return torch.stack(self.model.exits(x, self.depth), 1)

    def classify(self, z: Tensor) -> Tensor:
        return z

    forward = represent


class MultiExit:
    """A loss over all exits, later ones counting more: sum_l l loss(z_l) / (L (L + 1) / 2).

    >>> from fedkeel import cross_entropy
    >>> scores = torch.tensor([[[1.0, 0, -1], [0.5, 0.5, 0], [2, -1, 0]]])
    >>> round(MultiExit(cross_entropy)(scores, torch.tensor([0])).item(), 6)
    0.472197
    """

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        exits = output.unbind(1)
        total = sum(l * self.loss(z, target) for l, z in enumerate(exits, 1))  # noqa: E741 - the paper's letter
        value: Tensor = total / (len(exits) * (len(exits) + 1) / 2)
        return value
