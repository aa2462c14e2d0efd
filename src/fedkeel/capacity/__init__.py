"""Devices of different size: each client trains a part of the model, its level.

A level is an index vector into the flat model: a client receives `x[index]`, and its update is added to those elements;
each element is averaged over the clients that trained it. `Widths` cuts channels (HeteroFL), `Exits` channels and depth
(ScaleFL); which client has which level is drawn, or given.
"""

from typing import Any

from ..errors import check
from ..ranges import Range
from .heterofl import Widths
from .levels import Capacity, Level
from .scalefl import Exits

CAPACITIES: dict[str, type[Capacity]] = {"widths": Widths, "exits": Exits}


def only(name: Any) -> Capacity:
    """All clients train one level: a letter is HeteroFL's (a = whole), a number ScaleFL's (1 = smallest).

    >>> only("b").shares
    (0.0, 1.0, 0.0, 0.0, 0.0)
    """
    text = str(name).lower()
    rates = Widths().rates
    if len(text) == 1 and 0 <= ord(text) - ord("a") < len(rates):
        return Widths(shares=[float(i == ord(text) - ord("a")) for i in range(len(rates))])
    known = name in Range(1, 4, whole=True)
    check(known, "Algorithm", "level", "1..4 (early exits) or a..e (widths)", name)
    return Exits(shares=[float(i == name - 1) for i in range(4)])


__all__ = ["CAPACITIES", "Capacity", "Exits", "Level", "Widths", "only"]
