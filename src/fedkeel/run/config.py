"""The configuration of a run: every plain setting once, and the contents of `config.json`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import recipes
from ..algorithm import Algorithm
from ..data.describe import describe
from ..engine import Engine
from ..engine.places import MUST, may_be_named
from ..errors import InputError
from ..flat import FlatModel
from ..pretrained import checksum_of
from ..ranges import COUNT, SEED, Range
from ..round import Job
from ..rules import Schedule, SelfDistillation
from ..settings import (
    NUMBER,
    POSITIVE,
    SWITCH,
    Kind,
    check_settings,
    from_file,
    integer,
    number,
    one_of,
    setting,
    settings,
)
from ..task import Task
from ..version import __version__
from ..world import World
from .facts import facts_of

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def is_here(device: Any) -> bool:
    """Whether this is a device of this machine, such as "cpu" or "cuda:1", that torch can train on."""
    if not isinstance(device, str) or not re.fullmatch(r"cpu|(cuda|mps|xpu)(:\d{1,3})?", device):
        return False  # torch knows others, such as "meta", which holds no numbers
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # not compiled in, or missing
        return False
    return True


DTYPE = one_of(DTYPES, " or ".join(DTYPES))
DEVICE = Kind(str, is_here, "'cpu', or 'cuda' or 'mps' where this machine and its torch have one")
SHARE = number(Range(0, 0.9))
SIM_SECONDS = Range(1e-9, 1e12)
BY_ROUNDS = (Schedule, SelfDistillation)  # rules that depend on how many rounds there will be


def _read_every(text: str) -> int | str:
    return text if text.endswith("s") else int(text)


def sim_interval(every: int | str) -> float | None:
    """60 of "60s"; None for a number of rounds.

    >>> sim_interval("60s"), sim_interval(5)
    (60.0, None)
    """
    if not isinstance(every, str) or not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?s", every):
        return None
    return float(every[:-1])


def _may_be_every(every: Any) -> bool:
    return every in COUNT or sim_interval(every) in SIM_SECONDS


EVERY = Kind(_read_every, _may_be_every, f"{COUNT}, or simulated seconds such as '60s'")
ENGINE = Kind(str, may_be_named, MUST)


@dataclass(frozen=True, kw_only=True)
class SharedConfig:
    """The settings that all runs of a comparison share: every plain setting but the seed.

    A new line here is a keyword of `train`, a flag of `fedkeel run` and `fedkeel sweep`, a key of every `config.json`
    that `resume` and `--config` keep, and a key of the panels of `fedkeel reproduce`.
    """

    rounds: int = setting(200, integer(), "rounds to train", "N")
    batch_size: int | None = setting(None, integer(), "samples in a batch; default the task's", "B")
    lr: float | None = setting(None, POSITIVE, "client rate of algorithms that set none; default the task's")
    target: float | None = setting(None, NUMBER, "count rounds to this accuracy; default the task's", "ACCURACY")
    eval_every: int | str = setting(1, EVERY, "evaluate every K rounds, or every 60s of simulated time", "K|Ts")
    eval_last: int | None = setting(None, integer(), "evaluate every one of the last N rounds, too", "N")
    eval_samples: int | None = setting(None, integer(), "evaluate on a fixed draw of N test samples", "N")
    validation: float = setting(
        0.0, SHARE, "keep this share of every client's data for validation: not trained on, evaluated", "SHARE"
    )
    client_test: float = setting(
        0.0, SHARE, "keep this share of every client's data to test on each client: not trained on or tuned by", "SHARE"
    )
    sim_seconds: float | None = setting(
        None, number(SIM_SECONDS), "stop at the first server step after T simulated seconds, whatever rounds says", "T"
    )
    engine: str = setting("auto", ENGINE, "serial, batched, auto (by model and task), probe or ray", "ENGINE")
    compile: bool = setting(False, SWITCH, "train by C kernels where there are some; needs a C compiler")
    device: str = setting("cpu", DEVICE, "cpu, cuda or mps")
    dtype: str = setting("float32", DTYPE, "float32 or float64")
    checkpoint_every: int = setting(10, integer(), "save what resume needs every K rounds", "K", keyword="every")
    diagnose: int | None = setting(
        None, integer(), metavar="K", alone=10,
        help="measure drift, dissimilarity, momentum every K rounds; costs gradients, changes no result",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self, "train")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def plain(self) -> dict[str, Any]:
        """The settings as `config.json` has them."""
        return {name: getattr(self, name) for name in settings(type(self))}

    def ends(self, round: int, now: float) -> bool:
        """Whether the run ends with this round, `now` the simulated time after it."""
        return round >= self.rounds if self.sim_seconds is None else now >= self.sim_seconds

    def evaluates(self, round: int, before: float = 0.0, now: float = 0.0) -> bool:
        """Whether the model is evaluated after this round; before, now: the simulated time at its begin and end."""
        interval = sim_interval(self.eval_every)
        if interval is not None:
            due = now // interval > before // interval
        else:
            assert isinstance(self.eval_every, int)
            due = round % self.eval_every == 0
        last = self.sim_seconds is None and round > self.rounds - (self.eval_last or 1)
        return due or last or self.ends(round, now)

    def check_fit(self, job: Job) -> None:
        """Refuse settings that mean nothing for this job."""
        if self.diagnose is not None and job.algorithm.capacity is not None:
            raise InputError("A diagnosis compares clients of one model; leave out diagnose if devices differ in size.")
        if self.diagnose is not None and job.clock is not None:
            raise InputError("A diagnosis replays whole cohorts; leave out diagnose with a fleet or without rounds.")
        timed = {"sim_seconds": self.sim_seconds, "eval_every": sim_interval(self.eval_every)}
        for name, value in timed.items():
            if value is not None and job.world.fleet is None:
                raise InputError(f"'{name}' is in simulated seconds, and only devices take time; give a fleet.")
        if self.sim_seconds is not None and self.eval_last is not None:
            raise InputError("The last rounds of a run that ends by the clock are not known; leave out eval_last.")
        if self.sim_seconds is not None and any(isinstance(rule, BY_ROUNDS) for rule in job.algorithm.rules):
            raise InputError("A decay and ScaleFL need the number of rounds; give rounds and no sim_seconds.")

    def prepared(self, task: Task) -> Task:
        """The task as a run uses it: without the samples for tests of clients and for validation, with the test samples
        that are evaluated."""
        own = task.held_out(self.client_test or task.client_test, "client_test")
        return own.held_out(self.validation, "validation").tested_on(self.eval_samples)

    def adjusted(self, task: Task) -> Task:
        """The task with the rate and the target of these settings."""
        if self.lr is None and self.target is None:
            return task
        return replace(task, lr=self.lr or task.lr, target=task.target if self.target is None else self.target)


@dataclass(frozen=True, kw_only=True)
class RunConfig(SharedConfig):
    """Every plain setting of a run.

    >>> RunConfig(rounds=5).plain()["rounds"], RunConfig.from_keywords({"every": 3}).checkpoint_every
    (5, 3)
    >>> RunConfig(rounds=0)
    Traceback (most recent call last):
    fedkeel.errors.InputError: The 'rounds' parameter of train must be an integer in [1, 1e9]. Got 0 instead.
    """

    seed: int = setting(0, number(SEED), "seed of every random draw, with --seeds the first one", "N")

    @classmethod
    def from_keywords(cls, given: dict[str, Any]) -> RunConfig:
        """The settings that keywords of `train` describe."""
        names = {one.keyword or name: name for name, one in settings(cls).items()}
        for keyword, value in given.items():  # an error names the keyword that the user wrote
            settings(cls)[names[keyword]].check("train", keyword, value)
        return cls(**{names[keyword]: value for keyword, value in given.items()})

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RunConfig:
        """The settings of a run's `config.json`, also of one that an earlier version wrote."""
        return cls(**from_file(cls, config))

    def keywords(self) -> dict[str, Any]:
        """The settings as keywords of `train`."""
        return {one.keyword or name: getattr(self, name) for name, one in settings(type(self)).items()}


