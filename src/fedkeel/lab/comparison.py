"""`fk.compare` and the `Comparison` it gives: what `fedkeel run`, `compare`, `plot` and `report` do, in Python."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from .. import recipes, tasks
from ..algorithm import Algorithm
from ..errors import InputError, MissingExtra, brief, check
from ..files import plain, read_json, write_text
from ..ranges import REPEATS, SEED
from ..run.checkpoint import identity_of
from ..run.config import RunConfig, SharedConfig
from ..run.folder import CONFIG, new_folder
from ..settings import check_keywords, takes_settings
from ..task import Task, check_task
from ..world import World
from .report import export, verdict
from .report.runs import Reader, all_runs, not_started
from .stats import Arm
from .study import Given, Study, carry_out

Place = str | os.PathLike[str]
Algorithms = Sequence[Algorithm | str] | Mapping[str, Algorithm | str]


class Comparison:
    """Several algorithms on one task, as their directory has them; the first is what the others are compared with.

    Made by `fk.compare`, or by `Comparison.read` of directories that `fedkeel run`, `fk.compare` or `Run.save` wrote.
    In Jupyter it shows its table and curves.

    >>> import fedkeel as fk
    >>> comparison = fk.compare(fk.tasks.synthetic(users=8), ["fedavg", "gel"], rounds=3, seeds=2)
    >>> print(comparison.to_markdown().splitlines()[0])
    | algorithm | to 0.85: rounds | to 0.85: gradients | to 0.85: MB | speed-up over fedavg | test accuracy at the end \
