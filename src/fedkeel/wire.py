"""What is sent: uploads, their sums, and how many bytes they are.

A message is safetensors: vectors (the model, float buffers, what rules add) are the payload that `bytes_down`
and `bytes_up` count; scalars and the header are overhead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor

from .world import Ints

if TYPE_CHECKING:
    from .algorithm import Algorithm, Memory, Rule
    from .optim import Optimizer
    from .weights import Weights

Slots = dict[str, dict[str, Tensor]]  # tensors by rule and name
COVERED = "", "update", "covered"  # the sum that says by how much each element of the update is covered


class Upload:
    """What a rule sends up for each client: vectors by name; `scalars`; and `derived` vectors.

    A derived vector is one the server can rebuild from the update and scalars: reduced, but not counted in bytes.

    >>> Upload(dc=torch.zeros(2, 3)).vectors["dc"].shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        *,
        scalars: dict[str, Tensor] | None = None,
        derived: dict[str, Tensor] | None = None,
        **vectors: Tensor,
    ) -> None:
        self.vectors, self.scalars, self.derived = vectors, scalars or {}, derived or {}


@dataclass
class Part:
    """The uploads of some clients of a cohort, already summed; parts add up in cohort order."""

    clients: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    samples: list[Tensor] = field(default_factory=list)  # [clients, 1] each, as are the next ones
    steps: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    scalars: list[Slots] = field(default_factory=list)
    sums: dict[tuple[str, str, str], Tensor] = field(default_factory=dict)  # (rule, name, which sum)
    memory: list[tuple[Ints, Slots]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # gradients, samples, bytes_up, overhead_bytes

    def add(self, other: Part) -> None:
        """Take in the part that comes next in the cohort."""
        for name in ("clients", "dropped", "samples", "steps", "norms", "losses", "scalars", "memory"):
            getattr(self, name).extend(getattr(other, name))
        for (rule, name, how), value in other.sums.items():
            if how == "first":
                self.sums.setdefault((rule, name, how), value)
            else:
                self.put(rule, name, how, value)
        for what, number in other.counts.items():
            self.count(what, number)

    def put(self, rule: str, name: str, how: str, value: Tensor) -> None:
        """Add to one of the sums (in place: the first value put becomes the accumulator)."""
        total = self.sums.get((rule, name, how))
        if total is None:
            self.sums[rule, name, how] = value
        else:
            total.add_(value)

    def count(self, what: str, number: int) -> None:
        """Count work or traffic."""
        self.counts[what] = self.counts.get(what, 0) + number

    def sum_up(self, values: dict[tuple[str, str, str], Tensor], weight: Tensor) -> None:
        """Sum per-client vectors (rule, name, how): "weighted" by these raw weights, or for the plain "mean"."""
        alone = len(weight) == 1  # faster than a sum of one, and like it a copy
        for key, value in values.items():
            if key[2] == "weighted":
                self.put(*key, weight[0] * value[0] if alone else (weight * value).sum(0))
            else:
                self.put(*key, value[0].clone() if alone else value.sum(0))

    def mass(self, weights: Weights) -> Tensor:
        """What these clients count together in a mean: FedNova's lengths apart, the sum of their weights."""
        samples = torch.cat(self.samples)
        return weights.each(samples, torch.ones_like(samples)).sum()

    def spread(self, index: Tensor, size: int, weights: Weights) -> None:
        """Turn the sums over a sub-model into sums over the whole model, and say which elements they cover."""
        if self.clients:
            self.sums.setdefault(COVERED, self.mass(weights).expand(len(index)))
            self.sums = {k: v.new_zeros(size).index_copy(0, index, v) for k, v in self.sums.items()}

    def reports(self, algorithm: Algorithm) -> Reports:
        """The sums as means."""
        samples, norms, steps = (torch.cat(column) for column in (self.samples, self.norms, self.steps))
        weights = algorithm.weighing
        raw, mass = weights.each(samples, norms), self.mass(weights)
        return Reports(self, weights.scale(samples, norms, steps), raw, mass)

    def means(self, algorithm: Algorithm) -> Slots:
        """The weighted mean of every rule's vectors, by rule and name."""
        slots: Slots = {rule.slot: {} for rule in algorithm.rules}
        for (rule, name, how), value in self.sums.items():
            if how == "weighted":
                slots[rule][name] = value * self.reports(algorithm).scale
        return slots

    def mean_loss(self) -> float | None:
        """The clients' mean training loss over their steps, by samples; None if nobody reported."""
        if not self.clients:
            return None
        samples, losses = torch.cat(self.samples).double(), torch.cat(self.losses).double()
        mean = float((samples * losses).sum() / samples.sum())
        return mean if math.isfinite(mean) else None  # a finite update may come from an infinite loss; JSON has no inf


class Reports:
    """The uploads of a round as a rule's `server_step` sees them: means over the clients that reported."""

    def __init__(self, part: Part, scale: Tensor, raw: Tensor, mass: Tensor) -> None:
        self.part, self.scale, self.raw, self.mass, self._slot = part, scale, raw, mass, ""

    def of(self, rule: Rule | Optimizer) -> Reports:
        """The same reports, seen by this rule."""
        self._slot = rule.slot
        return self

    def mean(self, name: str) -> Tensor:
        """Unweighted mean of a vector."""
        return self._sum(name, "mean") / len(self.part.clients)

    def weighted(self, name: str) -> Tensor:
        """Mean of a vector under the algorithm's weights."""
        return self._sum(name, "weighted") * self.scale

    def _sum(self, name: str, how: str) -> Tensor:
        if (self._slot, name, how) not in self.part.sums:
            raise KeyError(f"{self._slot} uploads no {name!r}, or its `averages` leave out {how!r}")
        return self.part.sums[self._slot, name, how]

    def values(self, name: str) -> Tensor:
        """A scalar, client by client, `[clients, 1]` in cohort order."""
        return torch.cat([slots[self._slot][name] for slots in self.part.scalars])

    def average(self, name: str) -> Tensor:
        """The mean of a scalar, clients counting as they do in the update (their weights made to sum to one)."""
        return (self.raw * self.values(name)).sum() / self.raw.sum()

    @property
    def samples(self) -> Tensor:
        """n_i, `[clients, 1]` in cohort order."""
        return torch.cat(self.part.samples)

    def update(self) -> Tensor:
        """Delta, the aggregated update; an element that only some clients trained is their mean alone."""
        delta, covered = self.part.sums["", "update", "weighted"] * self.scale, self.part.sums.get(COVERED)
        return delta if covered is None else delta * torch.where(covered > 0, self.mass / covered, 0.0)

    def buffers(self, old: dict[str, Tensor]) -> dict[str, Tensor]:
        """Floating buffers averaged by samples, integer ones from the cohort's first client."""
        sums, samples = self.part.sums, self.samples.sum()
        means = {name: sums["", name, "buffer"] / samples for name, value in old.items() if value.is_floating_point()}
        return {name: means[name] if name in means else sums["", name, "first"] for name in old}


def pack(vectors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> bytes:
    """A message as bytes: safetensors, with scalars as float64 tensors of no dimension.

    >>> message = pack({"x": torch.zeros(3)}, {"lr": 0.1})
    >>> unpack(message)[1]
    {'lr': 0.1}
    """
    tensors = {f"v/{k}": v.contiguous() for k, v in vectors.items()}
    tensors |= {f"s/{k}": torch.tensor(float(v), dtype=torch.float64) for k, v in scalars.items()}
    return safetensors.torch.save(tensors)


def unpack(message: bytes) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Vectors and scalars of a message."""
    tensors = safetensors.torch.load(message)
    vectors = {k[2:]: v for k, v in tensors.items() if k.startswith("v/")}
    return vectors, {k[2:]: v.item() for k, v in tensors.items() if k.startswith("s/")}


def measure(vectors: Mapping[str, Tensor], scalars: Iterable[str]) -> tuple[int, int]:
    """(payload, overhead) in bytes of a message with these vectors and scalars, without making it.

    >>> vectors = {"x": torch.zeros(3)}
    >>> payload, overhead = measure(vectors, ["lr"])
    >>> payload, payload + overhead == len(pack(vectors, {"lr": 1.0}))
    (12, True)
    """
    payload = sum(v.numel() * v.element_size() for v in vectors.values())
    shape = tuple((k, tuple(v.shape), v.dtype) for k, v in vectors.items())
    return payload, _overhead(shape, tuple(scalars))


def count_download(part: Part, sent: Slots, x: Tensor, buffers: dict[str, Tensor], clients: int) -> None:
    """The model, its floating buffers, and what rules broadcast: vectors count, scalars are overhead."""
    flat = {f"{slot}/{name}": value for slot, values in sent.items() for name, value in values.items()}
    vectors = {"x": x, **{f"buffers/{k}": b for k, b in buffers.items() if b.is_floating_point()}}
    vectors |= {name: value for name, value in flat.items() if value.ndim}
    _count(part, "bytes_down", vectors, ["round", "lr", "steps", *(k for k, v in flat.items() if not v.ndim)], clients)


def count_second_download(part: Part, surveyed: Part, means: Slots, clients: int) -> None:
    """What a survey cost: its uploads and gradients, and sending the means back."""
    for what, number in surveyed.counts.items():
        part.count(what, number)
    vectors = {f"{slot}/{name}": value for slot, values in means.items() for name, value in values.items()}
    _count(part, "bytes_down", vectors, ["round"], clients)


def count_answers(part: Part, answers: dict[tuple[str, str, str], Tensor], clients: int) -> None:
    """What clients send back in a survey."""
    _count(part, "bytes_up", {f"{slot}/{name}": v[0] for (slot, name, _), v in answers.items()}, ["samples"], clients)


def count_upload(
    part: Part,
    update: Tensor,
    finished: dict[str, tuple[Upload, Memory]],
    buffers: dict[str, Tensor],
    norm: bool,
    clients: int,
) -> None:
    """The update, floating buffers and what rules add; derived vectors are not sent."""
    vectors, scalars = {"update": update[0]}, ["samples", "steps"] + ["norm"] * norm
    vectors |= {f"buffers/{name}": value for name, value in buffers.items()}
    for slot, (up, _) in finished.items():
        vectors |= {f"{slot}/{name}": value[0] for name, value in up.vectors.items()}
        scalars += [f"{slot}/{name}" for name in up.scalars]
    _count(part, "bytes_up", vectors, scalars, clients)


def _count(part: Part, what: str, vectors: dict[str, Tensor], scalars: list[str], clients: int) -> None:
    payload, overhead = measure(vectors, scalars)
    part.count(what, payload * clients)
    part.count("overhead_bytes", overhead * clients)


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
    # as the library lays them out: by falling alignment, then by name
    order = sorted(tensors, key=lambda k: (-tensors[k].element_size(), k))
    told: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for k in order:
        begin, end = end, end + tensors[k].numel() * tensors[k].element_size()
        told[k] = {"dtype": CODES[tensors[k].dtype], "shape": list(tensors[k].shape), "data_offsets": [begin, end]}
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order
