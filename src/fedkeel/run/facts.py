"""What a configuration keeps of a task and a world, so that a number can be judged where neither is at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.describe import label_count
from ..messages import Broadcast, Work
from ..round import Job
from ..task import Task
from ..world.clock import Clock
from .dry_run import asked_of_all


def facts_of(job: Job, dtype: torch.dtype) -> dict[str, Any]:
    """The keys `tested` and `cut` of a run's `config.json`, as far as there is a test set, and a deadline."""
    tested, cut = tested_on(job.task), cut_share(job, dtype)
    return ({"tested": tested} if tested else {}) | ({} if cut is None else {"cut": cut})


def tested_on(task: Task) -> dict[str, Any]:
    """How many samples and clients the model is tested on, whether they are a share that was drawn, and what a model
    that looks at no input scores on them."""
    data = task.data
    known: dict[str, Any] = {} if data.test is None else {"samples": len(data.test[0]), **base_rate(task)}
    if data.client_test_offsets is not None:
        known["clients"] = int((np.diff(data.client_test_offsets) > 0).sum())
    return known | ({"drawn": True} if known and data.test_drawn else {})


def base_rate(task: Task) -> dict[str, Any]:
    """The test accuracy of always predicting the most frequent training label; nothing where there is no accuracy.

    >>> import fedkeel as fk
    >>> data = fk.FederatedData.from_arrays([[0.0]] * 3, [0, 1, 1], [0, 0, 0], test=([[0.0]] * 4, [1, 1, 1, 0]))
    >>> base_rate(fk.Task(lambda: torch.nn.Linear(1, 2), torch.nn.functional.cross_entropy, data))
    {'base_label': '1', 'base_rate': 0.75}
    """
    data = task.data
    elsewhere = len(data.y) > 1 and data.y.stride(0) == 0  # one sample stands for those that clients keep
    if task.metric is not None or elsewhere or label_count(data) is None or data.test is None:
        return {}
    target = data.test[1]
    if target.is_floating_point() or target.ndim != 1:
        return {}
    label = int(torch.bincount(data.y.cpu().long()).argmax())
    name = str(label) if data.class_names is None else data.class_names[label]
    return {"base_label": name, "base_rate": float((target == label).double().mean())}


def cut_share(job: Job, dtype: torch.dtype) -> float | None:
    """The share of all clients that the deadline keeps from doing all steps of FedAvg's round; None without one."""
    if job.clock is None or job.clock.deadline is None:
        return None
    work, broadcast = asked_of_all(job.task, job.world, job.seed, job.batch_size, dtype)
    return float(are_cut(job.clock, broadcast, work).mean())


def are_cut(clock: Clock, broadcast: Broadcast, work: Work) -> NDArray[np.bool_]:
    """Which of these clients the deadline keeps from doing all of their steps."""
    return np.asarray(clock.trips(broadcast, work).steps < work.steps)