| better than fedavg by | seeds |
    """

    def __init__(self, folders: Sequence[Path], task: Task | None = None) -> None:
        self.folders, self.task = list(folders), task
        self.groups = Reader().read(self.folders)
        if not self.groups:
            raise InputError(f"There is no run with a history in {', '.join(map(str, folders))}.")
        left = [run.folder for run in all_runs(self.groups) if not run.complete]
        if left or not_started(self.folders):
            raise InputError(f"Not all runs in {', '.join(map(str, folders))} have ended; finish or resume them first.")
        names = sorted({str(run.config["task"]) for run in all_runs(self.groups)})
        if len(names) > 1:
            raise InputError(f"These runs are of different tasks ({', '.join(names)}); read each on its own.")
        self.title, self.numbers = names[0], verdict.compare(self.groups)

    @classmethod
    def read(cls, *folders: Place, task: Task | None = None) -> Self:
        """The comparison in these directories; task: for a report on runs whose task was made in Python."""
        return cls([Path(folder) for folder in folders], task)

    @property
    def target(self) -> float | None:
        """The accuracy that costs are counted to."""
        return self.numbers.target if self.numbers.unreached is None else self.numbers.unreached

    @property
    def arms(self) -> list[Arm]:
        """The algorithms with the histories of their seeds."""
        return [replace(arm, target=self.target) for arm in self.numbers.arms]

    def __repr__(self) -> str:
        names, seeds = ", ".join(group.name for group in self.groups), len(self.groups[0].runs)
        return f"<Comparison of {names} on {self.title}: {self.numbers.length}, seeds: {seeds}>"

    def table(self) -> None:
        """Print the table that `fedkeel compare` prints."""
        from rich.console import Console

        from .report.terminal import table

        console = Console()
        console = console if console.is_terminal else Console(width=110)
        config = self.groups[0].runs[0].config
        table(self.arms, self.target, config["rounds"], console, config.get("sim_seconds"))

    def summary(self) -> dict[str, Any]:
        """The numbers of `summary.json`, see docs/comparing.md."""
        from .compare import summary

        return summary(self.arms, self.target)

    def clients(self) -> list[dict[str, Any]]:
        """Every client of runs with a `client_test` share, the lowest first: its name as `client`, its `test_rows`, and
        as `accuracy` the mean over seeds of every algorithm on these rows (None where it diverged)."""
        from .report.replay import every_client

        names = [group.name for group in self.groups]
        rows = every_client(self.groups, self.task)
        return [
            {"client": row["name"], "test_rows": row["samples"],
             "accuracy": dict(zip(names, row["values"], strict=True))}
            for row in rows
        ]  # fmt: skip

    def to_pandas(self) -> Any:
        """A data frame with every row of every run, with its algorithm and seed: for figures of your own."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("pandas", "pandas", "to_pandas") from error
        rows: list[dict[str, Any]] = []
        for group in self.groups:
            for run in group.runs:
                rows += ({"algorithm": group.name, "seed": run.config["seed"], **row} for row in run.history)
        return pandas.DataFrame(rows)

    def to_latex(self, file: Place | None = None) -> str:
        """The table for LaTeX with booktabs, also written to `file`."""
        return _written(export.latex(self.numbers), file)

    def to_markdown(self, file: Place | None = None) -> str:
        """The table in Markdown, also written to `file`."""
        return _written(export.markdown(self.numbers), file)

    def to_csv(self, file: Place | None = None) -> str:
        """The numbers of the table for spreadsheets, a row for each algorithm, also written to `file`."""
        return _written(export.as_csv({"": (self.title, self.numbers)}), file)

    def plot(self, file: Place, x: str = "rounds", y: str | None = None, band: str = "95") -> Path:
        """Write the curves as .pdf, .png or .svg: means over seeds with bands.

        x: "rounds", "gradients", "MB" or "seconds" (simulated ones, where devices have a clock). y: a column of the
        histories; by default the accuracy, or the loss where there is none. band: "95" for 95 % intervals of the mean,
        "minmax" from the lowest to the highest seed, or "none".
        """
        from .report.figure import save

        save([self], Path(file), x, y, band)
        return Path(file)

    def report(self, file: Place) -> Path:
        """Write the page of `fedkeel report`; it has panels about clients where the task is known."""
        from .report.page import as_html, document

        write_text(Path(file), as_html(document(self.groups, task=self.task)))
        return Path(file)

    def save(self, folder: Place, overwrite: bool = False) -> Path:
        """Copy its directory: configurations, histories and models, which the command reads, too."""
        if len(self.folders) > 1:
            raise InputError("This comparison was read from several directories, so there is nothing to save.")
        new_folder(Path(folder), overwrite)
        shutil.copytree(self.folders[0], folder, dirs_exist_ok=True)
        return Path(folder)

    def _repr_html_(self) -> str:
        from html import escape

        from .report.figure import as_svg

        try:
            curves = as_svg([self])
        except MissingExtra as error:
            curves = f"<p>{escape(str(error))}</p>"
        headline = escape(verdict.in_words(self.numbers)["headline"])
        return f"<div><p><b>{headline}</b></p>{export.as_html(self.numbers)}{curves}</div>"


def _written(text: str, file: Place | None) -> str:
    if file is not None:
        write_text(Path(file), text)
    return text


