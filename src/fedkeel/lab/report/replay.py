"""What no history says but the configuration does: who took part, with how many steps, holding which labels.

Randomness is counted, so the world's draws are made again instead of being stored. Every part is bounded, and where
one cannot be made again it says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...data import FederatedData
from ...data.describe import holdings
from ...errors import FedkeelError, InputError
from ...run.checkpoint import identity_of, load_model
from ...run.config import DTYPES, RunConfig, task_of, world_of
from ...run.evaluation import accuracies as by_client
from ...run.evaluation import worst_tenth
from ...task import Task
from ...world import Ask, Epochs
from .runs import Group, Ran

VISITS = 50_000  # client-rounds that are replayed: about a second
WIDE, TALL = 100, 30  # cells of the label picture; more clients or labels are put in groups
BLOCK = 2**20  # input numbers per forward pass
BARS = 24
LISTED, NAME = 30, 60  # clients in a table; letters of a name
PANELS = ("participation", "budgets", "labels", "accuracies")
IN_PYTHON = (
    "The task of these runs was made in Python, so the panels about clients cannot be drawn from its name. Write the "
    "report in Python to have them: fk.Comparison.read(DIR, task=task).report(FILE)."
)

Panel = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """How many models of an arm are tried, on how many clients, and on how many samples of all of them."""

    seeds: int = 5
    clients: int = 300
    samples: int = 10_000


PAGE, ALL = Limits(), Limits(sys.maxsize, sys.maxsize, sys.maxsize)


def panels(groups: list[Group], given: Task | None = None) -> dict[str, Panel]:
    """The pictures of clients, from the first run (the accuracies: from the runs of every arm).

    given: the task of these runs, if their configuration does not name it.
    """
    first = groups[0].runs[0]
    if given is None and not first.config["rerunnable"] and "task" in first.config.get("why_not", ""):
        return {name: {"why": IN_PYTHON} for name in PANELS}
    task, why = (given, {}) if given is not None else _attempt(lambda: task_of(first.config))
    if task is None:
        missing = {"why": f"The task could not be made again: {why['why']}"}
        return dict.fromkeys(PANELS, missing)
    seen, why = _attempt(lambda: visits(first, task))
    made = dict.fromkeys(("participation", "budgets"), why) if seen is None else seen
    for name, make in (("labels", lambda: labels(task)), ("accuracies", lambda: accuracies(groups, task))):
        panel, why = _attempt(make)
        made[name] = panel or why
    return made


def _attempt(make: Callable[[], Any]) -> tuple[Any, Panel]:
    """What is made, or None and why: a task is not on this machine, or has changed since."""
    try:
        return make(), {}
    except (FedkeelError, OSError, RuntimeError, AttributeError, LookupError, TypeError, ValueError) as error:
        return None, {"why": (str(error) or type(error).__name__).splitlines()[0]}


def visits(run: Ran, task: Task) -> dict[str, Panel]:
    """How often clients took part, and the steps they had, in the rounds of one run."""
    world, data, config = world_of(run.config), task.data, run.config
    if world.fleet is not None or run.config["parameters"].get("pace"):
        raise InputError("Not shown: with devices or without rounds, who reports also depends on time.")
    done = int(run.history[-1]["round"])
    rounds = min(done, max(1, VISITS // world.size(len(data))))
    times, steps = np.zeros(len(data), dtype=np.int64), []
    for t in range(1, rounds + 1):
        cohort = world.who(t, len(data), config["seed"], data.sizes)
        budget = world.steps(Ask(config["seed"], t, cohort, data.sizes(cohort), config["batch_size"]))
        times[cohort[budget > 0]] += 1
        steps.append(budget[budget > 0])
    span = f"seed {config['seed']}, rounds 1 to {rounds}" + (f" of {done}" if rounds < done else "")
    taken = np.concatenate([times[:0], *steps])
    planned = isinstance(world.budget, Epochs)  # an algorithm that plans (FATHOM) replaces such a budget by its own
    return {
        "participation": {
            **histogram(times), "span": span, "clients": len(data), "never": int((times == 0).sum()),
            "least": int(times.min()), "most": int(times.max()), "mean": float(times.mean()),
        },
        "budgets": {**histogram(taken), "span": span, "budget": str(world.budget), "planned": planned},
    }  # fmt: skip


def histogram(values: NDArray[np.int64]) -> Panel:
    """Counts of whole numbers, in at most 24 bars.

    >>> histogram(np.array([1, 1, 3]))
    {'names': ['1', '2', '3'], 'counts': [2, 0, 1]}
    """
    if not len(values):
        return {"names": [], "counts": []}
    low, high = int(values.min()), int(values.max())
    wide = -(-(high - low + 1) // BARS)
    counts = np.bincount((values - low) // wide)
    starts = range(low, high + 1, wide)
    return {"names": [_span(start, min(high, start + wide - 1)) for start in starts], "counts": counts.tolist()}


def labels(task: Task) -> Panel:
    """Shares of labels by client, `cells[label][client]`, in groups where there are too many to draw."""
    held = holdings(task.data)
    if held is None:
        return {"why": "The targets of this task are not class labels."}
    share = held / held.sum(1, keepdims=True)
    clients = np.array_split(np.arange(len(held)), min(WIDE, len(held)))
    classes = np.array_split(np.arange(held.shape[1]), min(TALL, held.shape[1]))
    cells = [[round(float(share[some][:, kinds].sum(1).mean()), 3) for some in clients] for kinds in classes]
    own = (held > 0).sum(1)
    return {
        "cells": cells, "clients": len(held), "labels": held.shape[1],
        "rows": [_named(kinds, task.data.class_names) for kinds in classes],
        "columns": [_named(some, task.data.client_ids) for some in clients],
        "own": [int(own.min()), float(own.mean()), int(own.max())],
    }  # fmt: skip


def _span(first: Any, last: Any) -> str:
    return f"{first}" if first == last else f"{first}–{last}"


def _named(group: NDArray[np.int64], names: Any) -> str:
    """A group of clients or labels, by the names of its first and its last one; by their numbers where there are none.

    >>> _named(np.array([0, 1]), ["healthy", "ill"]), _named(np.array([3]), None)
    ('healthy–ill', '3')
    """
    ends = (group[0], group[-1]) if names is None else (names[group[0]], names[group[-1]])
    return _span(*(str(end)[:NAME] for end in ends))


def accuracies(groups: list[Group], task: Task) -> Panel:
    """The accuracy of every arm's final models on each client's own data, means over seeds: on its test samples where
    some were kept (`client_test`), else on its training data."""
    task = RunConfig.from_config(groups[0].runs[0].config).prepared(task)
    chosen, each = _chosen(task.data, PAGE)
    arms: list[dict[str, Any]] = []
    by_arm: list[NDArray[np.float64] | None] = []
    for group in groups:
        values, why = _attempt(partial(_by_seed, group, task, PAGE))
        by_arm.append(None if values is None else values.mean(0))
        arms.append(why if values is None else _summary(values))
    return {
        "arms": arms, "clients": len(chosen), "of": len(task.data), "samples": each,
        "tenth": max(1, len(chosen) // 10), "held_out": task.data.client_test is not None,
        "table": _lowest_first(by_arm, task.data, PAGE)[:LISTED],
    }  # fmt: skip


def every_client(groups: list[Group], given: Task | None = None) -> list[Panel]:
    """Every client with its own test samples: its name, how many these are, and the mean accuracy of every arm over all
    seeds; the lowest first. given: the task of these runs, if their configuration does not name it."""
    config = groups[0].runs[0].config
    task = RunConfig.from_config(config).prepared(
        given or task_of(config, "fk.Comparison.read(DIR, task=task) takes it")
    )
    if task.data.client_test is None:
        raise InputError("These runs kept no test samples of each client; run them with --client-test 0.2.")
    if identity_of(task.data)[:16] != config.get("task_parts", {}).get("data_checksum"):
        raise InputError("The data have changed since these runs, so which samples they were tested on is not known.")
    found = [_attempt(partial(_by_seed, group, task, ALL)) for group in groups]
    by_arm = [None if values is None else values.mean(0) for values, _ in found]
    if all(values is None for values in by_arm):
        raise InputError(found[0][1]["why"])
    return _lowest_first(by_arm, task.data, ALL)


def _by_seed(group: Group, task: Task, limits: Limits) -> NDArray[np.float64]:
    """The accuracies `[seeds, clients]` of an arm's models."""
    runs = (group.complete or group.runs[:1])[: limits.seeds]
    return np.stack([client_accuracies(run, task, limits) for run in runs])


