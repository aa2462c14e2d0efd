"""A model cut at its representation, for rules whose loss reads it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...flat import FlatModel, halves


class Split(nn.Module):
    """`forward(x)` gives both `represent(x)` and what `classify` makes of it."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__()
        self.module, self.views = model.module, model.views

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cut = halves(self.module)
        assert cut is not None  # `legal.py` refuses models that cannot be cut
        represent, classify = cut
        last = self.module[-1] if type(self.module) is nn.Sequential else None
        if last is None or classify is not last:
            z = represent(x)
            return z, classify(z)
        # A chain is called whole: its `forward` may be one that runs layers together (`lean`, kernels).
        seen: list[Tensor] = []
        handle = last.register_forward_pre_hook(lambda layer, given: seen.append(given[0]))
        try:
            output = self.module(x)
        finally:
            handle.remove()
        return seen[0], output

    def at(self, vector: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Representations and outputs with these parameters."""
        parameters = {f"module.{name}": value for name, value in self.views(vector).items()}
        both: tuple[Tensor, Tensor] = functional_call(self, parameters, (x,))
        return both

    @torch.no_grad()
    def represent(self, at: Callable[..., tuple[Tensor, Tensor]], *arguments: Tensor | None) -> Tensor:
        """Representations only, in evaluation mode: no dropout, no statistics moved."""
        was = self.module.training
        self.module.eval()
        z, _ = at(*arguments)
        self.module.train(was)
        return z
