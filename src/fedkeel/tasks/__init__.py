"""The papers' tasks by name: `fk.tasks.synthetic()`, or `synthetic` on the command line."""

from __future__ import annotations

from collections.abc import Callable

from .. import grammar
from ..errors import InputError, unknown
from ..task import Task
from .synthetic import synthetic

TASKS: dict[str, Callable[..., Task]] = {"synthetic": synthetic}


def get(text: str) -> Task:
    """The task of this name, with its parameters.

    >>> get("synthetic").name
    'synthetic'
    """
    segments = grammar.parse(text)
    if len(segments) > 1:
        raise InputError(f"'{text}' is not one task; only algorithms are put together with +.")
    name, values = segments[0]
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    try:
        return TASKS[name](**values)
    except TypeError as error:
        raise InputError(f"Task '{name}' does not take these parameters: {error}.") from error


__all__ = ["TASKS", "get", "synthetic"]
