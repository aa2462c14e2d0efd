"""HeteroFL's masked loss: a client trains only the classes of its own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..rule import End, Losses, Me, Rule, Tensors, Up


@dataclass(frozen=True, repr=False)
class OwnClasses(Rule):
    """Scores of classes a client has no samples of are 0 in its loss, and its rows for them are not averaged
    (Diao et al. 2021).

    >>> OwnClasses()
    OwnClasses()
    """

    keeps_linear: ClassVar[bool] = True  # it changes the objective; steps stay a fixed combination of its gradients

    def start(self, me: Me) -> Tensors:
        return {"owned": me.site.owned()}

    def loss(self, f: Losses, me: Me, z: Tensor | None, output: Tensor, target: Tensor) -> Tensor:
        owned = me.notes["owned"]
        return f(z, output * owned.view(len(owned), 1, -1, *[1] * (output.ndim - 3)), target)

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        rows = me.site.class_rows()
        return Up(cover=me.notes["owned"][:, rows.clamp(min=0)].masked_fill(rows < 0, 1.0))
