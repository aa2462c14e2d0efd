"""HeteroFL: narrower copies of the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, check
from ..flat import FlatModel, flops
from ..ranges import COUNT_OR_ZERO, plain
from ..task import Task
from . import slicing
from .levels import WIDTH, Capacity, Level, level, numbers
from .statistics import settled


@dataclass(frozen=True)
class Widths(Capacity):
    """HeteroFL: levels a, b, ... train the first ceil(rate w) of every layer's w channels (Diao et al. 2021).

    scaler: activations of a narrow model are divided by its rate before each normalisation, in training. statistics:
    BatchNorm has no running statistics; those for evaluation are averaged over this many training samples ("all": every
    one; 0: the test batch's own).

    >>> Widths(rates="1/0.5", shares="1/3").rates
    (1.0, 0.5)
    """

    rates: Any = "1/0.5/0.25/0.125/0.0625"
    scaler: bool = True
    statistics: int | str = 2000

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", numbers(self.rates))
        good = bool(self.rates) and all(rate in WIDTH for rate in self.rates)
        check(good, self, "rates", f"numbers such as 1/0.5/0.25, each {WIDTH}", self.rates)
        if self.shares is None:
            object.__setattr__(self, "shares", (1.0,) * len(self.rates))
        super().__post_init__()
        same = len(self.shares) == len(self.rates)
        check(same, self, "shares", f"one for each of the {len(self.rates)} rates", self.shares)
        check(isinstance(self.scaler, bool), self, "scaler", "true or false", self.scaler)
        object.__setattr__(self, "statistics", plain(self.statistics))
        good = self.statistics == "all" or self.statistics in COUNT_OR_ZERO
        check(good, self, "statistics", f"{COUNT_OR_ZERO} or 'all'", self.statistics)

    def levels(self, model: FlatModel, task: Task) -> list[Level | None]:
        return [self._level(model, task, rate) if self.wanted(i) else None for i, rate in enumerate(self.rates)]

    def check(self, model: FlatModel, x: Tensor) -> None:
        least = min(rate for i, rate in enumerate(self.rates) if self.wanted(i))
        if least < 1:
            slicing.narrow(model, x, lambda wide: math.ceil(least * wide - 1e-9))

    def _level(self, model: FlatModel, task: Task, rate: float) -> Level:
        x = task.data.x[:2]
        try:
            index, module = slicing.narrow(model, x, lambda wide: math.ceil(rate * wide - 1e-9))
        except InputError:
            if rate < 1:
                raise
            whole = torch.arange(model.size).to(model.flat.device)  # nothing is cut
            return Level(whole, model.replica(), flops(model, x))
        if self.scaler:
            slicing.scale(module, rate, False, x)
        return level(index, module, model, x)

    def evaluating(self, models: Sequence[FlatModel], task: Task) -> Any:
        size = len(task.data.x) if self.statistics == "all" else int(self.statistics)
        return settled(models, task.data.x, size)
