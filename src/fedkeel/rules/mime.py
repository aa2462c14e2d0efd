"""Mime and MimeLite: local steps that mimic the centralised optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, zeros_like

from ..errors import check, is_number
from ..rule import End, Me, Objective, Rule, Tensors, Up, View

if TYPE_CHECKING:
    from ..aggregate import Reports
    from ..data.batches import Batch


def mix(rule: Mime | MimeLite, q: Tensor, m: Tensor) -> Tensor:
    """U(q, m): beta m + q ("torch") or beta m + (1 - beta) q ("paper"), the same with lr scaled by 1 - beta."""
    return (q if rule.convention == "torch" else (1 - rule.beta) * q).add(m, alpha=rule.beta)


def check_momentum(rule: Mime | MimeLite) -> None:
    """Refuse bad parameters of the momentum."""
    check(is_number(rule.beta) and 0 <= rule.beta < 1, rule, "beta", "in [0, 1)", rule.beta)
    check(rule.convention in ("torch", "paper"), rule, "convention", "'torch' or 'paper'", rule.convention)


@dataclass(frozen=True, repr=False)
class Mime(Rule):
    """An SVRG-style correction and the server's momentum, frozen during the round; two exchanges per round.

        q = g(y) - g(x; same batch) + c,    c the cohort's mean full gradient at x

    beta=0 is Mime with SGD, beta > 0 MimeMom.

    >>> Mime(beta=0.0).beta
    0.0
    """

    beta: float = 0.9
    convention: str = "torch"

    def __post_init__(self) -> None:
        check_momentum(self)

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {"m": zeros_like(x)} if self.beta else {}

    def send(self, server: Tensors, view: View) -> Tensors:
        return server

    def survey(self, me: Me) -> Tensors:
        return {"c": me.site.full_gradient(me.x)}

    def objective(self, f: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        g, value = f(y, batch)
        at_x, _ = f(me.x.expand_as(y), batch)
        q = (g - at_x).add_(me.sent["c"])
        return mix(self, q, me.sent["m"]) if self.beta else q, value

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        new = {"m": mix(self, view.answers["c"], server["m"])} if self.beta else server
        return new, up.delta


@dataclass(frozen=True, repr=False)
class MimeLite(Rule):
    """Mime without the correction: only the server's momentum, from full gradients sent with the update.

    beta=0 is FedAvg.

    >>> MimeLite().beta
    0.9
    """

    beta: float = 0.9
    convention: str = "torch"

    def __post_init__(self) -> None:
        check_momentum(self)

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {"m": zeros_like(x)} if self.beta else {}

    def send(self, server: Tensors, view: View) -> Tensors:
        return server

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        return mix(self, g, me.sent["m"]) if self.beta else g

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        return Up(weighted={"c": me.site.full_gradient(me.x)}) if self.beta else Up()

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        new = {"m": mix(self, up.weighted("c"), server["m"])} if self.beta else server
        return new, up.delta
