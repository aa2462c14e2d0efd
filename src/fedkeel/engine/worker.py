"""A worker: a replica of the model with its gradient function; and a site: a group of clients at work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .. import draws
from ..capacity import slicing
from ..data.batches import Batch, Batches, whole
from ..flat import FlatModel, seeded
from ..messages import Broadcast, Work
from ..task import Task
from ..world import Ints
from .gradients import Gradients, Lockstep, Serial
from .gradients.lean import lean
from .gradients.lockstep import losses_of
from .gradients.serial import layout

if TYPE_CHECKING:
    from ..rule import Losses, Me, Objective, Rule
    from .kernels import Kernels


def never() -> bool:
    """Where time is simulated or has no say, clients do all their steps."""
    return False


class Worker:
    """A replica of the model and the gradient function on it, for one client at a time or for many in lockstep. What it
    computes depends on its arguments alone.

    flops: of one sample's gradient; 0: not counted. levels: a worker for each sub-model, where clients differ in size.
    """

    def __init__(
        self,
        task: Task,
        model: FlatModel,
        mode: str,
        seed: int,
        globally: bool = False,
        compiled: Kernels | None = None,
        flops: int = 0,
        levels: Sequence[Worker | None] = (),
    ) -> None:
        self.task, self.x0, self.seed = task, model.flat, seed
        self.time_is_up: Callable[[], bool] = never  # on a real device: asked after each local step
        self.flops, self.levels = flops, levels
        self.model = model.replica()
        self.gradients: Gradients
        if mode == "serial":
            lean(self.model)
            self.gradients = Serial(task, self.model, globally)
            if compiled is not None:
                compiled.install(self.model)
        else:
            self.gradients = Lockstep(task, self.model, None if compiled is None else compiled.plain)
        self.has_buffers, self.layout = bool(self.model.buffers()), layout(self.model.module)

    def level(self, number: int) -> Worker:
        """The worker for clients that train this sub-model."""
        own = self.levels[number]
        assert own is not None
        return own

    def every(self) -> list[Worker]:
        """This worker, and those of the sub-models it holds."""
        return [self, *(worker for worker in self.levels if worker)]

    def load(self, buffers: dict[str, Tensor], round: int, clients: Ints) -> None:
        """Be in this round, at these clients, with the server's buffers."""
        if isinstance(self.gradients, Serial):  # models that draw random numbers have no client-axis form
            place = self.model.place
            place.seed, place.round = self.seed, round
            place.client = int(clients[0])
        if self.has_buffers:
            self.model.load(self.model.flat, buffers)

    @cached_property
    def class_rows(self) -> Tensor:
        """See `slicing.class_rows`."""
        return slicing.class_rows(self.model, self.task.data.x[:2]).to(self.model.flat.device)

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs, losses) on these samples."""
        self.model.module.eval()
        output = self.model.module(self.layout(x))
        return output, self.task.loss(output, y)


class Site:
    """A group of clients at work on a worker: their objective, and what else rules may ask for. It counts gradients
    that are evaluated beside those of the local steps.
    """

    def __init__(self, worker: Worker, broadcast: Broadcast, work: Work) -> None:
        data, task, t = worker.task.data, worker.task, broadcast.facts.round
        self.worker, self.clients, self.x0, self.round = worker, work.clients, worker.x0, t
        worker.load(broadcast.buffers, t, work.clients)
        self.y = worker.gradients.start(broadcast.x, len(work.clients))
        self.batches = Batches(data, work.clients, work.steps, broadcast.plan.batch_size, worker.seed, t, task.augment)
        self.extra_gradients, self.extra_samples = np.zeros((2, len(work.clients)), dtype=np.int64)
        self.batch: Batch | None = None  # of the step at hand
        self.value: Tensor = self.y.new_zeros(())  # the clients' losses in it, without penalties
        self._own: Tensor = self.y
        self._loss: Losses | None = None
        self._represents = False

    def numbers(self, steps: Tensor) -> Iterator[int]:
        """The numbers of the local steps until budgets are spent or the time is up; `steps` are then those done."""
        batches = self.batches
        for k in range(batches.longest):
            yield k
            if k + 1 < batches.longest and self.worker.time_is_up():
                batches.stop(k + 1)
                steps.clamp_(max=k + 1)  # in place: every rule's view has this tensor
                return

    def objective(self, own: Tensor, rules: Sequence[Rule], views: Sequence[Me]) -> Objective:
        """f(y, batch) -> gradient, value of the task's loss and what these rules make of it.

        own: the clients' own models, of those that still train. Any other point costs gradients of its own.
        """
        self._own, self._loss, self._represents = own, None, False
        for rule, me in zip(rules, views, strict=True):
            if rule.defines("loss"):
                self._loss = partial(rule.loss, self._loss or self._task_loss, me)
                self._represents |= rule.represents
        return self._gradient

    def is_own(self, y: Tensor) -> bool:
        """Whether these are the clients' own models, not another point at which a rule needs a gradient."""
        return y is self._own

    def _task_loss(self, z: Tensor | None, output: Tensor, target: Tensor) -> Tensor:
        return losses_of(self.worker.task.loss, output, target)

    def _gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if y is self._own and batch is not self.batch:
            self.batch = batch
            g, self.value = self.worker.gradients(y, batch, self._loss, self._represents)
            return g, self.value
        self.extra_gradients[: len(y)] += 1
        self.extra_samples[: len(y)] += self.batches.widths[: len(y)]
        model, has_buffers = self.worker.model, self.worker.has_buffers
        buffers = model.buffers() if has_buffers else None
        found = self.worker.gradients(self._apart(y), batch, self._loss, self._represents)
        if has_buffers:
            model.load(model.flat, buffers)
        return found

    def _apart(self, point: Tensor) -> Tensor:
        """A copy where the client's own model is asked about, whose gradient may be in use."""
        return point.clone() if point.data_ptr() == self.worker.model.flat.data_ptr() else point

    def first_batch_gradient(self, point: Tensor) -> Tensor:
        """The gradients at other points `[clients, params]`, on the batches of the clients' first steps."""
        now, self.batch = self.batch, self.batches.at(0, len(point))
        found, _ = self._gradient(point.clone(), self.batch)
        self.batch = now
        return found

    def full_gradient(self, point: Tensor) -> Tensor:
        """The exact mean gradient over each client's data, `[clients, params]`."""
        model, clients, now = self.worker.model, self.clients, self.batch
        total = torch.zeros(len(clients), model.size).to(point)
        was = model.module.training
        model.module.eval()  # exact: no dropout, and buffers stay as they are
        for block in whole(self.worker.task.data, clients):
            self.batch = block
            everywhere = self._apart(point).expand(len(clients), -1)
            total += self.worker.gradients(everywhere, block, self._loss, self._represents)[0]
        model.module.train(was)
        self.batch = now
        self.extra_gradients += -(-self.batches.sizes // self.batches.widths)
        self.extra_samples += self.batches.sizes
        return total

    def represent(self, point: Tensor) -> Tensor:
        """This step's batch as other models `[clients, params]` represent it."""
        assert self.batch is not None
        return self.worker.gradients.represent(point, self.batch)

    def generators(self, purpose: str, step: int = 0) -> Iterator[np.random.Generator]:
        """A generator of random numbers for each client, the same in every mode and with any number of workers.

        What it draws depends on the seed, this purpose, the round, the client and the step.
        """
        place = f"rule {purpose}"
        return (draws.generator(self.worker.seed, place, self.round, int(client), step) for client in self.clients)

    def draw_models(self) -> Tensor:
        """A fresh draw of the initialiser for each client, `[clients, params]`."""
        seeds = [draws.torch_seed(self.worker.seed, "anchor", client=int(c)) for c in self.clients]
        flat = self.worker.model.flat
        drawn = [FlatModel(seeded(s, self.worker.task.model), flat.dtype).flat for s in seeds]
        return torch.stack(drawn).to(flat.device)

    def owned(self) -> Tensor:
        """1 for each class a client has samples of, else 0: `[clients, classes]`."""
        data, classes = self.worker.task.data, int(self.class_rows().max()) + 1
        found = [data.y[data.offsets[c] : data.offsets[c + 1]].flatten() for c in self.clients]
        return torch.stack([torch.bincount(y, minlength=classes) for y in found]).clamp(max=1).to(self.y)

    def class_rows(self) -> Tensor:
        """For each parameter the class whose score it alone makes, or -1: `[params]`."""
        return self.worker.class_rows
