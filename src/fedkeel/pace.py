"""When the server steps and whose updates it waits for. Only synchronous rounds exist so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from .aggregate import Sums
from .engine import Engine
from .local import train_clients
from .messages import Broadcast, Update, Work

if TYPE_CHECKING:
    from .round import Job, State

Pace = Callable[["Job", "State", Engine, Broadcast, Work], tuple[Iterable[Sums | Update], "State"]]


def synchronous(
    job: Job, state: State, engine: Engine, broadcast: Broadcast, work: Work
) -> tuple[Iterable[Sums | Update], State]:
    """Wait for all invited clients; weighted means are summed on the workers, unless a rule screens the updates."""
    weights, screening = job.algorithm.weighing, job.algorithm.hooks["screen"]
    train = partial(train_clients, job.algorithm)
    if not screening:
        return engine.run(train, broadcast, work, None if weights.stacks else weights), state
    (rule,) = screening
    updates = (part for part in engine.run(train, broadcast, work) if isinstance(part, Update))
    return rule.screen(updates, state.rules[rule.slot]), state
