"""Comparisons: several algorithms on one task with paired seeds, each run in a directory of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from .. import recipes, tasks
from ..algorithm import Algorithm
from ..capacity import Capacity
from ..engine import Place
from ..engine.places import moved, place_of
from ..engine.threads import Local, one_thread
from ..errors import InputError, check, one_line
from ..files import read_json, write_json
from ..ranges import REPEATS
from ..run import training
from ..run.callbacks import Callback
from ..run.checkpoint import Known, check_model, ended, read_config
from ..run.config import RunConfig, SharedConfig
from ..run.folder import CONFIG, HISTORY, locked
from ..run.history import History, Row
from ..settings import from_file
from ..task import Task
from ..version import __version__
from ..world import World
from . import trackers
from .compare import summary
from .stats import Arm


@dataclass(frozen=True)
class Given:
    """A task and algorithms made in Python, by the names that a study has for them; config: what describes them."""

    task: Task
    algorithms: Mapping[str, Algorithm]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Study(SharedConfig):
    """What a comparison runs: every algorithm with every seed, all else equal.

    >>> study = Study("synthetic", ["fedavg", "gel"], rounds=5, seeds=[0, 1])
    >>> [str(folder) for _, _, folder in study.plan()]
    ['fedavg/seed-0', 'fedavg/seed-1', 'gel/seed-0', 'gel/seed-1']
    """

    task: str
    algorithms: Sequence[str]
    world: World = field(default_factory=World)
    seeds: Sequence[int] = (0,)
    why: str | None = None  # what a probe measured
    track: Sequence[str] = ()  # trackers, as `NAME[:DIR]`; they see the runs and are no part of the configuration
    chunk: int | None = None  # of a single run that is repeated bit for bit
    parameters: Mapping[str, Any] | None = None  # of a single algorithm that is repeated value for value
    workers: int | None = None  # threads of a run, by default one per core
    given: Given | None = None  # made in Python, in the place of what the names stand for
    elsewhere: str | None = None  # the engine that its runs go on with, in the place of the one they were begun with
    below: bool = False  # read from a comparison's configuration: even a single run has a folder of its own

    def __post_init__(self) -> None:
        check(isinstance(self.task, str), "run", "task", "a text", self.task)
        texts = isinstance(self.algorithms, list | tuple) and all(isinstance(text, str) for text in self.algorithms)
        check(texts and len(self.algorithms) > 0, "run", "algorithms", "a list of at least one", self.algorithms)
        some = isinstance(self.seeds, Sequence) and len(self.seeds) in REPEATS
        check(some, "run", "seeds", f"a list of 1 to {REPEATS.most:,} seeds", self.seeds)
        names = [folder_name(text) for text in self.algorithms]
        found = Counter(names)
        for text, name in zip(self.algorithms, names, strict=True):
            if found[name] > 1:
                raise InputError(f"'{text}' is given twice.")
        super().__post_init__()
        for seed in self.seeds:
            self.run_config(seed)

    def run_config(self, seed: int) -> RunConfig:
        """The settings of its runs with this seed."""
        return RunConfig(**self.plain(), seed=seed)

    @property
    def single(self) -> bool:
        """One algorithm and one seed: the run directory is the output directory itself."""
        return len(self.algorithms) == len(self.seeds) == 1 and not self.below

    def plan(self) -> Iterator[tuple[str, int, Path]]:
        """(algorithm, seed, folder within the output directory) of every run."""
        for text in self.algorithms:
            for seed in self.seeds:
                yield text, seed, Path() if self.single else Path(folder_name(text), f"seed-{seed}")

    def algorithm(self, text: str) -> Algorithm:
        """An arm's algorithm."""
        if self.given is not None:
            return self.given.algorithms[text]
        if self.parameters is None:
            return recipes.algorithm(text)
        try:
            return recipes.rebuild(dict(self.parameters), text)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = one_line(error)
            raise InputError(f"The parameters of the configuration do not make an algorithm: {why}.") from error

    def made_task(self) -> Task:
        """The task with this study's rate and target."""
        return self.adjusted(tasks.get(self.task) if self.given is None else self.given.task)

    def check(self, task: Task) -> None:
        """Refuse everything that can be refused before a file is written."""
        self.place()
        for text in self.track:
            trackers.tracker(text)
        for text in self.algorithms:
            known = self.algorithm(text), self.world, self.rounds, self.seeds[0]
            self.check_fit(training.prepare(task, *known, self.batch_size, self.torch_dtype))

    def place(self) -> Place:
        """Where its clients run."""
        begun = place_of(self.engine, self.workers, self.chunk, self.compile, self.why)
        return begun if self.elsewhere is None else moved(begun, self.elsewhere)

    def probed(self, task: Task) -> Study:
        """The same study with a mode in the place of "probe": measured once, for all arms and seeds."""
        if self.engine != "probe":
            return self
        with one_thread():
            task = task.cast(self.torch_dtype, self.device)
            local = Local("probe", self.workers, self.chunk, self.compile)
            mode, why = local.chosen(task, task.adopt(self.seeds[0], self.torch_dtype, self.device))
        return replace(self, engine=mode, why=why)

    def check_kernels(self, task: Task) -> None:
        """Refuse what cannot be compiled before a file is written; what can be is then there for all runs."""
        dtype, device, seed = self.torch_dtype, self.device, self.seeds[0]
        seen: list[tuple[Capacity | None, bool]] = []
        for algorithm in map(self.algorithm, self.algorithms) if self.compile else ():
            kind = capacity, own_loss = algorithm.capacity, bool(algorithm.hooks["loss"])
            if kind in seen:
                continue
            seen.append(kind)
            own = (task if capacity is None else capacity.adapt(task)).cast(dtype, device)
            with one_thread():
                Local(cast(Any, self.place()).mode, 1, self.chunk, True).start(
                    own, own.adopt(seed, dtype, device), seed, capacity, own_loss
                ).close()

    def config(self) -> dict[str, Any]:
        """What re-runs all of it."""
        named = {"fedkeel": __version__, "task": self.task, "algorithms": list(self.algorithms)}
        shared = {"world": self.world.parameters(), "seeds": list(self.seeds), **self.plain()}
        return named | shared | ({} if self.given is None else dict(self.given.config))

    @classmethod
    def from_config(cls, config: dict[str, Any], run: bool = True) -> Study:
        """The study of a `config.json`, a whole comparison's or a single run's.

        run: it is to be run, so all of it must be known by name; False if only its results are read.
        """
        try:
            if run and not config.get("rerunnable", True):
                raise InputError(f"This cannot be run from its configuration: {config['why_not']}.")
            world = World.from_parameters(config["world"])
            shared = {"task": config["task"], "world": world, **from_file(SharedConfig, config)}
            if "algorithms" in config:
                return cls(**shared, algorithms=config["algorithms"], seeds=config["seeds"], below=True)
            own = {"chunk": config["chunk"], "parameters": config["parameters"]}
            return cls(**shared, **own, algorithms=[config["algorithm"]], seeds=[config["seed"]])
        except KeyError as error:
            raise InputError(f"The configuration has no {error}.") from error
        except (TypeError, AttributeError, OverflowError) as error:  # edited by hand
            raise InputError(f"The configuration cannot be read: {error}.") from error


