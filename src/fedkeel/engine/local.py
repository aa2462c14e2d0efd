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
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from .. import draws
from ..algorithm import Algorithm, At
from ..capacity import Capacity, Level, slicing
from ..data.batches import Batch, Batches, whole
from ..errors import EngineWarning, check, is_count
from ..flat import FlatModel, seeded
from ..task import Task
from ..wire import Part, Slots
from ..world import Ints
from .compiled import NOTHING, install, translate, translate_layers
from .gradients import Batched, Plain, Serial, channels_last, choose, moves_global_generator
from .lean import lean, release
from .probe import probe

if TYPE_CHECKING:
    from ..run.memory import Memories

T = TypeVar("T")
MODES = ("auto", "serial", "batched", "probe")
BLOCK = 2**20  # input numbers per forward pass of an evaluation
FREED = 31 * 2**20  # bytes: glibc keeps blocks up to the largest it once got back, if that is below 32 MiB


class Worker:
    """A replica of the model and the gradient function on it."""

    def __init__(
        self, task: Task, model: FlatModel, mode: str, seed: int, plain: Plain | None = None, flops: int = 0
    ) -> None:
        self.task, self.model, self.seed, self.flops = task, model, seed, flops  # of one sample; 0: not counted
        self.levels: list[Worker | None] = []  # one for each sub-model, where clients differ in size
        self.gradients: Serial | Batched = (
            Serial(task, model, lean(model)) if mode == "serial" else Batched(task, model, plain)
        )
        self.has_buffers = bool(model.buffers())

    def every(self) -> list[Worker]:
        """This worker, and those of the sub-models it holds."""
        return [self, *(worker for worker in self.levels if worker)]

    def load(self, buffers: dict[str, Tensor], round: int, clients: Ints) -> None:
        """Be at this round, at these clients, with the server's buffers."""
        place = self.model.place
        place.seed, place.round, place.client = self.seed, round, int(clients[0])
        if self.has_buffers:
            self.model.load(self.model.flat, buffers)

    def float_buffers(self) -> dict[str, Tensor]:
        """The buffers that travel and count as bytes."""
        return {k: b for k, b in self.model.module.named_buffers() if b.is_floating_point()}

    def sum_buffers(self, part: Part, samples: Tensor) -> None:
        """Floating buffers are summed by samples; of integer ones the cohort's first client counts."""
        if self.has_buffers:
            for name, buffer in self.model.buffers().items():
                if buffer.is_floating_point():
                    part.put("", name, "buffer", buffer * samples[0, 0].to(buffer.dtype))
                else:
                    part.sums.setdefault(("", name, "first"), buffer)

    @cached_property
    def class_rows(self) -> Tensor:
        """See `slicing.class_rows`."""
        return slicing.class_rows(self.model, self.task.data.x[:2]).to(self.model.flat.device)

    @torch.no_grad()
    def evaluate(self, block: slice) -> tuple[Tensor, Tensor]:
        """(outputs, losses) on a slice of the test set."""
        assert self.task.data.test is not None
        x, y = self.task.data.test[0][block], self.task.data.test[1][block]
        self.model.module.eval()
        output = self.model.module(channels_last(x))
        return output, self.task.loss(output, y)


