"""The arguments of a task: checked by their types, and written as on the command line so that runs can be repeated."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypedDict, get_args

from torch import nn

from .. import grammar
from ..errors import InputError, check
from ..ranges import CLIENTS, COEFFICIENT, COUNT, SEED, Range
from ..task import Task

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
        elif isinstance(value, str) and kind in (str, str | float | None):
            check(not {",", "+"} & set(value), task, name, "without ',' and '+', so that it fits into a name", value)
        elif kind == str | float | None:
            check(value is None or value in COEFFICIENT, task, name, f"a file or {COEFFICIENT}", value)
        elif known := get_args(kind):
            more = ", or a function that makes an nn.Module" if name == "model" else ""
            check(value in known, task, name, f"one of {', '.join(known)}{more}", value)
        if value != parameter.default:
            changed[name] = value
    return {"name": task, "spec": grammar.write([(task, changed)])}


def takes_model(
    make: Callable[..., Task], inside: Callable[[nn.Module], nn.Module] | None = None
) -> Callable[..., Task]:
    """Let the `model` of a named task also be a function that makes an `nn.Module`, such as its class.

    All else is as with the task's usual model. inside: what the usual models are wrapped in.
    """

    @wraps(make)
    def made(*words: Any, **given: Any) -> Task:
        values = inspect.signature(make).bind(*words, **given).arguments
        own = values.get("model")
        if isinstance(own, nn.Module):
            title = make.__name__.replace("_", "-")
            raise InputError(
                f"The 'model' parameter of {title} is an instance of {type(own).__name__}; pass the class, or a "
                "function that makes an nn.Module: every run makes a fresh one."
            )
        if not callable(own):  # a name, or refused with the texts that are none
            return make(**values)
        task = make(**{name: value for name, value in values.items() if name != "model"})
        name, shown = grammar.parse(str(task.spec))[0]
        title = re.sub(r"\W+", "_", getattr(own, "__name__", type(own).__name__)).strip("_")
        model = own if inside is None else partial(_wrapped, inside, own)
        return replace(task, model=model, exits=None, name=grammar.write([(name, {**shown, "model": title})]))

    return made


def _wrapped(inside: Callable[[nn.Module], nn.Module], make: Callable[[], nn.Module]) -> nn.Module:
    return inside(make())
