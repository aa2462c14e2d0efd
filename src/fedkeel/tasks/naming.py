"""The arguments of a task: checked by their types, and written as on the command line so that runs can be repeated."""

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, get_args

from .. import grammar
from ..errors import check
from ..ranges import CLIENTS, COEFFICIENT, COUNT, SEED, Range

# By name, where COUNT is more than a computer can hold; the others only cut short what is read from files.
LARGEST = {
    "seed": SEED, "users": CLIENTS, "clients": CLIENTS, "length": Range(1, 10**4, whole=True),
    "words": Range(1, 10**6, whole=True), "hidden": Range(1, 10**4, whole=True), "layers": Range(1, 100, whole=True),
    "size": Range(1, 4096, whole=True),
}  # fmt: skip


class Name(TypedDict):
    """How a task is called, as keywords of `Task`."""

    name: str
    spec: str


def named(make: Callable[..., Any], given: dict[str, Any]) -> Name:
    """Check the arguments of a function that makes a task; the spec holds those that differ from the defaults.

    Integers are counts, with the bounds of LARGEST, numbers are at least 0; a Literal lists all values.

    >>> def cifar10_small(clients: int = 100, seed: int = 0): ...
    >>> named(cifar10_small, {"clients": 50, "seed": 0})
    {'name': 'cifar10-small', 'spec': 'cifar10-small:clients=50'}
    """
    task, changed = make.__name__.replace("_", "-"), {}
    for name, parameter in inspect.signature(make, eval_str=True).parameters.items():
        value, kind, count = given[name], parameter.annotation, LARGEST.get(name, COUNT)
        if kind is int:
            check(value in count, task, name, str(count), value)
        elif kind == int | None:
            check(value is None or value in count, task, name, f"{count} or none", value)
        elif kind is float:
            check(value in COEFFICIENT, task, name, str(COEFFICIENT), value)
        elif kind is bool:
            check(isinstance(value, bool), task, name, "true or false", value)
        elif known := get_args(kind):
            check(value in known, task, name, f"one of {', '.join(known)}", value)
        if value != parameter.default:
            changed[name] = value
    return {"name": task, "spec": grammar.write([(task, changed)])}
