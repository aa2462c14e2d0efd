"""Histories as curves: mean over seeds and the band between them, few enough points to draw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...run.history import History, Row

POINTS = 400  # per curve; a screen shows no more

AXES: dict[str, Callable[[Row], Any]] = {
    "round": lambda row: row["round"],
    "gradients": lambda row: row.get("gradients"),
    "megabytes": lambda row: megabytes(row),
}


def number(value: Any) -> float | None:
    """The value where it is a finite number.

    >>> number(3), number("x"), number(float("nan")), number(True)
    (3.0, None, None, None)
    """
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if plain else None


def megabytes(row: Row) -> float | None:
    """What was sent up to this row, both ways, in MB."""
    down, up = number(row.get("bytes_down")), number(row.get("bytes_up"))
    return None if down is None or up is None else (down + up) / 1e6


def columns(histories: Iterable[History]) -> list[str]:
    """Every column with a number in it, in order of appearance."""
    found = {name: None for history in histories for row in history for name in row if number(row[name]) is not None}
    return list(found)


def thinned(values: Sequence[int], most: int = POINTS) -> list[int]:
    """At most this many of the values, evenly spread, the first and the last among them.

    >>> thinned(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def curve(histories: Sequence[History], column: str) -> dict[str, list[float | None]] | None:
    """Mean, least and largest value over seeds, at rounds for which every seed has one; None without any.

    >>> curve([History([{"round": 0, "h": 1}, {"round": 1, "h": 3}]), History([{"round": 1, "h": 5}])], "h")["mean"]
    [4.0]
    """
    known = [{row["round"]: row for row in history if number(row.get(column)) is not None} for history in histories]
    rounds = thinned(sorted(set.intersection(*(set(rows) for rows in known)))) if known else []
    if not rounds:
        return None
    made: dict[str, list[float | None]] = {}
    for axis, value in AXES.items():
        made[axis] = [_mean([number(value(rows[r])) for rows in known]) for r in rounds]
    found = [[float(rows[r][column]) for rows in known] for r in rounds]
    made["mean"] = [_short(statistics.mean(values)) for values in found]
    if len(known) > 1:
        made |= {"low": [_short(min(v)) for v in found], "high": [_short(max(v)) for v in found]}
    return made


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(statistics.mean(known)) if len(known) == len(values) else None


def _short(value: float) -> float:
    return float(f"{value:.6g}")
