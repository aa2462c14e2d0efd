"""The local engine: one worker per core, each with one torch thread, fed with chunks of the cohort.

Chunks are fixed by the configuration and reduced in cohort order, so the number of workers changes no bit.
"""

from __future__ import annotations

import os
import queue
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..aggregate import Sums, Weights, fold
from ..capacity import Capacity, Level
from ..errors import EngineWarning, check, is_count
from ..flat import FlatModel
from ..messages import Broadcast, Memory, Slots, Update, Work, cost, select
from ..task import Task
from ..world import Ints
from . import Do
from .choose import choose, moves_global_generator
from .compiled import NOTHING, install, translate, translate_layers
from .gradients import Lockstep, Serial
from .gradients.lean import lean, release
from .gradients.lockstep import Plain
from .memory import Memories
from .probe import probe
from .worker import Worker

T = TypeVar("T")
MODES = ("auto", "serial", "batched", "probe")
BLOCK = 2**20  # input numbers per forward pass of an evaluation
FREED = 31 * 2**20  # bytes: glibc keeps blocks up to the largest it once got back, if that is below 32 MiB


@dataclass(frozen=True)
class Local:
    """Where clients run.

    mode: "serial" (one client at a time), "batched" (a chunk of clients in lockstep), "auto" (a fixed rule of model and
    task chooses) or "probe" (both are tried, briefly). workers: default the cores, one on other devices. chunk:
    default 1 or 64 clients. compile: where clients run one at a time, LSTMs, convolutions and pools train by C, which
    takes a second or two, wherever there is a C compiler; with True, gradients in lockstep become machine code, too: by
    a C compiler for a chain of plain layers (under a second if it is short), by torch and a C++ compiler for others
    (much longer); with False, all is torch's. Numbers differ by roundings.

    >>> Local("serial", workers=2).mode
    'serial'
    """

    mode: str = "auto"
    workers: int | None = None
    chunk: int | None = None
    compile: bool | None = None
    why: str | None = None  # who chose the mode, where it was not the caller

    def __post_init__(self) -> None:
        check(self.mode in MODES, self, "mode", "'auto', 'serial', 'batched' or 'probe'", self.mode)
        check(self.compile is None or isinstance(self.compile, bool), self, "compile", "true or false", self.compile)
        for name in ("workers", "chunk"):
            value = getattr(self, name)
            check(value is None or is_count(value), self, name, "an integer >= 1", value)

    def chosen(self, task: Task, model: FlatModel) -> tuple[str, str]:
        """(mode, reason)."""
        if self.mode == "probe":
            layers = self.compile is not False and translate_layers(task, model)[0]
            return probe(task, model, self.workers or cores(), install if layers else None)
        mode, reason = choose(self.mode, task, model)
        return mode, self.why if self.why is not None and mode == self.mode else reason

    def start(self, task: Task, model: FlatModel, seed: int, capacity: Capacity | None = None) -> Threads:
        """Workers for this task; ends with `close`."""
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
            workers, reason = 1, reason + "; one worker, because the model draws from torch's global generator"
        fast, layers, reason = self._compiled(task, model, mode, workers, bool(levels), reason)
        gradients: Sequence[Plain | None] = fast or [None] * workers
        made = []
        for plain in gradients:
            smaller = [_worker(task, level.model, mode, seed, None, globally, level.flops) if level else None
                       for level in levels]  # fmt: skip
            made.append(_worker(task, model, mode, seed, plain, globally, levels=smaller))
            if layers:
                install(made[-1].model)
        chunk = self.chunk or (1 if mode == "serial" else 64)
        return Threads(made, mode, reason, chunk, Memories(population), capacity, levels, bool(fast or layers))

    def _compiled(
        self, task: Task, model: FlatModel, mode: str, workers: int, levels: bool, reason: str
    ) -> tuple[Sequence[Plain], bool, str]:
        """(compiled gradients for each worker or none, whether layers run by C, the reason with what became of it)."""
        fast: Sequence[Plain] = []
        layers, outcome = False, "clients differ in size" if levels and self.compile else NOTHING
        if mode == "serial" and self.compile is not False and not levels:
            layers, outcome = translate_layers(task, model)
        elif self.compile and not levels:
            fast, outcome = translate(task, model, workers)
        if fast or layers:
            return fast, layers, f"{reason}; {outcome}"
        if self.compile:
            warnings.warn(f"compile=True has no effect: {outcome}.", EngineWarning, stacklevel=5)
        named = self.compile or outcome is not NOTHING
        return fast, layers, f"{reason}; not compiled: {outcome}" if named else reason


def _worker(
    task: Task,
    model: FlatModel,
    mode: str,
    seed: int,
    plain: Plain | None,
    globally: bool,
    flops: int = 0,
    levels: Sequence[Worker | None] = (),
) -> Worker:
    own = model.replica()
    gradients = Serial(task, own, lean(own), globally) if mode == "serial" else Lockstep(task, own, plain)
    return Worker(task, model.flat, gradients, seed, flops, levels)


