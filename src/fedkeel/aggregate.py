"""Aggregation: weights, sums that workers can compute, and means for rules to read.

    Delta = scale(...) * sum_i each(...)_i * Delta_i          over the clients that reported

Raw coefficients are summed and one factor is applied at the end, so weights need not sum to one. A weighted mean folds:
`fold(update, weights)` is a partial sum, and partial sums are added in cohort order wherever they were computed. An
aggregation that needs all updates at once (a median, say) is a `Weights` with `stacks`, which gets them unsummed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import check
from .messages import Slots, Update


@dataclass(frozen=True)
class Weights:
    """`each` gives a client's raw coefficient, `scale` the one final factor; arguments are `[clients, 1]`.

    Unless a subclass says otherwise, every client counts the same.
    """

    needs_norm: ClassVar[bool] = False
    stacks: ClassVar[bool] = False  # `combine` needs the updates of all clients, unsummed
    robust: ClassVar[bool] = False  # it bounds what a bad client can do, so no other upload may bypass it

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        return samples.new_ones(samples.shape)

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        return samples.new_ones(()) / len(samples)

    def combine(self, updates: Sequence[Update]) -> Tensor:
        """Delta, from updates that were not summed; only with `stacks`. Floating buffers are combined by it too."""
        raise NotImplementedError

    def least(self) -> int:
        """The number of clients that have to report; a round with fewer makes no server step."""
        return 1

    def parameters(self) -> dict[str, Any]:
        return {"name": type(self).__name__.lower()} | self.__dict__


@dataclass(frozen=True)
class Samples(Weights):
    """p_i = n_i / sum n: by the samples a client holds."""

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        return samples

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        return 1 / samples.sum()


@dataclass(frozen=True)
class Uniform(Weights):
    """p_i = 1 / |S|: every client counts the same."""


@dataclass(frozen=True)
class Nova(Weights):
    """FedNova: each update is divided by A_i = ||a_i||_1, the weight its gradients carry (Wang et al. 2020).

    `tau_eff="norm"` steps by sum p_i A_i; `"steps"`, as the official code with a proximal term, by sum p_i tau_i.
    """

    tau_eff: str = "norm"
    needs_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self.tau_eff in ("norm", "steps"), self, "tau_eff", "'norm' or 'steps'", self.tau_eff)

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        return samples / norm

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        lengths = norms if self.tau_eff == "norm" else steps
        return (samples * lengths).sum() / samples.sum() ** 2


WEIGHTS: dict[str, type[Weights]] = {"samples": Samples, "uniform": Uniform, "nova": Nova}

Key = tuple[str, str, str]  # rule, name, which sum: "weighted", "mean", "buffer" (by samples) or "first"
DELTA: Key = ("", "delta", "weighted")
COVER: Key = ("", "delta", "cover")  # by how much each element of the update is covered


LISTS = (
    "clients", "dropped", "late", "lost", "samples", "steps", "norms", "losses", "update_norms", "scalars", "updates",
)  # fmt: skip


@dataclass
class Sums:
    """Updates of some clients of a cohort, summed; parts add up in cohort order."""

    clients: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)  # clients that missed the deadline
    lost: list[int] = field(default_factory=list)  # clients that dropped out
    samples: list[Tensor] = field(default_factory=list)  # [clients, 1] each, as are the next ones
    steps: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    update_norms: list[Tensor] = field(default_factory=list)  # ||Delta_i||
    scalars: list[Slots] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)  # unsummed, for weights that stack
    sums: dict[Key, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # gradients, samples, bytes
    until: float | None = None  # the simulated time at which these clients are in

    def add(self, other: Sums) -> Sums:
        """Add the part that comes next in the cohort."""
        for name in LISTS:
            getattr(self, name).extend(getattr(other, name))
        for key, value in other.sums.items():
            self.put(key, value)
        for name, number in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + number
        self.until = self.until if other.until is None else other.until
        return self

    def put(self, key: Key, value: Tensor) -> None:
        """Add to one of the sums (in place: the first value becomes the accumulator)."""
        total = self.sums.get(key)
        if total is None:
            self.sums[key] = value
        elif key[2] != "first":
            total.add_(value)

    def mass(self, weights: Weights) -> Tensor:
        """The total weight of these clients in a mean, without FedNova's norms."""
        samples = torch.cat(self.samples)
        return weights.each(samples, torch.ones_like(samples)).sum()

    def spread(self, index: Tensor, size: int, weights: Weights, flops: int) -> Sums:
        """The sums over a sub-model as sums over the whole model, with the elements they cover and their FLOPs."""
        counts, sums = self.counts | {"flops": self.counts["samples"] * flops}, self.sums
        if self.clients:
            sums = {COVER: self.mass(weights).expand(len(index)), **sums}
            sums = {k: v.new_zeros(size).index_copy(0, index, v) for k, v in sums.items()}
        return replace(self, counts=counts, sums=sums)

    def mean_loss(self) -> float | None:
        """The clients' mean training loss over their steps, by samples; None if no client reported."""
        if not self.clients:
            return None
        samples, losses = torch.cat(self.samples).double(), torch.cat(self.losses).double()
        mean = float((samples * losses).sum() / samples.sum())
        return mean if math.isfinite(mean) else None  # it may overflow although the update is finite; JSON has no inf


