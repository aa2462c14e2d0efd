"""Runs the arms of a plan: grids are tuned first, runs that are known are read, runs that were stopped go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ... import recipes
from ...errors import InputError
from ...files import read_json, remove_leftovers, write_json
from ...run.history import History, Row
from ...task import Task
from .. import spread
from ..processes import Stop
from ..stats import Arm
from ..study import Study, one_run
from ..sweep.grid import VALIDATION, Choice, Grid
from .plan import Line, Panel, Plan, written
from .record import Record, Wanted

EXTENSIONS = 3  # of a grid whose best value is at its edge
Runs = dict[str, Arm]  # algorithm -> its runs
Choices = dict[str, Choice]  # arm -> what was chosen from its grid
Obtain = Callable[[Wanted], Record | None]  # runs it, or looks whether it is known
Ahead = Callable[[Sequence[Wanted]], None]  # carries out runs that will be obtained, side by side
Watch = Callable[[Wanted, Row], Any]  # sees a run and its rows; a known run's last row


@dataclass
class Measured:
    """What the runs of a panel gave."""

    panel: Panel
    choices: Choices = field(default_factory=dict)
    arms: dict[str, Runs] = field(default_factory=dict)  # those that have a run
    records: list[Record] = field(default_factory=list)  # of the reported runs

    def histories(self, arm: str) -> list[History]:
        """Of all algorithms and seeds of an arm."""
        return list(chain.from_iterable(one.histories for one in self.arms[arm].values()))

    @property
    def edges(self) -> dict[str, list[str]]:
        """By arm, the keys whose best value is still at the edge of the grid."""
        return {arm: found for arm, choice in self.choices.items() if (found := open_edges(choice))}


class Lazy:
    """A panel's task, made when the first run needs it: where all runs are known, no data are read."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self.task: Task | None = None

    def made(self) -> Task:
        if self.task is None:
            self.task = study_of(self.panel, next(iter(self.panel.arms.values())), "fedavg", 0).made_task()
        return self.task


class Place:
    """Where runs are made and where their records are.

    runs: the run directories. records: the small files; None: beside the runs. compile, device: as `train` has them.
    """

    def __init__(
        self, plan: Plan, runs: Path, records: Path | None = None, compile: bool = False, device: str = "cpu"
    ) -> None:
        self.compile, self.device = compile, device
        runs = runs.resolve()  # also for processes elsewhere
        records = None if records is None else records.resolve()
        self.runs = runs / plan.name
        self.records = self.runs / "records" if records is None else records / plan.name / "runs"

    def record_of(self, wanted: Wanted) -> Path:
        return self.records / wanted.place.with_suffix(".json")

    def known(self, wanted: Wanted) -> Record | None:
        """The record of this run, if it was finished before."""
        return Record.read(self.record_of(wanted), wanted)

    def run(self, wanted: Wanted, task: Lazy, watch: Watch) -> Record:
        """Read, resume or run it."""
        wanted = wanted.on(self.compile, self.device)
        record = self.known(wanted)
        if record is None:
            folder = self.runs / wanted.place
            settings = folder.with_suffix(".settings.json")
            if settings.exists():  # a run that an earlier version of the study left here is not this one's
                wanted.compare(settings, read_json(settings))
            folder.parent.mkdir(parents=True, exist_ok=True)
            for file in (settings, self.record_of(wanted)):
                remove_leftovers(file)
            write_json(settings, wanted.settings())

            def row(text: str, seed: int, row: Row) -> Any:
                return watch(wanted, row)

            history, status = one_run(wanted.study, task.made(), wanted.text, wanted.seed, folder, row)
            record = Record.of(history, status, self.compile)
            record.write(self.record_of(wanted), wanted)
        return record


def carry_out(plan: Plan, place: Place, watch: Watch, engine: str | None = None, jobs: int = 1) -> Iterator[Measured]:
    """Run the panels one after the other, in each one seed after the other; with an engine such as "ray", or several
    jobs, all runs that do not depend on others side by side, each in one process.
    """
    choices: dict[str, Choices] = {}
    with nullcontext() if engine is None else spread.connected(engine):
        for panel in plan.panels:
            task = Lazy(panel)

            def run(wanted: Wanted, task: Lazy = task) -> Record:
                return place.run(wanted, task, watch)

            def ahead(some: Sequence[Wanted], panel: Panel = panel) -> None:
                todo = [wanted for wanted in some if place.known(wanted) is None]
                if (carry := spread.by(engine, jobs, len(todo))) is not None:
                    _side_by_side(carry, place, panel, todo, watch)

            yield _measure(panel, choices, run, ahead)


def _side_by_side(carry: spread.Carry, place: Place, panel: Panel, todo: Sequence[Wanted], watch: Watch) -> None:
    """Carry out these runs, each in one process."""

    def look(index: int) -> None:
        if (row := spread.newest_row(place.runs / todo[index].place)) is not None:
            watch(todo[index], row)

    names = [f"{wanted.text}, seed {wanted.seed}" for wanted in todo]
    carry(_Runs(place, Lazy(panel)), todo, lambda index, status: look(index), look, names)


@dataclass
class _Runs:
    """The runs of a panel in another process, one after the other."""

    place: Place
    task: Lazy

    def __call__(self, wanted: Wanted, stop: Stop) -> str:
        return self.place.run(replace(wanted, study=replace(wanted.study, workers=1)), self.task, stop).status


def read(plan: Plan, place: Place) -> Iterator[Measured]:
    """What is known of every panel; nothing is run."""
    choices: dict[str, Choices] = {}
    for panel in plan.panels:
        yield _measure(panel, choices, place.known)


