"""What travels between the server and its clients: frozen dataclasses of tensors and plain values.

    server -> clients    Broadcast (with Plan and Facts), for all clients of a version; Work, a row per client
    clients -> server    Update, a row per client, not yet summed
    beside them          Memory, what these clients remember from earlier rounds

`wire.py` serializes each of them, so the same worker serves a thread, another process or a real device; `cost` counts
their bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .ranges import COUNT, POSITIVE, RATE, STEPS, Range, keep
from .world import Ints

Slots = dict[str, dict[str, Tensor]]  # tensors by rule and name


@dataclass(frozen=True)
class Plan:
    """What the server asks of all clients in a round; a rule's `plan` changes it.

    epochs: passes over a client's samples; None leaves the steps to the world's budget. rounding: "ceil" or "floor".

    >>> Plan(lr=0.1, batch_size=20, epochs=2).steps(np.array([45, 5])).tolist()
    [5, 1]
    """

    lr: float
    batch_size: int | None = None
    epochs: float | None = None
    rounding: str = "ceil"

    def __post_init__(self) -> None:
        keep(self, Range(0, RATE.most), "lr")
        keep(self, COUNT, "batch_size")
        keep(self, POSITIVE, "epochs")

    def steps(self, samples: Ints) -> Ints | None:
        """The steps asked of clients with so many samples: max(1, round(epochs n_i / B)), no more than a budget may
        have; None without epochs.
        """
        if self.epochs is None or self.batch_size is None:
            return None
        rounded, slack = (np.ceil, -1e-9) if self.rounding == "ceil" else (np.floor, 1e-9)
        # The slack keeps binary rounding from adding or losing a step.
        return rounded(self.epochs * samples / self.batch_size + slack).clip(1, STEPS.most).astype(np.int64)

    def columns(self) -> dict[str, Any]:
        """The history columns of a run whose rules plan."""
        epochs = {} if self.epochs is None else {"epochs": self.epochs}
        return {"lr": self.lr, **epochs, "batch_size": self.batch_size}


@dataclass(frozen=True)
class Facts:
    """Public facts about a round."""

    round: int = 1
    rounds: int = 1
    population: int = 1  # registered clients
    cohort: int = 1  # clients that take part in this round
    mean_samples: float = 1.0  # samples per registered client

    @property
    def fraction(self) -> float:
        """C: the share of the population that takes part."""
        return self.cohort / self.population


@dataclass(frozen=True)
class Broadcast:
    """The model of a version and what rules send beside it: the same for every client that trains from it."""

    version: int  # server steps before it
    plan: Plan
    facts: Facts
    x: Tensor
    buffers: dict[str, Tensor] = field(default_factory=dict)
    slots: Slots = field(default_factory=dict)  # what each rule's `send` gave
    answers: Slots = field(default_factory=dict)  # the weighted means of what `survey` returned

    def cut(self, index: Tensor) -> Broadcast:
        """What a client receives whose sub-model has these elements."""
        return replace(self, x=self.x[index])


@dataclass(frozen=True)
class Work:
    """Who does how much: a row per client."""

    version: int
    clients: Ints
    steps: Ints
    expected: Ints | None = None  # the steps the server expects, which guesses fill up to
    levels: Ints | None = None  # the sub-model of each client, if devices differ in size

    def rows(self, rows: Ints | slice) -> Work:
        """Some of the clients, in this order."""
        expected = None if self.expected is None else self.expected[rows]
        levels = None if self.levels is None else self.levels[rows]
        return Work(self.version, self.clients[rows], self.steps[rows], expected, levels)


@dataclass(frozen=True)
class Memory:
    """What clients remember: per rule and name a row each, and 1 for each client that has taken part before."""

    slots: Slots
    seen: Ints

    def rows(self, rows: Ints) -> Memory:
        """Some of the clients, in this order."""
        return Memory(take_rows(self.slots, select(rows)), self.seen[rows])


@dataclass(frozen=True)
class Update:
    """What a group of clients reports: a row for each whose numbers are all finite, in cohort order.

    samples, steps, norms and losses are `[clients, 1]`, delta and the vectors of rules
    `[clients, params]`: those under `mean` are averaged plainly, those under `weighted` by the algorithm's weights.
    memory: what these clients remember if the server accepts. counts: gradients and samples of the whole group.
    """

    version: int
    clients: Ints
    dropped: Ints  # clients whose update is not finite
    samples: Tensor
    steps: Tensor
    norms: Tensor | None  # FedNova's, if the weights need them
    losses: Tensor
    delta: Tensor | None = None  # None in a survey, where clients do not train
    mean: Slots = field(default_factory=dict)
    weighted: Slots = field(default_factory=dict)
    derived: Slots = field(default_factory=dict)  # averaged plainly; the server could rebuild them, so not counted
    scalars: Slots = field(default_factory=dict)
    memory: Slots = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    cover: Tensor | None = None  # 1 for each element of delta that counts, else 0
    level: int | None = None

    def only(self, kept: NDArray[np.bool_]) -> Update:
        """The update of these clients; the others count as dropped."""
        return replace(self.rows(kept), dropped=np.concatenate([self.dropped, self.clients[~kept]]))

    def rows(self, kept: NDArray[np.bool_]) -> Update:
        """The update of these clients alone."""
        return replace(joined([(self, np.flatnonzero(kept))]), dropped=self.dropped, counts=self.counts)


def joined(pieces: Sequence[tuple[Update, Ints]]) -> Update:
    """These rows of these updates as one update, in this order."""
    first = pieces[0][0]
    columns: dict[str, Any] = {}
    indices = [select(rows, len(update.clients)) for update, rows in pieces]

    def put_together(tensors: Iterable[Tensor]) -> Tensor:
        taken = [tensor[index] for tensor, index in zip(tensors, indices, strict=True)]
        return taken[0] if len(taken) == 1 else torch.cat(taken)

    for name in ("samples", "steps", "norms", "losses", "delta", "cover"):
        if getattr(first, name) is not None:
            columns[name] = put_together([getattr(update, name) for update, _ in pieces])
    for name in ("mean", "weighted", "derived", "scalars", "memory"):
        if slots := [getattr(update, name) for update, _ in pieces if getattr(first, name)]:
            columns[name] = over_slots(put_together, slots)
    if first.buffers:
        columns["buffers"] = over_slots(put_together, [{"": update.buffers} for update, _ in pieces])[""]
    clients = np.concatenate([update.clients[rows] for update, rows in pieces])
    return replace(first, clients=clients, dropped=first.dropped[:0], counts={}, **columns)


def over_slots(combine: Callable[[list[Tensor]], Tensor], slots: Sequence[Slots]) -> Slots:
    """The tensors of each name in all of these, combined."""
    found: Slots = {}
    for slot, values in slots[0].items():
        found[slot] = {name: combine([one[slot][name] for one in slots]) for name in values}
    return found


class Flight(NamedTuple):
    """A client under way in an asynchronous run. Flights are ordered by arrival, then by client."""

    arrival: float  # simulated seconds
    client: int
    version: int
    fate: int  # as in `world.clock`
    steps: int
    expected: int  # -1: not known
    costs: tuple[int, ...]


@dataclass(frozen=True)
class Flights:
    """What is under way in an asynchronous run: clients, the broadcasts that they received, and updates that are
    computed and have not arrived.
    """

    clients: list[Flight] = field(default_factory=list)
    broadcasts: dict[str, Broadcast] = field(default_factory=dict)  # by version
    updates: dict[str, Update] = field(default_factory=dict)  # by `version/number`

    def __post_init__(self) -> None:
        if any(isinstance(row, list) for row in self.clients[:1]):  # from JSON
            object.__setattr__(self, "clients", [Flight(*row[:6], tuple(row[6])) for row in self.clients])


def select(rows: Ints, of: int | None = None, device: torch.device | None = None) -> Tensor | slice:
    """These rows as an index; a slice, which copies nothing, if they are all rows in order.

    >>> select(np.array([0, 1, 2]), 3), select(np.array([0, 2]), 3)
    (slice(None, None, None), tensor([0, 2]))
    """
    same = len(rows) == (len(rows) if of is None else of) and bool((rows == np.arange(len(rows))).all())
    return slice(None) if same else torch.from_numpy(rows).to(device)


def cost(broadcast: Broadcast, update: Update) -> dict[str, int]:
    """The bytes that a group of clients received and sent, dropped clients included.

    Vectors (the model, float buffers, what rules add) are payload; scalars and headers are overhead. The model is
    counted with the update, not with the answers to a survey before it.
    """
    clients = len(update.clients) + len(update.dropped)
    if update.delta is None:
        up, down = measure(flatten(update.weighted), ["samples"], rows=True), (0, 0)
    else:
        vectors = {"update": update.delta} | floating(update.buffers) | flatten(update.mean) | flatten(update.weighted)
        norm = [] if update.norms is None else ["norm"]
        up = measure(vectors, ["samples", "steps", *norm, *flatten(update.scalars)], rows=True)
        down = download(broadcast)
    overhead = clients * (down[1] + up[1])
    return {"bytes_down": clients * down[0], "bytes_up": clients * up[0], "overhead_bytes": overhead}


def download(broadcast: Broadcast) -> tuple[int, int]:
    """(payload, overhead) in bytes of what one client receives.

    >>> download(Broadcast(0, Plan(0.1), Facts(), torch.zeros(3)))[0]
    12
    """
    sent = flatten(broadcast.slots)
    vectors = {"x": broadcast.x, **floating(broadcast.buffers), **{k: v for k, v in sent.items() if v.ndim}}
    return measure(vectors, ["round", "lr", "steps", *(name for name, value in sent.items() if not value.ndim)])


def floating(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """The buffers that count as bytes."""
    return {f"buffers/{name}": value for name, value in buffers.items() if value.is_floating_point()}


def flatten(slots: Slots) -> dict[str, Tensor]:
    """One dictionary with the keys `rule/name`."""
    flat: dict[str, Tensor] = {}
    for slot, values in slots.items():
        flat |= {f"{slot}/{name}": value for name, value in values.items()}
    return flat


def take_rows(slots: Slots, rows: Tensor | slice) -> Slots:
    """These rows of every tensor."""
    taken: Slots = {}
    for slot, values in slots.items():
        taken[slot] = {name: value[rows] for name, value in values.items()}
    return taken


def measure(vectors: Mapping[str, Tensor], scalars: Iterable[str], rows: bool = False) -> tuple[int, int]:
    """(payload, overhead) in bytes of a message with these vectors and scalars, without making it.

    rows: the vectors have a row for each client, and the message is one client's.

    >>> measure({"x": torch.zeros(3)}, ["lr"])[0], measure({"x": torch.zeros(2, 3)}, ["lr"], rows=True)[0]
    (12, 12)
    """
    shapes = tuple((name, tuple(v.shape[1:] if rows else v.shape), v.dtype) for name, v in vectors.items())
    return sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in shapes), _overhead(shapes, tuple(scalars))


@lru_cache(maxsize=256)
def _overhead(shape: tuple[tuple[str, tuple[int, ...], torch.dtype], ...], scalars: tuple[str, ...]) -> int:
    # expand() gives tensors of the right shape that own no memory
    tensors = {f"v/{k}": torch.zeros((), dtype=dtype).expand(size) for k, size, dtype in shape}
    tensors |= {f"s/{k}": torch.zeros((), dtype=torch.float64) for k in scalars}
    return len(header(tensors)[0]) + 8 * len(scalars)


CODES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
         torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}  # fmt: skip


def header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[str]]:
    """The head of a safetensors file, and the order in which the tensors' bytes follow it.

    >>> head, order = header({"b": torch.zeros(1), "a": torch.zeros(1)})
    >>> len(head) % 8, order
    (0, ['a', 'b'])
    """
    # the order of the safetensors library: by falling alignment, then by name
    order = sorted(tensors, key=lambda k: (-tensors[k].element_size(), k))
    about: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for k in order:
        begin, end = end, end + tensors[k].numel() * tensors[k].element_size()
        about[k] = {"dtype": CODES[tensors[k].dtype], "shape": list(tensors[k].shape), "data_offsets": [begin, end]}
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order
