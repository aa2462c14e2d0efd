"""GEL: clients guess the steps they had no budget for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, check
from ..optim import SGD, Optimizer
from ..ranges import STEPS_OR_ZERO, Range, plain
from ..response import lengths
from ..rule import End, Me, Rule, Walk

if TYPE_CHECKING:
    from ..algorithm import Algorithm
    from ..task import Task
    from ..world import Ints, World

MATCHED = 10_000  # the largest budget of match-gel, which takes every number of steps up to it
WITH_LEVELS = 5  # guesses with levels if the expected steps are unknown: GEL's Table VI


@dataclass(frozen=True, repr=False)
class Guess(Rule):
    """After the real steps, continue without gradients (Dhasade et al. 2021, Boukhari et al. 2025).

    The gradient of a guessed step is a proxy: zero, where the velocity coasts (SGD with momentum a):

        y <- y + c(q) v,    c(q) = a (1 - a^q) / (1 - a),    q guesses, one axpy

    or the last real gradient, step by step (Adam clients, the first version of the paper).
    steps: "remaining" (up to the steps the server expects), a number, a share such as "25%" of the real ones,
    or "inf". proxy: "zero" or "last"; default last with Adam clients, zero otherwise.

    >>> Guess("25%").count(torch.tensor([[8.0]]), None).item()
    2.0
    """

    steps: str | float = "remaining"
    proxy: str | None = None

    def __post_init__(self) -> None:
        check(self.proxy in (None, "zero", "last"), self, "proxy", "'zero' or 'last'", self.proxy)
        endless = isinstance(self.steps, float) and self.steps == math.inf
        known = "inf" if endless else plain(self.steps)  # one spelling for checks and configurations
        known = int(known) if isinstance(known, str) and known.isdecimal() and len(known) < 20 else known
        object.__setattr__(self, "steps", known)
        good = known in STEPS_OR_ZERO
        if isinstance(known, str):
            good = known in ("remaining", "inf") or _share(known) is not None
        must = f"'remaining', {STEPS_OR_ZERO}, a share in [0%, 100000%], or 'inf'"
        check(good, self, "steps", must, self.steps)

    def count(self, real: Tensor, expected: Tensor | int | None) -> Tensor:
        """q: how many steps each client guesses, given the real steps it did."""
        if self.steps == "inf":
            return torch.full_like(real, torch.inf)
        if self.steps == "remaining":
            assert expected is not None
            return (expected - real).clamp(min=0)
        share = _share(str(self.steps))
        return torch.full_like(real, float(self.steps)) if share is None else share * real

    def proxy_for(self, client: Optimizer) -> str:
        """The proxy in use: the papers' for this client optimizer unless one was asked for."""
        return self.proxy or ("zero" if isinstance(client, SGD) else "last")

    def walk(self, go: Walk, me: Me, y: Tensor) -> End:
        end = go(y)
        q = self.count(me.steps, me.expected)
        if not bool(q.any()):
            return end
        zero = self.proxy_for(end.client) == "zero"
        if zero and isinstance(end.client, SGD):
            y.addcmul_(end.state["v"], end.client.coast(q).to(y.dtype))
        else:
            assert end.last is not None
            proxy = torch.zeros_like(y) if zero else end.last
            end.client.guess(y, proxy, end.state, end.lr, torch.floor(q + 0.5))
        return end

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        known = world.expected is not None or world.deadline is not None
        unknown = self.steps == "remaining" and not known  # without levels, `legal.py` has refused that
        return replace(self, steps=WITH_LEVELS if unknown else self.steps, proxy=self.proxy_for(algorithm.client))


def _share(text: str) -> float | None:
    if not text.endswith("%"):
        return None
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        return None
    return share if share in Range(0, 1000) else None


def matched(client: Optimizer, world: World, reached: tuple[Ints, Ints] | None = None) -> float:
    """The rate factor of GEL's control arm: the same mean step length, without a guess.

    For SGD clients E||a with guesses|| / E||a||; for Adam clients, whose steps have a fixed length, E(u + q)/E(u). The
    mean is over the distribution of budgets or, with a deadline, over all clients: the steps they reach before it, and
    the steps that are expected of each.
    """
    outcomes = getattr(world.budget, "outcomes", None)
    if reached is not None:
        outcomes = np.sort(reached[0])
    elif outcomes is None or world.expected is None:
        raise InputError(
            "match-gel needs the distribution of budgets and the steps the server expects: "
            "use a budget such as 4:13, or 10 with --expected-steps."
        )
    if outcomes[-1] > MATCHED:
        raise InputError(f"match-gel follows budgets of up to {MATCHED:,} steps, and this one has {outcomes[-1]:,}.")
    if client.finds_rate:
        raise InputError(
            f"match-gel compares steps of a known size, and {type(client).__name__} clients choose their own; use SGD."
        )
    steps = torch.tensor(np.array([o for o in outcomes if o > 0]), dtype=torch.float64)[:, None]
    expected: Tensor | int | None = world.expected
    if reached is not None:
        steps, expected = (torch.from_numpy(column)[:, None].double() for column in reached)
    if not isinstance(client, SGD):
        return float((Guess().count(steps, expected) + steps).mean() / steps.mean())
    if not client.momentum:
        raise InputError(
            "match-gel is the control of a guess, and guesses need momentum; use fedavgcm:server_lr=match-gel."
        )
    plain = replace(client, weight_decay=0.0)
    guessed = lengths(plain, [Guess()], steps, 1.0, expected)
    return float(guessed.mean() / lengths(plain, [], steps, 1.0, expected).mean())
