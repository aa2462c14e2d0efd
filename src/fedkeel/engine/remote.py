"""A worker in a process of its own: it has the task and the model from its constructor, and does chunks of cohorts.

Nothing here knows by which means it is called, so the same class serves under Ray and under anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..aggregate import Sums
from ..capacity import Capacity
from ..errors import ClientError, FedkeelError, InputError, brief, reason
from ..flat import FlatModel
from ..messages import Broadcast, Memory, Update, Work, select, take_rows
from ..task import Task
from ..world import Ints
from .chunks import Order
from .memory import Remembered
from .packing import Packed, pack, unpack
from .threads import Local

ERRORS: dict[str, type[FedkeelError]] = {"InputError": InputError, "ClientError": ClientError}


@dataclass(frozen=True)
class Setup:
    """What a worker is made of; it is the same for all workers of a run."""

    task: Task
    module: nn.Module
    dtype: torch.dtype
    device: str
    seed: int
    capacity: Capacity | None
    own_loss: bool
    local: Local

    @classmethod
    def of(
        cls, task: Task, model: FlatModel, seed: int, capacity: Capacity | None, own_loss: bool, local: Local
    ) -> Setup:
        """The task without what only the server needs: its test and validation sets, and the data that it was cast
        from, which its name still holds.
        """
        task = replace(task, data=task.data.for_workers(), spec=None)
        flat = model.flat
        return cls(task, model.replica().module, flat.dtype, flat.device.type, seed, capacity, own_loss, local)


@dataclass(frozen=True)
class Answer:
    """What became of a chunk: its parts and what its clients will remember, or an error of user code."""

    parts: list[Sums | Update]
    remembered: Remembered
    error: tuple[str, str] | None = None

    def check(self) -> Answer:
        """Raise the error here."""
        if self.error is not None:
            raise ERRORS.get(self.error[0], FedkeelError)(self.error[1])
        return self


class ProcessWorker:
    """A worker that gets and gives packed messages."""

    def __init__(self, packed: Packed) -> None:
        torch.set_num_threads(1)
        setup: Setup = unpack(packed)
        model = FlatModel(setup.module, setup.dtype, setup.device)
        task = setup.task if setup.device == "cpu" else setup.task.cast(setup.dtype, setup.device)
        self.engine = setup.local.start(task, model, setup.seed, setup.capacity, setup.own_loss)
        self.device, self.key = setup.device, -1
        self.order: Order | None = None
        self.cut: list[Broadcast] = []

    def process(self) -> int:
        """The number of its process; it answers once its constructor is done."""
        return os.getpid()

    def part(self, key: int, fetch: Callable[[], Packed], packed: Packed) -> Packed:
        """Do a chunk. key: of the order, which is fetched only if it is not the last one."""
        if key != self.key:
            self.order = unpack(fetch(), self.device)
            self.key, self.cut = key, self.engine.chunks.messages(self.order.broadcast)
        assert self.order is not None
        work: Work
        work, memory = unpack(packed, self.device)
        try:
            rows = Rows(work.clients, memory)
            parts, remembered = self.engine.chunks.part(self.engine.all[0], self.order, self.cut, work, rows.read)
        except FedkeelError as error:
            return pack(Answer([], [], (type(error).__name__, str(error))))
        except Exception as error:
            where = f"Round {self.order.broadcast.facts.round}, one of the clients {brief(work.clients.tolist())}"
            return pack(Answer([], [], ("ClientError", f"{where}: {reason(error)}")))
        return pack(Answer(list(parts), remembered))


class Rows:
    """The memories of the clients of a chunk, read as from the tables they come from."""

    def __init__(self, clients: Ints, memory: Memory) -> None:
        self.row, self.memory = {int(client): i for i, client in enumerate(clients)}, memory

    def read(self, clients: Ints) -> Memory:
        """Those of a group."""
        rows = np.array([self.row[int(client)] for client in clients], dtype=np.int64)
        return Memory(take_rows(self.memory.slots, select(rows, len(self.row))), self.memory.seen[rows])


def pack_chunk(work: Work, read: Callable[[Ints], Memory]) -> Packed:
    """What a worker needs for a chunk beside the order: who does how much, and what they remember."""
    return pack((work, read(work.clients)))


def unpack_answer(packed: Packed, device: Any) -> Answer:
    """The answer of a worker; raises its error."""
    answer: Answer = unpack(packed, str(device))
    return answer.check()
