"""Momentum over many rounds against client drift: GHBM, LocalGHBM, FedHBM, and the one-round FedCM and FedADC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from ..errors import check
from ..ranges import COEFFICIENT, COUNT, POSITIVE, Range, keep
from ..rule import End, Me, Objective, Rule, Tensors, Up, View

if TYPE_CHECKING:
    from ..aggregate import Reports
    from ..algorithm import Algorithm
    from ..data.batches import Batch
    from ..task import Task
    from ..world import World


@dataclass(frozen=True, repr=False)
class GHBM(Rule):
    """Generalised heavy-ball momentum: a push along the movement of the model in the last tau rounds (eq. 6).

        M = (x^{t-1} - x^{t-tau-1}) / tau;      after every local step  y <- y + (beta / J_i) M

    With tau = 1/C the push spans all clients if they take turns, and about two thirds of them under uniform sampling,
    so it is less biased to the last cohort. tau: default round(1/C). warmup, while there are no tau rounds to look
    back on: "zero", "clamp" (look back to x^0, divide by tau) or "truncate" (divide by the rounds there were).
    nesterov_push: push before each gradient, not after.

    >>> GHBM(tau=10).beta
    0.9
    """

    beta: float = 0.9
    tau: int | None = None
    warmup: str = "zero"
    nesterov_push: bool = False

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "beta")
        known = self.tau is None or self.tau in COUNT
        check(known, self, "tau", f"{COUNT}, or left out for round(1/C)", self.tau)
        keep(self, COUNT, "tau")
        kinds = ("zero", "clamp", "truncate")
        check(self.warmup in kinds, self, "warmup", f"one of {', '.join(kinds)}", self.warmup)
        push = self.nesterov_push
        check(isinstance(push, bool), self, "nesterov_push", "true or false", push)

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        population = len(task.data)
        participants = algorithm.pace.participation(world.size(population))
        return replace(self, tau=self.tau or max(1, round(population / participants)))

    def send(self, server: Tensors, view: View) -> Tensors:
        assert self.tau is not None
        t = view.facts.round
        behind = t - 1 - self.tau  # the model to look back to is x^{t-tau-1}
        if not self.beta or t == 1 or (behind < 0 and self.warmup == "zero"):
            return {}
        # A round without participants changes neither the model nor the list: the next entry is the same model.
        kept = min((r for r in map(_round_of, server) if r >= behind), default=None)
        oldest = view.x0 if behind < 0 else view.x if kept is None else server[f"x{kept}"]
        divisor = t - 1 if behind < 0 and self.warmup == "truncate" else self.tau
        return {"M": (view.x - oldest) / divisor}

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if me.sent and self.nesterov_push:
            y.addcmul_(me.sent["M"], self.beta / me.steps)
        found = go(y, batch)
        if me.sent and not self.nesterov_push:
            y.addcmul_(me.sent["M"], self.beta / me.steps)
        return found

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        # The last tau models by round; old tensors are never written to, so nothing is copied.
        assert self.tau is not None
        t = view.facts.round
        recent = {name: x for name, x in server.items() if _round_of(name) >= t - self.tau}
        return {**recent, f"x{t - 1}": view.x}, up.delta


@dataclass(frozen=True, repr=False)
class LocalGHBM(Rule):
    """GHBM without the extra download: a client looks back to the model it received last time.

        M_i = s (x - a_i),   a_i the model received at the last participation,   s = C or 1 / (rounds since)

    >>> LocalGHBM().scale
    'participation'
    """

    beta: float = 0.9
    scale: str = "participation"

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "beta")
        kinds = ("participation", "elapsed")
        check(self.scale in kinds, self, "scale", " or ".join(kinds), self.scale)

    def remember(self, me: Me) -> Tensors:
        return {"anchor": me.x, "last": me.x.new_zeros(1)}

    def start(self, me: Me) -> Tensors:
        return {"M": (me.x - me.memory["anchor"]).mul_(scaling(self.scale, me))} if self.beta else {}

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        found = go(y, batch)
        if self.beta:
            y.addcmul_(me.notes["M"], self.beta / me.steps)
        return found

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        return Up(memory={"anchor": me.x.expand_as(y), "last": torch.zeros_like(me.steps) + me.facts.round})


@dataclass(frozen=True, repr=False)
class FedHBM(Rule):
    """A client looks back to its own last model, step by step: server movement minus its own, like c - c_i.

        y <- y - lr g + (beta s / J_i) (y - a_i),   a_i its final model at the last participation

    first: what stands for a_i before that: "none" (plain steps), "shared" (the initial model) or "random" (a draw of
    the initialiser per client).

    >>> FedHBM().beta
    1.0
    """

    beta: float = 1.0
    scale: str = "participation"
    first: str = "none"

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "beta")
        kinds, firsts = ("participation", "elapsed"), ("none", "shared", "random")
        check(self.scale in kinds, self, "scale", " or ".join(kinds), self.scale)
        check(self.first in firsts, self, "first", f"one of {', '.join(firsts)}", self.first)

    def remember(self, me: Me) -> Tensors:
        anchor = me.site.draw_models() if self.first == "random" else me.site.x0
        return {"anchor": anchor, "last": me.x.new_zeros(1)}

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if not self.beta:
            return go(y, batch)
        ahead = y - me.memory["anchor"]
        found = go(y, batch)
        known = 1 - me.first if self.first == "none" else 1.0
        y.addcmul_(ahead, self.beta * known * scaling(self.scale, me) / me.steps)
        return found

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        return Up(memory={"anchor": y, "last": torch.zeros_like(me.steps) + me.facts.round})


@dataclass(frozen=True, repr=False)
class FedCM(Rule):
    """The last round's direction mixed into every local step (Xu et al. 2021).

        g <- alpha g + (1 - alpha) D / (lr J_i),   D the last round's mean movement x - y

    >>> FedCM().alpha
    0.1
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        keep(self, Range(POSITIVE.least, 1), "alpha")

    def send(self, server: Tensors, view: View) -> Tensors:
        return server if self.alpha < 1 else {}

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        if self.alpha == 1:
            return g
        if not me.sent:
            return g.mul_(self.alpha)
        return g.mul_(self.alpha).addcmul_(me.sent["D"], (1 - self.alpha) / (me.sent["lr"] * me.steps))

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        return {"D": -up.delta, "lr": torch.tensor(view.lr, dtype=view.x.dtype, device=view.x.device)}, up.delta


@dataclass(frozen=True, repr=False)
class FedADC(Rule):
    """Server momentum spent inside the local steps, heavy-ball form (Ozfatura et al. 2021).

        g <- g + beta_local m / J_i;      m <- -Delta / lr + (beta_global - beta_local) m;      x <- x - a lr m

    With equal betas and a = 1 it is GHBM with tau = 1.

    >>> FedADC().a
    1.0
    """

    beta_local: float = 0.9
    beta_global: float = 0.9
    a: float = 1.0

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "beta_local", "beta_global")
        keep(self, POSITIVE, "a")

    def send(self, server: Tensors, view: View) -> Tensors:
        return server if self.beta_local else {}

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        return g.addcmul_(me.sent["m"], self.beta_local / me.steps) if me.sent else g

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        now = -up.delta / view.lr
        m = now + (self.beta_global - self.beta_local) * server["m"] if server else now
        return {"m": m}, -self.a * view.lr * m


def _round_of(name: str) -> int:
    return int(name[1:])  # of "x7", the model after round 7


def scaling(scale: str, me: Me) -> Tensor | float:
    """s: the participation C, or one over the rounds since the client last took part."""
    return me.facts.fraction if scale == "participation" else 1 / (me.facts.round - me.memory["last"])
