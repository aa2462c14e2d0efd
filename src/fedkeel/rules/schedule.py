"""The clients' rate by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import InputError, brief, check
from ..messages import Facts, Plan
from ..ranges import COEFFICIENT, RATE
from ..rule import Rule, Tensors


def step_decay(round: int, rounds: int) -> float:
    """A tenth after half of the rounds, a hundredth after three quarters.

    >>> [step_decay(t, 4) for t in (1, 2, 3, 4)]
    [1.0, 1.0, 0.1, 0.01]
    """
    return 0.01 if round > 0.75 * rounds else 0.1 if round > 0.5 * rounds else 1.0


DECAYS: dict[str, Callable[[int, int], float]] = {"step": step_decay}


@dataclass(frozen=True, repr=False)
class Schedule(Rule):
    """Multiplies the clients' rate by a factor of the round: "step", or any function (round, rounds) -> factor.

    lr_t = lr * decay(t, R)

    >>> Schedule(lambda round, rounds: 1 / round)
    Schedule(decay='a Python function')
    """

    decay: str | Callable[[int, int], float] = "step"

    def __post_init__(self) -> None:
        known = callable(self.decay) or self.decay in DECAYS
        check(known, self, "decay", f"{', '.join(DECAYS)} or a function (round, rounds) -> factor", self.decay)

    def plan(self, plan: Plan, server: Tensors, facts: Facts) -> Plan:
        decay = self.decay if callable(self.decay) else DECAYS[self.decay]
        factor = decay(facts.round, facts.rounds)
        if factor not in COEFFICIENT:
            where = f"The schedule's factor in round {facts.round}"
            raise InputError(f"{where} must be {COEFFICIENT}. Got {brief(factor)} instead.")
        return replace(plan, lr=min(plan.lr * float(factor), RATE.most))
