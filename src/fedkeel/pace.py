"""When the server steps and whose updates it waits for. Only synchronous rounds exist so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from .aggregate import Sums
from .engine import Engine
from .local import train_clients
from .messages import Broadcast, Update, Work

if TYPE_CHECKING:
    from .round import Job, State

Pace = Callable[["Job", "State", Engine, Broadcast, Work], tuple[Iterator[Sums | Update], "State"]]


def synchronous(
    job: Job, state: State, engine: Engine, broadcast: Broadcast, work: Work
) -> tuple[Iterator[Sums | Update], State]:
    """Wait for all invited clients; weighted means are summed on the workers."""
    weights = job.algorithm.weighing
    train = partial(train_clients, job.algorithm)
    return engine.run(train, broadcast, work, None if weights.stacks else weights), state
