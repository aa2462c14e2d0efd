"""Which algorithm to use, at what cost, and how sure: the numbers of a comparison, and the same in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations
from typing import Any

from ...run.history import History
from ..stats import Arm, BySeed, Gain, columns, difference, number, shared_rounds
from . import captions
from .captions import CLIENT_HEADS, listed
from .runs import Group, all_runs

METRICS = {"accuracy": "test accuracy", "loss": "test loss", "train_loss": "training loss"}
COSTS = {"round": "rounds", "sim_seconds": "simulated seconds", "gradients": "gradients", "megabytes": "MB"}

Planned = tuple[str, int]  # an algorithm and a seed


def metric_of(histories: Iterable[History]) -> str:
    """What runs are judged by: accuracy, else the loss on the test set, else the training loss."""
    known = columns(histories)
    return next((metric for metric in METRICS if metric in known), "accuracy")


@dataclass(frozen=True)
class Comparison:
    """All arms in numbers; the first is what the others are measured by.

    target: what costs are counted to; None where there is none, or where no run reached the one there is (`unreached`).
    """

    arms: list[Arm]
    metric: str
    target: float | None
    length: str  # of the runs, in words
    unreached: float | None = None

    @property
    def first(self) -> str:
        """The cost that arms are judged by: simulated seconds where all arms have them, else rounds."""
        return "sim_seconds" if all(arm.timed for arm in self.arms) else "round"

    @property
    def sign(self) -> int:
        """1 where more is better."""
        return 1 if self.metric == "accuracy" else -1

    def best_at_the_end(self) -> Arm | None:
        able = [s for s in self.arms if s.sound]
        return max(able, key=lambda s: self.sign * statistics.mean(s.finals.values()), default=None)

    def cheapest(self, cost: str) -> Arm | None:
        """The arm with the least mean cost to the target, of those whose every seed got there."""
        if self.target is None:
            return None
        able = [s for s in self.arms if s.sound and not s.missed and s.mean_cost(cost) is not None]
        return min(able, key=lambda s: s.mean_cost(cost) or 0.0, default=None)

    def cheaper_than(self, fast: Arm) -> list[tuple[str, Arm]]:
        """The other costs of which another arm than the fastest takes the least, each with that arm."""
        found = [(cost, self.cheapest(cost)) for cost in COSTS if cost not in ("round", self.first)]
        return [(cost, arm) for cost, arm in found if arm is not None and arm is not fast]

    def saved(self, a: Arm, b: Arm) -> Gain | None:
        """Rounds or simulated seconds to the target that a saves over b; at least that many where seeds of b did not
        get there.
        """
        if self.target is None or a.missed or not (a.sound and b.sound):
            return None
        return difference(b.costs(self.first), a.costs(self.first))

    def ahead(self, a: Arm, b: Arm) -> Gain | None:
        """By how much a ends better than b."""
        return difference(a.finals, b.finals, self.sign) if a.sound and b.sound else None

    def tied(self, best: Arm, lead: Callable[[Arm, Arm], Gain | None]) -> list[Arm]:
        """The rivals over which the best has no clear lead, in what is `saved` or in how far it is `ahead`."""
        return [s for s in self.rivals(best) if not ((d := lead(best, s)) and d.clear)]

    def rivals(self, best: Arm) -> list[Arm]:
        """The other arms that could be recommended; one that shares no seed with the best is not beaten by it."""
        return [s for s in self.arms if s is not best and s.sound]

    def best(self) -> Arm | None:
        """What is recommended: the fastest to the target, else the best end."""
        return self.cheapest(self.first) or self.best_at_the_end()


def compare(groups: Sequence[Group]) -> Comparison:
    """The numbers of these arms."""
    metric = metric_of(run.history for run in all_runs(groups))
    target = number(groups[0].runs[0].config.get("target")) if metric == "accuracy" else None
    length = length_of([run.config for run in all_runs(groups)])
    arms = []
    for group in groups:
        runs = [(run.config["seed"], run.history, run.status) for run in group.complete]
        unfinished = len(group.runs) - len(runs)
        config = group.runs[0].config
        arms.append(Arm.of(group.name, target, runs, metric=metric, unfinished=unfinished, config=config))
    if target is not None and all(s.never for s in arms):  # then only whole runs can be compared
        return Comparison([replace(arm, target=None) for arm in arms], metric, None, length, target)
    return Comparison(arms, metric, target, length)


def length_of(configs: Sequence[dict[str, Any]]) -> str:
    """How long runs are, in words: by the clock, or by their rounds.

    >>> length_of([{"rounds": 20}, {"rounds": 10}]), length_of([{"rounds": 20, "sim_seconds": 60.0}])
    ('20 rounds', '60 simulated seconds')
    """
    limits = [limit for config in configs if (limit := number(config.get("sim_seconds"))) is not None]
    return f"{max(limits):g} simulated seconds" if limits else f"{max(config['rounds'] for config in configs)} rounds"


def in_words(c: Comparison) -> dict[str, Any]:
    """The verdict in plain English: a headline, what it rests on, and warnings."""
    drawn = captions.tested(c.arms)
    where = [] if drawn == captions.WHOLE or c.metric == "train_loss" else [f"All test figures are {drawn}."]
    points = [*_cost(c), *_end(c), *where, *_sure(c)]
    return {"headline": _headline(c), "points": points, "warnings": _warnings(c)}


def _headline(c: Comparison) -> str:
    fast, end = c.cheapest(c.first), c.best_at_the_end()
    if end is None:
        return "Nothing has finished yet." if any(s.unfinished for s in c.arms) else "No run ended with a usable model."
    if len(c.arms) == 1:
        return f"{end.name} ends at a {METRICS[c.metric]} of {_mean(end.finals)}; there is nothing to compare it with."
    if len(end.seeds) == 1:
        return f"{(fast or end).name} is ahead, but with one seed there is no interval."
    if fast is None:
        tied = c.tied(end, c.ahead)
        return f"{end.name} ends best, but {_unclear(c, end, tied)}." if tied else f"Use {end.name}."
    if reasons := _other_reasons(c, fast, end):
        return f"Use {fast.name} for the fewest {COSTS[c.first]} to {c.target:g}, {', '.join(reasons)}."
    if tied := c.tied(fast, c.saved):
        return f"{fast.name} takes the fewest {COSTS[c.first]} to {c.target:g}, but {_unclear(c, fast, tied)}."
    return f"Use {fast.name}."


def _unclear(c: Comparison, best: Arm, tied: Sequence[Arm]) -> str:
    if len(tied) > 2 and len(tied) == len(c.rivals(best)):
        return f"it has no clear lead over any of the other {len(tied)}"
    return f"its lead over {listed(s.name for s in tied)} is not clear"


def _other_reasons(c: Comparison, fast: Arm, end: Arm) -> list[str]:
    """Why one might prefer another arm to the one that takes the fewest rounds: only what is clear."""
    reasons = []
    for cost, other in c.cheaper_than(fast):
        less = difference(fast.costs(cost), other.costs(cost))
        reasons += [f"{other.name} for the fewest {COSTS[cost]}"] * (less is not None and less.clear)
    if end is not fast and fast not in c.tied(end, c.ahead):
        reasons.append(f"{end.name} for the best {METRICS[c.metric]} after {c.length}")
    return reasons


def _cost(c: Comparison) -> list[str]:
    fast, base, end = c.cheapest(c.first), c.arms[0], c.best_at_the_end()
    if c.target is None:
        why = "" if c.unreached is None else f"No run reached {c.unreached:g}, so whole runs are compared. "
        return [f"{why}The whole run of {end.name} took {_price(end)}."] if end else []
    if fast is None:
        return [f"No algorithm reached {c.target:g} in every seed."]
    points = [f"To reach {c.target:g}, {fast.name} took {_price(fast)}."]
    if fast is not base and (saved := c.saved(fast, base)) is not None:
        least = "at least " if base.missed else ""
        points.append(
            f"The baseline {base.name} took {least}{_price(base, over=False)}: {fast.name} saves {least}"
            f"{_ranged(saved, '{:.1f}')} {COSTS[c.first]}{'' if saved.clear or not saved.ranged else ' (not clear)'}."
        )
    for cost, other in c.cheaper_than(fast):
        points.append(f"{other.name} takes the fewest {COSTS[cost]}: {_price(other, over=False)}.")
    return points


def _end(c: Comparison) -> list[str]:
    end, base = c.best_at_the_end(), c.arms[0]
    if end is None or len(c.arms) == 1:
        return []
    text = f"After {c.length} {end.name} has the best {METRICS[c.metric]}: {_mean(end.finals)}"
    if end is not base and (ahead := c.ahead(end, base)) is not None:
        text += f", {_ranged(ahead, '{:.4f}')} better than {base.name}"
    tied = c.tied(end, c.ahead)
    if tied and len(end.seeds) > 1:
        text += f"; {_unclear(c, end, tied)}"
    leads = [(a, b, c.ahead(a, b)) for a, b in permutations(tied, 2)]  # the tied arms are not all equally good
    said = [f"{a.name} clearly ends better than {b.name}" for a, b, lead in leads if lead and (lead.low or 0) > 0]
    return [f"{text}.", *([f"Among the other arms, {listed(said)}."] if said else [])]


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
        "lead is clear where its interval excludes 0. Where all seeds give the same, its width is unknown."
    ]


def _warnings(c: Comparison) -> list[str]:
    lines = []
    base = captions.base_of(c.arms)
    for s in c.arms:
        if base is not None and c.metric == "accuracy" and s.sound and statistics.mean(s.finals.values()) <= base[1]:
            always = f"always predicting the most frequent training label ({base[0]})"
            lines.append(f"{s.name} ends at {_mean(s.finals)}, no better than {always}: {base[1]:.4f}.")
        if s.diverged:
            lines.append(f"{s.name} diverged in {s.diverged} of {len(s.seeds)} seeds.")
        elif s.missed:
            some = f"{s.missed} of {len(s.seeds)} seeds"
            lines.append(f"{s.name} did not reach {c.target:g} in {some} (counted with the whole run).")
        if s.unfinished:
            left = "1 run has" if s.unfinished == 1 else f"{s.unfinished} runs have"
            lines.append(f"{s.name}: {left} not ended; the table leaves out such runs.")
    return lines


def table(c: Comparison) -> dict[str, Any]:
    """The comparison as rows of text."""
    base, several = c.arms[0], len(c.arms) > 1
    costs = [name for name in COSTS if any(s.mean_cost(name) is not None for s in c.arms)]
    heads = [("whole run: " if c.target is None else f"to {c.target:g}: ") + COSTS[name] for name in costs]
    heads += [f"speed-up over {base.name}"] * (several and c.target is not None)
    heads += [end_head(c)] + [f"better than {base.name} by"] * several
    own = list(CLIENT_HEADS) if captions.has_clients(c.arms) else []
    heads += [*(CLIENT_HEADS[column] for column in own), "seeds"]
    spent = [[None if c.target is not None and s.never else s.mean_cost(name) for s in c.arms] for name in costs]
    texts = [_amounts(name, means) for name, means in zip(costs, spent, strict=True)]
    rows = []
    for place, s in enumerate(c.arms):
        bound = "> " if s.missed else ""
        cells = ["–" if column[place] is None else f"{bound}{column[place]}" for column in texts]
        if several and c.target is not None:
            cells.append("" if s is base else str(s.speedup(base)))
        cells.append(s.final_text(nothing="–", gap="\N{NO-BREAK SPACE}"))
        if several:
            cells.append("" if s is base else _ranged(c.ahead(s, base), "{:+.4f}"))
        cells += ["–" if (mean := s.mean_last(column)) is None else f"{mean:.4f}" for column in own]
        rows.append([*cells, f"{len(s.seeds)}" + (f" (+{s.unfinished} running or stopped)" if s.unfinished else "")])
    return {"heads": heads, "rows": rows, "notes": captions.notes(c.arms, c.metric)}


def end_head(c: Comparison) -> str:
    """The head of the column with the metric at the end."""
    return f"{METRICS[c.metric]} at the end"


def versus(c: Comparison) -> list[dict[str, str]]:
    """The best arm against every other: what can be said."""
    if (best := c.best()) is None:
        return []
    lines = []
    for s in (arm for arm in c.arms if arm is not best):
        saved, ahead = c.saved(best, s), c.ahead(best, s)
        least = "at least " if s.missed and saved is not None else ""
        lines.append({
            "best": best.name, "other": s.name,
            "cost": COSTS[c.first],
            "rounds": least + _ranged(saved, "{:+.1f}"), "rounds_said": _said(saved, "sooner", "later"),
            "end": _ranged(ahead, "{:+.4f}"), "end_said": _said(ahead, "better", "worse"),
        })  # fmt: skip
    return lines


def _said(found: Gain | None, more: str, less: str) -> str:
    if found is None:
        return "no statement"
    if found.low is None:
        return "one seed: no interval"
    if found.clear:
        return more if (found.value or 0.0) > 0 else less
    return "not clear" if found.ranged else "the same in all seeds"


def _price(s: Arm, over: bool = True) -> str:
    known = [(name, value) for name in COSTS if (value := s.mean_cost(name)) is not None]
    means = f" (means over {len(s.seeds)} seeds)" if over and len(s.seeds) > 1 else ""
    return listed(f"{_amount(name, value)} {COSTS[name]}" for name, value in known) + means


def _amount(cost: str, value: float) -> str:
    """A cost with a number of digits that suits its size.

    >>> _amount("gradients", 12345.6), _amount("megabytes", 0.0512), _amount("round", 41.25)
    ('12,346', '0.0512', '41.2')
    """
    if cost == "gradients" or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if cost == "round" or value >= 10 else f"{value:.3g}"


def _amounts(cost: str, values: Sequence[float | None]) -> list[str | None]:
    """The costs of a column, all with as many decimals as suit the largest.

    >>> _amounts("megabytes", [4.6, 4.88, None]), _amounts("round", [41.25]), _amounts("gradients", [12345.6])
    (['4.60', '4.88', None], ['41.2'], ['12,346'])
    """
    largest = max((value for value in values if value is not None), default=0.0)
    digits = 2 - math.floor(math.log10(largest)) if largest > 0 else 0
    decimals = {"round": 1, "gradients": 0}.get(cost, min(6, max(0, digits)))
    return [None if value is None else f"{value:,.{decimals}f}" for value in values]


def _mean(values: BySeed) -> str:
    return f"{statistics.mean(values.values()):.4f}"


def _ranged(found: Gain | None, style: str) -> str:
    if found is None:
        return "–"
    ends = "" if not found.ranged else f" ({style}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{style})"
    return (style + ends).format(found.value, found.low, found.high)


def comparable(groups: Sequence[Group], waiting: Sequence[Planned] = ()) -> bool:
    """Whether every planned run has ended, all of them after the same number of rounds or simulated seconds."""
    runs = all_runs(groups)
    return not waiting and all(run.complete for run in runs) and len({length_of([run.config]) for run in runs}) == 1


def standing(groups: Sequence[Group], waiting: Sequence[Planned] = ()) -> dict[str, Any]:
    """Where the arms stand before they are comparable: a headline and points as `in_words` has them, no verdict."""
    runs = all_runs(groups)
    metric = metric_of(run.history for run in runs)
    points = []
    ended, planned = sum(run.complete for run in runs), len(runs) + len(waiting)
    if ended < planned:
        points.append(f"{ended} of {planned} runs have ended. The verdict follows when all of them have.")
    configs = sorted((run.config for run in runs), key=lambda config: config["rounds"])
    lengths = list(dict.fromkeys(length_of([config]) for config in configs))
    if len(lengths) > 1:
        planned_with = listed(lengths)
        if all(length.endswith(" rounds") for length in lengths):
            planned_with = listed(length.removesuffix(" rounds") for length in lengths) + " rounds"
        points.append(
            f"There is no verdict, because the arms were planned with {planned_with}: runs of different lengths are "
            "not comparable at their ends."
        )
    seen = {run.name for run in runs}
    if missing := list(dict.fromkeys(name for name, _ in waiting if name not in seen)):
        points.append(f"{listed(missing)} {'has' if len(missing) == 1 else 'have'} not started.")
    headline, where = _so_far(groups, metric, lengths[-1])
    return {"headline": headline, "points": where + points}


def _so_far(groups: Sequence[Group], metric: str, length: str) -> tuple[str, list[str]]:
    """Each arm's mean at the last round that all of them have evaluated, over the seeds that all of them have."""
    going = [g for g in groups if not any(run.status == "diverged" for run in g.runs)]
    if not going:
        return "All arms have diverged.", []
    seeds = sorted(set.intersection(*({run.config["seed"] for run in group.runs} for group in going)))
    kept = {g.name: [run.history for run in g.runs if run.config["seed"] in seeds] for g in going}
    shared = shared_rounds(list(chain.from_iterable(kept.values())), metric)
    if not shared:
        return "So far the arms share no evaluated round of a seed.", []
    reached = max(shared)
    rows = {name: shared_rounds(histories, metric)[reached] for name, histories in kept.items()}
    means = {name: statistics.mean(row[metric] for row in some) for name, some in rows.items()}
    of = f" of {length.removesuffix(' rounds')}" if length.endswith(" rounds") else ""  # else a time
    where = f"So far, at round {reached}{of}"
    if len(means) == 1:
        ((name, value),) = means.items()
        return f"{where}, {name} has a {METRICS[metric]} of {value:.4f}.", []
    each = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {listed(map(str, seeds))} (means)"
    point = f"The {METRICS[metric]} is that of {over}, at the last round that all started arms have evaluated."
    return f"{where}: {each} ({METRICS[metric]}).", [point]
