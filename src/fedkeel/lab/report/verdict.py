"""Which algorithm to use, at what cost, and how sure: the numbers of a comparison, and the same in words."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...run.history import History, Row
from ..compare import Gain, interval, speedup
from .curves import AXES, number
from .runs import Group

BySeed = Mapping[int, float]
METRICS = {"accuracy": "test accuracy", "loss": "test loss", "train_loss": "training loss"}
COSTS = {"round": "rounds", "gradients": "gradients", "megabytes": "MB"}


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences with its 95 % interval (none with a single pair)."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def clear(self) -> bool:
        """The interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def difference(a: BySeed, b: BySeed) -> Difference | None:
    """a - b, seed by seed: runs that are compared share the initial model, cohorts and budgets of a seed.

    >>> difference({0: 5, 1: 7, 2: 6}, {0: 1, 1: 3, 2: 2})
    Difference(mean=4, low=4.0, high=4.0)
    """
    pairs = [a[seed] - b[seed] for seed in a if seed in b]
    if not pairs:
        return None
    mean, half = statistics.mean(pairs), interval(pairs)
    return Difference(mean) if half is None else Difference(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Score:
    """One arm in numbers. Costs are up to the target, of a seed that missed it (or without one) of the whole run."""

    name: str
    seeds: list[int]
    unfinished: int
    diverged: int
    missed: int
    costs: dict[str, dict[int, float]]
    finals: dict[int, float]

    @property
    def sound(self) -> bool:
        """Something ended, and nothing diverged."""
        return bool(self.finals) and not self.diverged

    def mean(self, cost: str) -> float | None:
        known = self.costs.get(cost, {})
        return statistics.mean(known.values()) if known and len(known) == len(self.seeds) else None


def metric_of(groups: Sequence[Group]) -> str:
    """What the runs are judged by: accuracy, else the loss on the test set, else the training loss."""
    histories = [run.history for group in groups for run in group.runs]
    return next((m for m in METRICS if any(number(row.get(m)) is not None for h in histories for row in h)), "accuracy")


def score(group: Group, metric: str, target: float | None) -> Score:
    """The numbers of one arm, over its runs that have ended."""
    costs: dict[str, dict[int, float]] = {name: {} for name in AXES}
    finals, missed, runs = {}, 0, group.complete
    for run in runs:
        seed, row = run.config["seed"], None
        if target is not None:
            row = _reaching(run.history, target)
            missed += row is None
        for name, value in AXES.items():
            if (spent := number(value(row or run.history[-1]))) is not None:
                costs[name][seed] = spent
        if (last := number(run.history.last(metric))) is not None and run.status == "done":
            finals[seed] = last
    seeds = [run.config["seed"] for run in runs]
    diverged = sum(run.status == "diverged" for run in runs)
    return Score(group.name, seeds, len(group.runs) - len(runs), diverged, missed, costs, finals)


def _reaching(history: History, target: float) -> Row | None:
    return next((row for row in history if (number(row.get("accuracy")) or -1.0) >= target), None)


@dataclass(frozen=True)
class Comparison:
    """All arms in numbers; the first is what the others are measured by.

    target: what costs are counted to; None where there is none, or where no run reached the one there is (`unreached`).
    """

    scores: list[Score]
    metric: str
    target: float | None
    rounds: int
    unreached: float | None = None

    @property
    def sign(self) -> int:
        """1 where more is better."""
        return 1 if self.metric == "accuracy" else -1

    def best_at_the_end(self) -> Score | None:
        able = [s for s in self.scores if s.sound]
        return max(able, key=lambda s: self.sign * statistics.mean(s.finals.values()), default=None)

    def cheapest(self, cost: str) -> Score | None:
        """The arm with the least mean cost to the target, of those whose every seed got there."""
        if self.target is None:
            return None
        able = [s for s in self.scores if s.sound and not s.missed and s.mean(cost) is not None]
        return min(able, key=lambda s: s.mean(cost) or 0.0, default=None)

    def saved(self, a: Score, b: Score) -> Difference | None:
        """Rounds to the target that a saves over b; at least that many where seeds of b did not get there."""
        if self.target is None or a.missed or not (a.sound and b.sound):
            return None
        return difference(b.costs["round"], a.costs["round"])

    def faster(self, a: Score, b: Score) -> Gain:
        """By what share a reaches the target faster than b, as the terminal's table says it (`Arm.speedup`)."""
        if self.target is None or (a.missed and a.diverged) or (b.missed and b.diverged):
            return Gain()  # a run that broke off early bounds nothing
        seeds = [seed for seed in a.costs["round"] if seed in b.costs["round"]]
        base, arm = ([s.costs["round"][seed] for seed in seeds] for s in (b, a))
        return speedup(base, arm, base_cut=b.missed > 0, arm_cut=a.missed > 0)

    def ahead(self, a: Score, b: Score) -> Difference | None:
        """By how much a ends better than b."""
        found = difference(a.finals, b.finals) if a.sound and b.sound else None
        if found is None or self.sign > 0 or found.low is None or found.high is None:
            return found if found is None or self.sign > 0 else Difference(-found.mean)
        return Difference(-found.mean, -found.high, -found.low)

    def tied_in_rounds(self, best: Score) -> list[Score]:
        return [s for s in self.rivals(best) if not ((d := self.saved(best, s)) and d.clear)]

    def tied_at_the_end(self, best: Score) -> list[Score]:
        return [s for s in self.rivals(best) if not ((d := self.ahead(best, s)) and d.clear)]

    def rivals(self, best: Score) -> list[Score]:
        """The other arms that could be recommended; one that shares no seed with the best is not beaten by it."""
        return [s for s in self.scores if s is not best and s.sound]

    def best(self) -> Score | None:
        """What is recommended: the fewest rounds to the target, else the best end."""
        return self.cheapest("round") or self.best_at_the_end()


def compare(groups: Sequence[Group]) -> Comparison:
    """The numbers of these arms."""
    metric = metric_of(groups)
    target = number(groups[0].runs[0].config.get("target")) if metric == "accuracy" else None
    rounds = max(run.config["rounds"] for group in groups for run in group.runs)
    scores = [score(group, metric, target) for group in groups]
    if target is not None and all(s.missed == len(s.seeds) for s in scores):  # then only whole runs can be compared
        return Comparison([score(group, metric, None) for group in groups], metric, None, rounds, target)
    return Comparison(scores, metric, target, rounds)


# In words


def in_words(c: Comparison) -> dict[str, Any]:
    """The verdict in plain English: a headline, what it rests on, and what to beware of."""
    points = [*_cost(c), *_end(c), *_clear_pairs(c), *_sure(c)]
    return {"headline": _headline(c), "points": points, "warnings": _warnings(c)}


def _headline(c: Comparison) -> str:
    fast, end = c.cheapest("round"), c.best_at_the_end()
    if end is None:
        return (
            "Nothing has finished yet." if any(s.unfinished for s in c.scores) else "No run ended with a usable model."
        )
    if len(c.scores) == 1:
        return f"{end.name} ends at a {METRICS[c.metric]} of {_mean(end.finals)}; there is nothing to compare it with."
    if len(end.seeds) == 1:
        first = fast or end
        return f"{first.name} is ahead, but with one seed there is no interval."
    if fast is None:
        tied = c.tied_at_the_end(end)
        return f"{end.name} ends best, but {_unclear(c, end, tied)}." if tied else f"Use {end.name}."
    if reasons := _other_reasons(c, fast, end):
        return f"Use {fast.name} for the fewest rounds to {c.target:g}, {', '.join(reasons)}."
    if tied := c.tied_in_rounds(fast):
        return f"{fast.name} takes the fewest rounds to {c.target:g}, but {_unclear(c, fast, tied)}."
    return f"Use {fast.name}."


def _unclear(c: Comparison, best: Score, tied: Sequence[Score]) -> str:
    if len(tied) > 2 and len(tied) == len(c.rivals(best)):
        return f"it has no clear lead over any of the other {len(tied)}"
    return f"its lead over {_names(tied)} is not clear"


def _other_reasons(c: Comparison, fast: Score, end: Score) -> list[str]:
    """Why one might prefer another arm to the one that takes the fewest rounds: only what is clear."""
    reasons = []
    for cost in ("gradients", "megabytes"):
        other = c.cheapest(cost)
        if other is not None and other is not fast:
            less = difference(fast.costs[cost], other.costs[cost])
            reasons += [f"{other.name} for the fewest {COSTS[cost]}"] * (less is not None and less.clear)
    if end is not fast and fast not in c.tied_at_the_end(end):
        reasons.append(f"{end.name} for the best {METRICS[c.metric]} after {c.rounds} rounds")
    return reasons


def _cost(c: Comparison) -> list[str]:
    fast, base = c.cheapest("round"), c.scores[0]
    if c.target is None:
        return _whole(c)
    if fast is None:
        return [f"No algorithm reached {c.target:g} in every seed."]
    points = [f"To reach {c.target:g}, {fast.name} took {_price(fast)}{_over(fast)}."]
    if fast is not base and (saved := c.saved(fast, base)) is not None:
        least = "at least " if base.missed else ""
        points.append(
            f"The baseline {base.name} took {least}{_price(base)}: {fast.name} saves {least}"
            f"{_ranged(saved, '{:.1f}')} rounds{'' if saved.clear or saved.low is None else ' (not clear)'}."
        )
    for cost in ("gradients", "megabytes"):
        other = c.cheapest(cost)
        if other is not None and other is not fast:
            points.append(f"{other.name} takes the fewest {COSTS[cost]}: {_price(other)}.")
    return points


def _whole(c: Comparison) -> list[str]:
    """Without a target that counts: what the runs took in all."""
    if (end := c.best_at_the_end()) is None:
        return []
    cost = f"The whole run of {end.name} took {_price(end)}{_over(end)}."
    return [cost if c.unreached is None else f"No run reached {c.unreached:g}, so whole runs are compared. {cost}"]


def _end(c: Comparison) -> list[str]:
    end, base = c.best_at_the_end(), c.scores[0]
    if end is None or len(c.scores) == 1:
        return []
    what = METRICS[c.metric]
    text = f"After {c.rounds} rounds {end.name} has the best {what}: {_mean(end.finals)}"
    if end is not base and (ahead := c.ahead(end, base)) is not None:
        text += f", {_ranged(ahead, '{:.4f}')} better than {base.name}"
    tied = c.tied_at_the_end(end)
    if tied and len(end.seeds) > 1:
        text += f"; {_unclear(c, end, tied)}"
    return [text + "."]


def _clear_pairs(c: Comparison) -> list[str]:
    """Clear differences between arms over which the best one has no clear lead: these are not equally good."""
    if (end := c.best_at_the_end()) is None:
        return []
    tied = c.tied_at_the_end(end)
    pairs = [(a, b) for a in tied for b in tied if a is not b and (d := c.ahead(a, b)) and d.clear and d.mean > 0]
    return [f"Among the other arms, {_names_of(f'{a.name} clearly ends better than {b.name}' for a, b in pairs)}."] * (
        len(pairs) > 0
    )


def _sure(c: Comparison) -> list[str]:
    if (best := c.best()) is None:
        return []
    shared = [len(best.finals.keys() & s.finals.keys()) for s in c.rivals(best)] or [len(best.finals)]
    few, many = min(shared), max(shared)
    if many == 0:
        return [f"No other arm shares a seed with {best.name}, so there is no interval. Run all arms with --seeds 5."]
    if many == 1:
        one = "There is one seed" if len(best.finals) == 1 else "The arms share one seed"
        return [f"{one}, so there is no interval. Run again with --seeds 5."]
    seeds = f"{many}" if few == many else f"{few} to {many}"
    return [
        f"The comparison has {seeds} paired seeds: with the same seed, arms have the same initial model, cohorts and "
        "budgets. Ranges are 95 % intervals of the mean paired difference (Student's t), each for one pair of arms; a "
        "lead is clear where its interval excludes 0."
    ]


def _warnings(c: Comparison) -> list[str]:
    lines = [f"{s.name} diverged in {s.diverged} of {len(s.seeds)} seeds." for s in c.scores if s.diverged]
    if c.target is not None:
        lines += [
            f"{s.name} did not reach {c.target:g} in {s.missed} of {len(s.seeds)} seeds (counted with the whole run)."
            for s in c.scores
            if s.missed and not s.diverged
        ]
    for s in c.scores:
        if s.unfinished:
            left = "1 run has" if s.unfinished == 1 else f"{s.unfinished} runs have"
            lines.append(f"{s.name}: {left} not ended; the table leaves out such runs.")
    return lines


def table(c: Comparison) -> dict[str, Any]:
    """The comparison as rows of text."""
    to = f"to {c.target:g}: " if c.target is not None else "whole run: "
    costs = [name for name in COSTS if any(s.mean(name) is not None for s in c.scores)]
    heads = [to + COSTS[name] for name in costs]
    several = len(c.scores) > 1
    heads += [f"speed-up over {c.scores[0].name}"] * (several and c.target is not None)
    heads += [f"{METRICS[c.metric]} at the end"] + [f"better than {c.scores[0].name} by"] * several + ["seeds"]
    return {"heads": heads, "rows": [_row(c, s, costs) for s in c.scores]}


def _row(c: Comparison, s: Score, costs: Sequence[str]) -> list[str]:
    cells = []
    for name in costs:
        mean = s.mean(name)
        never = c.target is not None and s.missed == len(s.seeds)
        cells.append("–" if mean is None or never else ("> " if s.missed else "") + _amount(name, mean))
    base = c.scores[0]
    if len(c.scores) > 1 and c.target is not None:
        cells.append("" if s is base else str(c.faster(s, base)))
    half = interval(list(s.finals.values()))
    ends = _mean(s.finals) + (f" ±\N{NO-BREAK SPACE}{half:.4f}" if half is not None else "") if s.finals else "–"
    cells.append(f"diverged ({s.diverged}/{len(s.seeds)})" if s.diverged else ends)
    if len(c.scores) > 1:
        ahead = c.ahead(s, base) if s is not base else None
        cells.append("" if s is base else "–" if ahead is None else _ranged(ahead, "{:+.4f}"))
    return [*cells, f"{len(s.seeds)}" + (f" (+{s.unfinished} running or stopped)" if s.unfinished else "")]


def versus(c: Comparison) -> list[dict[str, str]]:
    """The best arm against every other: what can be said."""
    if (best := c.best()) is None:
        return []
    lines = []
    for s in c.scores:
        if s is best:
            continue
        saved, ahead = c.saved(best, s), c.ahead(best, s)
        least = "at least " if s.missed else ""
        lines.append({
            "best": best.name, "other": s.name,
            "rounds": "–" if saved is None else least + _ranged(saved, "{:+.1f}"),
            "rounds_said": _said(saved, "sooner", "later"),
            "end": "–" if ahead is None else _ranged(ahead, "{:+.4f}"),
            "end_said": _said(ahead, "better", "worse"),
        })  # fmt: skip
    return lines


def _said(found: Difference | None, more: str, less: str) -> str:
    if found is None:
        return "no statement"
    if found.low is None:
        return "one seed: no interval"
    return (more if found.mean > 0 else less) if found.clear else "not clear"


def _price(s: Score) -> str:
    known = [(name, value) for name in COSTS if (value := s.mean(name)) is not None]
    words = [f"{_amount(name, value)} {COSTS[name]}" for name, value in known]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _amount(cost: str, value: float) -> str:
    """A cost with as many digits as it deserves.

    >>> _amount("gradients", 12345.6), _amount("megabytes", 0.0512), _amount("round", 41.25)
    ('12,346', '0.0512', '41.2')
    """
    if cost == "gradients" or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if cost == "round" or value >= 10 else f"{value:.3g}"


def _over(s: Score) -> str:
    return f" (means over {len(s.seeds)} seeds)" if len(s.seeds) > 1 else ""


def _mean(values: BySeed) -> str:
    return f"{statistics.mean(values.values()):.4f}"


def _ranged(found: Difference, style: str) -> str:
    mean = style.format(found.mean)
    if found.low is None or found.high is None:
        return mean
    low, high = style.format(found.low), style.format(found.high)
    return f"{mean} ({low}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{high})"


def _names(scores: Sequence[Score]) -> str:
    return _names_of(s.name for s in scores)


def _names_of(words: Iterable[str]) -> str:
    names = list(words)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
