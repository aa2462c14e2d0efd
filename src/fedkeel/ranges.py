"""The ranges of the numbers that users give, the same for flags, grammar keys, configurations and Python.

Numbers of formulas stay well inside float32, so that one step of arithmetic with them neither overflows nor vanishes;
counts stay inside int64. Large values may make a run diverge, which is an answer; they must not crash or hang it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from .errors import InputError, check, is_count, is_number


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`, both included. whole: integers only, from 0 on. below: without `most`.

    >>> str(Range(0, 1, below=True)), str(Range(1, 10**9, whole=True))
    ('a number in [0, 1)', 'an integer in [1, 1e9]')
    >>> 0.5 in Range(0, 1), 2 in Range(0, 1), "0.5" in Range(0, 1)
    (True, False, False)
    """

    least: float
    most: float
    whole: bool = False
    below: bool = False

    def __contains__(self, value: object) -> bool:
        if not (is_count(value, 0) if self.whole else is_number(value)):
            return False
        number = plain(value)
        return bool(self.least <= number <= self.most) and not (self.below and number == self.most)

    def __str__(self) -> str:
        kind, end = "an integer" if self.whole else "a number", ")" if self.below else "]"
        return f"{kind} in [{_short(self.least)}, {_short(self.most)}{end}"


def _short(number: float) -> str:
    """A bound of a range, as people write it."""
    if number == 2**63:
        return "2^63"
    digits, e, power = f"{number:g}".partition("e")
    return f"{digits}e{int(power)}" if e else digits


NUMBER = Range(-1e9, 1e9)
COEFFICIENT = Range(0, 1e9)
POSITIVE = Range(1e-30, 1e9)  # what is divided by
RATE = Range(1e-30, 1e38)  # the largest float32 is 3e38
FRACTION = Range(0, 1)
FADING = Range(0, 1, below=True)  # momentum, and other factors of what came before
COUNT = Range(1, 10**9, whole=True)
COUNT_OR_ZERO = Range(0, 10**9, whole=True)
STEPS = Range(1, 10**7, whole=True)  # of a client in a round; float32 holds such integers exactly
STEPS_OR_ZERO = Range(0, 10**7, whole=True)
SEED = Range(0, 2**63, whole=True, below=True)
REPEATS = Range(1, 10**4, whole=True)  # seeds, cells of a sweep, trials
WORKERS = Range(1, 1024, whole=True)  # threads or processes
CLIENTS = Range(1, 10**8, whole=True)


def plain(value: Any) -> Any:
    """A number of numpy or pandas as a number of Python; anything else as it is.

    >>> import numpy as np
    >>> plain(np.int64(5)), plain(np.float64(0.5)), plain("all")
    (5, 0.5, 'all')
    """
    if not is_number(value):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def keep(part: Any, allowed: Range, *names: str) -> None:
    """Refuse fields of a frozen dataclass that are out of range, and keep the others as numbers of Python.

    None is allowed where it is the default.
    """
    defaults = {one.name: one.default for one in fields(part)}
    for name in names:
        value = getattr(part, name)
        if value not in allowed and not (value is None and defaults[name] is None):
            check(False, part, name, str(allowed), value)  # only then: text takes longer than the comparison
        object.__setattr__(part, name, plain(value))


def check_memory(what: str, needed: float, instead: str) -> None:
    """Refuse what needs more memory than this machine has; `instead` says what would work."""
    try:
        here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return
    if needed > here:
        sizes = f"about {needed / 2**30:,.1f} GB of memory, and this machine has {here / 2**30:,.1f} GB"
        raise InputError(f"{what} need {sizes}; {instead}.")
