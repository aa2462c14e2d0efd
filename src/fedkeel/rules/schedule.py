"""The clients' rate by round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import InputError, brief, check
from ..messages import Facts, Plan
from ..ranges import COEFFICIENT, RATE, Range, plain
from ..rule import Rule, Tensors


def step_decay(round: int, rounds: int) -> float:
    """A tenth after half of the rounds, a hundredth after three quarters.

    >>> [step_decay(t, 4) for t in (1, 2, 3, 4)]
    [1.0, 1.0, 0.1, 0.01]
    """
    return 0.01 if round > 0.75 * rounds else 0.1 if round > 0.5 * rounds else 1.0


def cosine_decay(round: int, rounds: int) -> float:
    """Half a cosine: 1 in the first round, nearly 0 in the last.

    >>> [float(f"{cosine_decay(t, 4):.3f}") for t in (1, 2, 3, 4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return (1 + math.cos(math.pi * (round - 1) / rounds)) / 2


DECAYS: dict[str, Callable[[int, int], float]] = {"step": step_decay, "cosine": cosine_decay}
PER_ROUND = Range(1e-30, 1)


@dataclass(frozen=True, repr=False)
class Schedule(Rule):
    """Multiplies the clients' rate by a factor of the round t, of R rounds in all.

        "step"      1, a tenth after half of the rounds, a hundredth after three quarters
        "cosine"    (1 + cos(pi (t - 1) / R)) / 2
        d           d^(t - 1), for a number d such as 0.999

    or by any function (round, rounds) -> factor.

    >>> Schedule(0.5).factor(round=3, rounds=10)
    0.25
    >>> Schedule(lambda round, rounds: 1 / round)
    Schedule(decay='a Python function')
    """

    decay: str | float | Callable[[int, int], float] = "step"

    def __post_init__(self) -> None:
        known = callable(self.decay) or self.decay in PER_ROUND or self.decay in list(DECAYS)
        names = ", ".join(DECAYS)
        check(known, self, "decay", f"{names}, {PER_ROUND} or a function (round, rounds) -> factor", self.decay)
        object.__setattr__(self, "decay", plain(self.decay))

    def factor(self, round: int, rounds: int) -> float:
        """What the rate of this round is multiplied by."""
        if callable(self.decay):
            return self.decay(round, rounds)
        if isinstance(self.decay, str):
            return DECAYS[self.decay](round, rounds)
        return max(float(self.decay) ** (round - 1), PER_ROUND.least)  # a rate of 0 could not be divided by

    def plan(self, plan: Plan, server: Tensors, facts: Facts) -> Plan:
        factor = self.factor(facts.round, facts.rounds)
        if factor not in COEFFICIENT:
            where = f"The schedule's factor in round {facts.round}"
            raise InputError(f"{where} must be {COEFFICIENT}. Got {brief(factor)} instead.")
        return replace(plan, lr=min(plan.lr * float(factor), RATE.most))
