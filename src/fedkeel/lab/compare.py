"""What a comparison says: costs to a target, speed-ups with their intervals, accuracies, ranks across tasks.

Everything here is a function of finished histories. Seed i of one arm is paired with seed i of the other: they share
the initial model, cohorts, budgets and batches, so differences are taken seed by seed. A seed that did not reach its
target never counts as if it had: where that leaves only a bound, the bound is what is told.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import draws
from ..run.history import History, Row
from .diagnose import means

# The 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom; beyond the table the normal one is close.
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
        2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
RESAMPLES = 10_000
LAST = 100  # rounds whose accuracy is averaged (the GHBM paper's number), of short runs a quarter


@dataclass(frozen=True)
class Gain:
    """How much faster an arm is than its baseline: a number with its interval, or only a bound, or nothing.

    >>> print(Gain(0.304, low=0.12, high=0.45), Gain(more_than=0.12), Gain(less_than=-0.2), Gain(), sep=" | ")
    +30.4% [+12, +45] | > +12.0% | < -20.0% | -
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
        if self.low is None or self.high is None:
            return f"{self.value:+.1%}"
        return f"{self.value:+.1%} [{100 * self.low:+.0f}, {100 * self.high:+.0f}]"


@dataclass
class Arm:
    """One algorithm of a comparison over its seeds.

    >>> rows = [{"round": t, "accuracy": t / 10, "gradients": 5 * t} for t in range(11)]
    >>> arm = Arm("fedavg", 0.5, [History(rows)], ["done"])
    >>> arm.costs("round"), arm.costs("gradients"), arm.missed
    ([5.0], [25.0], 0)
    """

    name: str
    target: float | None
    histories: list[History] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)

    def add(self, history: History, status: str) -> None:
        self.histories.append(history)
        self.statuses.append(status)

    @property
    def diverged(self) -> int:
        """Seeds that diverged."""
        return self.statuses.count("diverged")

    def reached(self, target: float | None = None) -> list[Row | None]:
        """Per seed, the first row at the target (the comparison's, unless another is given), or None."""
        goal = self.target if target is None else target
        return [None if goal is None else history.reaching(goal) for history in self.histories]

    @property
    def missed(self) -> int:
        """Seeds that did not reach the target."""
        return sum(row is None for row in self.reached())

    def costs(self, column: str) -> list[float]:
        """Per seed, what it took to reach the target (of a seed that did not: what the whole run took)."""
        ends = [row or history[-1] for row, history in zip(self.reached(), self.histories, strict=True)]
        return [float(amount(row, column)) for row in ends]

    def cost_text(self, column: str, style: str) -> str:
        if self.missed == len(self.histories):
            return "-"
        return ("> " if self.missed else "") + style.format(statistics.mean(self.costs(column)))

    def rounds_text(self) -> str:
        if self.missed == len(self.histories):
            return "not reached"
        mean = f"{statistics.mean(self.costs('round')):.1f}"
        return f"> {mean} ({len(self.histories) - self.missed}/{len(self.histories)})" if self.missed else mean

    def speedup(self, base: Arm) -> Gain:
        """By how much fewer rounds this arm reaches the target, see `speedup`."""
        if self.target is None or (self.missed and self.diverged) or (base.missed and base.diverged):
            return Gain()  # a run that broke off early bounds nothing
        return speedup(base.costs("round"), self.costs("round"), base.missed > 0, self.missed > 0)

    def per(self, cost: str, unit: float) -> float | None:
        """The last accuracy per unit of what the whole run cost, mean over seeds; None where that is not counted."""
        shares: list[float] = []
        for history in self.histories:
            accuracy, spent = history.last("accuracy"), amount(history[-1], cost)
            if accuracy is None or not spent:
                return None
            shares.append(accuracy / (spent / unit))
        return statistics.mean(shares)

    def per_text(self, cost: str, unit: float) -> str:
        value = self.per(cost, unit)
        return "-" if value is None else f"{value:,.3g}"

    def finals(self) -> list[float]:
        """Per seed, the last accuracy."""
        return [value for history in self.histories if (value := history.last("accuracy")) is not None]

    def lasts(self, n: int) -> list[float]:
        """Per seed, the mean accuracy of the last n rounds."""
        return [value for history in self.histories if (value := last_n(history, n)) is not None]

    def final_text(self) -> str:
        if self.diverged:
            return f"diverged ({self.diverged}/{len(self.statuses)})"
        finals = self.finals()
        if not finals:
            return "-"
        half = interval(finals)
        return f"{statistics.mean(finals):.4f}" + (f" ± {half:.4f}" if half is not None else "")

    def last_text(self, n: int) -> str:
        values = self.lasts(n)
        return "-" if self.diverged or not values else f"{statistics.mean(values):.4f}"


