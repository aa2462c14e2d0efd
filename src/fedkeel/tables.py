"""Lookup in tables keyed by class, such as those of `legal.py` and `notation.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")


def nearest(table: Mapping[type, Value], kind: type) -> Value | None:
    """The entry of this class or of its nearest ancestor that has one; None without any.

    >>> nearest({int: "a number", object: "anything"}, bool)
    'a number'
    >>> nearest({int: "a number"}, str) is None
    True
    """
    return next((table[ancestor] for ancestor in kind.__mro__ if ancestor in table), None)