def fold(update: Update, weights: Weights) -> Sums:
    """The sums of one group of clients, by these weights."""
    part = Sums(update.clients.tolist(), update.dropped.tolist(), counts=update.counts)
    if not part.clients:
        return part
    norms = torch.ones_like(update.steps) if update.norms is None else update.norms
    part.samples, part.steps = [update.samples], [update.steps]
    part.norms, part.losses = [norms], [update.losses]
    part.scalars = [update.scalars]
    if update.delta is not None:
        part.update_norms = [row_norms(update.delta)]
    if weights.stacks:
        part.updates = [replace(update, memory={})]
    weight = weights.each(update.samples, norms)
    if update.delta is not None and not weights.stacks:
        part.put(DELTA, _sum(update.delta, weight))
    for slot, vectors in update.weighted.items():
        for name, rows in vectors.items():
            part.put((slot, name, "weighted"), _sum(rows, weight))
    for plain in (update.mean, update.derived):
        for slot, vectors in plain.items():
            for name, rows in vectors.items():
                part.put((slot, name, "mean"), _sum(rows))
    if update.cover is not None:
        mass = weights.each(update.samples, torch.ones_like(update.samples))
        part.put(COVER, (mass * update.cover).sum(0))
    if weights.stacks:
        return part
    for name, rows in update.buffers.items():  # floats are averaged by samples; integers come from the first client
        if rows.is_floating_point():
            part.put(("", name, "buffer"), rows[0] * update.samples[0, 0].to(rows.dtype))
        else:
            part.put(("", name, "first"), rows[0])
    return part


