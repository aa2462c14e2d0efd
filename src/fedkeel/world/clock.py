"""Simulated time: how long a client's round takes, and whether its update arrives.

    seconds = latency + download + samples really evaluated x seconds per sample + upload + latency

by the client's device and the bytes that are counted. What an algorithm's clients evaluate and send is its `Price`,
measured in a dry run (`run/dry_run.py`), so arrivals are known before anybody trains: a client that will not arrive is
charged for what it did, and not trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .. import draws
from ..aggregate import Sums
from ..messages import Broadcast, Work, download
from .budget import Ints
from .devices import Floats, Profiles

ARRIVES, LATE, LOST = 0, 1, 2
WAIT = 60.0  # seconds after which the server asks again if nobody was available
COSTS = ("gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes", "flops")


@dataclass(frozen=True)
class Price:
    """What a client evaluates and sends in a round of J steps on n samples in batches of B.

        gradients = per_step J + once + passes ceil(n / B)

    up: (payload, overhead) in bytes of its update, by level. down: the same of what it receives; None: as the broadcast
    says. survey: bytes down, up and overhead of a first exchange. flops: of one sample's gradient, by level.

    >>> Price(passes=1).gradients(np.array([3]), np.array([45]), np.array([20]))
    array([6])
    """

    per_step: float = 1.0
    once: float = 0.0
    passes: float = 0.0
    up: tuple[tuple[int, int], ...] = ((0, 0),)
    down: tuple[tuple[int, int], ...] | None = None
    survey: tuple[int, int, int] = (0, 0, 0)
    flops: tuple[int, ...] = (0,)

    def gradients(self, steps: Ints, samples: Ints, width: Ints) -> Ints:
        """Batch gradients of clients that do all of their work."""
        count = self.per_step * steps + self.once + self.passes * -(-samples // width)
        return np.rint(count).astype(np.int64)

    def evaluated(self, steps: Ints, samples: Ints, width: Ints) -> Ints:
        """The same, per sample."""
        count = (self.per_step * steps + self.once) * width + self.passes * samples
        return np.rint(count).astype(np.int64)


@dataclass(frozen=True)
class Load:
    """What clients hold and exchange: numbers for each, or the same for all."""

    samples: Ints
    width: Ints  # samples of a batch
    down: Ints  # bytes: (payload, overhead), as are the next ones
    up: Ints
    flops: Ints  # of a sample's gradient


@dataclass(frozen=True)
class Trips:
    """What becomes of the clients of a dispatch, a row for each."""

    seconds: Floats  # until its update arrives or was due; of a late one until the deadline
    steps: Ints  # really done
    fate: Ints  # ARRIVES, LATE or LOST
    share: Floats  # of the steps that a lost client has done
    load: Load


@dataclass(frozen=True)
class Clock:
    """The time of a run: devices, what its algorithm's clients evaluate and send, and the deadline if there is one.

    shown: the world has a fleet; without one an asynchronous run still needs an order of arrivals.
    """

    profiles: Profiles
    price: Price
    sizes: Callable[[Ints], Ints]  # the samples that clients hold
    seed: int
    deadline: float | None = None
    late: str = "partial"
    shown: bool = True

    def trips(self, broadcast: Broadcast, work: Work) -> Trips:
        """How long clients take that are dispatched with this work, and whether they report."""
        who, price = self.profiles, self.price
        clients, asked = work.clients, work.steps
        load = self._load(broadcast, work)
        first_down, first_up, _ = price.survey
        each = who.seconds[clients]
        if max(price.flops):  # a sub-model is faster, in proportion to its operations
            each = each * (load.flops / max(price.flops))
        exchanges = 1 + any(price.survey)
        fixed = 2 * exchanges * who.latency[clients] + (load.down.sum(-1) + first_down) / who.down[clients]
        fixed = fixed + (load.up.sum(-1) + first_up) / who.up[clients]
        if price.once or price.passes:
            fixed = fixed + each * (price.once * load.width + price.passes * load.samples)
        step = each * price.per_step * load.width
        steps, due = asked, fixed + step * asked
        fate, share = np.zeros(len(clients), dtype=np.int64), np.zeros(len(clients))
        if self.deadline is not None:
            room = np.floor((self.deadline - fixed) / step * (1 + 1e-12) + 1e-9)  # a deadline that is met exactly
            steps = np.clip(room, 0, asked).astype(np.int64)
            late = steps < asked if self.late == "drop" else steps == 0
            due = np.where(late, self.deadline, np.minimum(fixed + step * steps, self.deadline))
            fate[late] = LATE
        if who.reliable:
            return Trips(due, steps, fate, share, load)
        risk = who.dropout[clients]
        risky = np.flatnonzero(risk > 0)
        drawn = draws.generators(self.seed, "dropout", broadcast.facts.round, clients[risky])
        for row, generator in zip(risky, drawn, strict=True):
            chance, share[row] = generator.random(2)
            if chance < risk[row]:
                fate[row] = LOST
        return Trips(due, steps, fate, share, load)

    def costs(self, work: Work, trips: Trips) -> dict[str, Ints]:
        """What these clients cost, a number for each.

        A lost client has done a share of its steps; one that is too late for any step has only received the model.
        """
        price, fate, load = self.price, trips.fate, trips.load
        first_down, first_up, first_overhead = price.survey
        done = np.where((fate == LATE) & (self.late == "drop"), work.steps, trips.steps)
        some = np.floor(trips.share * trips.steps).astype(np.int64) * (fate == LOST)
        whole = (fate == ARRIVES) | ((fate == LATE) & (done > 0))
        parts = np.rint(price.per_step * np.array([some, some * load.width])).astype(np.int64)
        evaluated = np.where(whole, price.evaluated(done, load.samples, load.width), parts[1])
        return {
            "gradients": np.where(whole, price.gradients(done, load.samples, load.width), parts[0]),
            "samples": evaluated,
            "bytes_down": load.down[..., 0] + first_down + 0 * done,
            "bytes_up": (load.up[..., 0] + first_up) * whole,
            "overhead_bytes": load.down[..., 1] + (load.up[..., 1] + first_overhead) * whole,
            "flops": evaluated * load.flops,
        }

    def _load(self, broadcast: Broadcast, work: Work) -> Load:
        price, level = self.price, 0 if work.levels is None else work.levels
        samples, batch = self.sizes(work.clients), broadcast.plan.batch_size
        width = samples if batch is None else np.minimum(batch, samples)
        down = np.array([download(broadcast)] if price.down is None else price.down)
        return Load(samples, width, down[level], np.array(price.up)[level], np.array(price.flops)[level])

    def attend(self, broadcast: Broadcast, work: Work, goal: int, now: float) -> tuple[Work, Sums]:
        """The work of the clients that report in a synchronous round, and a part with the others and their costs.

        The first `goal` arrivals count. The round ends with the last of them; if somebody is missing, at the deadline
        or, without one, when the last client was due.
        """
        trips = self.trips(broadcast, work)
        back = np.flatnonzero(trips.fate == ARRIVES)
        first = back[np.lexsort((work.clients[back], trips.seconds[back]))][:goal]
        taken = np.zeros(len(work.clients), dtype=bool)
        taken[first] = True
        if not len(taken):
            end = WAIT
        elif len(first) >= goal:
            end = float(trips.seconds[taken].max())
        else:
            end = float(trips.seconds.max()) if self.deadline is None else self.deadline
        if taken.all() and len(taken):
            return replace(work, steps=trips.steps), Sums(until=now + end)
        late, lost = (work.clients[trips.fate == fate].tolist() for fate in (LATE, LOST))
        counts = {name: int(column[~taken].sum()) for name, column in self.costs(work, trips).items()}
        absent = Sums(late=late, lost=lost, until=now + end, counts=counts)
        return replace(work, steps=trips.steps).rows(np.flatnonzero(taken)), absent
