"""Errors of user code inside a round name where they come from: round, client and step, and the rule behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .data.batches import Batch
from .engine.worker import Site
from .errors import ClientError, FedkeelError, brief, reason
from .messages import Broadcast, Work
from .rule import Me, Rule, shown, wrong_shape

if TYPE_CHECKING:
    from .local import Group


@contextmanager
def naming_the_client(broadcast: Broadcast, work: Work) -> Iterator[list[Site]]:
    """Errors in a model, a loss or a rule name round, client and step; the caller puts the site into the list."""
    sites: list[Site] = []
    try:
        yield sites
    except FedkeelError:
        raise
    except Exception as error:
        several = f"one of the clients {brief(work.clients.tolist())}"
        who = f"client {work.clients[0]}" if len(work.clients) == 1 else several
        step = f", step {sites[0].batch.step + 1}" if sites and sites[0].batch else ""
        where = f"Round {broadcast.facts.round}, {who}{step}"
        raise ClientError(f"{where}: {reason(error)}") from error


@contextmanager
def naming_the_rule(group: Group) -> Iterator[None]:
    """Where local steps fail because of what a rule returned, name the rule: nothing is checked while all is well."""
    try:
        yield
    except FedkeelError:
        raise
    except Exception as error:
        for rule, me in group.acting("gradient", "objective", "step"):
            if wrong := useless(rule, me, group.site.y):
                raise TypeError(wrong) from error
        raise


def useless(rule: Rule, me: Me, y: Tensor) -> str | None:
    """What is wrong with what a rule returns in a local step, asked once more with a gradient of zero; else None."""

    def zero(y: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(y), y.new_zeros(len(y), 1)

    name, batch = type(rule).__name__, me.site.batch
    with suppress(Exception):  # its own errors name themselves
        if rule.defines("gradient"):
            g = rule.gradient(torch.zeros_like(y), y.clone(), me)
            if not isinstance(g, Tensor) or g.shape != y.shape:
                return str(wrong_shape(rule, y, g))
        for method in filter(rule.defines, ("objective", "step")):
            found = getattr(rule, method)(zero, me, y.clone(), batch)
            if not isinstance(found, tuple) or [type(one) for one in found] != [Tensor, Tensor]:
                return f"{name}.{method} must return a gradient and a value. Got {shown(found)} instead."
    return None
