"""SCAFFOLD: cancel client drift with control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, zeros_like

from ..errors import check
from ..ranges import Range, keep
from ..rule import End, Me, Rule, Tensors, Up, View

if TYPE_CHECKING:
    from ..aggregate import Reports


@dataclass(frozen=True, repr=False)
class Scaffold(Rule):
    """Every local step is corrected by c - c_i: the mean gradient of all clients minus this client's own.

    The new c_i is, with option 2, the gradient estimated from the round's steps (`control="difference"`: from the
    distance covered, weight decay included; `"gradient_mean"`: the mean raw gradient) and, with option 1, the full
    gradient at x (one more pass over the client's data). Clients send the change of c_i, never c_i itself;
    `rebuild=True` lets the server work it out from the update (1.5x the traffic of FedAvg instead of 2x).

    >>> Scaffold().option
    2
    """

    option: int = 2
    control: str = "difference"
    rebuild: bool = False

    def __post_init__(self) -> None:
        keep(self, Range(1, 2, whole=True), "option")
        kinds = ("difference", "gradient_mean")
        check(self.control in kinds, self, "control", " or ".join(kinds), self.control)
        check(self.option == 2 or self.control == "difference", self, "control", "left out with option 1", self.control)
        check(isinstance(self.rebuild, bool), self, "rebuild", "true or false", self.rebuild)
        check(
            not self.rebuild or self.by_distance,
            self,
            "rebuild",
            "false unless option=2,control=difference",
            self.rebuild,
        )

    @property
    def by_distance(self) -> bool:
        """Whether the new c_i is read off the distance covered, so that the server can work it out, too."""
        return self.option == 2 and self.control == "difference"

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {"c": zeros_like(x)}

    def send(self, server: Tensors, view: View) -> Tensors:
        return server

    def remember(self, me: Me) -> Tensors:
        return {"ci": zeros_like(me.x)}

    def start(self, me: Me) -> Tensors:
        correction = me.sent["c"] - me.memory["ci"]
        return {"correction": correction} | ({"sum": zeros_like(correction)} if self.control == "gradient_mean" else {})

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        if self.control == "gradient_mean" and me.site.is_own(y):
            me.notes["sum"].add_(g)
        return g.add_(me.notes["correction"])

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        if self.by_distance:
            assert end.moved is not None
            change = (end.moved / -end.lr_sum).sub_(me.sent["c"])
            new = me.memory["ci"].add_(change)
        else:
            new = me.site.full_gradient(me.x) if self.option == 1 else me.notes["sum"] / me.steps
            change = new - me.memory["ci"]
        vector = {"dc": change}
        return Up(derived=vector, memory={"ci": new}) if self.rebuild else Up(mean=vector, memory={"ci": new})

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        return {"c": server["c"] + view.fraction * up.mean("dc")}, up.delta
