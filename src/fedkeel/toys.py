"""Small tasks for checks and tests: `quadratics`, where theory is exact, and `toy`, a classification task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .data import FederatedData
from .errors import check
from .task import Task, cross_entropy
from .world import UniformSteps, World


class Bowl(nn.Module):
    """One point; the output for a sample (a, b) is .5 sum a (point - b)^2."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.point = nn.Parameter(start.clone())

    def forward(self, sample: Tensor) -> Tensor:
        a, b = sample.unbind(1)
        return 0.5 * (a * (self.point - b) ** 2).sum(1)


def quadratics(a: Any, b: Any, n: Any = None, x0: Any = 0.0) -> Task:
    """Heterogeneous quadratics: f_i(x) = .5 a_i (x - b_i)^2, summed over coordinates if a_i and b_i are rows.

    Client i holds n_i equal samples (default 1) and always uses all of them; the test set is all of them, so the
    test loss is sum_i p_i f_i with p_i = n_i / sum n.

    >>> from fedkeel import train
    >>> task = quadratics(a=[1, 3], b=[1, -1], n=[3, 1], x0=2)
    >>> run = train(task, "fedavg:lr=0.1", World(cohort="all", budget=lambda t, i: (2, 4)[i]), 1, dtype=torch.float64)
    >>> round(run.params.item(), 9)
    1.287575
    """
    rows = [np.asarray(values, dtype=np.float64) for values in (a, b)]
    sides = [values[:, None] if values.ndim == 1 else values for values in rows]
    held = np.ones(len(sides[0]), dtype=np.int64) if n is None else np.asarray(n)
    alike = sides[0].ndim == 2 and sides[0].shape == sides[1].shape and held.shape == (len(sides[0]),)
    check(alike, "quadratics", "b and n", "as long as a", [list(side.shape) for side in sides])
    start = torch.from_numpy(np.broadcast_to(np.asarray(x0, dtype=np.float64), sides[0].shape[1:]).copy())
    owner = np.repeat(np.arange(len(held)), held)
    samples, targets = np.stack(sides, 1)[owner], np.zeros(len(owner))
    data = FederatedData.from_arrays(samples, targets, clients=owner, test=(samples, targets))
    return Task(lambda: Bowl(start), lambda output, target: output, data, name="quadratics", batch_size=None)


def toy(clients: int = 7, seed: int = 0) -> Task:
    """Three classes, a small network, and clients that differ in what they hold and in how much.

    >>> toy().data.sizes(range(7)).tolist()
    [3, 5, 7, 9, 11, 13, 15]
    """
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), 3 + 2 * np.arange(clients))
    y = (random.integers(0, 2, len(owner)) + owner) % 3
    x = random.normal(size=(len(owner), 4)) + np.eye(4)[y] + 0.3 * owner[:, None]
    data = FederatedData.from_arrays(x, y, clients=owner, test=(x[::3], y[::3]))

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    return Task(model, cross_entropy, data, name="toy", batch_size=4, lr=0.05, budget=UniformSteps(1, 4))


class Stairs(nn.Module):
    """Four dense layers in a row with an exit after each: the smallest model that has levels by depth."""

    ratios = (0.5, 0.5, 0.75, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(wide, 6) for wide in (4, 6, 6, 6))
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))

    def exits(self, x: Tensor, depth: int) -> list[Tensor]:
        """The scores at the first exits."""
        out = []
        for step, head in zip(self.steps[:depth], self.heads, strict=False):
            x = step(x).tanh()
            out.append(head(x))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.exits(x, len(self.steps))[-1]


def toy_exits() -> Task:
    """`toy` with a model that has early exits, for algorithms with levels.

    >>> toy_exits().model().ratios
    (0.5, 0.5, 0.75, 1.0)
    """
    return replace(toy(), model=Stairs)


def toy_world() -> World:
    """Four of toy's clients a round, with 1 to 4 steps each, of 9 the server expects."""
    return World(cohort=4, budget=UniformSteps(1, 4))
