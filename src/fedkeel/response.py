"""How far an algorithm's clients move for given gradients: the same local steps, on numbers instead of models.

FedNova divides an update by the weight of its gradients, and GEL's control arm compares step lengths. Both follow from
the response to gradients of 1, for any mix of momentum, proximal term and guesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .data.batches import Batch
from .messages import Facts
from .optim import Optimizer
from .rule import Me, Objective, Rule, Walk

if TYPE_CHECKING:
    from .engine.worker import Site


def lengths(
    client: Optimizer, rules: Sequence[Rule], steps: Tensor, lr: float, expected: Tensor | int | None
) -> Tensor:
    """A_i = ||a_i||_1 for `[clients, 1]` step counts, where Delta_i = -lr sum_k a_ik g_ik.

    >>> import fedkeel as fk
    >>> round(lengths(fk.SGD(0.1, momentum=0.9), [fk.Guess()], torch.tensor([[2.0]]), 0.1, expected=9).item(), 12)
    11.82112301
    """
    return _respond(client, rules, steps, lr, expected, torch.ones(int(steps.max()), 1))


def coefficients(
    client: Optimizer, rules: Sequence[Rule], steps: Tensor, lr: float, expected: Tensor | int | None
) -> Tensor:
    """a_ik, the weight of client i's gradient of step k in its update, `[clients, longest]`; 0 after its last step.

        Delta_i = -lr sum_k a_ik g_ik;      with momentum a and q guesses a_ik = (1 - a^(q + J_i - k)) / (1 - a)

    The second line is GEL's lemma 1; here each a_ik is the response to a gradient of 1 in step k alone, which
    also covers a proximal term and Nesterov's momentum.

    >>> import fedkeel as fk
    >>> coefficients(fk.SGD(0.1, momentum=0.5), [], torch.tensor([[3.0]]), 0.5, None).tolist()
    [[1.75, 1.5, 1.0]]
    """
    return _respond(client, rules, steps, lr, expected, torch.eye(int(steps.max())))


class GivenGradients:
    """Replaces a site (and its batches): the gradient of step k is given and does not depend on y."""

    def __init__(self, steps: Tensor, gradients: Tensor) -> None:
        self.gradients, self.longest = gradients, len(gradients)
        self.batches = self
        self.active = [int((steps > k).sum()) for k in range(self.longest + 1)]
        self.value, self.clients = steps.new_zeros(()), ()

    def numbers(self, steps: Tensor) -> Iterable[int]:
        return range(self.longest)

    def at(self, k: int, active: int) -> Batch:
        return Batch(self.gradients, self.gradients, None, k)

    def objective(self, own: Tensor, rules: Any, views: Any) -> Objective:
        return lambda y, batch: (self.gradients[batch.step].repeat(len(y), 1), self.value)


def _respond(
    client: Optimizer, rules: Sequence[Rule], steps: Tensor, lr: float, expected: Tensor | int | None, gradients: Tensor
) -> Tensor:
    """How far the clients move along -lr if their gradient in step k is `gradients[k]`, `[clients, width]`."""
    from .local import Group, take_steps  # local.py imports `lengths` from here

    # Gradients are given, so rules that only change the loss, or only report, have no effect here.
    rules = [rule for rule in rules if any(map(rule.defines, ("objective", "gradient", "step", "walk")))]
    order = torch.argsort(steps[:, 0], descending=True, stable=True)
    real = steps.double()[order]
    y, one = real.new_zeros(len(real), gradients.shape[1]), torch.ones_like(real)
    site = cast("Site", GivenGradients(real, gradients.double()))
    hoped = expected[order].double() if isinstance(expected, Tensor) else None if expected is None else one * expected
    me = Me(y[0].clone(), Facts(), real, one, 0 * one, lr=one * lr, expected=hoped, site=site)
    views = [replace(me, notes=rule.start(me)) for rule in rules]
    group = Group(replace(client, clip=None), rules, views, me, site)
    go: Walk = partial(take_steps, group)
    for rule, view in group.acting("walk"):
        go = partial(rule.walk, go, view)
    go(y)
    return (-y / lr)[torch.argsort(order)]