def folder_name(text: str) -> str:
    """A directory name for an algorithm.

    >>> folder_name("fedprox:mu=0.01+gel")
    'fedprox_mu=0.01+gel'
    """
    return re.sub(r"[^A-Za-z0-9._=+-]", "_", text)


Watch = Callable[[str, int, Row], Any]  # sees (algorithm, seed, row)
Began = Callable[[dict[str, Any]], None]  # sees the configuration of a run that starts or goes on


def carry_out(study: Study, out: Path, watch: Watch, began: Began, jobs: int = 1) -> list[Arm]:
    """Run, resume or just read every run of the study; runs that are done are not run again. jobs: processes that carry
    out whole runs side by side.
    """
    task = study.made_task()
    study.check(task)
    study = study.probed(task)
    if not study.single and not (out / CONFIG).exists():
        study.check_kernels(task)
    with nullcontext() if study.single else locked(out):
        if not study.single:
            write_json(out / CONFIG, study.config())
        if not study.single:
            spread_out(study, out, watch, jobs)
        runs: dict[str, list[tuple[int, History, str]]] = {text: [] for text in study.algorithms}
        for text, seed, folder in study.plan():
            runs[text].append((seed, *one_run(study, task, text, seed, out / folder, watch, began)))
        first = {text: out / folder for text, seed, folder in study.plan() if seed == study.seeds[0]}
        made = [Arm.of(text, task.target, some, config=read_config(first[text])) for text, some in runs.items()]
        if not study.single:
            write_json(out / "summary.json", summary(made, task.target))
    return made


