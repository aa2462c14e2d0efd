"""Every error fedkeel raises on purpose.

FedkeelError
├── InputError     a value, a name or a combination that cannot work (also a ValueError)
├── MissingExtra   an optional package is not installed; the message has the command (also an ImportError)
└── ClientError    user code failed inside a round; the message names round, client and step
"""

from __future__ import annotations

import difflib
import math
import re
import sysconfig
import traceback
from collections.abc import Iterable
from importlib import metadata
from numbers import Integral, Real
from pathlib import Path
from typing import Any


class FedkeelError(Exception):
    """The root: catch this to catch all of them."""


class InputError(FedkeelError, ValueError):
    """The user's input cannot work; the message says what would."""


class MissingExtra(FedkeelError, ImportError):
    """An optional dependency is missing."""

    def __init__(self, package: str, extra: str, why: str) -> None:
        super().__init__(f"{why} needs {package}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that installs what an extra of fedkeel needs; it works without a release of fedkeel on PyPI.

    >>> install_command("pandas")
    'pip install "pandas>=2"'
    """
    try:
        known = metadata.requires("fedkeel") or []
    except metadata.PackageNotFoundError:  # fedkeel runs from its sources and is not installed
        known = []
    parts = [line.partition(";") for line in known]
    needed = [name.strip() for name, _, marker in parts if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    return "pip install " + " ".join(f'"{name}"' for name in needed or [f".[{extra}]"])


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
        raise InputError(f"The '{name}' parameter of {owner} must be {must}. Got {brief(got)} instead.")


def brief(value: Any) -> str:
    """The repr of a value, on one line and not too long."""
    try:
        text = one_line(repr(value))
    except ValueError:  # Python does not print it
        text = "an integer of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def one_line(error: object) -> str:
    """The text of an error without its line breaks."""
    return " ".join(str(error).split())


def is_number(value: Any) -> bool:
    """True for a finite number of Python or numpy (a bool is not a number here)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def is_count(value: Any, least: int = 1) -> bool:
    """True for an integer of Python or numpy that counts something."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def counted(count: int, noun: str) -> str:
    """A number of things, in words that agree with it.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


PACKAGE = Path(__file__).parent
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def reason(error: BaseException) -> str:
    """What an error of user code says, in one line, and the function that it comes from.

    >>> def my_loss(output, target):
    ...     return output / 0
    >>> try:
    ...     my_loss(1, 1)
    ... except ZeroDivisionError as error:
    ...     reason(error)
    'ZeroDivisionError: division by zero (in my_loss, line 2 of <doctest fedkeel.errors.reason[0]>)'
    """
    text = one_line(error)
    said = f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        ours = PACKAGE in Path(code.co_filename).parents
        if not ours and not code.co_filename.startswith((*LIBRARIES, "<frozen")):
            return f"{said} (in {code.co_name}, line {line} of {Path(code.co_filename).name})"
    return said


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name, with the nearest known one.

    >>> unknown("algorithm", "fedavgg", ["fedavg", "fedprox"])
    InputError("Unknown algorithm 'fedavgg'. Did you mean 'fedavg'?")
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6 if len(name) > 2 else 0.5)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(known)}."
    return InputError(f"Unknown {kind} '{name}'. {hint}")