def configuration(job: Job, engine: Engine, chosen: RunConfig, parts: dict[str, Any]) -> dict[str, Any]:
    """The contents of a run's `config.json`: the settings, with every default filled in; parts: see `parts_of`."""
    task = job.task
    cannot = []
    if task.spec is None:
        cannot.append("the task was made from Python objects")
    if not recipes.nameable(job.algorithm):
        cannot.append("the algorithm has user-defined parts")
    if job.world.parameters()["budget"] is None:
        cannot.append("the budget is a Python function")
    plain = chosen.plain()
    deadline = None if job.clock is None else job.clock.deadline
    del plain["lr"]  # the algorithm's parameters have the rate that is used
    return {
        "fedkeel": __version__,
        "task": task.title,
        "task_parts": parts,
        "data": describe(task.data),
        "algorithm": job.algorithm.spec or job.algorithm.title,
        "parameters": job.algorithm.parameters(),
        "world": job.world.parameters(),
        **plain,
        "batch_size": job.batch_size,
        "device": str(task.data.x.device),
        "engine": engine.name,
        "engine_reason": engine.reason,
        "chunk": engine.chunk,
        "compile": engine.compiled,
        "target": task.target,
        **start_of(task),
        **({} if deadline is None else {"deadline_seconds": deadline}),  # in the world it may be a percentile
        **facts_of(job, chosen.torch_dtype),
        "rerunnable": not cannot,
        **({"why_not": "; ".join(cannot)} if cannot else {}),
    }


