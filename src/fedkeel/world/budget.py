"""Budgets: how many local steps each client of a round may do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import draws
from ..errors import InputError, check
from ..ranges import POSITIVE, STEPS, STEPS_OR_ZERO, keep

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ask:
    """What a budget may depend on: seed, round, clients and their samples."""

    seed: int
    round: int
    clients: Ints
    samples: Ints
    batch_size: int | None


@dataclass(frozen=True)
class UniformSteps:
    """Each participant draws its steps from {low, ..., high}, afresh each round.

    >>> str(UniformSteps(4, 13)), UniformSteps(4, 13).expected
    ('4:13', 18)
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        keep(self, STEPS_OR_ZERO, "low")
        keep(self, STEPS, "high")
        check(self.high >= self.low, self, "high", f"at least low, {self.low}", self.high)

    @classmethod
    def of_epochs(cls, low: int, high: int, samples: ArrayLike, batch_size: int) -> UniformSteps:
        """From `low` to `high` epochs of the median client; GEL with Adam (2021) has one to five.

        samples: those of every client. Both ends are rounded, which gives the ranges of the paper's Table 3; its text
        has u_m = ceil(n_m / B) and 5 u_m, which would be 9 to 45 here.

        >>> UniformSteps.of_epochs(1, 5, samples=[50, 161, 300], batch_size=20)
        UniformSteps(low=8, high=40)
        """
        steps = float(np.median(np.asarray(samples))) / batch_size
        return cls(max(1, math.floor(low * steps + 0.5)), max(1, math.floor(high * steps + 0.5)))

    @property
    def expected(self) -> int:
        """The steps the server asks for: five more than any client can do (the GEL papers' protocol)."""
        return self.high + 5

    @property
    def outcomes(self) -> range:
        """The equally likely numbers of steps."""
        return range(self.low, self.high + 1)

    def steps(self, ask: Ask) -> Ints:
        draw = draws.generators(ask.seed, "budget", ask.round, ask.clients)
        return np.array([g.integers(self.low, self.high + 1) for g in draw], dtype=np.int64)

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


@dataclass(frozen=True)
class FixedSteps:
    """Every participant does the same number of steps.

    >>> str(FixedSteps(10))
    '10'
    """

    count: int

    def __post_init__(self) -> None:
        keep(self, STEPS, "count")

    @property
    def outcomes(self) -> range:
        return range(self.count, self.count + 1)

    def steps(self, ask: Ask) -> Ints:
        return np.full(len(ask.clients), self.count, dtype=np.int64)

    def __str__(self) -> str:
        return str(self.count)


@dataclass(frozen=True)
class Epochs:
    """Passes over the client's own data: max(1, ceil(epochs * n_i / B)) steps, B never above n_i.

    `per_epoch=True` rounds every pass by itself: epochs * ceil(n_i / B), or floor with `drop_last`.

    >>> ask = Ask(0, 1, np.array([0]), np.array([45]), 20)
    >>> int(Epochs(2).steps(ask)[0]), int(Epochs(2, per_epoch=True).steps(ask)[0])
    (5, 6)
    """

    epochs: float
    per_epoch: bool = False
    drop_last: bool = False

    def __post_init__(self) -> None:
        keep(self, POSITIVE, "epochs")
        whole = float(self.epochs).is_integer()
        check(not self.per_epoch or whole, self, "epochs", "a whole number when per_epoch", self.epochs)
        check(not self.drop_last or self.per_epoch, self, "drop_last", "used with per_epoch=True", self.drop_last)

    def steps(self, ask: Ask) -> Ints:
        n = ask.samples
        batch = n if ask.batch_size is None else np.minimum(ask.batch_size, n)
        if self.per_epoch:
            each = n // batch if self.drop_last else -(-n // batch)
            steps = np.maximum(1, int(self.epochs) * each)
        else:  # 1e-9: binary rounding of an epoch count such as 0.1 must not add a step
            steps = np.maximum(1, np.ceil(self.epochs * n / batch - 1e-9)).astype(np.int64)
        if len(steps) and steps.max() not in STEPS:
            most = f"{STEPS.most:,} steps in a round, the most there may be"
            raise InputError(f"{self} of a client with {n[steps.argmax()]:,} samples are more than {most}.")
        return steps

    def __str__(self) -> str:
        options = [name for name in ("per_epoch", "drop_last") if getattr(self, name)]
        whole = float(self.epochs).is_integer()  # otherwise every digit, because a resumed run reads this
        return f"{int(self.epochs) if whole else self.epochs}e" + (":" + ",".join(options) if options else "")


Budget = UniformSteps | FixedSteps | Epochs | Callable[[int, int], int]


def parse_budget(text: str) -> UniformSteps | FixedSteps | Epochs:
    """Read `4:13` (uniform steps), `10` (steps) or `2e` (epochs).

    >>> parse_budget("4:13"), parse_budget("2e")
    (UniformSteps(low=4, high=13), Epochs(epochs=2.0, per_epoch=False, drop_last=False))
    """
    head, colon, options = text.partition(":")
    try:
        if head.endswith("e"):
            flags = {name: True for name in options.split(",") if name}
            if flags.keys() <= {"per_epoch", "drop_last"}:
                return Epochs(float(head[:-1]), **flags)
        elif colon:
            return UniformSteps(int(head), int(options))
        else:
            return FixedSteps(int(head))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"Budget '{text}' is not one of 4:13 (uniform steps), 10 (steps), 2e (epochs).")
