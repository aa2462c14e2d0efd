"""Whether a reply may touch the model: an update has exactly the tensors that this algorithm's clients send, all of
them finite, and counts that are possible. What a device claims about itself is compared with what the server knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...algorithm import Algorithm
from ...messages import Broadcast, Update, Work, cost, flatten
from ...response import lengths
from ...world import Ints

COLUMNS = ("samples", "steps", "norms", "losses", "delta", "cover")
SLOTS = ("mean", "weighted", "derived", "scalars", "memory")
MOST = 2**53  # of a count


class Refused(Exception):
    """A reply that the server does not use; the message says why."""


@dataclass(frozen=True)
class Expected:
    """What the reply of one device must look like.

    model: the outline of an update that the server has computed itself. work: of this client alone.
    samples: how many it holds. may_stop: a deadline may end its steps before its budget.
    """

    model: Update
    algorithm: Algorithm
    broadcast: Broadcast
    work: Work
    samples: int
    may_stop: bool = False

    def accept(self, given: Any) -> Update:
        """The update with the bytes that it cost; raises `Refused` if anything about it is wrong."""
        if not isinstance(given, Update):
            raise Refused(f"it is a {type(given).__name__}, not an Update")
        update: Update = given
        self._check_sender(update)
        counts = self._counts(update.counts)
        if len(update.dropped):  # the device found NaN or infinite values itself, and sent no row
            none = self.model.rows(np.zeros(len(self.model.clients), dtype=bool))
            spent = cost(self.broadcast, replace(self.model, clients=update.clients, dropped=update.dropped))
            return replace(none, version=update.version, dropped=update.dropped, counts=counts | spent)
        self._check_tensors(update)
        self._check_numbers(update)
        return replace(update, counts=counts | cost(self.broadcast, update))

    def _check_sender(self, given: Update) -> None:
        client = int(self.work.clients[0])
        if given.version != self.work.version:
            raise Refused(f"it is of version {given.version}, not {self.work.version}")
        if given.level != self.model.level:
            raise Refused(f"it is of level {given.level}, not {self.model.level}")
        named = [_numbers(given.clients), _numbers(given.dropped)]
        if named not in ([[client], []], [[], [client]]):
            raise Refused(f"it names the clients {named[0]} and {named[1]}, not {client}")

    def _counts(self, given: Any) -> dict[str, int]:
        names = {"gradients", "samples"}
        good = isinstance(given, dict) and given.keys() == names
        if not good or not all(type(number) is int and 0 <= number <= MOST for number in given.values()):
            raise Refused(f"its counts are {str(given)[:100]}")
        return dict(given)

    def _check_tensors(self, given: Update) -> None:
        ours, theirs = dict(_tensors(self.model)), dict(_tensors(given))
        if ours.keys() != theirs.keys():
            missing, more = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
            raise Refused(f"it lacks {missing} and has {more}" if missing else f"it has {more}, which nobody sends")
        for name, tensor in theirs.items():
            if tensor.shape != ours[name].shape or tensor.dtype != ours[name].dtype:
                found, must = (f"{tuple(one.shape)} of {one.dtype}" for one in (tensor, ours[name]))
                raise Refused(f"{name} is {found}, not {must}")
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise Refused(f"{name} has NaN or infinite values")

    def _check_numbers(self, given: Update) -> None:
        samples, steps, most = float(given.samples), float(given.steps), int(self.work.steps[0])
        if samples != self.samples:
            raise Refused(f"it claims {samples:g} samples; the device holds {self.samples}")
        least = 1 if self.may_stop or given.delta is None else most
        if not steps.is_integer() or not least <= steps <= most:
            raise Refused(f"it claims {steps:g} steps of {most}")
        if given.norms is not None and not torch.allclose(given.norms, self._norms(given), rtol=1e-4):
            raise Refused(f"its norm is {float(given.norms):g}, which {steps:g} steps do not give")
        if given.cover is not None and not bool(((given.cover == 0) | (given.cover == 1)).all()):
            raise Refused("its cover has other values than 0 and 1")

    def _norms(self, given: Update) -> Tensor:
        expected = None if self.work.expected is None else torch.from_numpy(self.work.expected[:, None]).to(given.steps)
        algorithm = self.algorithm
        return lengths(algorithm.client, algorithm.rules, given.steps, self.broadcast.plan.lr, expected).to(given.steps)


def outline(update: Update) -> Update:
    """The keys, shapes and types of an update; each tensor holds one zero, so that a large model costs nothing.

    >>> column, none = torch.ones(1, 1), np.array([], dtype=np.int64)
    >>> update = outline(Update(0, np.array([3]), none, column, column, None, column, torch.randn(1, 10**6)))
    >>> tuple(update.delta.shape), update.delta.untyped_storage().nbytes()
    ((1, 1000000), 4)
    """

    def empty(tensor: Tensor) -> Tensor:
        return tensor.new_zeros(()).expand(tensor.shape)

    changed: dict[str, Any] = {"buffers": {name: empty(value) for name, value in update.buffers.items()}}
    for kind in SLOTS:
        slots = getattr(update, kind).items()
        changed[kind] = {slot: {name: empty(value) for name, value in named.items()} for slot, named in slots}
    for name in COLUMNS:
        value = getattr(update, name)
        changed[name] = None if value is None else empty(value)
    return replace(update, **changed)


def _numbers(clients: Any) -> list[int]:
    if not isinstance(clients, np.ndarray) or clients.dtype != np.int64 or clients.ndim != 1 or len(clients) > 1:
        raise Refused("its clients are not one number")
    numbers: Ints = clients
    return [int(number) for number in numbers]


def _tensors(update: Update) -> Iterator[tuple[str, Tensor]]:
    """All tensors of an update, by name; anything else in their place is refused."""
    named: dict[str, Any] = {name: getattr(update, name) for name in COLUMNS if getattr(update, name) is not None}
    try:
        for kind in SLOTS:
            named |= {f"{kind}/{path}": value for path, value in flatten(getattr(update, kind)).items()}
        named |= {f"buffers/{name}": value for name, value in update.buffers.items()}
    except (AttributeError, TypeError) as error:
        raise Refused(f"its fields are not what they must be: {error}") from error
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise Refused(f"{name} is a {type(value).__name__}, not a tensor")
        yield name, value
