"""What a method remembers of gradients: which tensor of a rule or of the server's optimizer is its momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ... import rules
from ...optim import SGD, Adaptive, Optimizer
from ...rule import Me, Rule, Tensors
from ...rules import GHBM, FedADC, FedCM, FedHBM, LocalGHBM, Mime, MimeLite
from ...rules.heavy_ball import scaling
from ...tables import nearest


def client_memory(rule: Rule, me: Me) -> Tensor | None:
    """The momentum that a rule's clients start the round with, as a gradient of any length; None without one."""
    known = nearest(CLIENT_MEMORY, type(rule))
    return known(rule, me) if known else None


def server_memory(server: Optimizer, state: Tensors) -> Tensor | None:
    """The momentum in the server optimizer's state, as a gradient of any length; None without one."""
    if isinstance(server, SGD):
        return -state["v"] if server.momentum else None
    return state["m"] if isinstance(server, Adaptive) and server.beta1 else None


def _anchor(rule: LocalGHBM | FedHBM, me: Me) -> Tensor | None:
    known = 1 - me.first if isinstance(rule, FedHBM) and rule.first == "none" else 1.0
    return known * scaling(rule.scale, me) * (me.memory["anchor"] - me.x) if rule.beta else None


# Every rule of ours has an entry, so that none is forgotten: None for those that remember no gradient.
CLIENT_MEMORY: dict[type[Rule], Callable[[Any, Me], Tensor | None] | None] = {
    **dict.fromkeys((rules.Proximal, rules.Guess, rules.Scaffold, rules.FedDyn, rules.AdaBest), None),
    **dict.fromkeys((rules.Contrastive, rules.Fathom, rules.Schedule, rules.OwnClasses), None),
    rules.SelfDistillation: None,
    GHBM: lambda rule, me: -me.sent["M"] if me.sent else None,
    **dict.fromkeys((LocalGHBM, FedHBM), _anchor),
    FedCM: lambda rule, me: me.sent.get("D"),
    **dict.fromkeys((FedADC, Mime, MimeLite), lambda rule, me: me.sent.get("m")),
}
