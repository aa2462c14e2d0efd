"""The engine on Flower's Grid: the server trains by `train`, whose round loop, checkpoints and history are the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import recipes
from ...aggregate import Sums, Weights, fold
from ...algorithm import Algorithm
from ...capacity import Capacity
from ...errors import InputError, one_line
from ...files import plain
from ...flat import FlatModel
from ...local import train_clients
from ...messages import Broadcast, Update, Work
from ...survey import survey_clients
from ...task import Task
from .. import Available, Do
from ..memory import Memories
from ..threads import Local, Threads
from .disk import NONE
from .nodes import Nodes, reason_of, rest
from .orders import SURVEY, TRAIN, Order, flower, pack, unpack
from .replies import Expected, Refused, outline

GRACE = 30.0  # seconds for a reply to arrive after the device's deadline: start of its process, both ways of the model
log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class Flower:
    """Clients are the nodes of a Grid. seconds: the time a device has for its steps; None: it does them all.

    grace: how long the server waits beyond them. training: names this training on the devices. least: no round begins
    while fewer clients can be asked.
    """

    nodes: Nodes | None = None
    training: str = ""
    seconds: float | None = None
    grace: float = GRACE
    least: int = 1
    compile: bool = False
    name: str = "flower"

    def start(
        self, task: Task, model: FlatModel, seed: int, capacity: Capacity | None = None, own_loss: bool = False
    ) -> FlowerEngine:
        """The engine for this task; a worker of the server's own evaluates, and shows what a reply looks like."""
        if self.nodes is None:
            raise InputError("Devices are reached by a ServerApp of Flower's; see fedkeel deploy --help.")
        if self.compile:
            raise InputError("Devices train without C kernels; leave out compile.")
        own = Local("serial", workers=1).start(task, model, seed, capacity, own_loss)
        return FlowerEngine(self, self.nodes, own, task, seed, str(model.flat.dtype).removeprefix("torch."))


class Asked(NamedTuple):
    """A client that has been sent its work, and what its reply must look like."""

    client: int
    node: int
    expected: Expected


