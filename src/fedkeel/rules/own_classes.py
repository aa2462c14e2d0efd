"""HeteroFL's masked loss: a client says nothing about classes it has never seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from ..algorithm import Algorithm, At, Rule
from ..errors import InputError

if TYPE_CHECKING:
    from ..task import Task
    from ..world import World


@dataclass(frozen=True, repr=False)
class OwnClasses(Rule):
    """Scores of classes a client has no samples of are 0 in its loss, and its rows for them are not averaged
    (Diao et al. 2021).

    >>> OwnClasses()
    OwnClasses()
    """

    reference: ClassVar[str] = "Diao, Ding & Tarokh 2021, HeteroFL (arXiv 2010.01264)"
    formulas: ClassVar[dict[str, str]] = {
        "loss": "scores of classes client i has no samples of are 0 in its loss",
        "finish": "rows of the last layer for those classes do not count in the mean",
    }

    def start(self, y: Tensor, at: At) -> None:
        at.scratch["owned"] = at.owned()

    def output(self, o: Tensor, at: At) -> Tensor:
        owned = at.scratch["owned"]
        return o * owned.view(len(owned), 1, -1, *[1] * (o.ndim - 3))

    def covers(self, at: At) -> Tensor:
        rows, owned = at.class_rows(), at.scratch["owned"]
        return owned[:, rows.clamp(min=0)].masked_fill(rows < 0, 1.0)

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        if task.data.y.is_floating_point():
            raise InputError(
                "A loss masked by class needs classes, and the targets are numbers; use heterofl:mask=false."
            )
        return self
