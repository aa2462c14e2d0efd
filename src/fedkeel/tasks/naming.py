"""The arguments of a task: checked by their types, and written as on the command line so that runs can be repeated."""

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, get_args

from .. import grammar
from ..errors import check, is_count, is_number


class Name(TypedDict):
    """How a task is called, as keywords of `Task`."""

    name: str
    spec: str


def named(make: Callable[..., Any], given: dict[str, Any]) -> Name:
    """Check the arguments of a function that makes a task; the spec holds those that differ from the defaults.

    Integers are at least 1 (seeds 0), numbers at least 0; a Literal lists all values.

    >>> def cifar10_small(clients: int = 100, seed: int = 0): ...
    >>> named(cifar10_small, {"clients": 50, "seed": 0})
    {'name': 'cifar10-small', 'spec': 'cifar10-small:clients=50'}
    """
    task, changed = make.__name__.replace("_", "-"), {}
    for name, parameter in inspect.signature(make, eval_str=True).parameters.items():
        value, kind, least = given[name], parameter.annotation, 0 if name == "seed" else 1
        if kind is int:
            check(is_count(value, least), task, name, f"an integer >= {least}", value)
        elif kind == int | None:
            check(value is None or is_count(value), task, name, "an integer >= 1 or none", value)
        elif kind is float:
            check(is_number(value) and value >= 0, task, name, "a number >= 0", value)
        elif kind is bool:
            check(isinstance(value, bool), task, name, "true or false", value)
        elif known := get_args(kind):
            check(value in known, task, name, f"one of {', '.join(known)}", value)
        if value != parameter.default:
            changed[name] = value
    return {"name": task, "spec": grammar.write([(task, changed)])}