def parts_of(task: Task, model: FlatModel, checksum: str) -> dict[str, Any]:
    """What a task is made of, as far as it has names: model, loss and partition; checksum: of its data."""
    loss = task.loss
    while isinstance(loss, partial):
        loss = loss.func
    return {
        "model": type(model.module).__name__,
        "parameters": model.flat.numel(),
        "loss": getattr(loss, "__name__", type(loss).__name__),
        **task.data.dealt,
        "data_checksum": checksum[:16],
    }


def start_of(task: Task) -> dict[str, str]:
    """The checksum of the file that a task's model starts from, for the configuration; nothing if there is none."""
    return {} if task.pretrained is None else {"pretrained": checksum_of(Path(task.pretrained))}


def check_start(config: dict[str, Any], task: Task) -> None:
    """Refuse to go on with a task whose model starts from another file than the run's did."""
    known, found = config.get("pretrained"), start_of(task).get("pretrained")
    if known != found:
        own = "from no file" if known is None else f"from a file with the checksum {known[:12]}"
        this = "names no file" if found is None else f"has {task.pretrained} with the checksum {found[:12]}"
        raise InputError(f"This run's model started {own}; the task {this}.")


def task_of(config: dict[str, Any], else_do: str = "give task= in Python") -> Task:
    """The task that a run's configuration names; else_do: what to do where it names none."""
    from .. import tasks

    if not config["rerunnable"] and "task" in config.get("why_not", ""):
        raise InputError(f"This run's task cannot be made from its name ({config['why_not']}); {else_do}.")
    return tasks.get(config["task"])


def algorithm_of(config: dict[str, Any]) -> Algorithm:
    """The algorithm that a run's configuration describes."""
    if not config["rerunnable"] and "algorithm" in config.get("why_not", ""):
        raise InputError(f"This run's algorithm cannot be named ({config['why_not']}); give algorithm=.")
    return recipes.rebuild(config["parameters"], config["algorithm"])


def world_of(config: dict[str, Any]) -> World:
    """The world that a run's configuration describes."""
    if config["world"]["budget"] is None:
        raise InputError("This run's budget was a Python function; give world=.")
    return World.from_parameters(config["world"])