def amount(row: Row, column: str) -> Any:
    """A row's cost by name; `bytes` is both directions, `megabytes` the same in 10^6."""
    if column == "megabytes":
        return amount(row, "bytes") / 1e6
    return row["bytes_down"] + row["bytes_up"] if column == "bytes" else row.get(column)


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of a mean (Student's t); None for a single value.

    >>> round(interval([1.0, 2.0, 3.0]), 3)
    2.484
    """
    if len(values) < 2:
        return None
    return _t975(len(values)) * statistics.stdev(values) / math.sqrt(len(values))


def _t975(n: int) -> float:
    return T975[n - 2] if n - 2 < len(T975) else 1.96


def speedup(base: Sequence[float], arm: Sequence[float], base_cut: bool = False, arm_cut: bool = False) -> Gain:
    """mean(base) / mean(arm) - 1, of paired rounds to target, with a 95 % interval from resampled pairs.

    The interval: draw n of the n seeds with replacement 10,000 times, each time both arms' rounds of the same seeds;
    take the ratio of means less 1; cut off the same share at both ends. For n seeds that share is
    Phi(-sqrt(n/(n-1)) t), t the 97.5 % quantile of Student's t with n-1 degrees of freedom (Hesterberg 2015,
    doi:10.1080/00031305.2015.1089789): 2.5 % for many seeds, less for few, where the plain quantiles are too narrow. No
    resample leaves the range of the seeds, so with two to four of them the interval still covers less than 95 %.
    The draws are counted: the same rounds give the same interval.

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
    share = statistics.NormalDist().cdf(-math.sqrt(len(a) / (len(a) - 1)) * _t975(len(a)))
    low, high = np.quantile(ratios, [share, 1 - share])
    return Gain(value, float(low), float(high))


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


def beyond(history: History, base: History, target: float) -> float | None:
    """Accuracy above the target in the round in which the baseline reaches it (the GEL papers' metric).

    None where the baseline does not reach it, or this run was not evaluated then.

    >>> base, faster = (History({"round": t, "accuracy": t / n} for t in range(6)) for n in (10, 8))
    >>> beyond(faster, base, 0.4)
    0.09999999999999998
    """
    row = base.reaching(target)
    then = None if row is None else next((r["accuracy"] for r in history if r["round"] == row["round"]), None)
    return None if then is None else then - target


def equal_rounds(arm: Arm, base: Arm) -> list[float] | None:
    """Per seed, accuracy less the baseline's in the last round both have evaluated; None where a seed diverged.

    >>> base, arm = (Arm("", None, [History([{"round": 9, "accuracy": a}])], ["done"]) for a in (0.5, 0.75))
    >>> equal_rounds(arm, base), equal_rounds(base, arm)
    ([0.25], [-0.25])
    """
    if arm.diverged or base.diverged or len(arm.histories) != len(base.histories):
        return None
    told = []
    for mine, other in zip(arm.histories, base.histories, strict=True):
        one, two = ({r["round"]: r["accuracy"] for r in h if r["accuracy"] is not None} for h in (mine, other))
        shared = set(one) & set(two)
        if not shared:
            return None
        told.append(one[max(shared)] - two[max(shared)])
    return told


def cost_to_quality(arm: Arm, base: Arm, n: int) -> dict[str, Any] | None:
    """What it costs to be as good as the baseline ends (GHBM paper, appendix C.3); None where a seed diverged.

    The quality is the baseline's mean accuracy of the last n rounds, over its seeds. With r the first round at which
    a seed of the arm has it and T the rounds of the run, a cost is (cost of the whole run) r / T; the baseline's own
    is that of its whole run. A reduction is 1 - (mean cost of the arm) / (mean cost of the baseline). As in the
    paper r = T for a seed that does not get there; `reached` says how many did, and with fewer than all of them the
    reduction is more than what is true. Compute is counted in gradients and, as the paper does, in wall seconds.
    """
    values = base.lasts(n)
    if arm.diverged or base.diverged or not values:
        return None
    quality = statistics.mean(values)
    rows = arm.reached(quality)
    told: dict[str, Any] = {
        "quality": quality,
        "reached": sum(row is not None for row in rows),
        "rounds": [None if row is None else row["round"] for row in rows],
    }
    for column in ("bytes", "gradients", "wall_seconds"):
        own = statistics.mean(
            amount(history[-1], column) * (1 if row is None or arm is base else row["round"] / history[-1]["round"])
            for row, history in zip(rows, arm.histories, strict=True)
        )
        whole = statistics.mean(amount(history[-1], column) for history in base.histories)
        told |= {column: own, f"{column}_reduction": 1 - own / whole if whole else None}
    return told


