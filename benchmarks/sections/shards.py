"""Where clients' memories live on Ray: rows that travel with a chunk, or shards on the workers, for SCAFFOLD on W2.

    python -m sections.shards DATA [--seconds 30]        # below benchmarks/, needs the extra ray

fedkeel keeps memories in the driver's store. The shards are written here, only to be measured: a client always trains
on the same worker, which keeps its row. Who trains where is decided in two ways: by the client's number, as a real
system would have to, which gives the bits of the other engines; and so that every cohort is spread evenly, which no
fixed assignment can do: rows are then not where they are needed, and only the time counts. All engines take turns in
one process and share one cluster. A shard that is lost with its worker is not made up for, and a checkpoint
cannot read it: what that would cost is not in the figures.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import fedkeel as fk
from fedkeel.aggregate import Sums, Weights
from fedkeel.engine import Do, actors
from fedkeel.engine.chunks import Order
from fedkeel.engine.memory import Accepted, Memories
from fedkeel.engine.packing import Packed, pack, unpack
from fedkeel.engine.ray import STORE, Actors, Cluster
from fedkeel.engine.remote import Answer, unpack_answer
from fedkeel.messages import Broadcast, Update, Work
from sections.common import arguments, round_seconds
from sections.scale_out import workload

TURNS = 3
WORKERS = 2


class Shard(actors.Actor):
    """A worker that keeps the memories of its clients."""

    def __init__(self, setup: list[Any]) -> None:
        super().__init__(setup)
        self.kept = Accepted(Memories(self.engine.kept.memories.population))

    def part_with_own_memories(self, key: int, order: list[Any], packed: Packed) -> Packed:
        if key != self.key:
            self.order, self.key = unpack(self.get(order[0])), key
        work, engine = unpack(packed), self.engine
        parts, remembered = engine.chunks.part(
            engine.all[0], self.order, [self.order.broadcast], work, self.kept.memories.read
        )
        self.kept.add(work.version, remembered)
        return pack(Answer(list(parts), []))

    def commit(self, version: int, clients: Sequence[int]) -> None:
        self.kept.commit(version, clients)


class ShardedActors(Actors):
    """The Ray engine with shards."""

    evenly = False

    def run(self, do: Do, broadcast: Broadcast, work: Work, weights: Weights | None = None) -> Iterator[Sums | Update]:
        self.orders += 1
        ray, all = self.pool.ray, self.pool.all
        order = [ray.put(pack(Order(do, broadcast, weights)))]
        chunks = self.here.chunks.of(work)
        numbers = range(len(chunks)) if self.evenly else [int(chunk.clients[0]) for chunk in chunks]
        answers = [
            all[number % len(all)].part_with_own_memories.remote(self.orders, order, pack(chunk))
            for number, chunk in zip(numbers, chunks, strict=True)
        ]
        for answer in answers:
            yield from unpack_answer(ray.get(answer), self.device).parts

    def commit(self, version: int, clients: Sequence[int]) -> None:
        for actor in self.pool.all:
            actor.commit.remote(version, clients)


class Sharded(fk.Ray):
    """The same place, with shards."""

    kind: type[Actors] = ShardedActors

    def start(self, *given: Any) -> Actors:
        usual, actors.Actor = actors.Actor, Shard  # type: ignore[misc]
        try:
            engine = super().start(*given)
        finally:
            actors.Actor = usual  # type: ignore[misc]
        engine.__class__ = self.kind
        return engine


class Evenly(Sharded):
    kind = type("EvenlySharded", (ShardedActors,), {"evenly": True})


def measured(seconds: float) -> dict[str, Any]:
    """Median seconds of a round by place, over turns, and the speed of each beside the driver's store."""
    task, world = workload("W2")
    places = {
        "driver's store": fk.Ray(workers=WORKERS),
        "shards, by number": Sharded(workers=WORKERS),
        "shards, evenly": Evenly(workers=WORKERS),
    }
    found: dict[str, list[float]] = {name: [] for name in places}
    for turn in range(TURNS):
        for name, place in places.items():
            found[name].append(round_seconds(task, "scaffold", world, seconds, place))
            row = {"turn": turn, "what": name, "seconds": found[name][-1], "load": os.getloadavg()[0]}
            print(json.dumps(row), file=sys.stderr, flush=True)
    base = found["driver's store"]
    return {
        name: {
            "seconds": statistics.median(lengths),
            "speed": [round(a / b, 3) for a, b in zip(base, lengths, strict=True)],
        }
        for name, lengths in found.items()
    }


if __name__ == "__main__":
    given = arguments()
    cluster = Cluster("local", WORKERS, STORE + 2**30)
    try:
        print(json.dumps(measured(given.seconds), indent=1))
    finally:
        cluster.close()
