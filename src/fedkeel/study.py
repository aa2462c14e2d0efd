"""Comparisons: several algorithms on one task with paired seeds, each run in a directory of its own."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import checkpoint as files
from . import history as rows
from . import recipes, tasks, training
from .algorithm import Algorithm
from .engine.local import Local
from .errors import InputError, check, is_count, is_number
from .history import History, Row
from .task import Task
from .version import __version__
from .world import World, parse_budget

# The 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom; beyond the table the normal one is close.
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
        2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
SHARED = ("rounds", "batch_size", "engine", "target", "eval_every", "checkpoint_every", "dtype")  # plain settings


@dataclass(frozen=True)
class Study:
    """What a comparison runs: every algorithm with every seed, all else equal.

    >>> study = Study("synthetic", ["fedavg", "gel"], rounds=5, seeds=[0, 1])
    >>> [str(folder) for _, _, folder in study.plan()]
    ['fedavg/seed-0', 'fedavg/seed-1', 'gel/seed-0', 'gel/seed-1']
    """

    task: str
    algorithms: Sequence[str]
    world: World = field(default_factory=World)
    rounds: int = 200
    seeds: Sequence[int] = (0,)
    batch_size: int | None = None
    lr: float | None = None
    engine: str = "auto"
    target: float | None = None
    eval_every: int = 1
    checkpoint_every: int = 10
    dtype: str = "float32"
    chunk: int | None = None  # of a single run that is repeated bit for bit
    parameters: Mapping[str, Any] | None = None  # of a single algorithm that is repeated value for value

    def __post_init__(self) -> None:
        check(isinstance(self.task, str), "run", "task", "a text", self.task)
        texts = isinstance(self.algorithms, list | tuple) and all(isinstance(text, str) for text in self.algorithms)
        check(texts and len(self.algorithms) > 0, "run", "algorithms", "a list of at least one", self.algorithms)
        some = isinstance(self.seeds, Sequence) and len(self.seeds) > 0
        check(some, "run", "seeds", "a list of at least one", self.seeds)
        names = [folder_name(text) for text in self.algorithms]
        for text, name in zip(self.algorithms, names, strict=True):
            if names.count(name) > 1:
                raise InputError(f"'{text}' is given twice.")
        check(self.lr is None or (is_number(self.lr) and self.lr > 0), "run", "lr", "> 0", self.lr)
        check(self.target is None or is_number(self.target), "run", "target", "a number", self.target)
        check(is_count(self.checkpoint_every), "run", "checkpoint-every", "an integer >= 1", self.checkpoint_every)
        check(self.dtype in training.DTYPES, "run", "dtype", " or ".join(training.DTYPES), self.dtype)

    @property
    def single(self) -> bool:
        """One algorithm and one seed: the run directory is the output directory itself."""
        return len(self.algorithms) == len(self.seeds) == 1

    def plan(self) -> Iterator[tuple[str, int, Path]]:
        """(algorithm, seed, folder within the output directory) of every run."""
        for text in self.algorithms:
            for seed in self.seeds:
                yield text, seed, Path() if self.single else Path(folder_name(text), f"seed-{seed}")

    def algorithm(self, text: str) -> Algorithm:
        """An arm's algorithm."""
        if self.parameters is None:
            return recipes.algorithm(text)
        try:
            return recipes.rebuild(dict(self.parameters), text)
        except (KeyError, TypeError) as error:
            raise InputError(f"The parameters of the configuration do not make an algorithm: {error}.") from error

    def made_task(self) -> Task:
        """The task with this study's rate and target."""
        task = tasks.get(self.task)
        return replace(task, lr=self.lr or task.lr, target=task.target if self.target is None else self.target)

    def check(self, task: Task) -> None:
        """Refuse everything that can be refused before a file is written."""
        Local(self.engine, chunk=self.chunk)
        for seed in self.seeds:
            training.check_settings(self.rounds, seed, self.batch_size, self.eval_every, self.checkpoint_every)
        for text in self.algorithms:
            training.prepare(task, self.algorithm(text), self.world, self.rounds, 0, self.batch_size)

    def config(self) -> dict[str, Any]:
        """What re-runs all of it."""
        return {
            "fedkeel": __version__,
            "task": self.task,
            "algorithms": list(self.algorithms),
            "world": self.world.parameters(),
            "rounds": self.rounds,
            "seeds": list(self.seeds),
            "batch_size": self.batch_size,
            "lr": self.lr,
            "engine": self.engine,
            "target": self.target,
            "eval_every": self.eval_every,
            "checkpoint_every": self.checkpoint_every,
            "dtype": self.dtype,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Study:
        """The study of a `config.json`, a whole comparison's or a single run's."""
        try:
            world = config["world"]
            budget = parse_budget(world["budget"]) if world["budget"] is not None else None
            shared = {
                "task": config["task"],
                "world": World(world["cohort"], budget, world["expected_steps"], world["sampler"]),
                **{k: config[k] for k in SHARED},
            }
            if "algorithms" in config:
                rest = {k: config[k] for k in ("algorithms", "seeds", "lr")}
                return cls(**shared, **rest)
            if not config["rerunnable"]:
                raise InputError(f"This run cannot be repeated from its configuration: {config['why_not']}.")
            own = {"chunk": config["chunk"], "parameters": config["parameters"]}
            return cls(**shared, **own, algorithms=[config["algorithm"]], seeds=[config["seed"]])
        except KeyError as error:
            raise InputError(f"The configuration has no {error}.") from error
        except (TypeError, AttributeError) as error:  # edited by hand
            raise InputError(f"The configuration cannot be read: {error}.") from error


def folder_name(text: str) -> str:
    """A directory name for an algorithm.

    >>> folder_name("fedprox:mu=0.01+gel")
    'fedprox_mu=0.01+gel'
    """
    return re.sub(r"[^A-Za-z0-9._=+-]", "_", text)


Watch = Callable[[str, int, Row], Any]  # sees (algorithm, seed, row)


def carry_out(study: Study, out: Path, watch: Watch, began: Callable[[dict[str, Any]], None]) -> list[Arm]:
    """Run, resume or just read every run of the study; runs that are done are not run again."""
    task = study.made_task()
    study.check(task)
    if not study.single:
        files.write_json(out / "config.json", study.config())
    arms = {text: Arm(text, task.target) for text in study.algorithms}
    for text, seed, folder in study.plan():
        arms[text].add(*_one(study, task, text, seed, out / folder, watch, began))
    made = list(arms.values())
    if not study.single:
        files.write_json(out / "summary.json", summary(made, task.target))
    return made


def _one(
    study: Study,
    task: Task,
    text: str,
    seed: int,
    folder: Path,
    watch: Watch,
    began: Callable[[dict[str, Any]], None],
) -> tuple[History, str]:
    callbacks = [lambda row: watch(text, seed, row)]
    if (folder / "config.json").exists():
        config = files.read_json(folder / "config.json")
        began(config)
        status = training.status_of(folder, config)
        if status != "stopped":
            history = rows.read(folder / "history.jsonl")
            watch(text, seed, history[-1])
            return history, status
        run = training.resume(folder, task=task, callbacks=callbacks)
    else:
        run = training.train(
            task, study.algorithm(text), study.world, study.rounds, seed, study.batch_size,
            dtype=training.DTYPES[study.dtype], engine=Local(study.engine, chunk=study.chunk),
            eval_every=study.eval_every, checkpoint=folder, every=study.checkpoint_every,
            callbacks=callbacks, started=began,
        )  # fmt: skip
    return run.history, run.status


@dataclass
class Arm:
    """One algorithm of a comparison over its seeds."""

    name: str
    target: float | None
    histories: list[History] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)

    def add(self, history: History, status: str) -> None:
        self.histories.append(history)
        self.statuses.append(status)

    def reached(self) -> list[Row | None]:
        """Per seed, the first row at the target, or None."""
        return [None if self.target is None else history.reaching(self.target) for history in self.histories]

    @property
    def missed(self) -> int:
        """Seeds that did not reach the target."""
        return sum(row is None for row in self.reached())

    def costs(self, column: str) -> list[float]:
        """Per seed, what it took to reach the target (of a seed that did not: what the whole run took)."""
        ends = [row or history[-1] for row, history in zip(self.reached(), self.histories, strict=True)]
        if column == "megabytes":
            return [(row["bytes_down"] + row["bytes_up"]) / 1e6 for row in ends]
        return [float(row[column]) for row in ends]

    def cost_text(self, column: str, style: str) -> str:
        if self.missed == len(self.histories):
            return "-"
        return ("> " if self.missed else "") + style.format(statistics.mean(self.costs(column)))

    def rounds_text(self) -> str:
        if self.missed == len(self.histories):
            return "not reached"
        mean = f"{statistics.mean(self.costs('round')):.1f}"
        return f"> {mean} ({len(self.histories) - self.missed}/{len(self.histories)})" if self.missed else mean

    def speedup(self, base: Arm) -> float | None:
        """R_base / R - 1, of mean rounds to target; None where a seed of either arm did not get there."""
        if self.target is None or self.missed or base.missed:
            return None
        return statistics.mean(base.costs("round")) / max(1e-9, statistics.mean(self.costs("round"))) - 1

    def speedup_text(self, base: Arm) -> str:
        gain = self.speedup(base)
        return "-" if gain is None else f"{gain:+.1%}"

    def per(self, cost: str, unit: float) -> float | None:
        """The last accuracy per unit of what the whole run cost, mean over seeds; None where that is not counted."""
        shares: list[float] = []
        for history in self.histories:
            row, accuracy = history[-1], history.last("accuracy")
            spent = row["bytes_down"] + row["bytes_up"] if cost == "bytes" else row.get(cost)
            if accuracy is None or not spent:
                return None
            shares.append(accuracy / (spent / unit))
        return statistics.mean(shares)

    def per_text(self, cost: str, unit: float) -> str:
        value = self.per(cost, unit)
        return "-" if value is None else f"{value:,.3g}"

    def finals(self) -> list[float]:
        """Per seed, the last accuracy."""
        return [value for history in self.histories if (value := history.last("accuracy")) is not None]

    def final_text(self) -> str:
        if "diverged" in self.statuses:
            return f"diverged ({self.statuses.count('diverged')}/{len(self.statuses)})"
        finals = self.finals()
        if not finals:
            return "-"
        half = interval(finals)
        return f"{statistics.mean(finals):.4f}" + (f" ± {half:.4f}" if half is not None else "")


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of a mean (Student's t); None for a single value.

    >>> round(interval([1.0, 2.0, 3.0]), 3)
    2.484
    """
    if len(values) < 2:
        return None
    df = len(values) - 1
    return (T975[df - 1] if df <= len(T975) else 1.96) * statistics.stdev(values) / math.sqrt(len(values))


def mean_curve(histories: Sequence[History]) -> list[tuple[float, float]]:
    """(round, mean accuracy over seeds) of rounds every seed has evaluated; the loss where there is no accuracy."""
    column = "accuracy" if any(h.last("accuracy") is not None for h in histories) else "loss"
    known = [{row["round"]: row[column] for row in history if row[column] is not None} for history in histories]
    shared = sorted(set.intersection(*(set(k) for k in known))) if known else []
    return [(r, statistics.mean(k[r] for k in known)) for r in shared]


def summary(arms: Sequence[Arm], target: float | None) -> dict[str, Any]:
    """What `summary.json` says."""
    told = []
    for arm in arms:
        reached, finals = arm.reached(), arm.finals()
        told.append({
            "algorithm": arm.name,
            "status": arm.statuses,
            "rounds_to_target": [None if row is None else row["round"] for row in reached],
            "gradients_to_target": [None if row is None else row["gradients"] for row in reached],
            "bytes_to_target": [None if row is None else row["bytes_down"] + row["bytes_up"] for row in reached],
            "speedup": arm.speedup(arms[0]),
            "final_accuracy": finals,
            "final_accuracy_mean": statistics.mean(finals) if finals else None,
            "final_accuracy_95": interval(finals),
            **({"accuracy_per_MB": arm.per("bytes", 1e6), "accuracy_per_TFLOP": arm.per("flops", 1e12)}
               if arm.per("flops", 1e12) is not None else {}),
        })  # fmt: skip
    return {"target": target, "baseline": arms[0].name, "arms": told}
