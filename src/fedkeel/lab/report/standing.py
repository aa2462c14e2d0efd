"""Where the arms stand before they are comparable: values at the last round that all of them have, and no verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..stats import shared_rounds
from .runs import Group, all_runs
from .verdict import METRICS, listed, metric_of

Planned = tuple[str, int]  # an algorithm and a seed


def comparable(groups: Sequence[Group], waiting: Sequence[Planned] = ()) -> bool:
    """Whether every planned run has ended, all of them after the same number of rounds."""
    runs = all_runs(groups)
    return not waiting and all(run.complete for run in runs) and len({run.config["rounds"] for run in runs}) == 1


def standing(groups: Sequence[Group], waiting: Sequence[Planned] = ()) -> dict[str, Any]:
    """A headline and points in the form of `verdict.in_words`, without a recommendation."""
    metric, runs = metric_of(groups), all_runs(groups)
    points = []
    ended, planned = sum(run.complete for run in runs), len(runs) + len(waiting)
    if ended < planned:
        points.append(f"{ended} of {planned} runs have ended. The verdict follows when all of them have.")
    lengths = sorted({run.config["rounds"] for run in runs})
    if len(lengths) > 1:
        points.append(
            f"There is no verdict, because the arms were planned with {listed(map(str, lengths))} rounds: runs of "
            "different lengths are not comparable at their ends."
        )
    seen = {run.name for run in runs}
    if missing := list(dict.fromkeys(name for name, _ in waiting if name not in seen)):
        points.append(f"{listed(missing)} {'has' if len(missing) == 1 else 'have'} not started.")
    headline, where = _headline(groups, metric, lengths[-1])
    return {"headline": headline, "points": where + points}


def _headline(groups: Sequence[Group], metric: str, rounds: int) -> tuple[str, list[str]]:
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
    where = f"So far, at round {reached} of {rounds}"
    if len(means) == 1:
        ((name, value),) = means.items()
        return f"{where}, {name} has a {METRICS[metric]} of {value:.4f}.", []
    each = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {listed(map(str, seeds))} (means)"
    point = f"The {METRICS[metric]} is that of {over}, at the last round that all started arms have evaluated."
    return f"{where}: {each} ({METRICS[metric]}).", [point]
