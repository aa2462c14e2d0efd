"""Momentum over many rounds against client drift: GHBM, LocalGHBM, FedHBM, and the one-round FedCM and FedADC."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from ..algorithm import Algorithm, At, Memory, Rule
from ..errors import check, is_count, is_number
from ..wire import Reports, Upload

if TYPE_CHECKING:
    from ..task import Task
    from ..world import World

S = "s = C, or 1 / (t - t_i) with scale=elapsed"  # for `explain`
GHBM_PAPER = "Zaccone, Masone & Ciccone, Generalized heavy-ball momentum (arXiv 2311.18578; TMLR 2025)"


@dataclass(frozen=True, repr=False)
class GHBM(Rule):
    """Generalised heavy-ball momentum: a push along the way the model went in the last tau rounds (eq. 6).

        M = (x^{t-1} - x^{t-tau-1}) / tau;      after every local step  y <- y + (beta / J_i) M

    With tau = 1/C the push spans (nearly) all clients, so it is not biased to the last cohort. tau: default
    round(1/C). warmup, while there are no tau rounds to look back on: "zero", "clamp" (look back to x^0, divide by
    tau) or "truncate" (divide by the rounds there were). nesterov_push: push before each gradient, not after.

    >>> GHBM(tau=10).beta
    0.9
    """

    beta: float = 0.9
    tau: int | None = None
    warmup: str = "zero"
    nesterov_push: bool = False

    reference: ClassVar[str] = GHBM_PAPER
    keeps: ClassVar[dict[str, Any]] = {"server": ["the last tau models"]}

    def __post_init__(self) -> None:
        check(is_number(self.beta) and self.beta >= 0, self, "beta", ">= 0", self.beta)
        check(self.tau is None or is_count(self.tau), self, "tau", "an integer >= 1", self.tau)
        kinds = ("zero", "clamp", "truncate")
        check(self.warmup in kinds, self, "warmup", f"one of {', '.join(kinds)}", self.warmup)
        push = self.nesterov_push
        check(isinstance(push, bool), self, "nesterov_push", "true or false", push)

    @property
    def formulas(self) -> dict[str, str]:  # type: ignore[override]
        early = {"zero": "0", "clamp": "(x^{t-1} - x^0) / tau", "truncate": "(x^{t-1} - x^0) / (t - 1)"}[self.warmup]
        push = "y <- y + (beta / J_i) M"
        return {
            "send": f"M <- (x^{{t-1}} - x^{{t-tau-1}}) / tau        (while t <= tau: M <- {early})",
            "start": push if self.nesterov_push else "",
            "after_step": push + "        (not after the last step)" * self.nesterov_push,
        }

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        population = len(task.data)
        return replace(self, tau=self.tau or max(1, round(population / world.size(population))))

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        assert self.tau is not None
        behind = at.round - 1 - self.tau  # t - tau - 1
        if not self.beta or at.round == 1 or (behind < 0 and self.warmup == "zero"):
            return {}
        # A round in which nobody took part left the model, and the list, as they were: the next entry holds it.
        kept = min((t for t in map(_round_of, server) if t >= behind), default=None)
        oldest = at.x0 if behind < 0 else at.x if kept is None else server[f"x{kept}"]
        divisor = at.round - 1 if behind < 0 and self.warmup == "truncate" else self.tau
        return {"M": (at.x - oldest) / divisor}

    def start(self, y: Tensor, at: At) -> None:
        if self.nesterov_push and at.sent:
            y.addcmul_(at.sent["M"], self.beta / at.steps)

    def after_step(self, y: Tensor, at: At) -> None:
        if at.sent:
            more = at.steps > at.k + 1 if self.nesterov_push else 1.0
            y.addcmul_(at.sent["M"], self.beta / at.steps * more)

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        # The last tau models by round; old tensors are never written to, so nothing is copied.
        assert self.tau is not None
        recent = {name: x for name, x in server.items() if _round_of(name) >= at.round - self.tau}
        return {**recent, f"x{at.round - 1}": at.x}

    def remembered(self, at: At) -> Tensor | None:
        return -at.sent["M"] if at.sent else None

    def warn(self, algorithm: Algorithm, participation: float, steps: float) -> str | None:
        rate = algorithm.server.lr
        if isinstance(rate, int | float) and rate * self.beta >= 1:
            return (
                f"GHBM with server_lr={rate:g} and beta={self.beta:g}: the server's momentum is their product "
                f"{rate * self.beta:g}, and flat directions grow from 1 on."
            )
        return None


@dataclass(frozen=True, repr=False)
class LocalGHBM(Rule):
    """GHBM without the extra download: a client looks back to the model it received last time.

        M_i = s (x - a_i),   a_i the model received at the last participation,   s = C or 1 / (rounds since)

    >>> LocalGHBM().scale
    'participation'
    """

    beta: float = 0.9
    scale: str = "participation"

    reference: ClassVar[str] = GHBM_PAPER
    formulas: ClassVar[dict[str, str]] = {
        "start": f"M_i <- s (x - a_i)        ({S}; 0 at the first visit)",
        "after_step": "y <- y + (beta / J_i) M_i",
        "finish": "a_i <- x",
    }
    keeps: ClassVar[dict[str, Any]] = {"client": ["a_i", "t_i"]}

    def __post_init__(self) -> None:
        check(is_number(self.beta) and self.beta >= 0, self, "beta", ">= 0", self.beta)
        kinds = ("participation", "elapsed")
        check(self.scale in kinds, self, "scale", " or ".join(kinds), self.scale)

    def client_init(self, x: Tensor, at: At) -> Memory:
        return {"anchor": x, "last": x.new_zeros(1)}

    def start(self, y: Tensor, at: At) -> None:
        if self.beta:
            at.scratch["M"] = (at.x - at.memory["anchor"]).mul_(scaling(self.scale, at))

    def after_step(self, y: Tensor, at: At) -> None:
        if self.beta:
            y.addcmul_(at.scratch["M"], self.beta / at.steps)

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        return Upload(), {"anchor": at.x.expand_as(y), "last": torch.zeros_like(at.steps) + at.round}

    def remembered(self, at: At) -> Tensor | None:
        return scaling(self.scale, at) * (at.memory["anchor"] - at.x) if self.beta else None


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

    reference: ClassVar[str] = GHBM_PAPER
    formulas: ClassVar[dict[str, str]] = {
        "gradient": "p <- y - a_i        (p = 0 at the first visit, with first=none)",
        "after_step": f"y <- y + (beta s / J_i) p        ({S})",
        "finish": "a_i <- y",
    }
    keeps: ClassVar[dict[str, Any]] = {"client": ["a_i", "t_i"]}

    def __post_init__(self) -> None:
        check(is_number(self.beta) and self.beta >= 0, self, "beta", ">= 0", self.beta)
        kinds, firsts = ("participation", "elapsed"), ("none", "shared", "random")
        check(self.scale in kinds, self, "scale", " or ".join(kinds), self.scale)
        check(self.first in firsts, self, "first", f"one of {', '.join(firsts)}", self.first)

    def client_init(self, x: Tensor, at: At) -> Memory:
        anchor = at.draw_model() if self.first == "random" else at.x0
        return {"anchor": anchor, "last": x.new_zeros(1)}

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        if self.beta:
            at.scratch["ahead"] = y - at.memory["anchor"]
        return g

    def penalty(self, y: Tensor, at: At) -> Tensor:
        return y.new_zeros((len(y), 1))  # `gradient` only takes a note

    def after_step(self, y: Tensor, at: At) -> None:
        if self.beta:
            known = 1 - at.first if self.first == "none" else 1.0
            ahead = at.scratch.pop("ahead")  # let go, so that the next one takes its place in memory
            y.addcmul_(ahead, self.beta * known * scaling(self.scale, at) / at.steps)

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        return Upload(), {"anchor": y, "last": torch.zeros_like(at.steps) + at.round}

    def remembered(self, at: At) -> Tensor | None:
        known = 1 - at.first if self.first == "none" else 1.0
        return known * scaling(self.scale, at) * (at.memory["anchor"] - at.x) if self.beta else None

    def warn(self, algorithm: Algorithm, participation: float, steps: float) -> str | None:
        s = participation if self.scale == "participation" else 1.0
        k = math.expm1(steps * math.log1p(self.beta * s / steps)) if math.isfinite(steps) else math.expm1(self.beta * s)
        if k >= 1:
            return f"FedHBM with beta={self.beta:g}, s={s:g}: k={k:.3f} >= 1, so deviations grow at every visit."
        cyclic = k * (1 / participation - 1)
        if cyclic >= 1 and self.scale == "participation":
            return f"FedHBM with beta={self.beta:g}, C={participation:g}: k (1/C - 1) = {cyclic:.3f} >= 1 may diverge."
        return None


@dataclass(frozen=True, repr=False)
class FedCM(Rule):
    """The last round's direction mixed into every local step (Xu et al. 2021).

        g <- alpha g + (1 - alpha) D / (lr J_i),   D the last round's mean movement x - y

    >>> FedCM().alpha
    0.1
    """

    alpha: float = 0.1

    reference: ClassVar[str] = "Xu et al. 2021, FedCM (arXiv 2106.10874)"
    formulas: ClassVar[dict[str, str]] = {
        "gradient": "g <- alpha g + (1 - alpha) D / (lr J_i)        (D = 0 in round 1; lr of the round of D)",
        "server_step": "D <- -Delta",
    }
    keeps: ClassVar[dict[str, Any]] = {"server": ["D"]}

    def __post_init__(self) -> None:
        check(is_number(self.alpha) and 0 < self.alpha <= 1, self, "alpha", "in (0, 1]", self.alpha)

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return server if self.alpha < 1 else {}

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        if self.alpha == 1:
            return g
        if not at.sent:
            return g.mul_(self.alpha)
        return g.mul_(self.alpha).addcmul_(at.sent["D"], (1 - self.alpha) / (at.sent["lr"] * at.steps))

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        assert at.delta is not None
        return {"D": -at.delta, "lr": torch.tensor(at.client_lr, dtype=at.x.dtype, device=at.x.device)}

    def remembered(self, at: At) -> Tensor | None:
        return at.sent.get("D")

    def refuse(self, algorithm: Algorithm) -> str | None:
        return _one_rate(algorithm, "FedCM")


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

    reference: ClassVar[str] = "Ozfatura et al. 2021, FedADC (arXiv 2012.09102)"
    formulas: ClassVar[dict[str, str]] = {
        "gradient": "g <- g + beta_local m / J_i        (m = 0 in round 1)",
        "server_step": "m <- -Delta / lr + (beta_global - beta_local) m",
        "update": "Delta <- -a lr m",
    }
    keeps: ClassVar[dict[str, Any]] = {"server": ["m"]}

    def __post_init__(self) -> None:
        for name in ("beta_local", "beta_global"):
            value = getattr(self, name)
            check(is_number(value) and value >= 0, self, name, ">= 0", value)
        check(is_number(self.a) and self.a > 0, self, "a", "> 0", self.a)

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return server if self.beta_local else {}

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        return g.addcmul_(at.sent["m"], self.beta_local / at.steps) if at.sent else g

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        assert at.delta is not None
        now = -at.delta / at.client_lr
        return {"m": now + (self.beta_global - self.beta_local) * server["m"] if server else now}

    def update(self, delta: Tensor, server: dict[str, Tensor], at: At) -> Tensor:
        return -self.a * at.client_lr * server["m"]

    def remembered(self, at: At) -> Tensor | None:
        return at.sent.get("m")

    def refuse(self, algorithm: Algorithm) -> str | None:
        return _one_rate(algorithm, "FedADC")


def _round_of(name: str) -> int:
    return int(name[1:])  # of "x7", the model after round 7


def _one_rate(algorithm: Algorithm, name: str) -> str | None:
    if not algorithm.client.finds_rate:
        return None
    client = type(algorithm.client).__name__
    return f"{name} divides by the clients' rate, and {client} clients each find their own; use sgd, or ghbm."


def scaling(scale: str, at: At) -> Tensor | float:
    """s: the participation C, or one over the rounds since the client last took part."""
    return at.fraction if scale == "participation" else 1 / (at.round - at.memory["last"])