def _summary(values: NDArray[np.float64]) -> dict[str, Any]:
    """An arm's clients in numbers: statistics of each seed, then their mean, as the history has them."""
    return {
        "seeds": len(values), "sorted": [round(float(v), 4) for v in np.sort(values.mean(0))],
        "mean": float(values.mean()), "median": float(np.median(values, 1).mean()),
        "worst": float(np.mean([worst_tenth(row) for row in values])), "spread": float(values.std(1).mean()),
    }  # fmt: skip


def _lowest_first(by_arm: list[NDArray[np.float64] | None], data: FederatedData, limits: Limits) -> list[Panel]:
    """The clients by their accuracy, mean over arms, and on how many samples these are."""
    known = [values for values in by_arm if values is not None]
    if not known:
        return []
    chosen, each = _chosen(data, limits)
    tried = np.minimum(np.diff(_own_offsets(data))[chosen], each)
    order = np.argsort(np.mean(known, 0), kind="stable").tolist()
    return [
        {"name": str(data.client_ids[chosen[row]])[:NAME], "samples": int(tried[row]),
         "values": [None if values is None else round(float(values[row]), 4) for values in by_arm]}
        for row in order
    ]  # fmt: skip


def _own_offsets(data: FederatedData) -> NDArray[np.int64]:
    """Where the samples begin on which each client is tried: its test samples, else its training data."""
    return data.offsets if data.client_test_offsets is None else data.client_test_offsets


