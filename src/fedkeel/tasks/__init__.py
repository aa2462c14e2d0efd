"""The papers' tasks by name: `fk.tasks.synthetic()`, or `synthetic` on the command line."""

from __future__ import annotations

from collections.abc import Callable

from .. import grammar
from ..errors import InputError, unknown
from ..task import Task
from .blobs import blobs_deep, blobs_wide
from .cifar import cifar10, cifar10_small
from .mnist import fmnist
from .synthetic import synthetic

ALL: tuple[Callable[..., Task], ...] = (synthetic, cifar10, cifar10_small, fmnist, blobs_deep, blobs_wide)
TASKS: dict[str, Callable[..., Task]] = {make.__name__.replace("_", "-"): make for make in ALL}


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


__all__ = ["TASKS", "blobs_deep", "blobs_wide", "cifar10", "cifar10_small", "fmnist", "get", "synthetic"]
