"""The rules, one file per family."""

from __future__ import annotations

from ..rule import Rule
from .contrastive import Contrastive
from .control_variates import Scaffold
from .distillation import SelfDistillation
from .dynamic import AdaBest, FedDyn
from .fathom import Fathom
from .guard import Guard
from .guess import Guess
from .heavy_ball import GHBM, FedADC, FedCM, FedHBM, LocalGHBM
from .mime import Mime, MimeLite
from .own_classes import OwnClasses
from .proximal import Proximal
from .schedule import Schedule

_ALL: tuple[type[Rule], ...] = (
    Proximal, Guess, GHBM, LocalGHBM, FedHBM, FedCM, FedADC, Scaffold, FedDyn, AdaBest, Mime, MimeLite, Contrastive,
    Fathom, Schedule, OwnClasses, SelfDistillation, Guard,
)  # fmt: skip
RULES: dict[str, type[Rule]] = {rule.__name__.lower(): rule for rule in _ALL}

__all__ = [
    "GHBM", "RULES", "AdaBest", "Contrastive", "Fathom", "FedADC", "FedCM", "FedDyn", "FedHBM", "Guard", "Guess",
    "LocalGHBM", "Mime", "MimeLite", "OwnClasses", "Proximal", "Scaffold", "Schedule", "SelfDistillation",
]  # fmt: skip
