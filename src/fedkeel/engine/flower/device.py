"""The device's side: one ClientApp that trains by `train_clients`, as every other engine does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import recipes
from ...algorithm import Algorithm
from ...errors import InputError
from ...local import train_clients
from ...messages import Broadcast, Memory, Update, Work
from ...survey import survey_clients
from ...task import Task
from ...version import __version__
from ...world import World
from .. import Do
from ..threads import Local, one_thread
from .disk import NONE, Disk
from .orders import SURVEY, Order, flower, pack, unpack

NodeConfig = Mapping[str, Any]  # what the device's owner set with --node-config
MakeTask = Callable[[NodeConfig | None], Task]  # None on the server
DO: dict[str, Callable[..., Update]] = {"train": train_clients, SURVEY: survey_clients}


class Deadline:
    """Whether the time for local steps is up: the next step, taken to last as long as the longest yet, ends too late.

    >>> Deadline(seconds=0.0)(), Deadline(seconds=60.0)()
    (True, False)
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last = clock()
        self.end, self.longest = self.last + seconds, 0.0

    def __call__(self) -> bool:
        now = self.clock()
        self.longest, self.last = max(self.longest, now - self.last), now
        return now + self.longest >= self.end


@dataclass(frozen=True)
class Device:
    """What a device does with the server's messages. algorithm, world: of the app, for rules of the user's own."""

    make_task: MakeTask
    algorithm: Algorithm | None = None
    world: World | None = None

    def enroll(self, message: Any, context: Any) -> Any:
        """How many samples this device holds and, for a named task, which client's they are."""
        app, task = flower(), self.make_task(context.node_config)
        number = int(context.node_config.get("partition-id", -1))
        if task.spec is None:
            samples = len(task.data.x)
        elif 0 <= number < len(task.data):
            samples = int(task.data.sizes([number])[0])
        else:
            raise InputError(f"The task has clients 0..{len(task.data) - 1}; partition-id is {number}.")
        about = {"samples": samples, "client": number, "fedkeel": __version__}
        return app.Message(app.RecordDict({"about": app.ConfigRecord(about)}), reply_to=message)

    def answer(self, message: Any, context: Any) -> Any:
        """The update of this device, or its answer to a survey."""
        began, app = time.monotonic(), flower()
        order = Order.read(message.content["order"]["json"])
        broadcast, work = (unpack(message.content[name]) for name in ("broadcast", "work"))
        disk = Disk(memory_folder(context, order.simulated) / order.training / f"client-{order.client}")
        slots = disk.read(order.accepted)
        memory = Memory(slots or {}, np.array([slots is not None], dtype=np.int64))
        with one_thread():
            update = self.update(order, context.node_config, broadcast, work, memory, began)
        if update.memory and len(update.clients):
            disk.write(work.version, update.memory)
        about = {"remembers": bool(update.memory), "forgot": slots is None and order.accepted != NONE}
        content = {"update": pack(replace(update, memory={})), "about": app.ConfigRecord(about)}
        return app.Message(app.RecordDict(content), reply_to=message)

    def update(
        self, order: Order, config: NodeConfig, broadcast: Broadcast, work: Work, memory: Memory, began: float
    ) -> Update:
        """Train from this broadcast on the device's own samples."""
        task = self.make_task(config)
        task = task if task.spec is not None else task.placed(order.client, order.population)
        algorithm = self.resolved(order, task)
        if algorithm.capacity is not None:
            task = algorithm.capacity.adapt(task)
        task = task.cast(getattr(torch, order.dtype), "cpu")
        model, own_loss = task.adopt(order.seed, getattr(torch, order.dtype), "cpu"), bool(algorithm.hooks["loss"])
        engine = Local("serial", workers=1).start(task, model, order.seed, algorithm.capacity, own_loss)
        try:
            worker = engine.all[0] if work.levels is None else engine.all[0].level(int(work.levels[0]))
            if order.seconds is not None:
                worker.time_is_up = Deadline(order.seconds - (time.monotonic() - began))
            do: Do = partial(DO[order.do], algorithm)
            return do(worker, broadcast, work, memory)
        finally:
            engine.close()

    def resolved(self, order: Order, task: Task) -> Algorithm:
        """The server's algorithm; one with rules of the user's own is resolved here as it was there."""
        if order.algorithm is not None:
            return recipes.rebuild(order.algorithm)
        if self.algorithm is None:
            raise InputError("The server's algorithm has parts of its own; give App(algorithm=...) the same object.")
        from ...run.dry_run import with_budget

        return self.algorithm.resolve(task, with_budget(self.world or World(), task))


def memory_folder(context: Any, simulated: bool) -> Path:
    """Where this device keeps what it remembers: --node-config "memory='DIR'", else below Flower's own folder.

    A simulated device, which has no configuration of its own, keeps it beside the directory of the run.
    """
    if simulated:
        out = out_folder(context.run_config)
        return out.with_name(out.name + ".memory")
    home = os.environ.get("FLWR_HOME", os.path.expanduser("~/.flwr"))
    return Path(context.node_config.get("memory") or os.path.join(home, "fedkeel-memory"))


def out_folder(config: Mapping[str, Any]) -> Path:
    """The directory of a training, from the app's configuration."""
    return Path(str(config["out"])).expanduser().absolute()