def _measure(panel: Panel, choices: dict[str, Choices], obtain: Obtain, ahead: Ahead = lambda some: None) -> Measured:
    """The runs of a panel, as far as they can be obtained."""
    if panel.tuned_on is None:
        grids = [arm for arm in panel.arms.values() if arm.tuned]
        ahead([tuning_run(panel, arm, text) for arm in grids for text in arm.texts()])
        tuned = {arm.name: _tune(panel, arm, obtain, ahead) for arm in grids}
        choices[panel.name] = {name: choice for name, choice in tuned.items() if choice is not None}
    elif panel.tuned_on not in choices:
        raise InputError(f"The rates of '{panel.name}' are chosen in '{panel.tuned_on}': run it, too.")
    measured = Measured(panel, choices[panel.tuned_on or panel.name])
    found: dict[tuple[str, str], list[tuple[int, History, str]]] = {}
    runs = list(_reported(panel, measured.choices))
    ahead([wanted for _, wanted in runs])
    for name, wanted in runs:
        if (record := obtain(wanted)) is not None:
            found.setdefault((name, wanted.text), []).append((wanted.seed, record.history, record.status))
            measured.records.append(record)
    for (name, text), some in found.items():
        measured.arms.setdefault(name, {})[text] = Arm.of(text, panel.target, some)
    return measured


def _reported(panel: Panel, choices: Choices) -> Iterator[tuple[str, Wanted]]:
    """The reported runs with their arms, one seed after the other."""
    for seed in panel.seeds:
        for name, arm in panel.arms.items():
            yield from ((name, wanted_run(panel, arm, text, seed)) for text in texts_of(arm, choices))


def texts_of(arm: Line, choices: Choices) -> list[str]:
    """The algorithms of an arm that are reported: the best of a grid that was tuned, all of them otherwise."""
    if not arm.tuned:
        return arm.texts()
    if (choice := choices.get(arm.name)) is None:  # not tuned yet
        return []
    return [(choice.best or choice.ranked[0]).arm.name]  # where all diverged, the first stands for them


def study_of(panel: Panel, arm: Line, text: str, seed: int, **changes: Any) -> Study:
    """One run of a panel as a study."""
    settings = panel.plain() | {"checkpoint_every": 20} | changes
    return Study(panel.task, [text], panel.world(arm), [seed], **settings)


def wanted_run(panel: Panel, arm: Line, text: str, seed: int) -> Wanted:
    """A reported run: all training data."""
    return Wanted.of(study_of(panel, arm, text, seed), Path(panel.folder), arm)


def tuning_run(panel: Panel, arm: Line, text: str) -> Wanted:
    """A run that helps to choose."""
    assert panel.tuning_seed is not None
    rounds = panel.tuning_rounds or panel.rounds
    share = VALIDATION if panel.by.startswith("validation") else 0.0
    evaluated = {"eval_every": panel.tuning_eval_every or panel.eval_every, "eval_last": None}
    study = study_of(panel, arm, text, panel.tuning_seed, rounds=rounds, validation=share, **evaluated)
    return Wanted.of(study, Path(panel.folder) / "tuning", arm)


def _tune(panel: Panel, arm: Line, obtain: Obtain, ahead: Ahead) -> Choice | None:
    """Run the grid and choose; where the best value is at an edge, try one value more beyond it, and choose again."""
    grid = arm.grid
    for extension in range(EXTENSIONS + 1):
        cells = list(grid.cells())
        texts = [written(grid, cell) for cell in cells]
        arms = []
        ahead([tuning_run(panel, arm, text) for text in texts])
        for text in texts:
            if (record := obtain(tuning_run(panel, arm, text))) is None:
                return None
            arms.append(Arm.of(text, None, [(0, record.history, record.status)]))
        choice = Choice.of(grid, cells, arms, panel.by)
        edges = open_edges(choice)
        if not edges or extension == EXTENSIONS:
            return choice
        assert choice.best is not None
        for key in edges:
            grid = grid.beyond(key, choice.best.cell[grid.keys.index(key)])
    raise AssertionError("unreachable")


def open_edges(choice: Choice) -> list[str]:
    """Keys whose best value is at an edge of the grid beyond which there are values that the algorithm takes."""
    if choice.best is None:
        return []
    found = []
    for key in choice.on_edge:
        place = choice.grid.keys.index(key)
        if all(value > 0 for value in choice.grid.values[key]):
            wider = choice.grid.beyond(key, choice.best.cell[place])
            new = next(value for value in wider.values[key] if value not in choice.grid.values[key])
            cell = (*choice.best.cell[:place], new, *choice.best.cell[place + 1 :])
            found += [key] if _exists(wider, cell) else []
    return found


def _exists(grid: Grid, cell: tuple[Any, ...]) -> bool:
    try:
        recipes.algorithm(grid.algorithm(cell))
    except InputError:  # a value out of its range
        return False
    return True


def all_runs(panel: Panel, choices: Choices) -> Sequence[Wanted]:
    """The runs of a panel; of an arm that is not tuned yet its grid, and any cell in the place of the best."""
    runs = []
    for arm in panel.arms.values():
        if arm.tuned and arm.name not in choices and panel.tuned_on is None:
            runs += [tuning_run(panel, arm, text) for text in arm.texts()]
        for text in texts_of(arm, choices) or arm.texts()[:1]:
            runs += [wanted_run(panel, arm, text, seed) for seed in panel.seeds]
    return runs
