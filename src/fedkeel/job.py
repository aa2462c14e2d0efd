"""What a run is made of: what it fixes, what changes from round to round, what clients receive."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .algorithm import Algorithm, At
from .run.memory import Memories
from .task import Task
from .wire import Slots
from .world import World

COUNTED = ("gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes")


@dataclass(frozen=True)
class Job:
    """What a run fixes before its first round; every value of the algorithm is resolved."""

    task: Task
    algorithm: Algorithm
    world: World
    rounds: int
    seed: int
    batch_size: int | None

    def cast(self, dtype: torch.dtype, device: str) -> Job:
        """The same job with its data in `dtype` on `device`."""
        return replace(self, task=self.task.cast(dtype, device))


@dataclass
class State:
    """What changes from round to round, as data. A checkpoint is this and the configuration."""

    x: Tensor
    x0: Tensor
    buffers: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rules: Slots
    memories: Memories
    round: int = 0
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


@dataclass
class Message:
    """What every client of the cohort receives."""

    job: Job
    at: dict[str, Any]  # the fields of `At` that all clients share
    buffers: dict[str, Tensor]
    batch_size: int | None

    def cut(self, index: Tensor) -> Message:
        """What a client receives whose sub-model has these elements."""
        return replace(self, at=self.at | {name: self.at[name][index] for name in ("x", "x0")})


def first_state(job: Job, x: Tensor, buffers: dict[str, Tensor]) -> State:
    """The state before round 1."""
    at = At(x=x, x0=x, rounds=job.rounds, population=len(job.task.data), optimizer=job.algorithm.client)
    rules = {rule.slot: rule.server_init(x, at.of(rule)) for rule in job.algorithm.rules}
    counted = COUNTED if job.algorithm.capacity is None else (*COUNTED, "flops")
    totals = dict.fromkeys(counted, 0)
    return State(x, x, buffers, job.algorithm.server.init(x), rules, Memories(len(job.task.data)), totals=totals)