@dataclass
class Lent:
    """What formulas may ask a worker for while its group trains (`algorithm.Lender`)."""

    worker: Worker
    batches: Batches
    algorithm: Algorithm

    @property
    def batch(self) -> Batch:
        return self.batches.current

    def _apart(self, point: Tensor) -> Tensor:
        """A copy where the client's own model is asked about, whose gradient may be in the making."""
        return point.clone() if point.data_ptr() == self.worker.model.flat.data_ptr() else point

    def raw_gradient(self, at: At, point: Tensor) -> Tensor:
        at.scalars["extra_gradients"].add_(1)
        at.scalars["extra_samples"].add_(torch.from_numpy(self.batches.widths[: len(point), None]).to(point))
        model, has_buffers = self.worker.model, self.worker.has_buffers
        buffers = model.buffers() if has_buffers else None
        g, _ = self.worker.gradients(self._apart(point), self.batches.current)
        if has_buffers:
            model.load(model.flat, buffers)
        return g

    def full_gradient(self, at: At, point: Tensor) -> Tensor:
        assert at.clients is not None
        model, data = self.worker.model, self.worker.task.data
        total = torch.zeros(len(at.clients), model.size).to(point)
        was = model.module.training
        model.module.eval()  # exact: no dropout, and buffers stay as they are
        for batch in whole(data, at.clients):
            total += self.worker.gradients(self._apart(point).expand(len(at.clients), -1), batch)[0]
        model.module.train(was)
        widths = torch.from_numpy(self.batches.widths[:, None]).to(at.samples)
        at.scalars["extra_gradients"].add_(torch.ceil(at.samples / widths))
        at.scalars["extra_samples"].add_(at.samples)
        return total

    def represent(self, point: Tensor) -> Tensor:
        return self.worker.gradients.represent(point)

    def draw_model(self, at: At) -> Tensor:
        assert at.clients is not None
        seeds = [draws.torch_seed(self.worker.seed, "anchor", client=int(c)) for c in at.clients]
        flat = self.worker.model.flat
        drawn = [FlatModel(seeded(s, self.worker.task.model), flat.dtype).flat for s in seeds]
        return torch.stack(drawn).to(flat.device)

    def owned(self, at: At) -> Tensor:
        assert at.clients is not None
        data = self.worker.task.data
        found = [data.y[data.offsets[c] : data.offsets[c + 1]].flatten() for c in at.clients]
        classes = int(self.class_rows().max()) + 1
        return torch.stack([torch.bincount(y, minlength=classes) for y in found]).clamp(max=1).to(at.x)

    def class_rows(self) -> Tensor:
        return self.worker.class_rows

    def outcome(self, at: At) -> Callable[[Tensor], Tensor] | None:
        """What rules make of the model's outputs before the loss; None if no rule does."""
        changing = self.algorithm.hooks("output")

        def changed(output: Tensor) -> Tensor:
            with at.aside():
                for rule in changing:
                    output = rule.output(output, at.of(rule))
            return output

        return changed if changing else None

    def loss_terms(self, at: At) -> Callable[[Tensor], Tensor | None] | None:
        """What rules add to the loss of every sample, from the model's representations; None if no rule does."""
        adding = self.algorithm.hooks("loss")

        def terms(z: Tensor) -> Tensor | None:
            with at.aside():
                added = [term for rule in adding if (term := rule.loss(z, at.of(rule))) is not None]
            return torch.stack(added).sum(0) if added else None

        return terms if adding else None


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

    def start(self, task: Task, model: FlatModel, seed: int, capacity: Capacity | None = None) -> Engine:
        """Workers for this task; ends with `close`."""
        levels: list[Level | None] = []
        if capacity is not None:
            levels, task = capacity.levels(model, task), capacity.trained(task)
            top = levels[capacity.top(levels)]
            assert top is not None
            model = top.model
        mode, reason = self.chosen(task, model)
        workers = self.workers or (cores() if model.flat.device.type == "cpu" else 1)
        globally = mode == "serial" and moves_global_generator(task, model)
        if globally:
            workers, reason = 1, reason + "; one worker, because the model draws from torch's global generator"
        chunk = self.chunk or (1 if mode == "serial" else 64)
        fast: Sequence[Plain | None] = []
        layers, told = False, "clients differ in size" if levels and self.compile else NOTHING
        if mode == "serial" and self.compile is not False and not levels:
            layers, told = translate_layers(task, model)
        elif self.compile and not levels:
            fast, told = translate(task, model, workers)
        if fast or layers:
            reason += f"; {told}"
        elif self.compile or told is not NOTHING:
            reason += f"; not compiled: {told}"
        if self.compile and not fast and not layers:
            warnings.warn(f"compile=True has no effect: {told}.", EngineWarning, stacklevel=4)
        made = [Worker(task, model.replica(), mode, seed, plain) for plain in fast or [None] * workers]
        for worker in made:
            if layers:
                install(worker.model)
            worker.levels = [
                Worker(task, level.model.replica(), mode, seed, flops=level.flops) if level else None
                for level in levels
            ]
        return Engine(made, mode, reason, chunk, globally, capacity, levels, compiled=bool(fast or layers))


class Engine:
    """Running workers. The contract: run this for these clients and give me the reduced uploads."""

    def __init__(
        self,
        workers: Sequence[Worker],
        mode: str,
        reason: str,
        chunk: int,
        globally: bool,
        capacity: Capacity | None = None,
        levels: Sequence[Level | None] = (),
        compiled: bool = False,
    ) -> None:
        self.compiled = compiled
        self.mode, self.reason, self.chunk, self.capacity, self.levels = mode, reason, chunk, capacity, levels
        torch.empty(FREED, dtype=torch.uint8)  # from now on a client's vectors are the last one's, not fresh pages
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self.all = list(workers)
        for worker in workers:
            for one in worker.every():
                if isinstance(one.gradients, Serial):
                    one.gradients.draws_globally = globally
            self.idle.put(worker)
        self.pool = ThreadPoolExecutor(len(workers), "fedkeel", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        """Let the workers go."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        for worker in self.all:
            for one in worker.every():
                one.gradients.terms = one.gradients.outcome = None
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

    def reduce(self, do: Callable[..., Part], message: Any, cohort: Ints, steps: Ints, memories: Memories) -> Part:
        """`do` on the whole cohort in chunks; their parts are summed in cohort order."""
        width = self.chunk if self.mode == "batched" else 1
        play = do if self.capacity is None else self._by_level(do, self.capacity, message)

        def chunk(worker: Worker, begin: int) -> Part:
            part = Part()
            for b in range(begin, min(begin + self.chunk, len(cohort)), width):
                group = slice(b, min(b + width, begin + self.chunk))
                part.add(play(worker, message, cohort[group], steps[group], *memories.read(cohort[group])))
            return part

        total = Part()
        for part in self.map(chunk, range(0, len(cohort), self.chunk)):
            total.add(part)
        return total

    def _by_level(self, do: Callable[..., Part], capacity: Capacity, message: Any) -> Callable[..., Part]:
        """`do` on a group's clients level by level, each on its own sub-model; the sums are over the whole model."""
        job, size = message.job, len(message.at["x"])
        cut = [message.cut(level.index) if level else None for level in self.levels]

        def play(worker: Worker, _: Any, clients: Ints, steps: Ints, memory: Slots, seen: Ints) -> Part:
            part = Part()
            levels = capacity.of(clients, job.seed, message.at["round"], message.at["population"])
            for number in np.unique(levels):
                level, mine, own = self.levels[number], levels == number, worker.levels[number]
                assert level is not None and own is not None
                kept = {slot: {name: rows[mine] for name, rows in held.items()} for slot, held in memory.items()}
                done = do(own, cut[number], clients[mine], steps[mine], kept, seen[mine])
                done.count("flops", done.counts["samples"] * own.flops)
                done.spread(level.index, size, job.algorithm.weighing)
                part.add(done)
            return part

        return play

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
