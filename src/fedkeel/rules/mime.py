"""Mime and MimeLite: local steps that mimic the centralised optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, zeros_like

from ..errors import check
from ..ranges import FADING, keep
from ..rule import End, Me, Objective, Rule, Tensors, Up, View

if TYPE_CHECKING:
    from ..aggregate import Reports
    from ..data.batches import Batch


@dataclass(frozen=True, repr=False)
class ServerMomentum(Rule):
    """What Mime and MimeLite share: the server's momentum m, which clients receive and do not change.

    convention: "torch" mixes as beta m + q, "paper" as beta m + (1 - beta) q, the same with lr scaled by 1 - beta.
    """

    beta: float = 0.9
    convention: str = "torch"

    def __post_init__(self) -> None:
        keep(self, FADING, "beta")
        check(self.convention in ("torch", "paper"), self, "convention", "'torch' or 'paper'", self.convention)

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {"m": zeros_like(x)} if self.beta else {}

    def send(self, server: Tensors, view: View) -> Tensors:
        return server

    def mix(self, q: Tensor, m: Tensor) -> Tensor:
        return (q if self.convention == "torch" else (1 - self.beta) * q).add(m, alpha=self.beta)


@dataclass(frozen=True, repr=False)
class Mime(ServerMomentum):
    """An SVRG-style correction and the server's momentum, frozen during the round; two exchanges per round.

        q = g(y) - g(x; same batch) + c,    c the cohort's mean full gradient at x

    beta=0 is Mime with SGD, beta > 0 MimeMom.

    >>> Mime(beta=0.0).beta
    0.0
    """

    def survey(self, me: Me) -> Tensors:
        return {"c": me.site.full_gradient(me.x)}

    def objective(self, f: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        g, value = f(y, batch)
        at_x, _ = f(me.x.expand_as(y), batch)
        q = (g - at_x).add_(me.sent["c"])
        return self.mix(q, me.sent["m"]) if self.beta else q, value

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        new = {"m": self.mix(view.answers["c"], server["m"])} if self.beta else server
        return new, up.delta


@dataclass(frozen=True, repr=False)
class MimeLite(ServerMomentum):
    """Mime without the correction: only the server's momentum, from full gradients sent with the update.

    beta=0 is FedAvg.

    >>> MimeLite().beta
    0.9
    """

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        return self.mix(g, me.sent["m"]) if self.beta else g

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        return Up(weighted={"c": me.site.full_gradient(me.x)}) if self.beta else Up()

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        new = {"m": self.mix(up.weighted("c"), server["m"])} if self.beta else server
        return new, up.delta