def _chosen(data: FederatedData, limits: Limits) -> tuple[NDArray[np.int64], int]:
    """The clients on which models are tried, and how many samples of each at most."""
    offsets = _own_offsets(data)
    able = np.flatnonzero(np.diff(offsets))
    clients = able[np.unique(np.linspace(0, len(able) - 1, min(limits.clients, len(able))).astype(np.int64))]
    return clients, max(20, limits.samples // len(clients))


@torch.no_grad()
def client_accuracies(run: Ran, task: Task, limits: Limits = PAGE) -> NDArray[np.float64]:
    """Of the saved model, on each client's own samples."""
    if run.status == "diverged":
        raise ValueError(f"The run with seed {run.config['seed']} diverged.")
    parameters = run.config.get("parameters", {})
    if parameters.get("capacity") is not None:
        raise ValueError("The saved model is the whole net, of which levels train parts; it is not the tested model.")
    if any(rule.get("evaluate") == "cohort" for rule in parameters.get("rules", [])):
        raise ValueError("The mean of the cohort's models was tested; the saved model is the server's.")
    dtype = DTYPES[run.config["dtype"]]
    cast = task.cast(dtype, "cpu")
    model = cast.adopt(run.config["seed"], dtype, "cpu")
    load_model(run.folder, model)
    model.module.eval()
    data, (chosen, each) = cast.data, _chosen(cast.data, limits)
    x, y = data.client_test or (data.x, data.y)
    offsets = _own_offsets(data)
    sizes = np.minimum(np.diff(offsets)[chosen], each)
    rows = [np.arange(n) + offsets[c] for c, n in zip(chosen, sizes, strict=True)]
    index = torch.from_numpy(np.concatenate(rows))
    block = max(1, BLOCK // max(1, x[0].numel()))
    outputs = torch.cat([model.module(x[part]) for part in torch.split(index, block)])
    found = by_client(cast, outputs, y[index], np.concatenate([[0], np.cumsum(sizes)]))
    if found is None or np.isnan(found).any():
        raise ValueError("This task has no accuracy.")
    return found
