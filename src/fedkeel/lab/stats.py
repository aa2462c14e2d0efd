"""The statistics of runs: one arm, one result, one rule for intervals; used by compare, sweep, report and reproduce.

Seed i of one arm is paired with seed i of the other: they share the initial model, cohorts, budgets and batches. A seed
that did not reach its target never counts as if it had: where that leaves only a bound, the bound is reported.

Intervals are 95 % intervals from Student's t over paired seeds (`interval`, `mean_of`), with one exception: a speed-up
is a ratio of two means and not a mean over seeds, so `speedup` resamples the pairs of seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Any

import numpy as np

from .. import draws
from ..errors import is_number
from ..run.history import History, Row

RESAMPLES = 10_000
LAST = 100  # rounds whose accuracy is averaged (the GHBM paper's number), of short runs a quarter

SAME = 1e-9  # no more than roundings

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Gain:
    """By how much one arm differs from another: a number with its interval, or only a bound, or nothing.

    >>> print(Gain(0.304, low=0.12, high=0.45), Gain(more_than=0.12), Gain(less_than=-0.2), Gain(), sep=" | ")
    +30.4% [+12, +45] | > +12.0% | < -20.0% | -
    >>> print(Gain(0.1, low=0.1, high=0.1))
    +10.0%
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    more_than: float | None = None
    less_than: float | None = None

    def __str__(self) -> str:
        if self.more_than is not None:
            return f"> {self.more_than:+.1%}"
        if self.less_than is not None:
            return f"< {self.less_than:+.1%}"
        if self.value is None:
            return "-"
        if self.low is None or self.high is None or not self.ranged:
            return f"{self.value:+.1%}"
        return f"{self.value:+.1%} [{100 * self.low:+.0f}, {100 * self.high:+.0f}]"

    @property
    def ranged(self) -> bool:
        """It has an interval with a width. Where all seeds give the same, the width is not 0 but unknown."""
        return self.low is not None and self.high is not None and self.high - self.low > SAME

    @property
    def clear(self) -> bool:
        """The interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean_of(values: Sequence[float]) -> Gain:
    """The mean with its interval; a single value has none."""
    mean, half = statistics.mean(values), interval(values)
    return Gain(mean) if half is None else Gain(mean, mean - half, mean + half)


def difference(a: BySeed, b: BySeed, sign: int = 1) -> Gain | None:
    """The mean of a - b (or of b - a, with sign -1) over the seeds that both have; None where they share none.

    >>> difference({0: 5, 1: 7, 2: 6}, {0: 1, 1: 3, 2: 2})
    Gain(value=4, low=4.0, high=4.0, more_than=None, less_than=None)
    """
    pairs = [sign * (a[seed] - b[seed]) for seed in a if seed in b]
    return mean_of(pairs) if pairs else None


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of a mean (Student's t); None for fewer than two values.

    >>> round(interval([1.0, 2.0, 3.0]), 3)
    2.484
    """
    if len(values) < 2:
        return None
    return t975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


