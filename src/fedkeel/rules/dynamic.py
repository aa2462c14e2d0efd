"""FedDyn and AdaBest: regularise clients towards agreeing stationary points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, zeros_like

from ..errors import check
from ..ranges import COEFFICIENT, POSITIVE, keep
from ..rule import End, Me, Rule, Tensors, Up, View

if TYPE_CHECKING:
    from ..aggregate import Reports


@dataclass(frozen=True, repr=False)
class FedDyn(Rule):
    """FedDyn: a linear term and a proximal one make local and global stationary points agree (Acar et al. 2021).

    `adaptive=True` scales alpha by the mean client size over the client's own. `evaluate="cohort"` evaluates the
    mean of the cohort's models instead of the server's; the history has both.

    >>> FedDyn(0.1).alpha
    0.1
    """

    alpha: float = 0.01
    adaptive: bool = False
    evaluate: str = "server"

    def __post_init__(self) -> None:
        keep(self, POSITIVE, "alpha")
        check(isinstance(self.adaptive, bool), self, "adaptive", "true or false", self.adaptive)
        check(self.evaluate in ("server", "cohort"), self, "evaluate", "'server' or 'cohort'", self.evaluate)

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {"h": zeros_like(x)}

    def remember(self, me: Me) -> Tensors:
        return {"gi": zeros_like(me.x)}

    def start(self, me: Me) -> Tensors:
        alpha = self.alpha * (me.facts.mean_samples / me.samples if self.adaptive else torch.ones_like(me.samples))
        return {"alpha": alpha, "fixed": torch.addcmul(me.memory["gi"], me.x, alpha)}  # constant during the round

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        return g.sub_(me.notes["fixed"]).addcmul_(y, me.notes["alpha"])

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        assert end.moved is not None
        new = me.memory["gi"].addcmul_(end.moved, me.notes["alpha"], value=-1)
        return Up(derived={"moved": end.moved}, memory={"gi": new})

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        h = server["h"] - self.alpha * view.fraction * up.mean("moved")
        return {"h": h}, up.delta - h / self.alpha

    def models(self, x: Tensor, server: Tensors) -> Tensors:
        cohort = x + server["h"] / self.alpha  # the mean of the cohort's models
        return {"": x, "cohort": cohort} if self.evaluate == "server" else {"": cohort, "server": x}


@dataclass(frozen=True, repr=False)
class AdaBest(Rule):
    """A bias estimate that fades while a client is away, and an extrapolated average (Varno et al. 2022).

    >>> AdaBest(mu=0.1).beta
    0.9
    """

    mu: float = 0.01
    beta: float = 0.9

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "mu", "beta")

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {"average": x, "push": zeros_like(x)}

    def remember(self, me: Me) -> Tensors:
        return {"hi": zeros_like(me.x), "last": me.x.new_zeros(1)}

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        return g.sub_(me.memory["hi"]) if self.mu else g

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        t, last = me.facts.round, me.memory["last"]
        new = me.memory["hi"] / (t - last) + self.mu * (me.x - y)
        return Up(memory={"hi": new, "last": zeros_like(last) + t})

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        average = view.x + up.delta
        push = self.beta * (average - server["average"])
        return {"average": average, "push": push}, up.delta + push if self.beta else up.delta