class Threads:
    """Running workers in threads of this process, and the memories of their clients."""

    def __init__(
        self,
        workers: Sequence[Worker],
        mode: str,
        reason: str,
        chunk: int,
        memories: Memories,
        capacity: Capacity | None = None,
        levels: Sequence[Level | None] = (),
        compiled: bool = False,
    ) -> None:
        self.all, self.compiled = list(workers), compiled
        self.mode, self.reason, self.chunk, self.capacity, self.levels = mode, reason, chunk, capacity, levels
        self._memories = memories
        self._pending: dict[int, list[tuple[Ints, Slots]]] = {}  # by version: what clients remember if it is accepted
        torch.empty(FREED, dtype=torch.uint8)  # from now on a client's vectors are the last one's, not fresh pages
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            self.idle.put(worker)
        self.pool = ThreadPoolExecutor(len(workers), "fedkeel", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        """Let the workers go."""
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
        messages = [broadcast.cut(level.index) if level else broadcast for level in self.levels]

        def chunk(worker: Worker, begin: int) -> tuple[Sequence[Sums | Update], list[tuple[Ints, Slots]]]:
            parts: list[Sums | Update] = []
            remembered: list[tuple[Ints, Slots]] = []
            total = Sums()
            for group in self._groups(work.rows(slice(begin, begin + self.chunk))):
                own, message = worker, broadcast
                if group.levels is not None:
                    own, message = worker.level(group.levels[0]), messages[group.levels[0]]
                update = do(own, message, group, self._memory_of(group.clients))
                update = replace(update, counts=update.counts | cost(message, update))
                if update.memory and len(update.clients):
                    remembered.append((update.clients, update.memory))
                if weights is None:
                    parts.append(own_copy(update, own.model))
                elif group.levels is None:
                    total.add(fold(update, weights))
                elif level := self.levels[group.levels[0]]:
                    total.add(fold(update, weights).spread(level.index, len(broadcast.x), weights, own.flops))
            return parts or [total], remembered

        for found, remembered in self.map(chunk, range(0, len(work.clients), self.chunk)):
            self._pending.setdefault(work.version, []).extend(remembered)
            yield from found

    def _memory_of(self, clients: Ints) -> Memory:
        """What these clients remember."""
        if not self._memories.tables:  # nobody remembers anything
            return Memory({}, np.zeros(len(clients), dtype=np.int64))
        return self._memories.read(clients)

    def _groups(self, work: Work) -> Iterator[Work]:
        """The clients that train together: one in serial mode, else all of a chunk that have the same level."""
        width = self.chunk if self.mode == "batched" else 1
        for begin in range(0, len(work.clients), width):
            group = work.rows(slice(begin, begin + width))
            if group.levels is None:
                yield group
            else:
                yield from (group.rows(np.flatnonzero(group.levels == level)) for level in np.unique(group.levels))

    def commit(self, version: int, clients: Sequence[int]) -> None:
        """The server accepted what these clients sent from this version: they remember it from now on."""
        waiting = []
        for owners, slots in self._pending.pop(version, []):
            accepted = np.isin(owners, clients)
            if accepted.all():
                self._memories.write(owners, slots)
                continue
            self._memories.write(*_rows(owners, slots, np.flatnonzero(accepted)))
            waiting.append(_rows(owners, slots, np.flatnonzero(~accepted)))
        if waiting:
            self._pending[version] = waiting

    def memories(self) -> Memories:
        """What clients remember, for a checkpoint."""
        return self._memories

    def restore(self, memories: Memories) -> None:
        """Go on with the memories of a checkpoint."""
        self._memories = memories

    def evaluate(self, task: Task, x: Tensor, buffers: dict[str, Tensor]) -> dict[str, float | None]:
        """Test loss and accuracy (or the task's metric) of this model; of the largest sub-model that is trained."""
        if task.data.test is None:
            return {"loss": None, "accuracy": None}
        capacity = self.capacity
        if capacity is not None and (top := self.levels[capacity.top(self.levels)]):
            x = x[top.index]
        models = [worker.model for worker in self.all]  # with a capacity, its largest level
        for model in models:
            model.load(x, buffers)
        y = task.data.test[1]
        size = max(1, BLOCK // max(1, task.data.test[0][0].numel()))
        blocks = [slice(b, b + size) for b in range(0, len(y), size)]
        with nullcontext() if capacity is None else capacity.evaluating(models, task):
            parts = list(self.map(Worker.evaluate, blocks))
        output = torch.cat([o for o, _ in parts])
        loss = float(torch.cat([v for _, v in parts]).double().mean())
        scores: dict[str, float | None] = {"loss": loss}
        scores |= {"accuracy": task.accuracy(output, y)} if capacity is None else capacity.scores(task, output, y)
        return {name: value if value is not None and np.isfinite(value) else None for name, value in scores.items()}


def _rows(owners: Ints, slots: Slots, rows: Ints) -> tuple[Ints, Slots]:
    index = select(rows, len(owners))
    return owners[rows], {slot: {name: v[index] for name, v in kept.items()} for slot, kept in slots.items()}


def own_copy(update: Update, model: FlatModel) -> Update:
    """The update with vectors of its own: some may lie where the worker's next client trains."""
    lent = {model.flat.untyped_storage().data_ptr(), model.grad.untyped_storage().data_ptr()}

    def kept(slots: Slots) -> Slots:
        return {
            slot: {k: v.clone() if v.untyped_storage().data_ptr() in lent else v for k, v in named.items()}
            for slot, named in slots.items()
        }

    return replace(update, mean=kept(update.mean), weighted=kept(update.weighted), derived=kept(update.derived))


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