@cache
def t975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t to three decimals, as tables print it.

    >>> [t975(freedom) for freedom in (1, 2, 30, 1000)]
    [12.706, 4.303, 2.042, 1.962]
    """
    t, odds = np.linspace(0.0, 13.0, 100_001), (freedom + 1) / 2
    scale = math.exp(math.lgamma(odds) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + t**2 / freedom) ** -odds
    below = np.cumsum(density[1:] + density[:-1]) * t[1] / 2  # the probability of 0 to t
    return round(float(np.interp(0.475, below, t[1:])), 3)


def speedup(base: Sequence[float], arm: Sequence[float], base_cut: bool = False, arm_cut: bool = False) -> Gain:
    """mean(base) / mean(arm) - 1, of paired rounds to target, with a 95 % interval from resampled pairs.

    Of 10,000 resamples of the n seeds, the same share is cut off at both ends: Phi(-sqrt(n/(n-1)) t), t the 97.5 %
    quantile of Student's t with n-1 degrees of freedom (Hesterberg 2015, doi:10.1080/00031305.2015.1089789). That is
    2.5 % for many seeds, less for few, where the plain quantiles are too narrow. No resample leaves the range of the
    seeds, so with two to four of them the interval still covers less than 95 %. The same rounds give the same interval.

    base_cut, arm_cut: some seeds did not reach the target; their number is the rounds they ran, less than what they
    would need. Then the ratio is a lower bound (base cut), an upper bound (arm cut), or says nothing (both).

    >>> print(speedup([100, 120, 110], [80, 90, 100]))
    +22.2% [+10, +33]
    >>> print(speedup([200, 200], [150, 170], base_cut=True))
    > +25.0%
    """
    b, a = np.asarray(base, dtype=np.float64), np.asarray(arm, dtype=np.float64)
    # Paired, or nothing; and a target that the untrained model meets takes 0 rounds: there is no ratio.
    if len(a) != len(b) or not len(a) or min(a.min(), b.min()) <= 0 or (base_cut and arm_cut):
        return Gain()
    value = float(b.mean() / a.mean() - 1)
    if base_cut or arm_cut:
        return Gain(more_than=value) if base_cut else Gain(less_than=value)
    if len(a) == 1:
        return Gain(value)
    picks = draws.generator(0, "bootstrap").integers(len(a), size=(RESAMPLES, len(a)))
    ratios = b[picks].mean(1) / a[picks].mean(1) - 1
    share = statistics.NormalDist().cdf(-math.sqrt(len(a) / (len(a) - 1)) * t975(len(a) - 1))
    low, high = np.quantile(ratios, [share, 1 - share])
    return Gain(value, float(low), float(high))


@dataclass(frozen=True)
class Arm:
    """One algorithm with its seeds: histories that have ended, what they cost to the target, and where they end.

    seeds: which they are, 0, 1, ... unless given. metric: the column that says how good a run ends.
    unfinished: runs with rounds left, of which nothing else is counted here. config: of its first run.

    >>> rows = [{"round": t, "accuracy": t / 10, "gradients": 5 * t} for t in range(11)]
    >>> arm = Arm("fedavg", 0.5, [History(rows)], ["done"])
    >>> arm.costs("round"), arm.costs("gradients"), arm.missed
    ({0: 5.0}, {0: 25.0}, 0)
    """

    name: str
    target: float | None
    histories: Sequence[History]
    statuses: Sequence[str]
    seeds: Sequence[int] = ()
    metric: str = "accuracy"
    unfinished: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, target: float | None, runs: Sequence[tuple[int, History, str]], **more: Any) -> Arm:
        """The arm of these runs: seed, history, how it ended."""
        return cls(name, target, [run[1] for run in runs], [run[2] for run in runs], [run[0] for run in runs], **more)

    def _by_seed(self, values: Iterable[Any]) -> dict[int, float]:
        """Those of the values, one for each seed, that are numbers."""
        seeds = self.seeds or range(len(self.histories))
        return {s: known for s, v in zip(seeds, values, strict=True) if (known := number(v)) is not None}

    @property
    def diverged(self) -> int:
        return self.statuses.count("diverged")

    @property
    def sound(self) -> bool:
        """Something ended, and nothing diverged."""
        return bool(self.finals) and not self.diverged

    @cached_property
    def reached(self) -> list[Row | None]:
        """Per seed, the first row at the target, or None."""
        return [None if self.target is None else history.reaching(self.target) for history in self.histories]

    @property
    def missed(self) -> int:
        """Seeds that did not reach the target, 0 without one."""
        return 0 if self.target is None else self.reached.count(None)

    @property
    def never(self) -> bool:
        """No seed reached the target, or there is none."""
        return self.target is None or self.missed == len(self.histories)

    def costs(self, column: str) -> dict[int, float]:
        """By seed, what it took to reach the target (of a seed that did not: what the whole run took)."""
        ends = [row or history[-1] for row, history in zip(self.reached, self.histories, strict=True)]
        return self._by_seed(amount(row, column) for row in ends)

    def mean_cost(self, column: str) -> float | None:
        """The mean over seeds; None where it is not known of all of them."""
        known = self.costs(column)
        return statistics.mean(known.values()) if known and len(known) == len(self.histories) else None

    def cost_text(self, column: str, style: str) -> str:
        mean = self.mean_cost(column)
        return "-" if self.never or mean is None else ("> " if self.missed else "") + style.format(mean)

    def rounds_text(self) -> str:
        if self.never:
            return "not reached"
        some = f" ({len(self.histories) - self.missed}/{len(self.histories)})" if self.missed else ""
        return self.cost_text("round", "{:.1f}") + some

    @property
    def timed(self) -> bool:
        """Its runs have simulated seconds."""
        return bool(self.histories) and all(is_number(history[-1].get("sim_seconds")) for history in self.histories)

    def speedup(self, base: Arm) -> Gain:
        """By how much faster this arm reaches the target, over the seeds both have, see `speedup`: in simulated seconds
        where both have them, else in rounds.
        """
        if self.target is None or (self.missed and self.diverged) or (base.missed and base.diverged):
            return Gain()  # a run that broke off early bounds nothing
        column = "sim_seconds" if self.timed and base.timed else "round"
        own, other = self.costs(column), base.costs(column)
        shared = [seed for seed in own if seed in other]
        return speedup([other[s] for s in shared], [own[s] for s in shared], base.missed > 0, self.missed > 0)

    def per(self, cost: str, unit: float) -> float | None:
        """The last accuracy per unit of what the whole run cost, mean over seeds; None where that is not counted."""
        pairs = [(history.last("accuracy"), amount(history[-1], cost)) for history in self.histories]
        if any(accuracy is None or not spent for accuracy, spent in pairs):
            return None
        return float(statistics.mean(accuracy / (spent / unit) for accuracy, spent in pairs))

    @cached_property
    def finals(self) -> dict[int, float]:
        """By seed, the last value of the metric."""
        return self._by_seed(history.last(self.metric) for history in self.histories)

    def mean_last(self, column: str) -> float | None:
        """The mean over seeds of a column's last value; None where a seed diverged or has none."""
        found = [number(history.last(column)) for history in self.histories]
        known = [value for value in found if value is not None]
        return statistics.mean(known) if known and len(known) == len(found) and not self.diverged else None

    def lasts(self, n: int) -> list[float]:
        """Per seed, the mean accuracy of the last n rounds."""
        return [value for history in self.histories if (value := last_n(history, n)) is not None]

    def final_text(self, nothing: str = "-", gap: str = " ") -> str:
        if self.diverged:
            return f"diverged ({self.diverged}/{len(self.statuses)})"
        finals = list(self.finals.values())
        if not finals:
            return nothing
        half = interval(finals)
        return f"{statistics.mean(finals):.4f}" + (f" ±{gap}{half:.4f}" if half is not None and half > SAME else "")


