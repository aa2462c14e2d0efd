"""Every error fedkeel raises on purpose.

FedkeelError
├── InputError     a value, a name or a combination that cannot work (also a ValueError)
├── MissingExtra   an optional package is not installed; the message has the command (also an ImportError)
└── ClientError    user code failed inside a round; the message names round, client and step
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any


class FedkeelError(Exception):
    """The root: catch this to catch all of them."""


class InputError(FedkeelError, ValueError):
    """The user's input cannot work; the message says what would."""


class MissingExtra(FedkeelError, ImportError):
    """An optional dependency is missing."""

    def __init__(self, package: str, extra: str, why: str) -> None:
        super().__init__(f'{why} needs {package}: pip install "fedkeel[{extra}]"')


class ClientError(FedkeelError, RuntimeError):
    """A model, a loss or a rule failed while a client was training."""


class StabilityWarning(UserWarning):
    """Settings that are legal and known to misbehave; the message has the numbers."""


def check(ok: bool, owner: object, name: str, must: str, got: Any) -> None:
    """Raise an InputError for a bad parameter, with the one message used everywhere.

    >>> check(False, "SGD", "momentum", "in [0, 1)", 1.5)
    Traceback (most recent call last):
    fedkeel.errors.InputError: The 'momentum' parameter of SGD must be in [0, 1). Got 1.5 instead.
    """
    if not ok:
        owner = owner if isinstance(owner, str) else type(owner).__name__
        raise InputError(f"The '{name}' parameter of {owner} must be {must}. Got {got!r} instead.")


def is_number(value: Any) -> bool:
    """True for a finite int or float (a bool is not a number here)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any, least: int = 1) -> bool:
    """True for an int that counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name, with the nearest known one.

    >>> unknown("algorithm", "fedavgg", ["fedavg", "fedprox"])
    InputError("Unknown algorithm 'fedavgg'. Did you mean 'fedavg'?")
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(known)}."
    return InputError(f"Unknown {kind} '{name}'. {hint}")
