"""When the server steps and whose updates it waits for: part of an algorithm, so both kinds stand in one comparison.

    Synchronous    a cohort is invited, and the server steps when it is in
    Buffered       clients are always under way, and the server steps when `buffer` updates have arrived

Arrivals follow from durations that are known when a client is dispatched, so events need only a heap. Clients of one
version train together when the first of them is needed; what the others will report waits in the state.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from . import draws
from .aggregate import Sums
from .engine import Engine
from .errors import check
from .local import train_clients
from .messages import Broadcast, Flight, Flights, Update, Work, joined, over_slots
from .ranges import COUNT, POSITIVE, Range, keep
from .world import Ints, draw_here
from .world.clock import ARRIVES, COSTS, LATE, LOST, WAIT
from .world.devices import Floats

if TYPE_CHECKING:
    from .round import Job, State

STALENESS = ("poly", "hinge", "constant")


@dataclass(frozen=True)
class Gathered:
    """The updates of a server step: parts to sum, the state with what is still under way, and who reported."""

    parts: Iterable[Sums | Update]
    state: State
    reported: dict[int, Ints]  # by the version they trained from
    over: tuple[int, ...]  # versions from which nobody is under way any more


@dataclass(frozen=True)
class Synchronous:
    """A cohort is invited in each round, and the server steps when it is in.

    >>> Synchronous().participation(cohort=20)
    20
    """

    def participation(self, cohort: int) -> int:
        """|S| of a round, as rules see it."""
        return cohort

    def fitted(self, population: int) -> Synchronous:
        """The same for a population of this size."""
        return self

    def whom(self, job: Job, state: State) -> Ints:
        """The clients to invite now."""
        data, there = job.task.data, available(job, state.round, state.sim_seconds)
        return job.world.who(state.round + 1, len(data), job.seed, data.sizes, there)

    def gather(self, job: Job, state: State, engine: Engine, broadcast: Broadcast, work: Work) -> Gathered:
        """Wait for these clients; weighted means are summed on the workers, unless a rule screens the updates."""
        weights, train = job.algorithm.weighing, partial(train_clients, job.algorithm)
        parts: Iterable[Sums | Update]
        if job.algorithm.hooks["screen"]:
            parts = screened(job, state, (part for part in engine.run(train, broadcast, work)))
        else:
            parts = engine.run(train, broadcast, work, None if weights.stacks else weights)
        return Gathered(parts, state, {broadcast.version: work.clients}, (broadcast.version,))


@dataclass(frozen=True)
class Buffered:
    """Clients are always under way, and the server steps when `buffer` updates have arrived (FedBuff, FedAsync).

        Delta = (1/B) sum_i s(tau_i) Delta_i            with uniform weights; tau_i server steps since i was dispatched
        s = (1 + tau)^-a                                poly, a = 0.5
        s = 1 if tau <= b, else 1 / (a (tau - b) + 1)   hinge, a = 10, b = 4

    inflight: clients under way. dispatch: new ones are drawn when so many slots are free; 1 means at every arrival.
    alpha: mix models as FedAsync does, x <- x + alpha s ((x_v + Delta_i) - x), x_v the model client i received.
    Vectors of which a rule reads the plain mean, such as SCAFFOLD's, are not scaled by s.

    >>> [round(Buffered(staleness="hinge").factor(tau), 3) for tau in (0, 4, 5)], Buffered().factor(3)
    ([1.0, 1.0, 0.091], 0.5)
    """

    buffer: int = 10
    inflight: int = 40
    dispatch: int = 1
    staleness: str = "poly"
    a: float | None = None
    b: float = 4
    alpha: float | None = None

    def __post_init__(self) -> None:
        keep(self, COUNT, "buffer", "inflight", "dispatch")
        keep(self, Range(0, 1e9), "a", "b")
        keep(self, POSITIVE, "alpha")
        check(self.staleness in STALENESS, self, "staleness", f"one of {', '.join(STALENESS)}", self.staleness)
        must = f"at least buffer, {self.buffer}"
        check(self.inflight >= self.buffer, self, "inflight", must, self.inflight)
        check(self.dispatch <= self.inflight, self, "dispatch", f"at most inflight, {self.inflight}", self.dispatch)

    def factor(self, tau: int) -> float:
        """s: what an update counts whose client was dispatched tau server steps ago."""
        a = self.a if self.a is not None else 0.5 if self.staleness == "poly" else 10.0
        if self.staleness == "poly":
            return float((1 + tau) ** -a)
        return 1.0 if self.staleness == "constant" or tau <= self.b else 1 / (a * (tau - self.b) + 1)

    def parameters(self) -> dict[str, Any]:
        """Its values, for the configuration."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def participation(self, cohort: int) -> int:
        return self.buffer

    def fitted(self, population: int) -> Buffered:
        """The same, with no more clients under way and in the buffer than there are."""
        names = ("buffer", "inflight", "dispatch")
        return replace(self, **{name: min(getattr(self, name), population) for name in names})

    def whom(self, job: Job, state: State) -> Ints:
        """The clients for the free slots after a server step."""
        free, busy = self.inflight - len(state.flights.clients), {flight.client for flight in state.flights.clients}
        population, there = len(job.task.data), available(job, state.round, state.sim_seconds)
        generator = draws.generator(job.seed, "cohort", state.round + 1)
        if free < self.dispatch:
            return np.empty(0, dtype=np.int64)
        if not busy and there is None and free < population:  # the cohort of a synchronous round
            return np.sort(generator.choice(population, free, replace=False)).astype(np.int64)

        def here(clients: Ints) -> NDArray[np.bool_]:
            idle = np.array([client not in busy for client in clients.tolist()], dtype=bool)
            return idle if there is None else idle & there(clients)

        return draw_here(generator, free, population, here)

    def gather(self, job: Job, state: State, engine: Engine, broadcast: Broadcast, work: Work) -> Gathered:
        """Let clients arrive until the buffer is full, and train those that are needed."""
        now = state.sim_seconds
        heap = [*state.flights.clients, *dispatched(job, broadcast, work, now)]
        heapq.heapify(heap)
        seen = set(work.clients.tolist())  # dispatched at this version
        busy = seen | {flight.client for flight in heap}
        more = Candidates(job, broadcast, 2 * self.buffer)
        arrived: list[Flight] = []
        absent: list[Flight] = []
        while heap and len(arrived) < self.buffer:
            flight = heapq.heappop(heap)
            now = flight.arrival
            (arrived if flight.fate == ARRIVES else absent).append(flight)
            if flight.fate != ARRIVES and flight.client not in seen:
                busy.discard(flight.client)
            free = self.inflight - len(heap)
            if free >= self.dispatch and len(arrived) < self.buffer:
                for one in more.take(free, busy, available(job, state.round, now)):
                    heapq.heappush(heap, one._replace(arrival=now + one.arrival))
                    seen.add(one.client)
        now = now if arrived or absent else now + WAIT

        # Of each version that is needed now, everybody trains who will ever report.
        out = Out(dict(state.flights.broadcasts), dict(state.flights.updates))
        out.broadcasts[str(broadcast.version)] = broadcast
        parts: list[Sums | Update] = []
        pieces: list[Piece] = []
        train = partial(train_clients, job.algorithm)
        now_by, later_by = by_version(arrived), by_version(flight for flight in heap if flight.fate == ARRIVES)
        for version, group in sorted(now_by.items()):
            later = later_by.get(version, [])
            if not out.trained(version):
                message, asked = out.broadcasts[str(version)], work_of([*group, *later])
                if not later and self._folds(job, state, version):
                    found = engine.run(train, message, asked, job.algorithm.weighing)
                    parts += [replace(part, counts={}) for part in found]
                    continue
                out.keep(version, engine.run(train, message, asked))
            pieces += out.take(version, clients_of(group), clients_of(later))
        parts += self._scaled(pieces, out, state)
        parts = [*screened(job, state, parts)] if job.algorithm.hooks["screen"] else parts
        columns = zip(*(flight.costs for flight in (*arrived, *absent)), strict=True)
        counts = dict(zip(COSTS, map(sum, columns), strict=False))
        late, lost = ([flight.client for flight in absent if flight.fate == fate] for fate in (LATE, LOST))
        parts.append(Sums(late=late, lost=lost, until=now, counts=counts))
        over = out.forget({flight.version for flight in heap}, self.alpha is not None)
        flights = Flights(sorted(heap), out.broadcasts, out.updates)
        reported = {version: np.sort([flight.client for flight in group]) for version, group in now_by.items()}
        return Gathered(parts, replace(state, flights=flights), reported, over)

    def _folds(self, job: Job, state: State, version: int) -> bool:
        """Whether workers may sum what this version's clients report, as in a synchronous round."""
        algorithm = job.algorithm
        plain = self.factor(state.round - version) == 1 and self.alpha is None
        return plain and not algorithm.hooks["screen"] and not algorithm.weighing.stacks

    def _scaled(self, pieces: list[Piece], out: Out, state: State) -> Iterator[Update]:
        """Updates that count by their staleness; those of groups that trained together as one, which is faster."""
        several = [piece for piece in pieces if len(piece.update.clients) > 1]
        groups = [[piece] for piece in pieces if len(piece.update.clients) <= 1]
        for group in [several, *groups] if several else groups:
            update = replace(
                joined([(piece.update, piece.rows) for piece in group]),
                dropped=np.concatenate([piece.dropped for piece in group]),
            )
            lengths = [len(piece.rows) for piece in group]
            factors = np.repeat([self.factor(state.round - piece.version) for piece in group], lengths)
            yield self._counted(update, factors, np.repeat([piece.version for piece in group], lengths), out, state)

    def _counted(self, update: Update, factors: Floats, versions: Ints, out: Out, state: State) -> Update:
        """An update whose rows count so often, with `alpha` as a move towards the client's model."""
        delta = update.delta
        assert delta is not None
        if self.alpha is not None:
            models = [out.broadcasts[str(version)].x for version in versions]
            delta, factors = (torch.stack(models) + delta) - state.x if models else delta, self.alpha * factors
        if not (factors != 1).any():
            return replace(update, delta=delta)
        factor = torch.from_numpy(factors).to(delta)[:, None]
        weighted = over_slots(lambda rows: rows[0] * factor, [update.weighted]) if update.weighted else {}
        return replace(update, delta=delta * factor, weighted=weighted)


