"""What is swept: keys with their values, and the algorithm of every cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import grammar
from ...errors import InputError, is_number, unknown

Cell = tuple[Any, ...]  # one value per key


@dataclass(frozen=True)
class Range:
    """An interval to search in: by its logarithm where both ends are above 0, in whole numbers where both are whole."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class Grid:
    """An algorithm and the values its keys take.

    >>> grid = Grid.parse("fedprox+gel", ["lr=0.01,0.1", "gel.steps=5,10"])
    >>> grid.algorithm(next(grid.cells()))
    'fedprox:lr=0.01+gel:steps=5'
    """

    base: str
    values: dict[str, list[Any]]
    ranges: dict[str, Range]

    @classmethod
    def parse(cls, base: str, texts: Sequence[str]) -> Grid:
        """Read `key=a,b,c` and `key=low..high`; `part.key` is a key of a later part of the algorithm."""
        values: dict[str, list[Any]] = {}
        ranges: dict[str, Range] = {}
        for text in texts:
            key, equals, rest = (part.strip() for part in text.partition("="))
            if not key or not equals or not rest:
                raise InputError(f"Cannot read '{text}': write KEY=VALUE,VALUE,... or KEY=LOW..HIGH.")
            if key in values or key in ranges:
                raise InputError(f"'{key}' is given twice.")
            low, dots, high = rest.partition("..")
            if dots:
                ends = grammar.value_of(low), grammar.value_of(high)
                if not (is_number(ends[0]) and is_number(ends[1]) and ends[0] < ends[1]):
                    raise InputError(f"Cannot read '{text}': a range is LOW..HIGH, two numbers, the smaller first.")
                ranges[key] = Range(*ends)
            else:
                values[key] = [grammar.value_of(value.strip()) for value in rest.split(",") if value.strip()]
                if len(values[key]) != len(set(map(str, values[key]))):
                    raise InputError(f"'{text}' has a value twice.")
        return cls(base, values, ranges)

    def texts(self) -> list[str]:
        """What `parse` reads."""
        lists = [f"{key}={','.join(map(written, values))}" for key, values in self.values.items()]
        return lists + [f"{key}={span}" for key, span in self.ranges.items()]

    @property
    def keys(self) -> list[str]:
        return [*self.values, *self.ranges]

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


def written(value: Any) -> str:
    """A value as the grammar writes it."""
    return grammar.write([("x", {"v": value})]).removeprefix("x:v=")