class FlowerEngine:
    """An `Engine`: what clients remember is on the devices; the server knows which version of it counts."""

    name, mode, chunk, compiled = "flower", "serial", 1, False
    reason = "clients are Flower nodes, which train one client each"

    def __init__(self, place: Flower, nodes: Nodes, own: Threads, task: Task, seed: int, dtype: str) -> None:
        self.place, self.own, self.task = place, own, task
        self.seed, self.dtype = seed, dtype
        self.nodes = nodes
        self.accepted = Memories(len(task.data))  # of each client the version of its last accepted update
        self.remembering: dict[int, set[int]] = {}  # by version: clients that remember it if it is accepted
        self.models: dict[tuple[str, int | None], Update] = {}  # what replies look like, by kind and level

    # One round

    def run(self, do: Do, broadcast: Broadcast, work: Work, weights: Weights | None = None) -> Iterator[Sums | Update]:
        """Ask these clients and give their updates, or sums, in cohort order; a client that gives none is lost."""
        algorithm = _algorithm(do)
        if self.place.seconds is not None and work.expected is None:
            work = replace(work, expected=work.steps)  # what a client could do without the deadline
        asked = self._ask(do, algorithm, broadcast, work)
        parts: dict[int, Sums | Update] = {}
        waiting = {message: one for message, one in asked.items() if one is not None}
        under_way = {one.client for one in waiting.values()}
        began = time.monotonic()
        end = began + self._window() if self.place.seconds is not None else np.inf
        order = work.clients.tolist()
        while order:
            self.nodes.look()
            parts |= self._arrived(waiting)
            under_way -= parts.keys()
            over = time.monotonic() > end
            while order and (order[0] in parts or order[0] not in under_way or over):
                client = order.pop(0)
                if client in under_way:
                    log.warning("client %d: no reply within the round", client)
                absent = Sums(late=[client]) if client in under_way else Sums(lost=[client])
                yield self._part(parts.pop(client, absent), work, broadcast, weights)
            if order:
                rest(began)

    def _arrived(self, waiting: dict[str, Asked]) -> dict[int, Sums | Update]:
        """What has arrived from those asked, by client; they are no longer waited for."""
        parts: dict[int, Sums | Update] = {}
        for message, reply in self.nodes.replies().items():
            if one := waiting.pop(message, None):
                update = self._read(one, reply)
                parts[one.client] = Sums(lost=[one.client]) if update is None else update
        return parts

    def _window(self) -> float:
        assert self.place.seconds is not None
        return self.place.seconds + self.place.grace

    def _ask(self, do: Do, algorithm: Algorithm, broadcast: Broadcast, work: Work) -> dict[str, Asked]:
        """Send every client of the cohort its work; gives what was sent, by message."""
        app, kind = flower(), SURVEY if _function(do) is survey_clients else TRAIN
        known = plain(algorithm.parameters()) if recipes.nameable(algorithm) else None
        levels = [broadcast if level is None else broadcast.cut(level.index) for level in self.own.levels]
        records: dict[int | None, Any] = {}
        contents: dict[int, tuple[int | None, Any]] = {}
        asked: dict[int, Asked] = {}
        for row, client in enumerate(work.clients.tolist()):
            own = work.rows(np.array([row]))
            level = None if own.levels is None else int(own.levels[0])
            message = broadcast if level is None else levels[level]
            if level not in records:
                records[level] = pack(message)  # the same record for all: Flower stores it once
            node = self.nodes.of(client)
            if node is None:
                continue
            order = Order(
                kind, self.place.training, client, len(self.task.data), self.version(client), self.seed, self.dtype,
                self.place.seconds, known, self.nodes.simulated,
            )  # fmt: skip
            text = app.ConfigRecord({"json": order.text()})
            content = app.RecordDict({"broadcast": records[level], "work": pack(own), "order": text})
            contents[node] = (client, content)
            expected = Expected(
                self._model(do, kind, message, own, level), algorithm, message, own,
                int(self.task.data.sizes([client])[0]), self.place.seconds is not None,
            )  # fmt: skip
            asked[node] = Asked(client, node, expected)
        # Without a time limit of Flower's: a late reply says that the node is free again.
        return {message: asked[node] for message, node in self.nodes.send(contents, "train", None).items()}

    def _model(self, do: Do, kind: str, broadcast: Broadcast, work: Work, level: int | None) -> Update:
        """An update as a client makes it, of one step on the server: replies must have its keys, shapes and types."""
        if (kind, level) not in self.models:
            worker = self.own.all[0] if level is None else self.own.all[0].level(level)
            one = replace(work, steps=np.ones_like(work.steps))
            update = do(worker, broadcast, one, Memories(len(self.task.data)).read(work.clients))
            if len(update.dropped):
                raise InputError("A client's first step gives NaN or infinite values on the server's first sample.")
            self.models[kind, level] = outline(replace(update, memory={}))
        return self.models[kind, level]

    def _read(self, one: Asked, reply: Any) -> Update | None:
        """The update of a reply; None if it is none, which is logged."""
        try:
            if reply is None:
                raise Refused("the node started again, and its message is lost")
            if reply.has_error():
                raise Refused(f"error {reply.error.code}, {reason_of(reply)[:300]}")
            about = reply.content["about"]
            update = one.expected.accept(unpack(reply.content["update"]))
            remembers, forgot = bool(about["remembers"]), bool(about["forgot"])
        except Exception as error:  # a reply may have any form
            log.warning("client %d, node %d: no usable update: %s", one.client, one.node, one_line(error))
            return None
        if forgot:
            log.warning("client %d, node %d: its memory is gone, and it began anew", one.client, one.node)
        if remembers:
            self.remembering.setdefault(update.version, set()).add(one.client)
        return update

    def _part(self, part: Sums | Update, work: Work, broadcast: Broadcast, weights: Weights | None) -> Sums | Update:
        if isinstance(part, Sums) or weights is None:
            return part
        level = None if part.level is None else self.own.levels[part.level]
        if level is None:
            return fold(part, weights)
        assert part.level is not None
        flops = self.own.all[0].level(part.level).flops
        return fold(part, weights).spread(level.index, len(broadcast.x), weights, flops)

    # Who can be asked

    def available(self) -> Available | None:
        """Wait until enough clients can be asked; a function that says which, or None if all can."""
        self.nodes.wait(self.place.least)
        everybody = np.arange(len(self.task.data))
        return None if self.nodes.available(everybody).all() else self.nodes.available

    # What clients remember

    def version(self, client: int) -> int:
        """The version of this client's last accepted update, -1 if there is none."""
        row = self.accepted.row.get(client)
        return NONE if row is None else int(self.accepted.tables["flower"]["accepted"][row])

    def commit(self, version: int, clients: Sequence[int]) -> None:
        log.info("round %d: the updates of clients %s count", version + 1, list(clients))
        for client in self.remembering.get(version, set()).intersection(clients):
            self.accepted.write(np.array([client]), {"flower": {"accepted": torch.tensor([[version]])}})

    def discard(self, version: int) -> None:
        self.remembering.pop(version, None)

    def hold(self, updates: Iterable[Update]) -> None:
        """Rounds on devices are synchronous: no update is under way between them."""

    def memories(self) -> Memories:
        return self.accepted

    def restore(self, memories: Memories) -> None:
        self.accepted = memories

    def evaluate(
        self, task: Task, x: Tensor, buffers: dict[str, Tensor], samples: tuple[Tensor, Tensor] | None
    ) -> dict[str, float | None]:
        return self.own.evaluate(task, x, buffers, samples)

    def close(self) -> None:
        self.own.close()


def _function(do: Do) -> Any:
    return do.func if isinstance(do, partial) else do


def _algorithm(do: Do) -> Algorithm:
    if not isinstance(do, partial) or do.func not in (train_clients, survey_clients):
        raise InputError("Devices only train; a diagnosis needs the clients on this machine.")
    algorithm: Algorithm = do.args[0]
    return algorithm
