"""Workers as actors of Ray, and a cohort dealt out to them: they may die, and machines come and go.

The driver puts an order once into the object store and deals chunks out, the longest first; answers are given back in
cohort order. An actor gets model and data by its constructor, so another one can be made in its place at any time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from ..errors import ClientError, FedkeelError, brief, one_line
from ..messages import Broadcast, Memory, Work
from ..world import Ints
from .chunks import Order
from .packing import Packed, pack
from .remote import ProcessWorker, pack_chunk

TRIES = 3  # of a chunk whose workers die before it is given up
PATIENCE = 600.0  # seconds without any worker, for example until a machine is replaced
START = 60.0  # seconds after which a run begins without the workers that are not there yet


class Actor(ProcessWorker):
    """A worker as an actor. What it is given in a list is a reference, so that Ray does not fetch it for every call."""

    def __init__(self, setup: list[Any]) -> None:
        self.get = import_module("ray").get
        super().__init__(self.get(setup[0]))

    def part_of(self, key: int, order: list[Any], packed: Packed) -> Packed:
        """Do a chunk."""
        return self.part(key, lambda: self.get(order[0]), packed)


class Pool:
    """The actors: those that are idle, and those that are awaited because they are just being made."""

    def __init__(self, ray: Any, setup: Packed, count: int, gpus: float) -> None:
        self.ray, self.setup = ray, [ray.put(setup)]
        self.kind = ray.remote(Actor).options(num_cpus=1, num_gpus=gpus)
        self.all: list[Any] = []
        self.idle: deque[Any] = deque()
        self.awaited: dict[Any, Any] = {}  # by the reference of a first answer
        self.failures = 0  # of constructors, one after another
        for _ in range(count):
            self._make()
        there, _ = ray.wait(list(self.awaited), num_returns=count, timeout=START)
        for ref in there or list(self.awaited)[:1]:
            self.is_there(ref)

    def _make(self) -> None:
        actor = self.kind.remote(self.setup)
        self.all.append(actor)
        self.awaited[actor.process.remote()] = actor

    def replace(self, actor: Any) -> None:
        """Make a worker in the place of one that died, on any machine; Ray waits until one has room."""
        if any(one is actor for one in self.all):  # else it is replaced already
            self._remove(actor)
            self._make()

    def _remove(self, actor: Any) -> None:
        self.ray.kill(actor)
        self.all = [one for one in self.all if one is not actor]
        self.idle = deque(one for one in self.idle if one is not actor)

    def is_there(self, ref: Any) -> None:
        """A worker that was awaited answers, or could not be made."""
        actor = self.awaited.pop(ref)
        try:
            self.ray.get(ref, timeout=PATIENCE)
        except self.ray.exceptions.RayError as error:
            self.failures += 1
            if self.failures == TRIES:
                raise FedkeelError(f"No worker of Ray can be started: {one_line(error)[-500:]}") from error
            self.replace(actor)
            return
        self.failures = 0
        self.free(actor)

    def free(self, actor: Any) -> None:
        """This worker can take a chunk."""
        if not any(one is actor for one in self.idle):
            self.idle.append(actor)

    def close(self) -> None:
        """End the actors."""
        for actor in self.all:
            self.ray.kill(actor)
        self.all, self.awaited, self.setup = [], {}, []
        self.idle.clear()


class Cohort:
    """The chunks of a cohort, dealt out to a pool."""

    def __init__(
        self,
        pool: Pool,
        key: int,
        order: Order,
        chunks: Sequence[Work],
        read: Callable[[Ints], Memory],
        window: int,
    ) -> None:
        self.pool, self.ray, self.key = pool, pool.ray, key
        self.order, self.broadcast = [pool.ray.put(pack(order))], order.broadcast
        self.chunks, self.read = chunks, read
        self.todo = deque(longest_first(chunks, max(4 * len(pool.all), window)))
        self.running: dict[Any, tuple[int, Any]] = {}  # by reference, the chunk and its worker
        self.found: dict[int, Packed] = {}
        self.deaths: Counter[int] = Counter()  # of workers, by the chunk they worked on

    def answers(self) -> Iterator[Packed]:
        """The answer to each chunk, in cohort order."""
        for turn in range(len(self.chunks)):
            while turn not in self.found:
                self._deal_out()
                self._gather()
            self._deal_out()  # workers have something to do while the driver sums
            yield self.found.pop(turn)

    def _deal_out(self) -> None:
        """Give idle workers a chunk and, while there are many, one more to go on with."""
        while self.todo and self.pool.idle:
            actor = self.pool.idle.popleft()
            wanted = 2 if len(self.todo) > 2 * len(self.pool.all) else 1
            for _ in range(wanted - sum(other is actor for _, other in self.running.values())):
                index = self.todo.popleft()
                packed = pack_chunk(self.chunks[index], self.read)
                self.running[actor.part_of.remote(self.key, self.order, packed)] = index, actor

    def _gather(self) -> None:
        """Wait for the next answer; a chunk whose worker died goes to another one."""
        ready, _ = self.ray.wait([*self.running, *self.pool.awaited], timeout=PATIENCE)
        if not ready and not self.running:
            raise FedkeelError(f"No worker of Ray came back in {PATIENCE:.0f} seconds; the run can be resumed.")
        for ref in ready:
            if ref in self.pool.awaited:
                self.pool.is_there(ref)
                continue
            index, actor = self.running[ref]
            first = next(one for one, (_, other) in self.running.items() if other is actor)
            del self.running[ref]
            try:
                self.found[index] = self.ray.get(ref)
                self.pool.free(actor)
            except self.ray.exceptions.RayTaskError as error:  # errors of user code are answers, so this is none
                raise FedkeelError(f"A worker of Ray failed: {one_line(error)[-500:]}") from error
            except self.ray.exceptions.RayError as error:  # its process or its machine is gone
                self.deaths[index] += ref == first  # the others waited behind it
                if self.deaths[index] == TRIES:
                    raise ClientError(given_up(self.broadcast, self.chunks[index])) from error
                self.todo.appendleft(index)
                self.pool.replace(actor)


def given_up(broadcast: Broadcast, chunk: Work) -> str:
    """What is said of a chunk that no worker survives; nobody is left to tell the step."""
    several = f"one of the clients {brief(chunk.clients.tolist())}"
    who = f"client {chunk.clients[0]}" if len(chunk.clients) == 1 else several
    step = f"one of the steps 1 to {int(chunk.steps.max())}"
    return f"Round {broadcast.facts.round}, {who}, {step}: {TRIES} workers died on it, killed or out of memory."


def longest_first(chunks: Sequence[Work], window: int) -> list[int]:
    """The order in which chunks are dealt out: by steps, within windows that bound what has to wait for its turn.

    >>> import numpy as np
    >>> longest_first([Work(0, np.arange(1), np.array([steps])) for steps in (3, 5, 1, 9)], window=3)
    [1, 0, 2, 3]
    """
    steps = [int(chunk.steps.sum()) for chunk in chunks]
    order: list[int] = []
    for begin in range(0, len(chunks), window):
        order += sorted(range(begin, min(begin + window, len(chunks))), key=lambda index: -steps[index])
    return order