def spread_out(study: Study, out: Path, watch: Watch, jobs: int) -> None:
    """With the engine ray or several jobs, carry out all runs that have not ended, each in one process."""
    from . import spread  # which carries out studies

    todo = []
    for text, seed, folder in study.plan():
        known = known_run(study, text, seed, out / folder)
        if known is None or known.status == "stopped":
            todo.append((text, seed, str(out / folder)))
    if spread.by(study.place().name, jobs, len(todo)) is not None:
        spread.run_all(study, todo, jobs, watch=watch)


def finished(out: Path) -> tuple[Study, list[Arm]]:
    """Read a comparison (or a single run) that has ended; nothing is run, and its task is not made."""
    study = Study.from_config(read_json(out / CONFIG), run=False)
    runs: dict[str, list[tuple[int, History, str]]] = {text: [] for text in study.algorithms}
    target, configs = None, dict[str, dict[str, Any]]()
    for text, seed, folder in study.plan():
        known = known_run(study, text, seed, out / folder)
        if known is None or known.status == "stopped":
            raise InputError(f"{out / folder} has not ended; continue with: fedkeel resume {out}.")
        target = known.config["target"]  # the same in all of them
        configs.setdefault(text, known.config)
        runs[text].append((seed, known.history, known.status))
    return study, [Arm.of(text, target, some, config=configs[text]) for text, some in runs.items()]


def known_run(study: Study, text: str, seed: int, folder: Path) -> Known | None:
    """What the directory of one run of the study says, without rows if it has not ended; None where it was not begun.

    Refuses the directory of another run.
    """
    if not (folder / CONFIG).exists() and not (folder / HISTORY).exists():
        return None
    known = ended(folder) or Known(read_config(folder), History(), "stopped")
    found = known.config | {"task": str(known.config["task"]).partition(":")[0]}  # its parameters are in another order
    wanted = {"task": study.task.partition(":")[0], "algorithm": text, "seed": seed, "rounds": study.rounds}
    for name, value in wanted.items():
        if found.get(name) != value:
            other = f"its {name} is {found.get(name)!r}, not {value!r}"
            raise InputError(f"{folder} holds a run that does not belong here: {other}.")
    return known


def one_run(
    study: Study, task: Task, text: str, seed: int, folder: Path, watch: Watch, began: Began = lambda config: None
) -> tuple[History, str]:
    """Run, resume or just read one run of the study; gives its history and how it ended."""
    callbacks: list[Callback] = [lambda row: watch(text, seed, row)]
    callbacks += [trackers.tracker(name, Path(folder_name(text), f"seed-{seed}")) for name in study.track]
    if (known := known_run(study, text, seed, folder)) is not None:
        began(known.config)
        if known.status != "stopped":
            check_model(folder)
            watch(text, seed, known.history[-1])
            return known.history, known.status
        algorithm, world = (None, None) if study.given is None else (study.algorithm(text), study.world)
        where: dict[str, Any] = {"workers": study.workers, "engine": study.elsewhere}
        run = training.resume(folder, task, algorithm, world, callbacks=callbacks, **where)
    else:
        settings = study.run_config(seed).keywords() | {"engine": study.place()}
        run = training.train(
            task, study.algorithm(text), study.world, **settings, checkpoint=folder, callbacks=callbacks, started=began
        )
    if run.status == "stopped":  # by whoever watches: the runs after it are not wanted either
        raise KeyboardInterrupt
    return run.history, run.status
