"""The rules, one file per family."""

from __future__ import annotations

from ..algorithm import Rule
from .guess import Guess
from .proximal import Proximal

RULES: dict[str, type[Rule]] = {"proximal": Proximal, "guess": Guess}

__all__ = ["RULES", "Guess", "Proximal"]
