"""SGD whose clients find their own step sizes: DeltaSGD and SPS.

Both are SGD with another `at.lr` at every step and for every client, so momentum, guesses and `at.lr_sum` mean what
they mean for SGD. Their state starts anew in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from .errors import InputError, check, is_number
from .optim import SGD, State

if TYPE_CHECKING:
    from .algorithm import Algorithm, At
    from .wire import Reports


@dataclass(frozen=True)
class SelfTuned(SGD):
    """What DeltaSGD and SPS share: `size` gives each client's step size, and the rest is SGD.

        v <- momentum * v - eta * g,    y <- y + v          eta = size(...), one per client and step

    Where eta or g is not finite the step is skipped (its gradient counts as zero) and the client says so. With
    momentum the velocity holds steps that were taken, each with its own eta, so a guess without gradients coasts on
    it as with SGD, whatever the next eta would have been.
    """

    linear: ClassVar[bool] = False
    finds_rate: ClassVar[bool] = True

    def for_server(self) -> Self:
        name = type(self).__name__
        raise InputError(f"{name} looks at gradients, and the server has none; use SGD, Adam, Adagrad or Yogi there.")

    def init(self, y: Tensor) -> State:
        return super().init(y) | {name: y.new_zeros((len(y), 1)) for name in ("eta", "skipped")}

    def size(self, y: Tensor, g: Tensor, state: State, at: At) -> Tensor:
        """The step size of each client, `[clients, 1]`; NaN skips the step."""
        raise NotImplementedError

    def move(self, y: Tensor, g: Tensor, state: State, at: At) -> None:
        if at.k == 0:
            state["eta"].copy_(at.lr)
        new = self.size(y, g, state, at)
        fine = torch.isfinite(new)
        if not bool(fine.all()):
            state["skipped"].add_(~fine)
            g = torch.where(fine, g, 0.0)
        state["eta"].copy_(torch.where(fine & (new > 0), new, state["eta"]))
        at.lr.copy_(torch.where(fine, new, 0.0))  # what is really used: the loop sums it up
        super().move(y, g, state, at)

    @property
    def formula(self) -> str:
        """Of the step size, for `explain`."""
        raise NotImplementedError

    def box(self, server: bool) -> list[str]:
        names = ["lr", *(f.name for f in fields(self) if f not in fields(SelfTuned))]
        values = (f"{name} = {value}" for name in names if (value := getattr(self, name)) is not None)
        lines = [line.replace("lr", "eta") for line in super().box(server)]
        return [*self.formula.splitlines(), *lines, ", ".join(values)]

    def scalars(self, state: State, at: At) -> dict[str, Tensor]:
        return {"lr": at.lr_sum / at.steps, "skipped": state["skipped"]}

    def report(self, up: Reports) -> dict[str, float]:
        """Over clients: the least, median and largest of their mean step sizes; the steps skipped."""
        sizes = up.values("lr").double()
        ends = {"lr_min": sizes.min(), "lr_median": sizes.quantile(0.5), "lr_max": sizes.max()}
        return {name: float(value) for name, value in ends.items()} | {"skipped": int(up.values("skipped").sum())}


@dataclass(frozen=True)
class DeltaSGD(SelfTuned):
    """Each client measures how curved its loss is and steps accordingly (Kim, Toghani, Uribe, Kyrillidis 2023).

        eta_k = min(eta_{k-1} sqrt(1 + delta theta_{k-1}),  gamma ||y_k - y_{k-1}|| / (2 ||g_k - g~||)) + eps
        theta_k = eta_k / eta_{k-1}                                   g~ = gradient at y_{k-1} on the batch of g_k

    or the first of the two alone where a norm is zero. lr: eta before the first step. first_step: "grown" (it
    grows before the first step too, as in the authors' code) or "eta0" (it does not, as printed). batch_mode:
    "same" (a second gradient per step but the first) or "consecutive" (g~ is the last step's own gradient: free
    but noisy). Momentum is ours, not the paper's.

    >>> DeltaSGD().for_clients().lr
    0.2
    """

    delta: float = 0.1
    gamma: float = 2.0
    theta: float = 1.0
    eps: float = 1e-8
    first_step: str = "grown"
    batch_mode: str = "same"

    at_clients: ClassVar[dict[str, Any]] = {"lr": 0.2}
    reference: ClassVar[str] = "Kim et al. 2023, Adaptive federated learning with auto-tuned clients (arXiv 2306.11201)"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("delta", "theta", "eps"):
            value = getattr(self, name)
            check(is_number(value) and value >= 0, self, name, ">= 0", value)
        check(is_number(self.gamma) and self.gamma > 0, self, "gamma", "> 0", self.gamma)
        first, mode = self.first_step, self.batch_mode
        check(first in ("grown", "eta0"), self, "first_step", "'grown' or 'eta0'", first)
        check(mode in ("same", "consecutive"), self, "batch_mode", "'same' or 'consecutive'", mode)

    @property
    def formula(self) -> str:
        last = "the gradient at y_last on the same batch" if self.batch_mode == "same" else "the last step's gradient"
        return (
            "eta' <- min(eta sqrt(1 + delta theta), gamma ||y - y_last|| / (2 ||g - g_last||)) + eps\n"
            f"theta <- eta' / eta,   eta <- eta'        g_last is {last}; eta starts at lr"
        )

    def init(self, y: Tensor) -> State:
        gradient = {"g": torch.zeros_like(y)} if self.batch_mode == "consecutive" else {}
        return super().init(y) | {"theta": y.new_full((len(y), 1), self.theta), "y": y.clone()} | gradient

    def size(self, y: Tensor, g: Tensor, state: State, at: At) -> Tensor:
        eta, theta = state["eta"], state["theta"]
        if at.k == 0:  # nothing to compare with
            dx, dg = torch.zeros_like(eta), _norm(g)
        else:
            before = state["g"] if self.batch_mode == "consecutive" else self.tame(at.gradient(state["y"]), state["y"])
            dx, dg = _norm(state["y"].sub_(y)), _norm(before.sub_(g))  # in place: what comes next is kept below
        fine = torch.isfinite(dg)
        if at.k == 0 and self.first_step == "eta0":
            new = eta.clone()
        else:
            cap = eta * torch.sqrt(1 + self.delta * theta)
            curved = torch.minimum(cap, self.gamma * dx / (2 * dg)) + self.eps
            new = torch.where((dx > 0) & (dg > 0), curved, cap)
            theta.copy_(torch.where(fine, new / eta, theta))
        for name, value in (("y", y), ("g", g)):
            if name in state:
                state[name].copy_(value)
        return torch.where(fine, new, torch.nan)


SMOOTH = 2 ** (1 / 500)  # by how much a step of the smooth variant may outgrow the one before
TINY = 1e-8


@dataclass(frozen=True)
class SPS(SelfTuned):
    """Polyak's step size on the batch at hand (Loizou, Vaswani, Laradji, Lacoste-Julien 2021).

        eta = (f(y) - fstar) / (c ||g||^2 + 1e-8),      0 where f(y) < fstar or ||g|| < 1e-8

    f is the whole objective: the batch's loss, what rules add to it, and weight decay. max: an upper bound
    (SPS_max). smooth: no more than 2^(1/500) times the last eta, starting from lr = 1.

    >>> SPS(max=1.0).c
    0.5
    """

    c: float = 0.5
    fstar: float = 0.0
    max: float | None = None
    smooth: bool = False

    at_clients: ClassVar[dict[str, Any]] = {"lr": 1.0}
    reference: ClassVar[str] = "Loizou et al. 2021, Stochastic Polyak step-size for SGD (arXiv 2002.10542)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(is_number(self.c) and self.c > 0, self, "c", "> 0", self.c)
        check(is_number(self.fstar), self, "fstar", "a number", self.fstar)
        check(self.max is None or (is_number(self.max) and self.max > 0), self, "max", "> 0 or None", self.max)
        check(isinstance(self.smooth, bool), self, "smooth", "true or false", self.smooth)
        unused = self.lr in (None, 1.0) or self.smooth
        check(unused, self, "lr", "left out (SPS finds its own; it is where smooth=true starts)", self.lr)
        check(self.clip is None, self, "clip", "left out (a clipped gradient lengthens SPS's step; use max)", self.clip)

    @property
    def formula(self) -> str:
        polyak = "max(0, f(y) - fstar) / (c ||g||^2 + 1e-8)"
        caps = ["2^(1/500) eta"] * self.smooth + ["max"] * (self.max is not None)
        return f"eta <- min({', '.join([polyak, *caps])})" if caps else f"eta <- {polyak}"

    def size(self, y: Tensor, g: Tensor, state: State, at: At) -> Tensor:
        assert at.loss is not None
        objective = at.loss + at.penalty(y)
        if self.weight_decay:
            objective = objective + self.weight_decay / 2 * y.square().sum(1, keepdim=True)
        square = g.square().sum(1, keepdim=True)
        new = ((objective - self.fstar) / (self.c * square + TINY)).clamp(min=0)
        new = torch.where(square < TINY**2, 0.0, new)
        if self.smooth:
            new = torch.minimum(new, SMOOTH * state["eta"])
        if self.max is not None:
            new = new.clamp(max=self.max)
        return torch.where(torch.isfinite(objective) & torch.isfinite(square), new, torch.nan)

    def refuse(self, algorithm: Algorithm) -> str | None:
        for rule in algorithm.hooks("gradient"):
            if not rule.defines("penalty"):
                return (
                    f"SPS divides the loss by the gradient's norm, and {rule.slot} changes the gradient by something "
                    "that belongs to no loss; use client=sgd or client=deltasgd."
                )
        return None


def _norm(vectors: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return norms
