"""SGD whose clients find their own step sizes: DeltaSGD and SPS.

Both are SGD with another `lr` at every step and for every client, so momentum, guesses and the sum of rates mean
the same as for SGD. Their state is reset in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from ..errors import InputError, check
from ..ranges import COEFFICIENT, NUMBER, POSITIVE, keep
from .base import SGD, State

if TYPE_CHECKING:
    from ..aggregate import Reports
    from ..data.batches import Batch
    from ..rule import End, Objective


@dataclass(frozen=True)
class SelfTuned(SGD):
    """What DeltaSGD and SPS share: `size` gives each client's step size, and the rest is SGD.

        v <- momentum * v - eta * g,    y <- y + v          eta = size(...), one per client and step

    Where eta or g is not finite the step is skipped (its gradient counts as zero) and the client reports it. With
    momentum the velocity holds steps that were taken, each with its own eta, so a guess without gradients coasts on
    it as with SGD, whatever the next eta would have been.
    """

    linear: ClassVar[bool] = False
    finds_rate: ClassVar[bool] = True

    def for_server(self) -> Self:
        name = type(self).__name__
        raise InputError(f"{name} looks at gradients, and the server has none; use SGD, Adam, Adagrad or Yogi there.")

    def init(self, y: Tensor, lr: Tensor) -> State:
        return super().init(y, lr) | {"eta": lr.clone(), "skipped": torch.zeros_like(lr)}

    def size(self, f: Objective, state: State, y: Tensor, batch: Batch, g: Tensor, value: Tensor) -> Tensor:
        """The step size of each client, `[clients, 1]`, given gradient and value at y; NaN skips the step."""
        raise NotImplementedError

    def step(self, f: Objective, state: State, lr: Tensor, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        raw, value = f(y, batch)
        g = self.tame(raw, y)
        new = self.size(f, state, y, batch, g, value)
        fine = torch.isfinite(new)
        if not bool(fine.all()):
            state["skipped"].add_(~fine)
            g = torch.where(fine, g, 0.0)
        state["eta"].copy_(torch.where(fine & (new > 0), new, state["eta"]))
        lr.copy_(torch.where(fine, new, 0.0))  # the rate in use, which `take_steps` sums
        self.move(y, g, state, lr)
        return raw, value

    def scalars(self, end: End, steps: Tensor) -> dict[str, Tensor]:
        return {"lr": end.lr_sum / steps, "skipped": end.state["skipped"]}

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
    "same" (a second gradient per step but the first), "new_masks" (so, too, but with dropout masks of its own, as in
    the authors' code: the two then differ by more than the curvature) or "consecutive" (g~ is the last step's own
    gradient: free but noisy). Momentum is ours, not the paper's.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, COEFFICIENT, "delta", "theta", "eps")
        keep(self, POSITIVE, "gamma")
        first, mode = self.first_step, self.batch_mode
        check(first in ("grown", "eta0"), self, "first_step", "'grown' or 'eta0'", first)
        modes = ("same", "new_masks", "consecutive")
        check(mode in modes, self, "batch_mode", "'same', 'new_masks' or 'consecutive'", mode)

    def init(self, y: Tensor, lr: Tensor) -> State:
        gradient = {"g": torch.zeros_like(y)} if self.batch_mode == "consecutive" else {}
        return super().init(y, lr) | {"theta": y.new_full((len(y), 1), self.theta), "y": y.clone()} | gradient

    def size(self, f: Objective, state: State, y: Tensor, batch: Batch, g: Tensor, value: Tensor) -> Tensor:
        eta, theta = state["eta"], state["theta"]
        if batch.step == 0:  # nothing to compare with
            dx, dg = torch.zeros_like(eta), _norm(g)
        else:
            before = state["g"] if self.batch_mode == "consecutive" else self._before(f, state["y"], batch)
            dx, dg = _norm(state["y"].sub_(y)), _norm(before.sub_(g))  # in place: both are overwritten below
        fine = torch.isfinite(dg)
        if batch.step == 0 and self.first_step == "eta0":
            new = eta.clone()
        else:
            cap = eta * torch.sqrt(1 + self.delta * theta)
            curved = torch.minimum(cap, self.gamma * dx / (2 * dg)) + self.eps
            new = torch.where((dx > 0) & (dg > 0), curved, cap)
            theta.copy_(torch.where(fine, new / eta, theta))
        state["y"].copy_(y)
        if self.batch_mode == "consecutive":
            state["g"].copy_(g)
        return torch.where(fine, new, torch.nan)

    def _before(self, f: Objective, y: Tensor, batch: Batch) -> Tensor:
        """The gradient at the point before the last step."""
        again = replace(batch, masks=batch.masks + 1) if self.batch_mode == "new_masks" else batch
        return self.tame(f(y, again)[0], y)


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

    reads_value: ClassVar[bool] = True
    at_clients: ClassVar[dict[str, Any]] = {"lr": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, POSITIVE, "c", "max")
        keep(self, NUMBER, "fstar")
        check(isinstance(self.smooth, bool), self, "smooth", "true or false", self.smooth)
        unused = self.lr in (None, 1.0) or self.smooth
        check(unused, self, "lr", "left out (SPS finds its own; it is where smooth=true starts)", self.lr)
        check(self.clip is None, self, "clip", "left out (a clipped gradient lengthens SPS's step; use max)", self.clip)

    def size(self, f: Objective, state: State, y: Tensor, batch: Batch, g: Tensor, value: Tensor) -> Tensor:
        objective = value
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


def _norm(vectors: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return norms
