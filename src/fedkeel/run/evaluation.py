"""What a history row says about a model: on test and validation samples, and on each client's own test samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..engine import Engine
from ..round import Job, State
from ..rule import returned
from ..task import Task

Scores = dict[str, float | None]
CLIENT_COLUMNS = ("client_accuracy", "client_accuracy_worst", "client_accuracy_spread")


def evaluate(job: Job, state: State, engine: Engine, wanted: bool) -> Scores:
    """The columns of all sets of samples that there are; empty where no evaluation is wanted."""
    data = job.task.data
    sets = {"": data.test} | ({} if data.validation is None else {"validation_": data.validation})
    if not wanted:
        columns = [prefix + column for prefix, column in product(sets, ("loss", "accuracy"))]
        return dict.fromkeys(columns + list(CLIENT_COLUMNS if data.client_test is not None else ()))
    models = {"": state.x}
    for rule in job.algorithm.hooks["models"]:
        models = returned(rule, "models", rule.models(state.x, state.rules[rule.slot]))
    scores: Scores = {}
    for prefix, samples in sets.items():
        for name, x in models.items():
            score = engine.evaluate(job.task, x, state.buffers, samples)
            suffix = f"_{name}" if name else ""
            scores |= {f"{prefix}{column}{suffix}": value for column, value in score.items()}
    if data.client_test is not None:
        each = ByClient(job.task)
        engine.evaluate(replace(job.task, metric=each), models[""], state.buffers, data.client_test)
        scores |= summary(each.values)
    return scores


@dataclass
class ByClient:
    """A metric on the clients' own test samples that keeps the accuracy of each client."""

    task: Task
    values: NDArray[np.float64] | None = field(default=None, init=False)

    def __call__(self, output: Tensor, target: Tensor) -> float:
        offsets = self.task.data.client_test_offsets
        assert offsets is not None
        self.values = accuracies(self.task, output, target, offsets)
        return np.nan if self.values is None else float(self.values.mean())


def accuracies(task: Task, output: Tensor, target: Tensor, offsets: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """The accuracy of each client that has samples here; None where the task has no accuracy."""
    starts = offsets[:-1][np.diff(offsets) > 0]
    if task.metric is None:
        right = task.right(output, target)
        if right is None:
            return None
        own = right.reshape(len(right), -1).double().mean(1).cpu().numpy()
        return np.asarray(np.add.reduceat(own, starts) / np.diff([*starts, len(own)]), dtype=np.float64)
    ends = [*starts[1:], len(output)]
    found = [task.accuracy(output[begin:end], target[begin:end]) for begin, end in zip(starts, ends, strict=True)]
    return np.array(found, dtype=np.float64)


def summary(values: NDArray[np.float64] | None) -> Scores:
    """Mean, mean of the worst tenth of the clients, and deviation between clients.

    >>> summary(np.array([0.5, 0.9, 1.0, 1.0]))["client_accuracy_worst"]
    0.5
    """
    if values is None or not np.isfinite(values).all():
        return dict.fromkeys(CLIENT_COLUMNS)
    numbers = values.mean(), worst_tenth(values), values.std()
    return dict(zip(CLIENT_COLUMNS, map(float, numbers), strict=True))


def worst_tenth(values: NDArray[np.float64]) -> float:
    """The mean of the lowest tenth, of one value at least."""
    return float(np.sort(values)[: max(1, len(values) // 10)].mean())
