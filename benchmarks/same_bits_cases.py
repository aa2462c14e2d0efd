"""The cases of same_bits.py: algorithms, tasks of a few clients, and engines; made with fedkeel's public API alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from models import Block, LastCharacter
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.recipes import RECIPES

COMBINATIONS = (
    "fedprox+fedyogi", "fedprox:mu=1+fedavgm", "scaffold+fedprox", "scaffold:option=1",
    "scaffold:control=gradient_mean", "scaffold:rebuild=true", "scaffold+gel:momentum=0", "fedhbm+fedadam",
    "fedhbm:scale=elapsed", "fedhbm:first=shared", "fedhbm:first=random", "localghbm:scale=elapsed",
    "ghbm:nesterov_push=true", "ghbm:warmup=clamp",
    "ghbm:warmup=truncate", "ghbm:tau=1", "fednova:momentum=0.9", "fednova:momentum=0.9+gel", "fednova+fedprox",
    "fednova:tau_eff=steps", "gel:client=adam", "gel:steps=25%", "gel:steps=inf", "gel:proxy=last", "gel:nesterov=true",
    "deltasgd:momentum=0.9", "deltasgd:momentum=0.9+gel", "deltasgd+mime", "deltasgd+fedprox",
    "deltasgd:batch_mode=consecutive", "deltasgd:first_step=eta0", "sps:max=1", "sps:max=1+fedprox", "sps:smooth=true",
    "fedavg:client=adam", "fedavg:client=adagrad", "fedavg:momentum=0.9,nesterov=true", "fedavg:clip=0.1",
    "fedavg:weight_decay=0.01", "fedavg:clip=0.1,weight_decay=0.01,momentum=0.9", "fedavg:decay=step",
    "fedavg:weights=uniform", "fedavg:server_lr=0.5", "fedavg:momentum=0.9,server_lr=match-gel",
    "fedavg:buffers=server",
    "fedadam:bias_correction=true", "feddyn:adaptive=true", "feddyn:evaluate=cohort", "mime:convention=paper",
    "mimemom:convention=paper", "mimelitemom:convention=paper", "mime+fedprox", "fathom:steps=floor", "moon+fedprox",
    "moon+scaffold", "fedavg:lr=1e30",
)  # fmt: skip
LEVELS = (
    "heterofl", "heterofl+gel", "heterofl+fedprox", "heterofl:mask=false", "heterofl:scaler=false",
    "heterofl:statistics=0", "heterofl:rates=1/0.5,shares=1/3", "heterofl:assign=dynamic", "heterofl:weights=samples",
    "scalefl", "scalefl+gel", "scalefl:scaler=false", "scalefl:gamma=0", "scalefl:after=0", "scalefl:shares=1/0/0/1",
    "scalefl:assign=dynamic", "fedavg:level=1", "fedavg:level=3", "fedavg:level=a", "fedavg:level=c",
    "scaffold:level=b", "fedadam:level=b", "fedavg", "gel",
)  # fmt: skip
FEW = (
    "fedavg",
    "fedavg:client=adam",
    "gel",
    "scaffold+fedprox",
    "fedhbm",
    "deltasgd",
    "mimemom",
    "moon",
    "sps",
    "feddyn",
)
UNEVEN = fk.World(cohort=6, budget=fk.UniformSteps(1, 4))  # clients leave lockstep at different steps
WORLDS = {  # by the word for them in a case's name
    "absent": fk.World(cohort=6, budget=fk.UniformSteps(0, 2), expected_steps=5),  # some take no part
    "epochs": fk.World(cohort=6, budget=fk.Epochs(1.5), expected_steps=60, sampler="weighted"),
    "cyclic": fk.World(cohort=0.3, budget=fk.FixedSteps(3), expected_steps=5, sampler="cyclic"),
}


class FourExits(nn.Module):
    """Convolutions with a classifier after each, for algorithms with levels."""

    ratios = (0.5, 0.5, 0.75, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(wide, 8, 3, padding=1), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU())
            for wide in (1, 8, 8, 8)
        )
        self.heads = nn.ModuleList(nn.Linear(8, 10) for _ in self.stages)

    def exits(self, x: Tensor, depth: int) -> list[Tensor]:
        scores = []
        for stage, head in list(zip(self.stages, self.heads, strict=True))[:depth]:
            x = stage(x)
            scores.append(head(x.mean((-2, -1))))
        return scores

    def forward(self, x: Tensor) -> Tensor:
        return self.exits(x, len(self.stages))[-1]


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
    )


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 10))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))


def residual() -> nn.Module:
    # At least 8 channels: torch 2.13 writes past its memory in the gradient of a 1x1 convolution of stride 2 with 4
    # input channels that lie last in memory, as fedkeel lays them.
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


def lstm() -> nn.Module:
    return LastCharacter(12, embedding=4, hidden=8)


@cache
def text() -> fk.FederatedData:
    """Random characters of ten clients; the next one is the last one again."""
    x = torch.from_numpy(np.random.default_rng(3).integers(0, 12, (200, 6)))
    return fk.FederatedData(x, x[:, -1].clone(), np.arange(0, 201, 20), test=(x[:40], x[:40, -1]))


def digits(model: Callable[[], nn.Module] | None = None) -> fk.Task:
    """Ten clients, so that in a few rounds they come again and their memories are used."""
    task = fk.tasks.digits(clients=10)
    return task if model is None else replace(task, model=model, name=model.__name__, lr=0.05)


TASKS: dict[str, Callable[[], fk.Task]] = {
    "synthetic": lambda: fk.tasks.synthetic(users=10),
    "digits": digits,
    "cnn": lambda: digits(cnn),
    "normalised": lambda: digits(normalised),
    "dropout": lambda: digits(dropout),
    "residual": lambda: digits(residual),
    "exits": lambda: digits(FourExits),
    "lstm": lambda: fk.Task(lstm, fk.cross_entropy, text(), "lstm", batch_size=5, lr=0.1),
}


@dataclass(frozen=True)
class Case:
    """One run; its name ends in the number type."""

    algorithm: str
    of: str  # the task
    mode: str
    workers: int
    chunk: int | None
    dtype: str = "float32"
    kind: str = ""  # of the world
    batch_size: int | None = None

    @property
    def name(self) -> str:
        chunk = f"/{self.chunk}" if self.chunk else ""
        parts = [self.algorithm, self.of, self.mode, f"{self.workers}{chunk}", self.kind, self.dtype]
        return " ".join(part for part in parts if part)

    @property
    def world(self) -> fk.World:
        return WORLDS[self.kind] if self.kind else UNEVEN

    def task(self) -> fk.Task:
        return TASKS[self.of]()

    def engine(self) -> fk.Local:
        return fk.Local(self.mode, workers=self.workers, chunk=self.chunk, compile=False)


def cases() -> Iterator[Case]:
    """All of them, those of one algorithm together."""
    for algorithm in dict.fromkeys([*RECIPES, *(f"{name}+gel" for name in RECIPES if name != "gel"), *COMBINATIONS]):
        yield Case(algorithm, "synthetic", "serial", 1, None)
        yield Case(algorithm, "synthetic", "batched", 2, 4)
        yield Case(algorithm, "synthetic", "batched", 1, 4, "float64")
        yield Case(algorithm, "digits", "batched", 1, None)
        yield Case(algorithm, "cnn", "serial", 2, 2)
        yield Case(algorithm, "cnn", "batched", 2, 4)
        yield Case(algorithm, "normalised", "serial", 2, None)
    for algorithm in LEVELS:
        yield Case(algorithm, "exits", "serial", 2, None)
        if algorithm in ("heterofl", "heterofl+gel", "scalefl", "fedavg:level=1", "fedavg:level=c"):
            yield Case(algorithm, "exits", "batched", 2, 4)
            yield Case(algorithm, "exits", "batched", 1, 4, "float64")
    for algorithm in FEW:
        for task in ("dropout", "residual", "lstm"):
            yield Case(algorithm, task, "serial", 2, None)
            yield Case(algorithm, task, "batched", 1, 4)
        yield Case(algorithm, "normalised", "serial", 1, None, "float64")
        yield Case(algorithm, "normalised", "batched", 1, 4)
        for kind in WORLDS:
            yield Case(algorithm, "digits", "serial", 2, 2, kind=kind)
            yield Case(algorithm, "digits", "batched", 2, 4, kind=kind)
        yield Case(algorithm, "digits", "batched", 2, 4, "float64", batch_size=3)
        yield Case(algorithm, "cnn", "batched", 1, 4, "float64")
