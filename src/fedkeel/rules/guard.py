"""A guard against updates that are far too large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import check
from ..messages import Update
from ..ranges import Range, keep
from ..rule import Rule, Tensors, View

if TYPE_CHECKING:
    from ..aggregate import Reports


@dataclass(frozen=True, repr=False)
class Guard(Rule):
    """Limits the norm of each client's update to k times the running median of the norms accepted before.

        bound = k median(m_{t-window}, ..., m_{t-1}),    m_s the median of the norms accepted in round s
        clip      Delta_i <- Delta_i min(1, bound / ||Delta_i||)
        reject    clients with ||Delta_i|| > bound are dropped: nothing they sent counts, and they keep their old memory

    As long as there is no median, as in round 1, the bound is k times the median of the round's own norms, so the guard
    holds there if at most half of the clients are bad. Medians of an even number are the lower one. A round in which
    all updates are zero leaves no median. The server sums updates as they arrive, not the workers.

    The history has a column `guarded`: how many updates were clipped or rejected.

    >>> Guard("reject")
    Guard(action='reject', k=3.0, window=20)
    """

    action: str = "clip"
    k: float = 3.0
    window: int = 20

    def __post_init__(self) -> None:
        check(self.action in ("clip", "reject"), self, "action", "'clip' or 'reject'", self.action)
        keep(self, Range(1, 1e9), "k")
        keep(self, Range(1, 10_000, whole=True), "window")

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {"medians": torch.zeros(self.window, dtype=torch.float64)}  # of recent rounds, the last one last

    def screen(self, updates: Iterator[Update], server: Tensors) -> Iterator[Update]:
        """The updates of a round, limited."""
        known = server["medians"][server["medians"] > 0]
        if len(known) == 0:
            arrived = list(updates)
            updates = iter(arrived)
            norms = torch.cat([exact_norms(update) for update in arrived]) if arrived else known
            known = norms[norms > 0]
        bound = self.k * float(known.median()) if len(known) else torch.inf
        for update in updates:
            yield self.limit(update, bound)

    def limit(self, update: Update, bound: float) -> Update:
        """These clients' updates, none beyond the bound."""
        norms = exact_norms(update)
        over = norms > bound
        if not over.any():
            return update
        update = replace(update, counts=update.counts | {"guarded": int(over.sum())})
        if self.action == "reject":
            return update.only(~over.numpy())
        assert update.delta is not None
        factor = torch.where(over, bound / norms, 1.0)[:, None].to(update.delta)
        return replace(update, delta=update.delta * factor)

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        median = torch.cat(up.sums.update_norms).median().double().cpu()
        return {"medians": torch.cat([server["medians"].cpu()[1:], median[None]])}, up.delta

    def report(self, server: Tensors, up: Reports, view: View) -> dict[str, float]:
        return {"guarded": up.sums.counts.get("guarded", 0)}


def exact_norms(update: Update) -> Tensor:
    """||Delta_i|| of each client, in float64, so that no square overflows."""
    assert update.delta is not None
    norms: Tensor = torch.linalg.vector_norm(update.delta.cpu().double(), dim=1)
    return norms