def _sum(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """The sum over clients as a new tensor; for one client a product or a copy, which is faster."""
    if len(rows) == 1:
        return rows[0].clone() if weight is None else weight[0] * rows[0]
    return rows.sum(0) if weight is None else (weight * rows).sum(0)


def row_norms(rows: Tensor) -> Tensor:
    """The Euclidean norm of each row, `[rows, 1]`; infinite where its square overflows.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).flatten().tolist()
    [5.0, 2.0]
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norms


def collect(parts: Iterable[Sums | Update], weights: Weights) -> Sums:
    """The sum of all parts of a round, in the order they arrive; parts that no worker has folded are folded here."""
    total = Sums()
    for part in parts:
        total.add(part if isinstance(part, Sums) else fold(part, weights))
    return total


@dataclass(frozen=True)
class Reports:
    """What the clients of a round reported, as one rule sees it: means over those that reported."""

    sums: Sums
    scale: Tensor
    raw: Tensor  # each client's weight, `[clients, 1]`
    delta: Tensor  # Delta, the aggregated update
    slot: str = ""

    @classmethod
    def of_all(cls, sums: Sums, weights: Weights) -> Reports:
        """The sums as means."""
        samples, norms, steps = (torch.cat(column) for column in (sums.samples, sums.norms, sums.steps))
        scale, covered = weights.scale(samples, norms, steps), sums.sums.get(COVER)
        delta = weights.combine(sums.updates) if weights.stacks else sums.sums[DELTA] * scale
        if covered is not None:  # average each element over the clients that trained it
            delta = delta * torch.where(covered > 0, sums.mass(weights) / covered, 0.0)
        return cls(sums, scale, weights.each(samples, norms), delta)

    def of(self, slot: str) -> Reports:
        """The same reports, seen by this rule."""
        return replace(self, slot=slot)

    def mean(self, name: str) -> Tensor:
        """Plain mean of a vector that clients sent up under `Up(mean=...)` or `derived`."""
        return self._sum(name, "mean") / len(self.sums.clients)

    def weighted(self, name: str) -> Tensor:
        """Mean of a vector sent up under `Up(weighted=...)`, by the algorithm's weights."""
        return self._sum(name, "weighted") * self.scale

    def _sum(self, name: str, how: str) -> Tensor:
        if (self.slot, name, how) not in self.sums.sums:
            raise KeyError(f"{self.slot} sends up no {name!r} under Up({how}=...)")
        return self.sums.sums[self.slot, name, how]

    def values(self, name: str) -> Tensor:
        """A scalar, client by client, `[clients, 1]` in cohort order."""
        return torch.cat([slots[self.slot][name] for slots in self.sums.scalars])

    def average(self, name: str) -> Tensor:
        """The mean of a scalar, clients counting as they do in the update (their weights made to sum to one)."""
        return (self.raw * self.values(name)).sum() / self.raw.sum()

    def buffers(self, old: dict[str, Tensor], weights: Weights) -> dict[str, Tensor]:
        """Floating buffers averaged by samples, integer ones from the cohort's first client.

        Weights that stack combine the floating ones as they combine updates, and integer ones are the lower median.
        """
        if weights.stacks:
            return _combined_buffers(old, self.sums.updates, weights)
        sums, samples = self.sums.sums, torch.cat(self.sums.samples).sum()
        means = {name: sums["", name, "buffer"] / samples for name, value in old.items() if value.is_floating_point()}
        return {name: means[name] if name in means else sums["", name, "first"] for name in old}


def _combined_buffers(old: dict[str, Tensor], updates: Sequence[Update], weights: Weights) -> dict[str, Tensor]:
    new: dict[str, Tensor] = {}
    floating = {name: value for name, value in old.items() if value.is_floating_point()}
    for name in old.keys() - floating.keys():
        values = torch.cat([update.buffers[name] for update in updates])  # models with buffers train one by one
        new[name] = values.sort(0).values[(len(values) - 1) // 2]
    if floating:  # as one vector, so that a rule that chooses a client chooses all of its buffers
        rows = [torch.cat([update.buffers[name].flatten() for name in floating])[None] for update in updates]
        found = weights.combine([replace(update, delta=row) for update, row in zip(updates, rows, strict=True)])
        parts = torch.split(found, [value.numel() for value in floating.values()])
        new |= {name: part.view_as(floating[name]) for name, part in zip(floating, parts, strict=True)}
    return {name: new[name].to(value.dtype) for name, value in old.items()}


def answers(sums: Sums, weights: Weights) -> Slots:
    """The weighted means of the answers to a survey, by rule and name."""
    samples, norms, steps = (torch.cat(column) for column in (sums.samples, sums.norms, sums.steps))
    scale, slots = weights.scale(samples, norms, steps), Slots()
    for (slot, name, _), value in sums.sums.items():
        slots.setdefault(slot, {})[name] = value * scale
    return slots


def are_finite(values: Sequence[Tensor]) -> NDArray[np.bool_]:
    """Which clients have only finite elements in their rows of all of these `[clients, ...]`.

    Sums are checked first, in one pass over memory; a non-finite sum may be an overflow, so elements are checked next.

    >>> are_finite([torch.tensor([[3e38, 3e38], [1.0, torch.nan]]), torch.zeros(2, 1)])
    array([ True, False])
    """
    found = torch.stack([torch.isfinite(rows.sum(1)) for rows in values]).all(0).cpu()
    if not found.all():
        found = torch.stack([torch.isfinite(rows).all(1) for rows in values]).all(0).cpu()
    clean: NDArray[np.bool_] = found.numpy()
    return clean
