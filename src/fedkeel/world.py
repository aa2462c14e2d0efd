"""The world, separate from the algorithm: which clients take part in a round, and how many steps each can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import draws
from .errors import InputError, brief, check, is_count, is_number, reason
from .ranges import POSITIVE, STEPS, STEPS_OR_ZERO, keep
from .settings import Kind, check_settings, integer, one_of, setting

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


SAMPLERS = ("uniform", "cyclic", "weighted")


def _is_cohort(clients: Any) -> bool:
    whole = isinstance(clients, list | tuple) and all(is_count(client, 0) for client in clients)
    return whole and 0 < len(clients) == len(set(clients))


def _is_schedule(cohort: Any) -> bool:
    return isinstance(cohort, list | tuple) and len(cohort) > 0 and all(_is_cohort(clients) for clients in cohort)


def _may_be_cohort(cohort: Any) -> bool:
    fraction = is_number(cohort) and not is_count(cohort, 0) and 0 < cohort <= 1
    return is_count(cohort) or fraction or (isinstance(cohort, str) and cohort == "all") or _is_schedule(cohort)


def _read_cohort(text: str) -> int | float | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    if text != "all":
        raise InputError(f"'{text}' is not a number, a fraction or all")
    return text


def _may_be_budget(budget: Any) -> bool:
    return isinstance(budget, UniformSteps | FixedSteps | Epochs) or callable(budget)


COHORT = Kind(_read_cohort, _may_be_cohort, "a number >= 1, a fraction in (0, 1], 'all' or a schedule")
BUDGET = Kind(str, _may_be_budget, "UniformSteps, FixedSteps, Epochs or a callable (round, client) -> steps")
SAMPLER = one_of(SAMPLERS, f"one of {', '.join(SAMPLERS)}")


@dataclass(frozen=True)
class World:
    """Which clients take part, and how many steps they do.

    cohort: a number, a fraction, "all" or a schedule of cohorts `[[0, 1], [2, 3], ...]` that repeats;
    default min(20, N). budget: default the task's, else one epoch; a callable `(round, client) -> steps` works
    too, and 0 steps means the client does not take part. expected_steps: what the server asks for, which GEL's
    `remaining` guesses fill up to. sampler: "uniform" without replacement, "cyclic" (blocks in client order, so
    each takes part once per cycle) or "weighted" by samples. min_clients: a round in which fewer clients report a
    usable update counts as a round, with its costs and its row in the history, but the server makes no step: model,
    server state and clients' memories stay as they were.

    >>> World(cohort=2).who(round=1, population=5, seed=0).shape
    (2,)
    """

    cohort: int | float | str | Sequence[Sequence[int]] | None = setting(
        None, COHORT, "clients per round; default min(20, all)", "N|FRACTION|all"
    )
    budget: Budget | None = setting(
        None, BUDGET, "steps from A to B, N steps, or E epochs; default the task's", "A:B|N|Ee"
    )
    expected_steps: int | None = setting(
        None, integer(most=2 * 10**7), "steps the server asks for; default B+5 with A:B", "N"
    )
    sampler: str = setting("uniform", SAMPLER, "uniform, cyclic or weighted", "HOW")
    min_clients: int = setting(1, integer(), "no server step in a round with fewer usable updates", "N")

    def __post_init__(self) -> None:
        if isinstance(self.cohort, list | tuple):
            good, must = _is_schedule(self.cohort), "a list of non-empty lists of distinct client numbers"
            check(good, self, "cohort", must, self.cohort)
            object.__setattr__(self, "cohort", [[int(client) for client in clients] for clients in self.cohort])
        check_settings(self, self)

    @classmethod
    def from_parameters(cls, known: Mapping[str, Any]) -> World:
        """The world from plain values (of `parameters` or flags), in which the budget is text.

        >>> World.from_parameters({"cohort": 5, "budget": "4:13"}).expected
        18
        """
        budget = known.get("budget")
        return cls(**{**known, "budget": None if budget is None else parse_budget(budget)})

    def size(self, population: int) -> int:
        """The cohort size (the first one of a schedule); refuses a cohort that does not fit."""
        c = self.cohort
        if c is None:
            return min(20, population)
        if isinstance(c, list | tuple):
            largest = max(max(s) for s in c)
            if largest >= population:
                named = f"The cohort schedule names client {brief(largest)}"
                raise InputError(f"{named}; there are clients 0..{population - 1}.")
            return len(c[0])
        if c == "all":
            return population
        assert isinstance(c, int | float)
        size = c if isinstance(c, int) else max(1, math.floor(c * population + 1e-9))
        if size > population:
            raise InputError(f"A cohort of {brief(size)} is larger than the population of {population} clients.")
        return size

    def largest(self, population: int) -> int:
        """The size of the largest cohort.

        >>> World(cohort=[[0], [1, 2]]).largest(population=3)
        2
        """
        size, c = self.size(population), self.cohort
        return max(map(len, c)) if isinstance(c, list | tuple) else size

    def who(self, round: int, population: int, seed: int, sizes: Callable[[Ints], Ints] | None = None) -> Ints:
        """The cohort of this round, ascending. Uniform sampling costs the same for any population."""
        c, size = self.cohort, self.size(population)
        if isinstance(c, list | tuple):
            return np.sort(np.array(c[(round - 1) % len(c)], dtype=np.int64))
        if size == population:
            return np.arange(population, dtype=np.int64)
        if self.sampler == "cyclic":
            return np.sort(((round - 1) * size + np.arange(size)) % population).astype(np.int64)
        share = None
        if self.sampler == "weighted":
            assert sizes is not None
            held = sizes(np.arange(population, dtype=np.int64))
            share = held / held.sum()
        generator = draws.generator(seed, "cohort", round)
        return np.sort(generator.choice(population, size, replace=False, p=share)).astype(np.int64)

    def steps(self, ask: Ask, asked: Ints | None = None) -> Ints:
        """The true steps each client of the cohort may do; 0 means it does not take part.

        The steps of a rule's plan replace epochs; a budget in steps caps them.
        """
        budget = self.budget
        if asked is not None:
            return asked if isinstance(budget, Epochs) else np.minimum(asked, self.steps(ask))
        if isinstance(budget, UniformSteps | FixedSteps | Epochs):
            return budget.steps(ask)
        assert callable(budget)
        counts = []
        for client in ask.clients:
            where = f"client {client} in round {ask.round}"
            try:
                count = budget(ask.round, int(client))
            except Exception as error:  # of the user's function
                raise InputError(f"The budget of {where} fails: {reason(error)}.") from error
            if count not in STEPS_OR_ZERO:
                raise InputError(f"The budget of {where} must be {STEPS_OR_ZERO}. Got {brief(count)} instead.")
            counts.append(int(count))
        return np.array(counts, dtype=np.int64)

    @property
    def expected(self) -> int | None:
        """The steps the server asks for, if that is known."""
        if self.expected_steps is not None:
            return self.expected_steps
        return self.budget.expected if isinstance(self.budget, UniformSteps) else None

    def parameters(self) -> dict[str, Any]:
        """Values for the configuration; a callable budget cannot be saved."""
        named = isinstance(self.budget, UniformSteps | FixedSteps | Epochs)
        return {
            "cohort": self.cohort,
            "budget": str(self.budget) if named else None,
            "expected_steps": self.expected,
            "sampler": self.sampler,
            "min_clients": self.min_clients,
        }
