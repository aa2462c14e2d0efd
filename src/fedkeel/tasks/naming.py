"""How a task is written on the command line, so that its runs can be repeated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import grammar


def spec(make: Callable[..., Any], **given: Any) -> str:
    """The text that makes the same task again: the function's name and what differs from its defaults.

    >>> def cifar10_small(clients=100, seed=0): ...
    >>> spec(cifar10_small, clients=50, seed=0)
    'cifar10-small:clients=50'
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
    changed = {name: value for name, value in given.items() if value != defaults[name]}
    return grammar.write([(make.__name__.replace("_", "-"), changed)])
