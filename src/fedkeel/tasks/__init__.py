"""The papers' tasks by name: `fk.tasks.synthetic()`, or `synthetic` on the command line."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from .. import grammar
from ..errors import InputError, unknown
from ..task import Task
from .blobs import blobs_deep, blobs_wide
from .cifar import cifar10, cifar10_small, cifar100
from .digits import digits
from .fedprox import synthetic_fedprox
from .letters import femnist
from .mnist import fmnist, mnist, mnist_writers
from .own import check_text, csv
from .photos import celeba, gldv2, inaturalist
from .plays import shakespeare
from .records import heart, wisdm
from .synthetic import synthetic
from .texts import agnews, newsgroups, sent140
from .words import stackoverflow

ALL: tuple[Callable[..., Task], ...] = (
    synthetic, synthetic_fedprox, blobs_deep, blobs_wide, digits, mnist, mnist_writers, fmnist, femnist,
    cifar10, cifar10_small, cifar100, celeba, gldv2, inaturalist, shakespeare, agnews, newsgroups, sent140,
    stackoverflow, heart, wisdm, csv,
)  # fmt: skip
TASKS: dict[str, Callable[..., Task]] = {make.__name__.replace("_", "-"): make for make in ALL}


def get(text: str) -> Task:
    """The task of this name, with its parameters; every task has `pretrained`, the safetensors file it starts from.

    >>> get("synthetic").name, get("synthetic:pretrained=/tmp/start.safetensors").pretrained
    ('synthetic', '/tmp/start.safetensors')
    """
    make, values = find(text)
    file = values.pop("pretrained", None)
    return make(**values) if file is None else replace(make(**values), pretrained=file)


def find(text: str) -> tuple[Callable[..., Task], dict[str, Any]]:
    """The function that makes the task of this name, and its arguments; needs no data.

    >>> find("cifar10:alpha=0.3")[1]
    {'alpha': 0.3}
    """
    check_text(text)
    segments = grammar.parse(text)
    if len(segments) > 1:
        raise InputError(f"'{text}' is not one task; only algorithms are combined with +.")
    name, values = segments[0]
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    for key in values:
        if key not in (known := [*inspect.signature(TASKS[name]).parameters, "pretrained"]):
            raise unknown(f"parameter of task {name}", key, known)
    return TASKS[name], values


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"{unknown('task', name, [make.__name__ for make in ALL])}")


__all__ = ["TASKS", "find", "get", *(make.__name__ for make in ALL)]
