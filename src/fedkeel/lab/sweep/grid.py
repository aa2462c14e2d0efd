"""What is swept, keys with their values and the algorithm of every cell; which cell is best, and how sure that is."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import grammar
from ...errors import InputError, is_number, unknown
from ...run.history import History
from ..stats import Arm, interval, late_mean, mean_of

Cell = tuple[Any, ...]  # one value per key
BY = {
    "validation_accuracy": "validation accuracy, mean of the last rounds",
    "validation_loss": "validation loss, mean of the last rounds",
    "train_loss": "training loss, mean of the last rounds",
    "test_accuracy": "TEST accuracy of the last round",
    "test_best": "best TEST accuracy of any round",
    "test_rounds": "rounds to the target on TEST data",
}  # what a cell is chosen by
LESS = ("validation_loss", "train_loss", "test_rounds")  # is better
VALIDATION = 0.1  # share of every client's data, where none is given


@dataclass(frozen=True)
class Grid:
    """An algorithm and the values its keys take, or the (low, high) in which they are searched: by the logarithm where
    both are above 0, in whole numbers where both are whole.

    >>> grid = Grid.parse("fedprox+gel", ["lr=0.01,0.1", "gel.steps=5,10"])
    >>> grid.algorithm(next(grid.cells()))
    'fedprox:lr=0.01+gel:steps=5'
    """

    base: str
    values: Mapping[str, Sequence[Any]]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def parse(cls, base: str, texts: Sequence[str]) -> Grid:
        """Read `key=a,b,c` and `key=low..high`; `part.key` is a key of a later part of the algorithm."""
        values: dict[str, list[Any]] = {}
        ranges: dict[str, tuple[float, float]] = {}
        for text in texts:
            key, equals, rest = (part.strip() for part in text.partition("="))
            if not key or not equals or not rest.strip(", "):
                raise InputError(f"Cannot read '{text}': write KEY=VALUE,VALUE,... or KEY=LOW..HIGH.")
            if key in values or key in ranges:
                raise InputError(f"'{key}' is given twice.")
            low, dots, high = rest.partition("..")
            if dots:
                ranges[key] = ends = grammar.value_of(low), grammar.value_of(high)
                if not (is_number(ends[0]) and is_number(ends[1]) and ends[0] < ends[1]):
                    raise InputError(f"Cannot read '{text}': a range is LOW..HIGH, two numbers, the smaller first.")
            else:
                values[key] = [grammar.value_of(value.strip()) for value in rest.split(",") if value.strip()]
                if len(values[key]) != len(set(map(str, values[key]))):
                    raise InputError(f"'{text}' has a value twice.")
        return cls(base, values, ranges)

    def texts(self) -> list[str]:
        """What `parse` reads."""
        lists = [f"{key}={','.join(map(written, values))}" for key, values in self.values.items()]
        return lists + [f"{key}={low:g}..{high:g}" for key, (low, high) in self.ranges.items()]

    @property
    def keys(self) -> list[str]:
        return [*self.values, *self.ranges]

    @property
    def size(self) -> int:
        """How many cells it has."""
        return math.prod(len(values) for values in self.values.values())

    def cells(self) -> Iterator[Cell]:
        """Every combination of values."""
        return itertools.product(*self.values.values())

    def algorithm(self, cell: Cell) -> str:
        """The algorithm of a cell."""
        segments = grammar.parse(self.base)
        for key, value in zip(self.keys, cell, strict=True):
            part, dot, own = key.rpartition(".")
            names = [name for name, _ in segments]
            if dot and part not in names:
                raise unknown(f"part of {self.base}", part, names)
            segments[names.index(part) if dot else 0][1][own] = value
        return grammar.write(segments)

    def beyond(self, key: str, end: Any) -> Grid:
        """The same grid with one value more for this key, beyond its smallest or largest one (`end`).

        The new value is as many times the end as the end is of its neighbour.

        >>> Grid("sgd", {"lr": [0.1, 0.02]}).beyond("lr", 0.1).values
        {'lr': [0.02, 0.1, 0.5]}
        """
        known = sorted(self.values[key])
        low = end == known[0]
        ratio = known[0] / known[1] if low else known[-1] / known[-2]
        new = float(f"{end * ratio:.3g}")
        return replace(self, values={**self.values, key: [new, *known] if low else [*known, new]})


def written(value: Any) -> str:
    """A value as the grammar writes it."""
    return grammar.write([("x", {"v": value})]).removeprefix("x:v=")


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


def scored(cell: Cell, arm: Arm, by: str) -> Scored:
    """Score a cell; one that a seed failed has no number, only a word."""
    if arm.diverged:
        return Scored(cell, arm, None, "diverged")
    if by == "test_rounds":
        if arm.missed or arm.never:
            return Scored(cell, arm, None, arm.rounds_text())
        values = list(arm.costs("round").values())
    else:
        known = [_score(history, by) for history in arm.histories]
        values = [value for value in known if value is not None]
        if len(values) < len(known):
            return Scored(cell, arm, None, "not evaluated")
    return Scored(cell, arm, values, f"{statistics.mean(values):{'.1f' if by == 'test_rounds' else '.4f'}}")


def _score(history: History, by: str) -> float | None:
    if by not in ("test_accuracy", "test_best"):
        return late_mean(history, by)
    accuracies = [row["accuracy"] for row in history if row["accuracy"] is not None]
    if not accuracies:
        return None
    return float(accuracies[-1] if by == "test_accuracy" else max(accuracies))


@dataclass(frozen=True)
class Choice:
    """All cells, best first (those without a number last), and what may be said of the best."""

    grid: Grid
    by: str
    ranked: list[Scored]

    @classmethod
    def of(cls, grid: Grid, cells: Sequence[Cell], arms: Sequence[Arm], by: str) -> Choice:
        sign = 1 if by in LESS else -1
        all_cells = [scored(cell, arm, by) for cell, arm in zip(cells, arms, strict=True)]
        return cls(grid, by, sorted(all_cells, key=lambda s: math.inf if s.mean is None else sign * s.mean))

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
            "by": self.by,
            "cells": [one.as_dict(self.grid) for one in self.ranked],
            "best": None if self.best is None else self.best.as_dict(self.grid),
            "runner_up": None if self.runner_up is None else self.runner_up.as_dict(self.grid),
            "told_apart": self.told_apart,
            "on_edge": self.on_edge,
        }
