"""A part of a cohort on one worker: the same code, so the same bits, wherever the worker lives.

Chunks are fixed by the configuration and reduced in cohort order, so the number of workers changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..aggregate import Sums, Weights, fold
from ..capacity import Level
from ..flat import FlatModel
from ..messages import Broadcast, Memory, Slots, Update, Work, cost
from ..world import Ints
from . import Do
from .memory import Remembered
from .worker import Worker

Part = tuple[Sequence[Sums | Update], Remembered]  # what a chunk gives, and what its clients will remember


@dataclass(frozen=True)
class Order:
    """What workers do for the clients of one `Engine.run`: the function, the message, and whether they sum."""

    do: Do
    broadcast: Broadcast
    weights: Weights | None


class Chunks:
    """How a cohort is cut: into chunks, and those into groups that train together."""

    def __init__(self, mode: str, size: int, levels: Sequence[Level | None]) -> None:
        self.mode, self.size, self.levels = mode, size, levels

    def of(self, work: Work) -> list[Work]:
        """The chunks of a cohort, in its order."""
        return [work.rows(slice(begin, begin + self.size)) for begin in range(0, len(work.clients), self.size)]

    def groups(self, work: Work) -> Iterator[Work]:
        """The clients that train together: one in serial mode, else all of a chunk that have the same level."""
        width = self.size if self.mode == "batched" else 1
        for begin in range(0, len(work.clients), width):
            group = work.rows(slice(begin, begin + width))
            if group.levels is None:
                yield group
            else:
                yield from (group.rows(np.flatnonzero(group.levels == level)) for level in np.unique(group.levels))

    def messages(self, broadcast: Broadcast) -> list[Broadcast]:
        """What the clients of each level receive."""
        return [broadcast.cut(level.index) if level else broadcast for level in self.levels]

    def part(
        self, worker: Worker, order: Order, cut: Sequence[Broadcast], work: Work, read: Callable[[Ints], Memory]
    ) -> Part:
        """The sums of a chunk or, without weights, its updates. cut: see `messages`; read: clients' memories."""
        parts: list[Sums | Update] = []
        remembered: Remembered = []
        total, weights = Sums(), order.weights
        for group in self.groups(work):
            own, message = worker, order.broadcast
            if group.levels is not None:
                own, message = worker.level(group.levels[0]), cut[group.levels[0]]
            update = order.do(own, message, group, read(group.clients))
            update = replace(update, counts=update.counts | cost(message, update))
            if update.memory and len(update.clients):
                remembered.append((update.clients, update.memory))
            if weights is None:
                parts.append(own_copy(update, own.model))
            elif group.levels is None:
                total.add(fold(update, weights))
            elif level := self.levels[group.levels[0]]:
                total.add(fold(update, weights).spread(level.index, len(order.broadcast.x), weights, own.flops))
        return parts or [total], remembered


def own_copy(update: Update, model: FlatModel) -> Update:
    """The update with vectors of its own: some may lie where the worker's next client trains."""
    lent = {model.flat.untyped_storage().data_ptr(), model.grad.untyped_storage().data_ptr()}

    def kept(slots: Slots) -> Slots:
        return {
            slot: {k: v.clone() if v.untyped_storage().data_ptr() in lent else v for k, v in named.items()}
            for slot, named in slots.items()
        }

    return replace(update, mean=kept(update.mean), weighted=kept(update.weighted), derived=kept(update.derived))