Pace = Synchronous | Buffered


def dispatched(job: Job, broadcast: Broadcast, work: Work, now: float = 0.0) -> Iterator[Flight]:
    """These clients under way, from `now` on."""
    assert job.clock is not None
    trips = job.clock.trips(broadcast, work)
    spent_on = job.clock.costs(work, trips)
    costs = zip(*(spent_on[name].tolist() for name in COSTS), strict=True)
    expected = np.full(len(work.clients), -1) if work.expected is None else work.expected
    columns = (trips.seconds, work.clients, trips.fate, trips.steps, expected)
    rows = zip(*(column.tolist() for column in columns), costs, strict=True)
    for seconds, client, fate, steps, hoped, spent in rows:
        yield Flight(now + seconds, client, work.version, fate, steps, hoped, spent)


class Candidates:
    """Clients for slots that get free between two server steps, in an order that is drawn for the version.

    They are looked at in blocks, because the trips of many clients take hardly longer to compute than those of one.
    """

    def __init__(self, job: Job, broadcast: Broadcast, block: int) -> None:
        self.job, self.broadcast, self.block = job, broadcast, block
        self.generator: np.random.Generator | None = None
        self.order: list[int] = []  # the next ones last
        self.known: dict[int, Flight] = {}  # whose arrival is the length of the trip

    def take(self, count: int, busy: set[int], there: Any) -> Iterator[Flight]:
        """So many clients that are neither busy nor away, each as likely as another; makes them busy."""
        population, misses = len(self.job.task.data), 0
        while count and misses < 4 * self.block:
            if not self.order:
                self._draw(population)
            client = self.order.pop()
            if client in busy or client not in self.known or (there and not there(np.array([client]))[0]):
                misses += 1
                continue
            busy.add(client)
            count -= 1
            yield self.known[client]
        if count:  # almost everybody is busy or away: look at all who are not
            rest = np.setdiff1d(np.arange(population), np.fromiter(busy, dtype=np.int64))
            rest = rest[there(rest)] if there else rest
            assert self.generator is not None
            chosen = np.sort(self.generator.permutation(rest)[:count])
            self._know(chosen)
            busy |= set(chosen.tolist())
            yield from (self.known[client] for client in chosen.tolist() if client in self.known)

    def _draw(self, population: int) -> None:
        if self.generator is None:
            self.generator = draws.generator(self.job.seed, "cohort", self.broadcast.version + 1, step=1)
        drawn = self.generator.integers(population, size=self.block)
        self.order = drawn.tolist()
        self._know(np.unique(drawn))

    def _know(self, clients: Ints) -> None:
        work = self.job.work(self.broadcast.plan, self.broadcast.version, np.sort(clients))
        self.known |= {flight.client: flight for flight in dispatched(self.job, self.broadcast, work)}


