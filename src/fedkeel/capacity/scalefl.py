"""ScaleFL: narrower and shallower copies that end in early exits."""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from ..errors import InputError, check
from ..flat import FlatModel
from ..task import Task
from . import slicing
from .exits import Heads, MultiExit
from .levels import WIDTH, Capacity, Level, level, numbers


@dataclass(frozen=True)
class Exits(Capacity):
    """ScaleFL: level l trains the first l exits of a narrower model (Ilhan, Su & Liu 2023).

        loss = sum_l l loss(z_l) / (L (L + 1) / 2),    z_l the scores at exit l of the client's L

    ratios: of widths (floor), by level; default the model's own. The model has `exits(x, depth)`, the scores at its
    first `depth` exits, and `ratios`; with `narrowed(ratio)` it may say itself how wide a level is. scaler: activations
    are divided by the ratio before each normalisation, always, but not in shortcuts.

    >>> Exits(shares="1/0/0/0").shares
    (1.0, 0.0, 0.0, 0.0)
    """

    ratios: Any = None
    scaler: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratios", numbers(self.ratios))
        if self.shares is None:
            object.__setattr__(self, "shares", (1.0,) * len(self.ratios or (0.7, 0.7, 0.75, 1)))
        super().__post_init__()
        good = self.ratios is None or (bool(self.ratios) and all(ratio in WIDTH for ratio in self.ratios))
        check(good, self, "ratios", f"numbers such as 0.7/0.7/0.75/1, each {WIDTH}", self.ratios)
        check(isinstance(self.scaler, bool), self, "scaler", "true or false", self.scaler)

    def trained(self, task: Task) -> Task:
        return replace(task, loss=MultiExit(task.loss))

    def levels(self, model: FlatModel, task: Task) -> list[Level | None]:
        x, ratios = task.data.x[:2], self._ratios(model.module)
        return [self._level(model, x, i + 1, ratio) if self.wanted(i) else None for i, ratio in enumerate(ratios)]

    def check(self, model: FlatModel, x: Tensor) -> None:
        self._ratios(model.module)

    def _ratios(self, module: nn.Module) -> tuple[float, ...]:
        ratios = numbers(self.ratios or getattr(module, "ratios", None))
        if not callable(getattr(module, "exits", None)) or ratios is None:
            raise InputError(
                f"Levels by depth need a model with early exits, and {type(module).__name__} has none; use heterofl, "
                "level=a..e, or a model with exits(x, depth) and ratios, such as exit_net, resnet110_exits or msdnet24."
            )
        if len(ratios) != len(self.shares):
            raise InputError(f"The model has {len(ratios)} levels; give shares for each, not {len(self.shares)}.")
        return ratios

    def _level(self, model: FlatModel, x: Tensor, depth: int, ratio: float) -> Level:
        width = (lambda wide: wide) if ratio == 1 else (lambda wide: max(1, math.floor(ratio * wide + 1e-9)))
        narrowed = getattr(model.module, "narrowed", None)
        like = narrowed(ratio) if callable(narrowed) else None
        index, module = slicing.narrow(model, x, width, lambda module: Heads(module, depth), like)
        if self.scaler and getattr(model.module, "scaled", True):
            slicing.scale(module, ratio, True, x, shortcuts=False)
        return level(index, module, model, x)

    def scores(self, task: Task, output: Tensor, target: Tensor) -> dict[str, float | None]:
        at = {f"accuracy_exit{i}": task.accuracy(z, target) for i, z in enumerate(output.unbind(1), 1)}
        return {"accuracy": at[f"accuracy_exit{output.shape[1]}"]} | at
