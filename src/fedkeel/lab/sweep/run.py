"""A sweep from its configuration: every cell of a grid, or the trials a search asks for; its runs in processes."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import recipes
from ...errors import InputError, MissingExtra, check
from ...files import write_json
from ...ranges import REPEATS, Range
from ...run.folder import locked
from .. import spread
from ..spread import Tell
from ..stats import Arm
from ..study import Study, finished, known_run
from .grid import BY, LESS, VALIDATION, Cell, Choice, Grid, scored

Config = dict[str, Any]
FAILED = 100.0  # the loss that a search takes for a trial that diverged


def configuration(study: Study, grid: Grid, by: str | None, trials: int | None, batch: int) -> Config:
    """What `config.json` of a sweep says; refuses what cannot work before anything is written."""
    check(by is None or by in BY, "sweep", "by", ", ".join(BY), by)
    if study.validation == 0 and (by is None or by.startswith("validation")):
        study = replace(study, validation=VALIDATION)
    most = Range(2, REPEATS.most, whole=True)
    check(trials is None or trials in most, "sweep", "optuna", str(most), trials)
    if trials is None:
        if grid.ranges:
            raise InputError(f"A range ({grid.texts()[-1]}) is searched: add --optuna N, or list its values.")
        if grid.size not in most:
            cells = f"at least two cells, such as --grid lr=0.01,0.1, and at most {most.most:,}"
            raise InputError(f"A sweep needs {cells}. Got {grid.size:,}.")
        algorithms = [canonical(grid, cell) for cell in grid.cells()]
    else:
        _optuna()
        spans = [*grid.values.values(), *grid.ranges.values()]
        algorithms = list(dict.fromkeys(canonical(grid, tuple(span[i] for span in spans)) for i in (0, -1)))
    config = study.config() | {"algorithms": algorithms}
    checked = Study.from_config(config)
    task = checked.made_task()
    checked.check(task)
    checked.check_kernels(task)
    if by == "test_rounds" and task.target is None:
        raise InputError("--by test_rounds needs a target: add --target ACCURACY.")
    has_accuracy = task.metric is not None or not task.data.y.is_floating_point()
    by = by or ("validation_accuracy" if has_accuracy else "validation_loss")
    about = {"algorithm": grid.base, "grid": grid.texts(), "by": by, "optuna": trials, "batch": batch}
    return config | {"sweep": about}


def canonical(grid: Grid, cell: Cell) -> str:
    """A cell's algorithm as run directories and tables name it."""
    text = grid.algorithm(cell)
    return recipes.algorithm(text).spec or text


def carry_out(config: Config, out: Path, jobs: int, tell: Tell) -> Choice:
    """Run what is not done yet, then choose; writes `config.json` and `sweep.json`."""
    try:
        about = config["sweep"]
        grid = Grid.parse(about["algorithm"], about["grid"])
        by, trials, _ = str(about["by"]), about["optuna"], about["batch"]
    except (KeyError, TypeError, AttributeError) as error:  # edited by hand
        raise InputError(f"The configuration of the sweep cannot be read: {error}.") from error
    study = Study.from_config(config)
    if study.engine == "probe":  # measured once, here, so that all cells share the mode
        study = study.probed(study.made_task())
        config = config | {"engine": study.engine, "engine_reason": study.why}
    with locked(out):
        if trials is None:
            cells, arms = list(grid.cells()), _run(config, out, jobs, tell)
        else:
            cells, arms = _search(config, grid, by, out, jobs, tell)
        choice = Choice.of(grid, cells, arms, by)
        write_json(out / "sweep.json", document(config, choice))
    return choice


def document(config: Config, choice: Choice) -> dict[str, Any]:
    """The whole outcome, for `sweep.json` and `--json`."""
    about = {"task": config["task"], "algorithm": config["sweep"]["algorithm"], "grid": config["sweep"]["grid"]}
    return about | {
        "target": choice.ranked[0].arm.target,
        "seeds": config["seeds"],
        "validation": config["validation"],
        **choice.as_dict(),
    }


def _run(config: Config, out: Path, jobs: int, tell: Tell) -> list[Arm]:
    """Every algorithm of the configuration with every seed; those that are done are only read."""
    write_json(out / "config.json", config)
    todo = []
    study = Study.from_config(config)
    for text, seed, folder in study.plan():
        item, known = (text, seed, str(out / folder)), known_run(study, text, seed, out / folder)
        todo.append(item) if known is None or known.status == "stopped" else tell(item, known.status)
    if todo:
        spread.run_all(replace(study, why=config.get("engine_reason")), todo, jobs, tell)
    return finished(out)[1]


def _search(config: Config, grid: Grid, by: str, out: Path, jobs: int, tell: Tell) -> tuple[list[Cell], list[Arm]]:
    """Ask Optuna for a batch of trials, run it, tell it the scores. The sampler has a fixed seed and the batch a fixed
    size, so a search that is continued asks for the same trials again and finds their runs done."""
    optuna, about = _optuna(), config["sweep"]
    sampler = optuna.samplers.TPESampler(seed=0)
    search = optuna.create_study(direction="minimize" if by in LESS else "maximize", sampler=sampler)
    cells: dict[str, Cell] = {}
    arms: list[Arm] = []
    asked = 0
    while asked < about["optuna"]:
        trials = [search.ask() for _ in range(min(about["batch"], about["optuna"] - asked))]
        asked += len(trials)
        picked = [tuple(_suggest(trial, key, grid) for key in grid.keys) for trial in trials]
        cells |= {canonical(grid, cell): cell for cell in picked}
        arms = _run(config | {"algorithms": list(cells)}, out, jobs, tell)
        by_name = {arm.name: arm for arm in arms}
        for trial, cell in zip(trials, picked, strict=True):
            arm = by_name[canonical(grid, cell)]
            longest = max(history[-1]["round"] for history in arm.histories)
            failed = {"test_rounds": 2.0 * longest}.get(by, FAILED if by in LESS else 0.0)  # steers, is not reported
            mean = scored(cell, arm, by).mean
            search.tell(trial, failed if mean is None else mean)
    return list(cells.values()), arms


def _suggest(trial: Any, key: str, grid: Grid) -> Any:
    if key in grid.values:
        return trial.suggest_categorical(key, grid.values[key])
    low, high = grid.ranges[key]
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=low > 0)
    return float(f"{trial.suggest_float(key, low, high, log=low > 0):.3g}")  # a name one can read


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise MissingExtra("optuna", "optuna", "A search in ranges") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
