"""Which cell is best, by which measure, and how sure one can be."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import is_number
from ..stats import Arm, interval, mean_of
from .grid import Cell, Grid

METRICS = {"rounds": "rounds to the target", "last": "last accuracy", "best": "best accuracy of any round"}


@dataclass(frozen=True)
class Scored:
    """A cell, what its seeds scored (None: a seed diverged or did not reach the target), and its words for a table."""

    cell: Cell
    arm: Arm
    values: list[float] | None
    word: str

    @property
    def mean(self) -> float | None:
        return None if self.values is None else statistics.mean(self.values)

    def as_dict(self, grid: Grid) -> dict[str, Any]:
        return {
            "algorithm": self.arm.name,
            "values": dict(zip(grid.keys, self.cell, strict=True)),
            "status": list(self.arm.statuses),
            "scores": self.values,
            "mean": self.mean,
            "interval_95": None if self.values is None else interval(self.values),
        }


def scored(cell: Cell, arm: Arm, metric: str) -> Scored:
    """Score a cell; one that a seed failed has no number, only a word."""
    if arm.diverged:
        return Scored(cell, arm, None, "diverged")
    if metric == "rounds":
        if arm.missed or arm.never:
            return Scored(cell, arm, None, arm.rounds_text())
        values = list(arm.costs("round").values())
    else:
        known = [[row["accuracy"] for row in history if row["accuracy"] is not None] for history in arm.histories]
        if not all(known):
            return Scored(cell, arm, None, "not evaluated")
        values = [accuracies[-1] if metric == "last" else max(accuracies) for accuracies in known]
    return Scored(cell, arm, values, f"{statistics.mean(values):{'.1f' if metric == 'rounds' else '.4f'}}")


@dataclass(frozen=True)
class Choice:
    """All cells, best first (those without a number last), and what may be said of the best."""

    grid: Grid
    metric: str
    ranked: list[Scored]

    @classmethod
    def of(cls, grid: Grid, cells: Sequence[Cell], arms: Sequence[Arm], metric: str | None) -> Choice:
        """Without a metric: rounds to the target where some cell reaches it with every seed, else the last accuracy."""
        metric = metric or ("rounds" if any(not arm.never and not arm.missed for arm in arms) else "last")
        sign = 1 if metric == "rounds" else -1
        all_cells = [scored(cell, arm, metric) for cell, arm in zip(cells, arms, strict=True)]
        return cls(grid, metric, sorted(all_cells, key=lambda s: float("inf") if s.mean is None else sign * s.mean))

    @property
    def best(self) -> Scored | None:
        return self.ranked[0] if self.ranked[0].values is not None else None

    @property
    def runner_up(self) -> Scored | None:
        return self.ranked[1] if len(self.ranked) > 1 and self.ranked[1].values is not None else None

    @property
    def told_apart(self) -> bool | None:
        """Whether the 95 % interval of the paired difference to the runner-up leaves out 0; None with one seed."""
        if self.runner_up is None:
            return None
        best, second = (one.values or [] for one in self.ranked[:2])
        return mean_of([a - b for a, b in zip(best, second, strict=True)]).clear if len(best) > 1 else None

    @property
    def on_edge(self) -> list[str]:
        """Keys whose best value is the smallest or the largest tried: the true best may lie outside."""
        if self.best is None:
            return []
        edges = []
        # In a searched range the ends are the range's: no trial lies exactly there, so only lists have an edge.
        for place, key in enumerate(self.grid.values):
            tried = {one.cell[place] for one in self.ranked}
            if all(map(is_number, tried)) and len(tried) > 1 and self.best.cell[place] in (min(tried), max(tried)):
                edges.append(key)
        return edges

    def as_dict(self) -> dict[str, Any]:
        """What `sweep.json` says."""
        return {
            "metric": self.metric,
            "cells": [one.as_dict(self.grid) for one in self.ranked],
            "best": None if self.best is None else self.best.as_dict(self.grid),
            "runner_up": None if self.runner_up is None else self.runner_up.as_dict(self.grid),
            "told_apart": self.told_apart,
            "on_edge": self.on_edge,
        }