def top_share(tasks: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    """Over tasks (accuracy by algorithm), how often an algorithm is best, and among the best two (the DeltaSGD
    paper's headline).

    A share is of the tasks in which the algorithm was run; None (diverged) is never best; equals share a place. Fewer
    than two tasks rank nobody: the result is empty.

    >>> top_share([{"fedavg": 0.8, "gel": 0.9, "sps": None}, {"fedavg": 0.7, "gel": 0.7}])["fedavg"]
    {'tasks': 2, 'top1': 0.5, 'top2': 1.0}
    """
    places: dict[str, list[float]] = {}
    for scores in tasks if len(tasks) > 1 else ():
        known = [score for score in scores.values() if score is not None]
        for name, score in scores.items():
            place = math.inf if score is None else 1 + sum(other > score for other in known)
            places.setdefault(name, []).append(place)
    return {
        name: {
            "tasks": len(got),
            "top1": sum(place <= 1 for place in got) / len(got),
            "top2": sum(place <= 2 for place in got) / len(got),
        }
        for name, got in places.items()
    }


def score(arm: Arm) -> float | None:
    """What an arm is ranked by across tasks: its mean last accuracy; None where a seed diverged."""
    return None if arm.diverged or not arm.finals() else statistics.mean(arm.finals())


def mean_curve(histories: Sequence[History]) -> list[tuple[float, float]]:
    """(round, mean accuracy over seeds) of rounds every seed has evaluated; the loss where there is no accuracy."""
    column = "accuracy" if any(h.last("accuracy") is not None for h in histories) else "loss"
    known = [{row["round"]: row[column] for row in history if row[column] is not None} for history in histories]
    shared = sorted(set.intersection(*(set(k) for k in known))) if known else []
    return [(r, statistics.mean(k[r] for k in known)) for r in shared]


def summary(arms: Sequence[Arm], target: float | None) -> dict[str, Any]:
    """What `summary.json` says; lists have one entry per seed, the first arm is the baseline of all others."""
    n = window(max(history[-1]["round"] for arm in arms for history in arm.histories))
    told = [_told(arm, arms[0], n) for arm in arms]
    return {"target": target, "baseline": arms[0].name, "last_n": n, "arms": told}


def _worth(arm: Arm) -> dict[str, Any]:
    """What a unit of cost buys, of arms whose devices differ in size."""
    per = arm.per("flops", 1e12)
    return {} if per is None else {"accuracy_per_MB": arm.per("bytes", 1e6), "accuracy_per_TFLOP": per}


def _told(arm: Arm, base: Arm, n: int) -> dict[str, Any]:
    reached, finals, lasts, gain = arm.reached(), arm.finals(), arm.lasts(n), arm.speedup(base)
    apart = equal_rounds(arm, base)

    def spent(column: str) -> list[Any]:
        return [None if row is None else amount(row, column) for row in reached]

    above = None
    if arm.target is not None:
        above = [beyond(h, b, arm.target) for h, b in zip(arm.histories, base.histories, strict=True)]
    return {
        "algorithm": arm.name,
        "status": arm.statuses,
        "rounds_to_target": spent("round"),
        "gradients_to_target": spent("gradients"),
        "bytes_to_target": spent("bytes"),
        "speedup": gain.value,
        "speedup_95": None if gain.low is None else [gain.low, gain.high],
        "speedup_more_than": gain.more_than,
        "speedup_less_than": gain.less_than,
        "final_accuracy": finals,
        "final_accuracy_mean": statistics.mean(finals) if finals else None,
        "final_accuracy_95": interval(finals),
        "last_n_accuracy": lasts,
        "last_n_accuracy_mean": statistics.mean(lasts) if lasts else None,
        "last_n_accuracy_95": interval(lasts),
        "beyond_target": above,
        "difference": apart,
        "difference_mean": None if apart is None else statistics.mean(apart),
        "difference_95": None if apart is None else interval(apart),
        "cost_to_baseline_quality": cost_to_quality(arm, base, n),
        **_worth(arm),
        **({"diagnosis": why} if (why := means(arm.histories)) else {}),
    }
