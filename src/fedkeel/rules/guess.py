"""GEL: clients guess the steps they had no budget for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..algorithm import Algorithm, At, Rule
from ..errors import InputError, check, is_count, is_number
from ..optim import SGD, Optimizer
from ..weights import lengths

if TYPE_CHECKING:
    from ..task import Task
    from ..world import World

WITH_LEVELS = 5  # guesses where devices differ in size and nobody says what the server expects: GEL's Table VI


@dataclass(frozen=True, repr=False)
class Guess(Rule):
    """After the real steps, go on without gradients (Dhasade, Kermarrec, Pires 2021, 2025).

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

    reference: ClassVar[str] = (
        "Dhasade, Kermarrec & Pires, Guess what? Federated learning with guessed updates (arXiv 2110.11486; TPDS 2025)"
    )

    def __post_init__(self) -> None:
        check(self.proxy in (None, "zero", "last"), self, "proxy", "'zero' or 'last'", self.proxy)
        if self.steps == math.inf:  # one spelling, so that refusals and configurations know one
            object.__setattr__(self, "steps", "inf")
        text = str(self.steps)
        good = text in ("remaining", "inf") or is_count(self.steps, 0) or text.isdigit()
        if text.endswith("%"):
            good = _share(text) is not None
        check(good, self, "steps", "'remaining', a number >= 0, a share such as '25%', or 'inf'", self.steps)

    def box(self, algorithm: Algorithm) -> dict[str, str]:
        client, steps = algorithm.client, str(self.steps)
        q = {"remaining": "the steps the server expects - J_i, at least 0", "inf": "infinity"}.get(steps, steps)
        q += f" ({WITH_LEVELS} where that is not known)" if steps == "remaining" and algorithm.capacity else ""
        q += " of J_i" if steps.endswith("%") else ""
        return {"extra": f"{client.guess_box(self.proxy_for(client) == 'zero')}        q = {q}"}

    def count(self, real: Tensor, expected: int | None) -> Tensor:
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

    def extra(self, y: Tensor, at: At) -> None:
        q = self.count(at.steps, at.expected_steps)
        if not bool(q.any()):
            return
        zero = self.proxy_for(at.optimizer) == "zero"
        if zero and isinstance(at.optimizer, SGD):
            y.addcmul_(at.state["v"], at.optimizer.coast(q).to(y.dtype))
        else:
            assert at.g is not None
            at.optimizer.guess(y, torch.zeros_like(y) if zero else at.g, at.state, at, torch.floor(q + 0.5))

    def refuse(self, algorithm: Algorithm) -> str | None:
        client, name = algorithm.client, type(algorithm.client).__name__
        proxy = self.proxy_for(client)
        if proxy == "last" and self.steps == "inf":
            return "Infinitely many guesses with the last gradient never settle; use proxy=zero or a number of steps."
        if proxy == "last" and client.finds_rate:
            return f"{name} clients choose each step size by a new gradient, and a guess has none; use proxy=zero."
        if proxy == "zero" and not client.coasts:
            return f"Guesses need momentum to coast on, and {name} clients have none here; give momentum=0.9."
        if self.steps == "inf" and not isinstance(client, SGD):
            return f"Infinitely many guesses have a closed form for SGD with momentum, not for {name}; use a number."
        return None

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        if self.steps == "remaining" and world.expected is None:
            if algorithm.capacity is not None:
                return replace(self, steps=WITH_LEVELS, proxy=self.proxy_for(algorithm.client))
            raise InputError(
                "GEL guesses the steps that remain up to what the server expects, and that is not known: "
                "give expected_steps (--expected-steps), a uniform budget such as 4:13, or gel:steps=5."
            )
        return replace(self, proxy=self.proxy_for(algorithm.client))


def _share(text: str) -> float | None:
    if not text.endswith("%"):
        return None
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        return None
    return share if is_number(share) and share >= 0 else None


def matched(client: Optimizer, world: World) -> float:
    """The rate factor of GEL's control arm: the same mean step length, without a guess.

    For SGD clients E||a with guesses|| / E||a||; for Adam clients, whose steps have a fixed length, E(u + q)/E(u).
    """
    outcomes = getattr(world.budget, "outcomes", None)
    if outcomes is None or world.expected is None:
        raise InputError(
            "match-gel needs the distribution of budgets and the steps the server expects: "
            "use a budget such as 4:13, or 10 with --expected-steps."
        )
    if client.finds_rate:
        raise InputError(
            f"match-gel compares steps of a known size, and {type(client).__name__} clients choose their own; use sgd."
        )
    steps = torch.tensor(np.array([o for o in outcomes if o > 0]), dtype=torch.float64)[:, None]
    if not isinstance(client, SGD):
        return float((Guess().count(steps, world.expected) + steps).mean() / steps.mean())
    if not client.momentum:
        raise InputError(
            "match-gel is the control of a guess, and guesses need momentum; use fedavgcm:server_lr=match-gel."
        )
    plain = replace(client, weight_decay=0.0)
    guessed = lengths(plain, [Guess()], steps, 1.0, world.expected)
    return float(guessed.mean() / lengths(plain, [], steps, 1.0, world.expected).mean())
