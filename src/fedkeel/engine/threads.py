"""The local engine: one worker per core, each with one torch thread, fed with chunks of the cohort."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..aggregate import Sums, Weights
from ..capacity import Capacity, Level
from ..errors import InputError, check
from ..flat import FlatModel
from ..messages import Broadcast, Update, Work
from ..ranges import COUNT, WORKERS, keep
from ..task import Task
from . import Do, kernels
from .choose import choose, moves_global_generator
from .chunks import Chunks, Order, Part
from .gradients.lean import release
from .memory import Accepted, Memories
from .probe import probe
from .worker import Worker

T = TypeVar("T")
MODES = ("auto", "serial", "batched", "probe")
ONE_WORKER = "; one worker, because the model draws from torch's global generator"
BLOCK = 2**20  # input numbers per forward pass of an evaluation
# Bytes: glibc keeps blocks up to the largest it once got back, if that is below 32 MiB. Without this, W5 runs at 0.94
# of its speed (benchmarks/before_after.py).
FREED = 31 * 2**20


@dataclass(frozen=True)
class Local:
    """Where clients run.

    mode: "serial" (one client at a time), "batched" (a chunk of clients in lockstep), "auto" (a fixed rule of model and
    task chooses) or "probe" (both are tried, briefly). workers: default the cores, one on other devices. chunk:
    default 1 or 64 clients. compile: use C kernels (see `engine/kernels`); numbers then differ by roundings. An error,
    if there is no compiler or no kernel for the model.

    >>> Local("serial", workers=2).mode
    'serial'
    """

    mode: str = "auto"
    workers: int | None = None
    chunk: int | None = None
    compile: bool = False
    why: str | None = None  # who chose the mode, where it was not the caller

    def __post_init__(self) -> None:
        check(self.mode in MODES, self, "mode", "'auto', 'serial', 'batched' or 'probe'", self.mode)
        check(isinstance(self.compile, bool), self, "compile", "true or false", self.compile)
        keep(self, WORKERS, "workers")
        keep(self, COUNT, "chunk")

    @property
    def name(self) -> str:
        """Its mode, which is its name on the command line."""
        return self.mode

    def chosen(self, task: Task, model: FlatModel) -> tuple[str, str]:
        """(mode, reason)."""
        if self.mode == "probe":
            used = {m: kernels.compiled(task, model, m) if self.compile else None for m in ("serial", "batched")}
            return probe(task, model, self.workers or cores(), used["serial"], used["batched"])
        mode, reason = choose(self.mode, task, model)
        return mode, self.why if self.why is not None and mode == self.mode else reason

    def start(
        self, task: Task, model: FlatModel, seed: int, capacity: Capacity | None = None, own_loss: bool = False
    ) -> Threads:
        """Workers for this task; ends with `close`. own_loss: a rule makes another loss of the task's, which the kernel
        for chains does not know.
        """
        population, levels = len(task.data), capacity.levels(model, task) if capacity is not None else []
        if capacity is not None:
            task = capacity.trained(task)
            top = levels[capacity.top(levels)]
            assert top is not None
            model = top.model
        mode, reason = self.chosen(task, model)
        workers = self.workers or (cores() if model.flat.device.type == "cpu" else 1)
        globally = mode == "serial" and moves_global_generator(task, model)
        if globally:
            workers, reason = 1, reason + ONE_WORKER
        known = mode == "serial" or not own_loss
        wanted = self.compile and known
        used = kernels.compiled(task, model, mode) if wanted else None
        smaller = [kernels.compiled(task, level.model, mode) if wanted and level else None for level in levels]
        found = [one for one in (used, *smaller) if one]
        if self.compile and not found:
            what = "this model" if known else "a loss that a rule changes"
            raise InputError(
                f"compile=True has no C kernel for {what} where clients run {mode}; leave out --compile. There are "
                "kernels for chains of plain layers (batched), and for convolutions of 3 x 3 and 5 x 5 or with 2 x 2 "
                "max-pooling and a ReLU behind them (serial)."
            )
        if found or (known and kernels.would_gain(task, model, mode)):
            reason += f"; {found[0].summary if found else kernels.HINT}"

        def worker() -> Worker:
            own = [
                Worker(task, level.model, mode, seed, globally, use, level.flops) if level else None
                for level, use in zip(levels, smaller, strict=True)
            ]
            return Worker(task, model, mode, seed, globally, used, levels=own)

        chunk = self.chunk or (1 if mode == "serial" else 64)
        made = [worker() for _ in range(workers)]
        return Threads(made, mode, reason, chunk, Accepted(Memories(population)), capacity, levels, bool(found))


@dataclass(eq=False)
class Threads:
    """An `Engine`: running workers in threads of this process, and the memories of their clients."""

    all: list[Worker]
    mode: str
    reason: str
    chunk: int
    kept: Accepted
    capacity: Capacity | None
    levels: Sequence[Level | None]
    compiled: bool

    def __post_init__(self) -> None:
        self.name, self.chunks = self.mode, Chunks(self.mode, self.chunk, self.levels)
        torch.empty(FREED, dtype=torch.uint8)  # from now on a client's vectors are the last one's, not fresh pages
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self.all:
            self.idle.put(worker)
        self.pool = ThreadPoolExecutor(len(self.all), "fedkeel", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
        for worker in self.all:
            for one in worker.every():
                release(one.model)

    def map(self, do: Callable[[Worker, T], Any], items: Sequence[T]) -> Iterator[Any]:
        """`do(worker, item)` for every item; results in the order of items."""

        def work(item: T) -> Any:
            worker = self.idle.get()
            try:
                return do(worker, item)
            finally:
                self.idle.put(worker)

        # One item, or one worker: no thread to hand it to is faster than any.
        return map(work, items) if len(items) == 1 or len(self.all) == 1 else self.pool.map(work, items)

    def run(self, do: Do, broadcast: Broadcast, work: Work, weights: Weights | None = None) -> Iterator[Sums | Update]:
        """`do` for every client, in chunks: the sums of each chunk or, without weights, updates, in cohort order."""
        order, cut = Order(do, broadcast, weights), self.chunks.messages(broadcast)

        def part(worker: Worker, chunk: Work) -> Part:
            return self.chunks.part(worker, order, cut, chunk, self.kept.memories.read)

        for found, remembered in self.map(part, self.chunks.of(work)):
            self.kept.add(work.version, remembered)
            yield from found

    def commit(self, version: int, clients: Sequence[int]) -> None:
        self.kept.commit(version, clients)

    def discard(self, version: int) -> None:
        self.kept.discard(version)

    def hold(self, updates: Iterable[Update]) -> None:
        self.kept.hold(updates)

    def memories(self) -> Memories:
        return self.kept.memories

    def restore(self, memories: Memories) -> None:
        self.kept.memories = memories

    def evaluate(
        self, task: Task, x: Tensor, buffers: dict[str, Tensor], samples: tuple[Tensor, Tensor] | None
    ) -> dict[str, float | None]:
        """Loss and accuracy (or the task's metric) on samples; with a capacity, of the largest sub-model trained."""
        if samples is None:
            return {"loss": None, "accuracy": None}
        capacity = self.capacity
        if capacity is not None and (top := self.levels[capacity.top(self.levels)]):
            x = x[top.index]
        models = [worker.model for worker in self.all]  # with a capacity, its largest level
        for model in models:
            model.load(x, buffers)
        inputs, y = samples
        size = max(1, BLOCK // max(1, inputs[0].numel()))
        blocks = list(zip(torch.split(inputs, size), torch.split(y, size), strict=True))
        with nullcontext() if capacity is None else capacity.evaluating(models, task):
            parts = list(self.map(lambda worker, block: worker.evaluate(*block), blocks))
        output = torch.cat([o for o, _ in parts])
        loss = float(torch.cat([v for _, v in parts]).double().mean())
        scores: dict[str, float | None] = {"loss": loss}
        scores |= {"accuracy": task.accuracy(output, y)} if capacity is None else capacity.scores(task, output, y)
        return {name: value if value is not None and np.isfinite(value) else None for name, value in scores.items()}


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread while a run lasts (the same bits for any number of workers); then as the caller had it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):  # a model that draws from the global generator has it reseeded
            yield
    finally:
        torch.set_num_threads(before)
