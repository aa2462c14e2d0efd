"""`fk.sweep`: values of an algorithm's keys, or of a function that makes one, tried in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import torch

from ... import recipes
from ...algorithm import Algorithm
from ...errors import FedkeelError, InputError, MissingExtra, check, reason
from ...files import write_json
from ...ranges import REPEATS, Range
from ...run.config import SharedConfig
from ...settings import check_keywords, takes_settings
from ...task import Task
from ...world import World
from ..comparison import Comparison, Place, run_study, study_of
from .grid import BY, VALIDATION, Cell, Choice, Grid, written
from .run import document

Make = Callable[..., Algorithm | str]
CELLS = Range(2, REPEATS.most, whole=True)


@dataclass(frozen=True)
class Sweep:
    """Every cell of a grid with its score, and the best of them; made by `fk.sweep`. In Jupyter it shows itself.

    choice: the cells in order, the best first, and how sure that is. comparison: all their runs.
    """

    choice: Choice
    comparison: Comparison
    algorithms: Mapping[str, Algorithm]

    @property
    def best(self) -> Algorithm:
        """The algorithm of the best cell; to report it, train it again with all data and other seeds."""
        if self.choice.best is None:
            raise InputError("No cell of this sweep has a score: its runs diverged or did not reach the target.")
        return self.algorithms[self.choice.best.arm.name]

    @property
    def values(self) -> dict[str, Any]:
        """The values of the best cell."""
        return {} if self.choice.best is None else dict(zip(self.choice.grid.keys, self.choice.best.cell, strict=True))

    def __repr__(self) -> str:
        from ..report.heatmap import verdict

        return f"<Sweep of {len(self.choice.ranked)} cells. {verdict(self.choice)[0]}>"

    def table(self) -> None:
        """Print the cells and the verdict, as `fedkeel sweep` does."""
        from rich.console import Console

        from ..report.heatmap import draw

        console = Console()
        draw(self.choice, console if console.is_terminal else Console(width=110))

    def to_pandas(self) -> Any:
        """A data frame with a row for each cell, the best first: its values, its score and half the 95 % interval."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("pandas", "pandas", "to_pandas") from error
        cells = (one.as_dict(self.choice.grid) for one in self.choice.ranked)
        rows = ({**cell["values"], self.choice.by: cell["mean"], "interval_95": cell["interval_95"]} for cell in cells)
        return pandas.DataFrame(list(rows))

    def plot(self, file: Place) -> Path:
        """Write the scores of one key as a line, of two keys as a heat map; a picture of any kind matplotlib writes."""
        from ..report.heatmap import save

        if len(self.choice.grid.keys) > 2:
            raise InputError("A picture has room for one or two keys.")
        save(self.choice, Path(file))
        return Path(file)

    def save(self, folder: Place, overwrite: bool = False) -> Path:
        """Copy its directory: all runs, and `sweep.json` with the outcome."""
        return self.comparison.save(folder, overwrite)

    def _repr_html_(self) -> str:
        from ..report.heatmap import verdict

        grid = self.choice.grid
        head = "".join(f"<th>{escape(name)}</th>" for name in (*grid.keys, BY[self.choice.by]))
        lines = ("".join(f"<td>{escape(v)}</td>" for v in (*map(written, s.cell), s.word)) for s in self.choice.ranked)
        words = "".join(f"<p>{escape(line)}</p>" for line in verdict(self.choice))
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<div>{words}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


