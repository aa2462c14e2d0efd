"""The rules, one file per family."""

from __future__ import annotations

from ..algorithm import Rule
from .control_variates import Scaffold
from .dynamic import AdaBest, FedDyn
from .guess import Guess
from .heavy_ball import GHBM, FedADC, FedCM, FedHBM, LocalGHBM
from .mime import Mime, MimeLite
from .proximal import Proximal

_ALL: tuple[type[Rule], ...] = (
    Proximal,
    Guess,
    GHBM,
    LocalGHBM,
    FedHBM,
    FedCM,
    FedADC,
    Scaffold,
    FedDyn,
    AdaBest,
    Mime,
    MimeLite,
)
RULES: dict[str, type[Rule]] = {rule.__name__.lower(): rule for rule in _ALL}

__all__ = [
    "GHBM",
    "RULES",
    "AdaBest",
    "FedADC",
    "FedCM",
    "FedDyn",
    "FedHBM",
    "Guess",
    "LocalGHBM",
    "Mime",
    "MimeLite",
    "Proximal",
    "Scaffold",
]