@takes_settings(SharedConfig)
def compare(
    task: Task,
    algorithms: Algorithms,
    world: World | None = None,
    rounds: int = SharedConfig.rounds,
    seeds: int | Sequence[int] = 3,
    *,
    dtype: torch.dtype | str = SharedConfig.dtype,
    out: Place | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Comparison:
    """Train every algorithm with every seed, all else equal, and compare them.

    algorithms: texts or `Algorithm`s, the first is the baseline; or a dict that gives them names. seeds: how many, or
    which. out: a directory for the runs; the same call goes on where it was stopped, and does not run again what is
    done, also with more algorithms than before. Without it the runs are kept until the comparison is gone, unless
    `save` copies them.

    Settings, as of `fk.train`:

        SETTINGS

    >>> import fedkeel as fk
    >>> mine = fk.Algorithm(rules=[fk.Proximal(0.1)])
    >>> fk.compare(fk.tasks.synthetic(users=8), {"fedavg": "fedavg", "mine": mine}, rounds=2, seeds=[0])
    <Comparison of fedavg, mine on synthetic:users=8: 2 rounds, seeds: 1>
    """
    check_keywords(compare, settings)
    study = study_of("compare", task, named(algorithms), world, rounds, seeds, dtype, settings)
    return run_study(study, out, overwrite)[0]


def named(algorithms: Any) -> dict[str, Algorithm]:
    """The algorithms by their names in tables and directories: those of a dict, else their own texts or titles."""
    good = isinstance(algorithms, Mapping | list | tuple) and len(algorithms) > 0
    check(good, "compare", "algorithms", "a list of algorithms, or a dict that gives them names", algorithms)
    pairs = algorithms.items() if isinstance(algorithms, Mapping) else ((None, one) for one in algorithms)
    found: dict[str, Algorithm] = {}
    for name, one in pairs:
        known = recipes.algorithm(one) if isinstance(one, str) else one
        check(isinstance(known, Algorithm), "compare", "algorithms", "made of Algorithms or their texts", one)
        check(name is None or (isinstance(name, str) and name != ""), "compare", "algorithms", "named by texts", name)
        title = name or known.spec or known.title
        if title in found:
            raise InputError(f"Two algorithms are called '{title}'; give them names in a dict: {{'name': algorithm}}.")
        found[title] = known if known.spec == title else replace(known, spec=title)
    return found


def study_of(
    owner: str,
    task: Task,
    algorithms: Mapping[str, Algorithm],
    world: World | None,
    rounds: int,
    seeds: int | Sequence[int],
    dtype: torch.dtype | str,
    settings: Mapping[str, Any],
) -> Study:
    """The study of Python objects that are compared or swept."""
    check_task(owner, task)
    check(world is None or isinstance(world, World), owner, "world", "a World", world)
    chosen = RunConfig.from_keywords({"rounds": rounds, "dtype": str(dtype).removeprefix("torch."), **settings}).plain()
    del chosen["seed"]
    which = list(seeds) if isinstance(seeds, Iterable) else list(range(int(seeds))) if seeds in REPEATS else []
    good = len(which) in REPEATS and all(seed in SEED for seed in which)
    check(good, owner, "seeds", f"a number of seeds, {REPEATS}, or a list of seeds", seeds)
    which = list(map(int, which))
    if len(set(which)) < len(which):
        raise InputError(f"A seed is given twice in {which}.")
    world = world or World()
    given = Given(task, algorithms, _described(task, algorithms, world))
    return Study(task.title, list(algorithms), world, which, given=given, below=True, **chosen)


def _described(task: Task, algorithms: Mapping[str, Algorithm], world: World) -> dict[str, Any]:
    """What the configuration says of Python objects: whether their names are enough to run all of it again."""
    cannot = []
    usual = None if task.spec is None else tasks.get(task.spec)
    if usual is None or any(getattr(task, k) != getattr(usual, k) for k in ("batch_size", "lr", "budget", "target")):
        cannot.append("the task was made in Python")
    if not all(_is_its_name(algorithm) for algorithm in algorithms.values()):
        cannot.append("an algorithm was made in Python")
    if world.budget is not None and world.parameters()["budget"] is None:
        cannot.append("the budget is a Python function")
    parameters = {name: algorithm.parameters() for name, algorithm in algorithms.items()}
    why = "; ".join([*cannot, "call fk.compare again, with out= to go on"])
    return {
        "parameters_of": parameters,
        "data_checksum": identity_of(task.data)[:16],
        "rerunnable": not cannot,
        **({"why_not": why} if cannot else {}),
    }


def _is_its_name(algorithm: Algorithm) -> bool:
    """Whether the text that an algorithm is called by makes the same one."""
    try:
        return recipes.algorithm(algorithm.spec or "") == algorithm
    except InputError:
        return False


def run_study(study: Study, out: Place | None, overwrite: bool = False) -> tuple[Comparison, Path]:
    """Carry out a study with a progress bar in a terminal; gives its comparison and its directory.

    Without `out` the directory is a temporary one, which is removed with the comparison.
    """
    from rich.console import Console

    from .report.progress import Watching

    task = study.made_task()
    study.check(task)
    study.check_kernels(task)
    folder = Path(tempfile.mkdtemp(prefix="fedkeel-") if out is None else out)
    if out is not None and (overwrite or not _is_same(study, folder)):
        new_folder(folder, overwrite)
    try:
        with Watching(study, Console(stderr=True), verbose=False) as watching:
            carry_out(study, folder, watching.row, watching.began)
        comparison = Comparison([folder], task)
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if out is None:
        weakref.finalize(comparison, shutil.rmtree, folder, ignore_errors=True)
    return comparison, folder


def _is_same(study: Study, folder: Path) -> bool:
    """Whether the directory holds this study, to go on with; refuses another one."""
    if not (folder / CONFIG).exists():
        return False
    free = {"fedkeel", "sweep"} | ({"engine"} if study.engine == "probe" else set())
    known = read_json(folder / CONFIG)
    wanted = plain(_of_these(study, known.get("algorithms")).config())
    for name in dict.fromkeys((*wanted, *known)):
        if name not in free and known.get(name) != wanted.get(name):
            (_, *keys), own, other = first_difference(known.get(name), wanted.get(name), [name])
            if name == "parameters_of" and keys:
                what = f"{'.'.join(keys[1:]) or 'algorithm'} of {keys[0]!r}"
            else:
                what = ".".join([name, *keys])
            differs = f"its {what} {'are' if what.endswith('s') else 'is'} {brief(own)}, not {brief(other)}"
            remedy = _beside(folder) if name == "algorithms" else "Choose another out, or overwrite."
            raise InputError(f"{folder} holds something else: {differs}. {remedy}")
    return True


def _of_these(study: Study, algorithms: Any) -> Study:
    """The study of those algorithms alone that a directory has, if all of them are wanted: only the others are new."""
    if study.given is None or not isinstance(algorithms, list) or not set(algorithms) <= set(study.algorithms):
        return study
    own = {name: study.given.algorithms[name] for name in algorithms}
    given = replace(study.given, algorithms=own, config=_described(study.given.task, own, study.world))
    return replace(study, algorithms=algorithms, given=given)


def _beside(folder: Path) -> str:
    """How algorithms are compared with those of a directory that does not have them."""
    both = f"fk.Comparison.read({str(folder)!r}, 'OTHER'), or fedkeel compare {folder} OTHER"
    return f"Give all of these and the new ones, or run the new ones with out='OTHER' and read both: {both}."


def first_difference(one: Any, two: Any, place: Sequence[str] = ()) -> tuple[list[str], Any, Any]:
    """Where two trees of plain values first differ, and what they have there; items of lists go by their `name`.

    >>> first_difference({"rules": [{"name": "proximal", "mu": 1}]}, {"rules": [{"name": "proximal", "mu": 2}]})
    (['rules', 'proximal', 'mu'], 1, 2)
    """
    if isinstance(one, dict) and isinstance(two, dict):
        pairs = [(str(key), one.get(key), two.get(key)) for key in dict.fromkeys((*one, *two))]
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = [(_name_of(a, b) or str(k), a, b) for k, (a, b) in enumerate(zip(one, two, strict=True))]
    else:
        return list(place), one, two
    return next((first_difference(a, b, [*place, key]) for key, a, b in pairs if a != b), (list(place), one, two))


def _name_of(one: Any, two: Any) -> str | None:
    names = {item.get("name") if isinstance(item, dict) else None for item in (one, two)}
    return str(names.pop()) if len(names) == 1 and None not in names else None