class Piece(NamedTuple):
    """What arrives at one server step of an update: some of its rows, and some of its dropped clients."""

    update: Update
    rows: Ints
    dropped: Ints
    version: int


@dataclass
class Out:
    """What is out while a server step is made: broadcasts by version, and updates that wait for their arrival."""

    broadcasts: dict[str, Broadcast]
    updates: dict[str, Update]  # by `version/number`

    def __post_init__(self) -> None:
        self.names: dict[int, list[str]] = {}  # of updates, by version
        for name in self.updates:
            self.names.setdefault(int(name.partition("/")[0]), []).append(name)

    def trained(self, version: int) -> bool:
        """Whether the clients of this version have trained."""
        return version in self.names

    def keep(self, version: int, updates: Iterable[Sums | Update]) -> None:
        """Keep updates until their clients arrive."""
        for number, update in enumerate(updates):
            assert isinstance(update, Update)
            self.updates[f"{version}/{number}"] = replace(update, counts={})
            self.names.setdefault(version, []).append(f"{version}/{number}")

    def take(self, version: int, now: set[int], later: set[int]) -> Iterator[Piece]:
        """What arrives now of each update; rows that arrive later stay, at most with as many others."""
        for name in self.names[version]:
            update = self.updates[name]
            rows, dropped = _among(update.clients, now), update.dropped[_among(update.dropped, now)]
            if rows.any() or len(dropped):
                yield Piece(update, np.flatnonzero(rows), dropped, version)
            left = _among(update.clients, later)
            if later and 2 * left.sum() <= len(left):  # where nobody is left, `forget` drops it whole
                self.updates[name] = update.rows(left)

    def forget(self, under_way: set[int], models: bool) -> tuple[int, ...]:
        """Drop what no client under way needs; gives the versions that are over. models: x_v is needed at arrival."""
        known = {*map(int, self.broadcasts), *self.names}
        for version in known:
            if version not in under_way or (self.trained(version) and not models):
                self.broadcasts.pop(str(version), None)
            if version not in under_way:
                for name in self.names.pop(version, []):
                    del self.updates[name]
        return tuple(sorted(known - under_way))


