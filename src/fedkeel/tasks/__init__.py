"""The papers' tasks by name: `fk.tasks.synthetic()`, or `synthetic` on the command line."""

from __future__ import annotations

from collections.abc import Callable

from .. import grammar
from ..errors import InputError, unknown
from ..task import Task
from .blobs import blobs_deep, blobs_wide
from .cifar import cifar10, cifar10_small, cifar100
from .mnist import fmnist, mnist, mnist_writers
from .synthetic import synthetic

ALL: tuple[Callable[..., Task], ...] = (
    synthetic, blobs_deep, blobs_wide, mnist, mnist_writers, fmnist, cifar10, cifar10_small, cifar100,
)  # fmt: skip
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


__all__ = ["TASKS", "get", *(make.__name__ for make in ALL)]