def number(value: Any) -> float | None:
    """The value where it is a finite number.

    >>> number(3), number("x"), number(float("nan")), number(True)
    (3.0, None, None, None)
    """
    return float(value) if is_number(value) else None


def amount(row: Row, column: str) -> Any:
    """A row's cost by name, None where it is not counted; `bytes` is both directions, `megabytes` the same in 10^6."""
    if column not in ("bytes", "megabytes"):
        return row.get("round" if column == "rounds" else column)
    ways: list[Any] = [row.get("bytes_down"), row.get("bytes_up")]
    if not all(map(is_number, ways)):
        return None
    return sum(ways) / 1e6 if column == "megabytes" else sum(ways)


def shared_rounds(histories: Sequence[History], column: str) -> dict[int, list[Row]]:
    """Rounds at which every history has a number in this column, in order, with the rows of all histories."""
    known = [{row["round"]: row for row in history if number(row.get(column)) is not None} for history in histories]
    rounds = sorted(set.intersection(*(set(rows) for rows in known))) if known else []
    return {r: [rows[r] for rows in known] for r in rounds}


def at_time(history: History, column: str, seconds: float) -> float | None:
    """The last value of a column at or before this simulated time.

    >>> rows = [{"sim_seconds": t, "accuracy": t / 10} for t in (0, 2, 5)]
    >>> at_time(History(rows), "accuracy", 4.9)
    0.2
    """
    past = [row for row in history if row["sim_seconds"] <= seconds and number(row.get(column)) is not None]
    return number(past[-1][column]) if past else None


def columns(histories: Iterable[History]) -> list[str]:
    """Every column with a number in it, in order of appearance."""
    names: dict[str, None] = {}
    for row in chain.from_iterable(histories):
        names |= {name: None for name, value in row.items() if is_number(value)}
    return list(names)


def window(rounds: int) -> int:
    """How many last rounds are averaged: 100, but no more than a quarter of the run.

    >>> window(10000), window(200), window(2)
    (100, 50, 1)
    """
    return max(1, min(LAST, rounds // 4))


def last_n(history: History, n: int) -> float | None:
    """Mean accuracy over those of the last n rounds that were evaluated (the GHBM paper's metric).

    >>> last_n(History({"round": t, "accuracy": t / 10} for t in range(6)), 3)
    0.4
    """
    late = [r["accuracy"] for r in history if r["round"] > history[-1]["round"] - n and r["accuracy"] is not None]
    return statistics.mean(late) if late else None


def late_mean(history: History, column: str) -> float | None:
    """Mean of a column over the rounds at the end that `window` counts; None where it is in none of them.

    >>> late_mean(History({"round": t, "train_loss": 9.0 - t} for t in range(9)), "train_loss")
    1.5
    """
    first = history[-1]["round"] - window(history[-1]["round"])
    late = [row[column] for row in history if row["round"] > first and row.get(column) is not None]
    return statistics.mean(late) if late else None
