"""The sub-models, and which client trains which."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor, nn

from .. import draws
from ..errors import InputError, brief, check, is_count, is_number, reason
from ..flat import FlatModel, flops, seeded
from ..ranges import COEFFICIENT, Range
from ..task import Task
from ..world import Ints

WIDTH = Range(1e-6, 1)  # the share of a layer's channels that a level keeps: never none
Given = Sequence[int] | Callable[[int, int], int]  # a level by client, or (round, client) -> level; levels from 0


@dataclass(frozen=True)
class Level:
    """A sub-model: the elements of the whole that it trains, its module, and the FLOPs of one sample's gradient."""

    index: Tensor
    model: FlatModel
    flops: int


@dataclass(frozen=True)
class Capacity:
    """Which sub-models there are, and which client trains which.

    shares: how many clients have each level, as ratios `(1, 1, 2)` or the text "1/1/2". assign: "fixed" deals levels
    out once, by a permutation under the run's seed; "dynamic" draws every client's level afresh each round; or the
    levels themselves, counted from 0: one per client, or a function (round, client) -> level.
    """

    shares: Any = None
    assign: str | Given = "fixed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", numbers(self.shares))
        good = all(share in COEFFICIENT for share in self.shares) and sum(self.shares) > 1e-9
        check(good, self, "shares", "ratios such as 1/1/2, numbers in [0, 1e9] and not all 0", self.shares)
        if isinstance(self.assign, list | np.ndarray):
            levels = tuple(int(level) if is_count(level, 0) else level for level in self.assign)
            object.__setattr__(self, "assign", levels)
        known = self.assign in ("fixed", "dynamic") if isinstance(self.assign, str) else True
        listed = not isinstance(self.assign, tuple) or all(is_count(level, 0) for level in self.assign)
        good = known and listed and (isinstance(self.assign, str | tuple) or callable(self.assign))
        check(good, self, "assign", "'fixed', 'dynamic', a level per client or a function of them", self.assign)

    def adapt(self, task: Task) -> Task:
        """The task with the model that has these levels: its own, or the one it keeps for algorithms with levels.

        A model that cannot work is refused here, before any file is written.
        """
        if task.data.inputs is not None:
            raise InputError(
                "Levels cut models of one input, and this task's model has several; use it without levels."
            )
        same = replace(task, model=task.exits or task.model)
        object.__setattr__(same, "spec", task.spec)  # the algorithm's name implies this model
        model = FlatModel(seeded(0, same.model))
        if kept := next(iter(model.buffers()), None):
            raise InputError(f"Levels need a model without buffers, and this one has {kept}; give its BatchNorm "
                             "track_running_stats=False.")  # fmt: skip
        x = task.data.x[:2]
        self.check(model, x.to(model.flat) if x.is_floating_point() else x)
        self.of(np.arange(len(task.data)), 0, 1, len(task.data))
        return same

    def check(self, model: FlatModel, x: Tensor) -> None:
        """Refuse a model that has no such levels."""

    def trained(self, task: Task) -> Task:
        """The task with the loss and metric that sub-models need."""
        return task

    def levels(self, model: FlatModel, task: Task) -> list[Level | None]:
        """The sub-models of this model, from level 0 on; None for one that no client has."""
        raise NotImplementedError

    def top(self, levels: Sequence[Level | None]) -> int:
        """The largest level that a client has, which is the one that is evaluated."""
        return max((i for i, level in enumerate(levels) if level), key=lambda i: len(levels[i].index))  # type: ignore[union-attr]

    def of(self, clients: Ints, seed: int, round: int, population: int) -> Ints:
        """The level of each of these clients in this round.

        >>> from fedkeel import Widths
        >>> Widths(shares="1/1/0/0/0").of(np.arange(4), seed=0, round=1, population=4).tolist()
        [0, 1, 1, 0]
        """
        count = len(self.shares)
        if self.assign == "fixed":
            return dealt(self.shares, seed, population)[clients]
        if self.assign == "dynamic":
            odds = np.array(self.shares) / sum(self.shares)
            drawn = [draws.generator(seed, "level", round, int(c)).choice(count, p=odds) for c in clients]
            return np.array(drawn, dtype=np.int64)
        if isinstance(self.assign, tuple):
            if len(self.assign) != population:
                raise InputError(f"Levels are given for {len(self.assign)} clients; the task has {population}.")
            given = [self.assign[c] for c in clients]
        else:
            assert callable(self.assign)
            try:
                given = [self.assign(round, int(c)) for c in clients]
            except Exception as error:  # of the user's function
                raise InputError(f"The levels of round {round} cannot be assigned: {reason(error)}.") from error
        for client, level in zip(clients, given, strict=True):
            if not is_count(level, 0) or level >= count:
                where = f"Client {client} is given level {brief(level)} in round {round}"
                raise InputError(f"{where}; there are 0..{count - 1}.")
        return np.array(given, dtype=np.int64)

    def wanted(self, level: int) -> bool:
        """Whether some client may have this level."""
        if isinstance(self.assign, str):
            return bool(self.shares[level])
        return callable(self.assign) or level in self.assign

    @contextmanager
    def evaluating(self, models: Sequence[FlatModel], task: Task) -> Iterator[None]:
        """A context in which the models are evaluated."""
        yield

    def scores(self, task: Task, output: Tensor, target: Tensor) -> dict[str, float | None]:
        """The columns of an evaluation beside the loss."""
        return {"accuracy": task.accuracy(output, target)}

    def parameters(self) -> dict[str, Any]:
        """Name and values, for the configuration."""
        return {"name": type(self).__name__.lower()} | {f.name: getattr(self, f.name) for f in fields(self)}


def numbers(given: Any) -> tuple[float, ...] | None:
    """Numbers from "1/0.5", or from a list of them.

    >>> numbers("1/0.5"), numbers([1, 2])
    ((1.0, 0.5), (1.0, 2.0))
    """
    if given is None:
        return None
    try:
        parts = str(given).split("/") if isinstance(given, str) or is_number(given) else list(given)
        values = tuple(float(part) for part in parts)
    except (TypeError, ValueError, OverflowError):
        values = (math.nan,)
    if not all(map(is_number, values)):
        raise InputError(f"{brief(given)} is not a list of numbers such as 1/0.5/0.25.")
    return values


@lru_cache(maxsize=8)
def dealt(shares: tuple[float, ...], seed: int, population: int) -> Ints:
    """A level for each client: a permutation of the clients, cut at the shares."""
    bounds = np.rint(np.cumsum(shares) / sum(shares) * population).astype(np.int64)
    ranks = draws.generator(seed, "level").permutation(population)
    return np.searchsorted(bounds, ranks, side="right").astype(np.int64)


def level(index: Tensor, module: nn.Module, whole: FlatModel, x: Tensor) -> Level:
    """A level of a model, from its narrow module."""
    index = index.to(whole.flat.device)
    model = FlatModel(module, whole.flat.dtype, str(whole.flat.device))
    model.load(whole.flat[index])
    assert model.size == len(index)
    return Level(index, model, flops(model, x))
