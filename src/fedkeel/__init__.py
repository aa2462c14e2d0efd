"""Federated learning on an even keel: when devices run out of budget, when their data pull apart, without tuning.

>>> import fedkeel as fk
>>> task = fk.tasks.synthetic()
>>> algo = fk.Algorithm(client=fk.SGD(0.01, momentum=0.9), rules=[fk.Proximal(0.01), fk.Guess()], server=fk.Yogi(0.01))
>>> world = fk.World(cohort=20, budget=fk.UniformSteps(4, 13), expected_steps=18)
>>> run = fk.train(task, algo, world, rounds=3, seed=0)
>>> len(run.history)
4
"""

from importlib import import_module
from typing import Any

from . import tasks
from .aggregate import Nova, Reports, Samples, Uniform
from .algorithm import Algorithm
from .capacity import Exits, Widths
from .capacity.slicing import Cut
from .data import FederatedData
from .engine.ray import Ray
from .engine.threads import Local
from .errors import ClientError, FedkeelError, InputError, MissingExtra, StabilityWarning
from .messages import Plan
from .optim import SGD, SPS, Adagrad, Adam, DeltaSGD, Yogi
from .pace import Buffered, Synchronous
from .recipes import algorithm
from .robust import Krum, Median, MultiKrum, Trimmed
from .rule import End, Me, Rule, Up, View
from .rules import (
    GHBM,
    AdaBest,
    Contrastive,
    Fathom,
    FedADC,
    FedCM,
    FedDyn,
    FedHBM,
    Guard,
    Guess,
    LocalGHBM,
    Mime,
    MimeLite,
    OwnClasses,
    Proximal,
    Scaffold,
    Schedule,
    SelfDistillation,
)
from .run.training import Run, load, resume, train
from .task import Task, cross_entropy
from .version import __version__
from .world import Epochs, FixedSteps, Fleet, UniformSteps, World

LAB = {
    "Comparison": "comparison", "Sweep": "sweep.in_process", "compare": "comparison", "export": "export",
    "sweep": "sweep.in_process",
}  # by public name, its module  # fmt: skip


def __getattr__(name: str) -> Any:
    """The laboratory is imported when one of its public names is used, such as `fk.compare`."""
    if name == "trackers":
        return import_module(f"{__name__}.lab.trackers")
    if name in LAB:
        return getattr(import_module(f"{__name__}.lab.{LAB[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "data"]


__all__ = [
    "GHBM", "SGD", "SPS", "AdaBest", "Adagrad", "Adam", "Algorithm", "Buffered", "ClientError", "Comparison",
    "Contrastive", "Cut", "DeltaSGD", "End", "Epochs", "Exits", "Fathom", "FedADC", "FedCM", "FedDyn", "FedHBM",
    "FederatedData", "FedkeelError", "FixedSteps", "Fleet", "Guard", "Guess", "InputError", "Krum", "Local",
    "LocalGHBM", "Me", "Median", "Mime", "MimeLite", "MissingExtra", "MultiKrum", "Nova", "OwnClasses", "Plan",
    "Proximal", "Ray", "Reports", "Rule", "Run", "Samples", "Scaffold", "Schedule", "SelfDistillation",
    "StabilityWarning", "Sweep", "Synchronous", "Task", "Trimmed", "Uniform", "UniformSteps", "Up", "View", "Widths",
    "World", "Yogi", "__version__", "algorithm", "compare", "cross_entropy", "export", "load", "resume", "sweep",
    "tasks", "trackers", "train",
]  # fmt: skip