@takes_settings(SharedConfig)
def sweep(
    task: Task,
    algorithm: str | Make,
    grid: Mapping[str, Sequence[Any]],
    world: World | None = None,
    rounds: int = SharedConfig.rounds,
    seeds: int | Sequence[int] = 1,
    *,
    dtype: torch.dtype | str = SharedConfig.dtype,
    by: str | None = None,
    out: Place | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Sweep:
    """Try every combination of values, with every seed, and choose the best on validation data.

    algorithm: a text, whose keys the grid names ("gel.steps" is a key of a later part), or a function that makes an
    algorithm from the grid's values. by: what a cell is chosen by, as in `fedkeel sweep --by`; by default the accuracy
    on a tenth of every client's data (`validation`), which is not trained on. out: a directory for the runs; the same
    call goes on where it was stopped. One run at a time, on all cores; `fedkeel sweep` runs named tasks side by side.

    Settings, as of `fk.train`:

        SETTINGS

    >>> import fedkeel as fk
    >>> task = fk.tasks.synthetic(users=8)
    >>> found = fk.sweep(task, "fedprox", {"lr": [1e-6, 0.05]}, rounds=4)
    >>> found.values, found.best.spec
    ({'lr': 0.05}, 'fedprox:lr=0.05')
    >>> make = lambda mu: fk.Algorithm(client=fk.SGD(0.05), rules=[fk.Proximal(mu)])
    >>> len(fk.sweep(task, make, {"mu": [0, 0.1, 1]}, rounds=2).choice.ranked)
    3
    """
    check_keywords(sweep, settings)
    check(by is None or by in BY, "sweep", "by", ", ".join(BY), by)
    cells = _grid(algorithm, grid)
    if isinstance(algorithm, str):
        recipes.algorithm(cells.algorithm(next(cells.cells())))  # an unknown key is said first
    check(cells.size in CELLS, "sweep", "grid", f"made of 2 to {CELLS.most:,} combinations", cells.size)
    algorithms = _made(algorithm, cells)
    if not settings.get("validation") and (by is None or by.startswith("validation")):
        settings["validation"] = VALIDATION
    study = study_of("sweep", task, algorithms, world, rounds, seeds, dtype, settings)
    if by == "test_rounds" and study.made_task().target is None:
        raise InputError("by='test_rounds' needs a target: give target=ACCURACY.")
    has_accuracy = task.metric is not None or not task.data.y.is_floating_point()
    by = by or ("validation_accuracy" if has_accuracy else "validation_loss")
    comparison, folder = run_study(study, out, overwrite)
    by_name = {group.runs[0].name: arm for group, arm in zip(comparison.groups, comparison.arms, strict=True)}
    choice = Choice.of(cells, list(cells.cells()), [by_name[name] for name in algorithms], by)
    about = {"algorithm": cells.base, "grid": cells.texts(), "by": by, "optuna": None, "batch": 1}
    write_json(folder / "sweep.json", document(study.config() | {"sweep": about}, choice))
    return Sweep(choice, comparison, algorithms)


def _grid(algorithm: Any, grid: Any) -> Grid:
    check(isinstance(algorithm, str) or callable(algorithm), "sweep", "algorithm", "a text or a function", algorithm)
    good = isinstance(grid, Mapping) and len(grid) > 0 and all(isinstance(key, str) for key in grid)
    check(good, "sweep", "grid", "a dict of lists, such as {'lr': [0.01, 0.1]}", grid)
    for key, values in grid.items():
        good = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
        check(good, "sweep", "grid", f"a dict of lists; '{key}' has none", values)
        if len(set(map(written, values))) < len(values):
            raise InputError(f"'{key}' has a value twice.")
    base = algorithm if isinstance(algorithm, str) else getattr(algorithm, "__name__", "algorithm")
    return Grid(base, {key: list(values) for key, values in grid.items()})


def _made(algorithm: str | Make, grid: Grid) -> dict[str, Algorithm]:
    """The algorithm of every cell by its name: its text, or the values that a function made it from."""
    found: dict[str, Algorithm] = {}
    for cell in grid.cells():
        text = isinstance(algorithm, str)
        known = recipes.algorithm(grid.algorithm(cell)) if text else _called(algorithm, grid, cell)
        if str(known.spec) in found:
            raise InputError(f"Two cells of the grid are the same algorithm, {known.spec}.")
        found[str(known.spec)] = known
    return found


def _called(make: Any, grid: Grid, cell: Cell) -> Algorithm:
    values = dict(zip(grid.keys, cell, strict=True))
    try:
        known: Any = make(**values)
    except FedkeelError:
        raise
    except Exception as error:  # of the user's function
        raise InputError(f"The function that makes an algorithm fails for {values}: {reason(error)}.") from error
    made = recipes.algorithm(known) if isinstance(known, str) else known
    check(isinstance(made, Algorithm), "sweep", "algorithm", "a function that gives an Algorithm", made)
    named: Algorithm = replace(made, spec=",".join(f"{key}={written(value)}" for key, value in values.items()))
    return named
