"""Optimizers on flat tensors: `init` makes the state, `step` moves clients, `apply` the server."""

from __future__ import annotations

from .adaptive import Adagrad, Adam, Adaptive, Yogi
from .base import SGD, Optimizer, State
from .self_tuned import SPS, DeltaSGD, SelfTuned

__all__ = ["SGD", "SPS", "Adagrad", "Adam", "Adaptive", "DeltaSGD", "Optimizer", "SelfTuned", "State", "Yogi"]