def by_version(flights: Iterable[Flight]) -> dict[int, list[Flight]]:
    """Flights by the version that they received."""
    found: dict[int, list[Flight]] = {}
    for flight in flights:
        found.setdefault(flight.version, []).append(flight)
    return found


def clients_of(flights: list[Flight]) -> set[int]:
    """Whose flights these are."""
    return {flight.client for flight in flights}


def _among(clients: Ints, some: set[int]) -> NDArray[np.bool_]:
    return np.array([client in some for client in clients.tolist()], dtype=bool)


def available(job: Job, version: int, now: float) -> Any:
    """A function that says which clients can be dispatched now; None if all can."""
    clock = job.clock
    if clock is None or clock.profiles.always:
        return job.here
    return lambda clients: clock.profiles.available(clients, job.seed, version + 1, now)


def screened(job: Job, state: State, updates: Iterable[Sums | Update]) -> Iterator[Update]:
    """The updates as the rule that screens leaves them."""
    (rule,) = job.algorithm.hooks["screen"]
    return rule.screen((part for part in updates if isinstance(part, Update)), state.rules[rule.slot])


def work_of(flights: list[Flight]) -> Work:
    """What these clients of one version do, in cohort order."""
    order = sorted(flights, key=lambda flight: flight.client)
    table = np.array([(one.client, one.steps, one.expected) for one in order], dtype=np.int64)
    expected = None if order[0].expected < 0 else table[:, 2].copy()
    return Work(order[0].version, table[:, 0].copy(), table[:, 1].copy(), expected)
