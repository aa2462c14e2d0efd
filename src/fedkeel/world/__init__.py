"""The world, separate from the algorithm: which clients take part in a round, how much each does, and how fast.

budget.py     how many local steps a client may do
devices.py    how fast it is, how good its network is, when it is there
clock.py      how long its round takes, and who reports in time
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import draws
from ..errors import InputError, brief, check, is_count, is_number, reason
from ..ranges import STEPS_OR_ZERO, Range
from ..settings import Kind, check_settings, integer, number, one_of, refuses_unknown, setting, settings
from .budget import Ask, Budget, Epochs, FixedSteps, Ints, UniformSteps, parse_budget
from .devices import AnyFleet, Fleet, Table, fleet

__all__ = ["Ask", "Budget", "Epochs", "FixedSteps", "Fleet", "Ints", "UniformSteps", "World", "parse_budget"]

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


def _read_budget(budget: Any) -> Any:
    """A budget out of its text or a number of steps; anything else as it is."""
    if isinstance(budget, str):
        return parse_budget(budget)
    return FixedSteps(budget) if is_count(budget, 0) else budget


def _read_deadline(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def percentile(deadline: Any) -> float | None:
    """80 of "p80"; None for a deadline that is a number.

    >>> percentile("p80"), percentile(30)
    (80.0, None)
    """
    if not isinstance(deadline, str) or not re.fullmatch(r"p[0-9]{1,2}(\.[0-9]{1,6})?|p100", deadline):
        return None
    return float(deadline[1:])


def _may_be_deadline(deadline: Any) -> bool:
    return deadline in Range(1e-9, 1e12) or percentile(deadline) is not None


FLEET = Kind(str, lambda given: isinstance(given, str | Fleet | Table), "the name of a fleet, a FILE.csv or a Fleet")
DEADLINE = Kind(_read_deadline, _may_be_deadline, "a number of seconds in [1e-9, 1e12] or a percentile such as p80")
LATE = one_of(("partial", "drop"), "'partial' or 'drop'")
COHORT = Kind(_read_cohort, _may_be_cohort, "a number >= 1, a fraction in (0, 1], 'all' or a schedule")
BUDGET = Kind(
    str,
    _may_be_budget,
    "UniformSteps(3, 8) or '3:8', FixedSteps(5) or 5, Epochs(2) or '2e', or a callable (round, client) -> steps",
)
SAMPLER = one_of(SAMPLERS, f"one of {', '.join(SAMPLERS)}")


@refuses_unknown(
    clients="cohort=10 for the clients of a round; the task says how many there are",
    epochs="budget='2e' for two local epochs",
    steps="budget=5 for five local steps",
)
@dataclass(frozen=True)
class World:
    """Which clients take part, and how many steps they do.

    cohort: a number, a fraction, "all" or a schedule of cohorts `[[0, 1], [2, 3], ...]` that repeats;
    default min(20, N). budget: `UniformSteps`, `FixedSteps`, `Epochs`, or as on the command line "3:8", 5 or "2e";
    default the task's, else one epoch; a callable `(round, client) -> steps` works too, and 0 steps means the client
    does not take part. expected_steps: what the server asks for, which GEL's `remaining` guesses fill up to. sampler:
    "uniform" without replacement, "cyclic" (blocks in client order, so each takes part once per cycle) or "weighted" by
    samples. min_clients: a round in which fewer clients report a usable update counts as a round, with its costs and
    its row in the history, but the server makes no step: model, server state and clients' memories stay as they were.

    fleet: the clients' devices, a name such as "phones", a FILE.csv or a `Fleet`; the history then has simulated
    seconds. deadline: the seconds a round may take, or "p80", the 80th percentile of what FedAvg takes over all
    clients. late: what clients do that cannot finish before it: "partial" (they report the steps they have done) or
    "drop" (nothing of theirs counts). invite: so many times the cohort is invited, and the first to arrive count.

    >>> World(cohort=2).who(round=1, population=5, seed=0).shape
    (2,)
    """

    cohort: int | float | str | Sequence[Sequence[int]] | None = setting(
        None, COHORT, "clients per round; default min(20, all)", "N|FRACTION|all"
    )
    budget: Budget | str | int | None = setting(
        None, BUDGET, "steps from A to B, N steps, or E epochs; default the task's", "A:B|N|Ee"
    )
    expected_steps: int | None = setting(
        None, integer(most=2 * 10**7), "steps the server asks for; default B+5 with A:B", "N"
    )
    sampler: str = setting("uniform", SAMPLER, "uniform, cyclic or weighted", "HOW")
    min_clients: int = setting(1, integer(), "no server step in a round with fewer usable updates", "N")
    fleet: str | AnyFleet | None = setting(None, FLEET, "devices: phones, hospitals, another fleet or a CSV", "FLEET")
    deadline: float | str | None = setting(None, DEADLINE, "end a round after so many simulated seconds", "S|pNN")
    late: str = setting("partial", LATE, "clients that would be late report what they have, or nothing", "HOW")
    invite: float = setting(1.0, number(Range(1, 100)), "invite so many times the cohort, take the first", "FACTOR")

    def __post_init__(self) -> None:
        if isinstance(self.cohort, list | tuple):
            good, must = _is_schedule(self.cohort), "a list of non-empty lists of distinct client numbers"
            check(good, self, "cohort", must, self.cohort)
            object.__setattr__(self, "cohort", [[int(client) for client in clients] for clients in self.cohort])
        object.__setattr__(self, "budget", _read_budget(self.budget))
        check_settings(self, self)
        if isinstance(self.fleet, str):
            object.__setattr__(self, "fleet", fleet(self.fleet))
        for name in ("deadline", "late", "invite"):
            if self.fleet is None and getattr(self, name) != settings(World)[name].default:
                raise InputError(f"'{name}' is about time, which only devices have; give a fleet (--fleet phones).")
        if self.invite > 1 and isinstance(self.cohort, list):
            raise InputError("A schedule names the clients of every round; leave out invite.")

    @classmethod
    def from_parameters(cls, known: Mapping[str, Any]) -> World:
        """The world from plain values (of `parameters` or flags), in which the budget is text.

        >>> World.from_parameters({"cohort": 5, "budget": "4:13"}).expected
        18
        """
        return cls(**known)

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

    def invited(self, population: int) -> int:
        """How many clients are asked, of which the first of the cohort's size count.

        >>> World(cohort=10, fleet="phones", invite=1.3).invited(population=100)
        13
        """
        return min(population, math.ceil(self.invite * self.size(population) - 1e-9))

    def who(
        self,
        round: int,
        population: int,
        seed: int,
        sizes: Callable[[Ints], Ints] | None = None,
        here: Callable[[Ints], NDArray[np.bool_]] | None = None,
    ) -> Ints:
        """The clients that are asked in this round, ascending. Uniform sampling costs the same for any population.

        here: which of some clients are available; None means all are. Uniform sampling draws others in place of those
        that are not.
        """
        if here is not None and self.sampler == "uniform" and not isinstance(self.cohort, list | tuple):
            return draw_here(draws.generator(seed, "cohort", round), self.invited(population), population, here)
        drawn = self._drawn(round, population, seed, sizes)
        return drawn if here is None else drawn[here(drawn)]

    def _drawn(self, round: int, population: int, seed: int, sizes: Callable[[Ints], Ints] | None) -> Ints:
        self.size(population)  # refuses a cohort that does not fit
        c, size = self.cohort, self.invited(population)
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
        """The steps the server asks of everybody, if that is known; with a deadline it asks for each client's own."""
        if self.expected_steps is not None or self.deadline is not None:
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
            **self._time(),
        }

    def _time(self) -> dict[str, Any]:
        if self.fleet is None:  # no clock: such a configuration has none of these
            return {}
        timed = {"deadline": self.deadline, "late": self.late, "invite": self.invite}
        return {"fleet": str(self.fleet)} | timed


def draw_here(
    generator: np.random.Generator, size: int, population: int, here: Callable[[Ints], NDArray[np.bool_]]
) -> Ints:
    """So many of the clients that are available, ascending, each as likely as another; all of them if there are fewer.

    >>> draw_here(np.random.default_rng(0), 2, 9, lambda clients: clients % 4 == 1).shape
    (2,)
    """
    found: dict[int, None] = {}
    for _ in range(0 if population <= 8 * size else 8):  # where most of many are there, a few tries are enough
        drawn = np.unique(generator.integers(population, size=2 * size))
        drawn = generator.permutation(drawn)
        found |= dict.fromkeys(drawn[here(drawn)].tolist())
        if len(found) >= size:
            return np.sort(np.array(list(found)[:size], dtype=np.int64))
    everybody = np.arange(population, dtype=np.int64)
    everybody = everybody[here(everybody)]
    return np.sort(generator.permutation(everybody)[:size])
