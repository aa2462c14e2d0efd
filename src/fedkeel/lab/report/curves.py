"""Histories as curves: mean over seeds and the band between them, few enough points to draw."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from ...run.history import History
from .. import trackers
from ..stats import amount, number, shared_rounds

POINTS = 400  # per curve; a screen shows no more
AXES = ("round", "gradients", "megabytes")


def columns(histories: Iterable[History]) -> list[str]:
    """Every column with a number in it, in order of appearance."""
    rows = chain.from_iterable(histories)
    return list(dict.fromkeys(chain.from_iterable(trackers.numbers(row) for row in rows)))


def thinned(values: Sequence[int], most: int = POINTS) -> list[int]:
    """At most this many of the values, evenly spread, the first and the last among them.

    >>> thinned(range(10), 4)
    [0, 3, 6, 9]
    """
    return [values[i] for i in np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)]


def curve(histories: Sequence[History], column: str) -> dict[str, list[float | None]] | None:
    """Mean, least and largest value over seeds, at rounds for which every seed has one; None without any.

    >>> curve([History([{"round": 0, "h": 1}, {"round": 1, "h": 3}]), History([{"round": 1, "h": 5}])], "h")["mean"]
    [4.0]
    """
    shared = shared_rounds(histories, column)
    if not shared:
        return None
    kept = [shared[r] for r in thinned(list(shared))]
    made = {axis: [_mean([number(amount(row, axis)) for row in rows]) for rows in kept] for axis in AXES}
    found = [[float(row[column]) for row in rows] for rows in kept]
    made["mean"] = [_short(statistics.mean(values)) for values in found]
    if len(histories) > 1:
        made |= {"low": [_short(min(v)) for v in found], "high": [_short(max(v)) for v in found]}
    return made


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(statistics.mean(known)) if len(known) == len(values) else None


def _short(value: float) -> float:
    return float(f"{value:.6g}")
