"""Run directories as a report sees them: what was run, how far it is, and which runs make an arm."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from ... import grammar
from ...errors import InputError
from ...files import read_json
from ...run.checkpoint import check_model, read_run
from ...run.config import RunConfig
from ...run.folder import CONFIG, ENVIRONMENT, HISTORY, MODEL, OUTCOME
from ...run.history import History
from ...settings import settings
from ..study import folder_name

# What must be equal for two runs to be repetitions of one another: all but the seed and how a run is carried out.
FREE = {"seed", "eval_every", "engine", "compile", "device", "checkpoint_every", "diagnose"}
SETTINGS = ("task", "algorithm", "parameters", "world", *(name for name in settings(RunConfig) if name not in FREE))


@dataclass(frozen=True)
class Ran:
    """A run as its directory tells it; status is "done", "diverged" or "stopped" (rounds are left)."""

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    history: History
    status: str

    @property
    def name(self) -> str:
        return str(self.config["algorithm"])

    @property
    def complete(self) -> bool:
        return self.status != "stopped"

    @property
    def place(self) -> Path:
        """Where it lies, without the folder of its seed."""
        return self.folder.parent if self.folder.name.startswith("seed-") else self.folder


@dataclass(frozen=True)
class Group:
    """One algorithm with the folders of its runs, ended or not; `stats.Arm` has the numbers of those that ended."""

    name: str
    runs: list[Ran]

    @property
    def complete(self) -> list[Ran]:
        return [run for run in self.runs if run.complete]


def all_runs(groups: Iterable[Group]) -> list[Ran]:
    """The runs of these groups."""
    return list(chain.from_iterable(group.runs for group in groups))


class Reader:
    """Reads run directories; what has not changed since the last time is not read again."""

    def __init__(self) -> None:
        self.known: dict[Path, tuple[tuple[tuple[int, int], ...], Ran]] = {}

    def read(self, folders: Sequence[Path]) -> list[Group]:
        """The arms of the runs at or below these folders, a comparison's in its own order, without runs that have no
        history yet."""
        found: dict[Path, Ran] = {}
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"{folder} is not the directory of a run or of a comparison{_above(folder)}.")
            rank = {name: place for place, name in enumerate(_planned(folder)[0])}
            places = {file.parent for file in chain(folder.rglob(HISTORY), folder.rglob(OUTCOME))}
            runs = [self.one(place) for place in sorted(places)]
            for run in sorted(runs, key=lambda run: (rank.get(run.name, len(rank)), run.config["seed"])):
                found.setdefault(run.folder.resolve(), run)
        groups = arms(list(found.values()))
        return [Group(group.name, kept) for group in groups if (kept := [run for run in group.runs if run.history])]

    def one(self, folder: Path) -> Ran:
        stamp = tuple(_stamp(folder / name) for name in (CONFIG, HISTORY, MODEL, OUTCOME))
        if folder not in self.known or self.known[folder][0] != stamp:
            self.known[folder] = stamp, _read(folder)
        return self.known[folder][1]


def _above(folder: Path) -> str:
    """The directory of the run or comparison that a wrong path lies in, for an error."""
    found = next((place for place in folder.parents if (place / CONFIG).exists()), None)
    return "" if found is None else f"; {found} is"


def _stamp(file: Path) -> tuple[int, int]:
    try:
        known = file.stat()
    except OSError:
        return 0, 0
    return known.st_mtime_ns, known.st_size


def _read(folder: Path) -> Ran:
    known, about = read_run(folder), folder / ENVIRONMENT
    if known.status != "stopped":
        check_model(folder)  # what is replayed on the page is taken from it
    environment = read_json(about) if about.exists() else {}
    return Ran(folder, known.config, environment, known.history, known.status)


def arms(runs: Sequence[Ran]) -> list[Group]:
    """Repetitions of one another in a group; other runs of the same algorithm are named by their folders."""
    same: dict[str, list[Ran]] = {}
    parts = ["task_parts"] if all("task_parts" in run.config for run in runs) else []  # not by earlier versions
    for run in runs:
        same.setdefault(json.dumps([run.config.get(k) for k in (*SETTINGS, *parts)], sort_keys=True), []).append(run)
    groups: list[list[Ran]] = []
    for group in same.values():
        if len({run.config["seed"] for run in group}) == len(group):
            groups.append(group)
        else:
            places = dict.fromkeys(run.place for run in group)
            groups += [[run for run in group if run.place == place] for place in places]
    names = [group[0].name for group in groups]
    short = dict(zip(names, labels(names), strict=True))
    made = []
    for name, group in zip(names, groups, strict=True):
        alike = [other[0].place.absolute() for other in groups if other[0].name == name]
        own = os.path.relpath(group[0].place.absolute(), os.path.commonpath([place.parent for place in alike]))
        made.append(Group(f"{short[name]} ({own})" if len(alike) > 1 else short[name], group))
    return made


def labels(names: Sequence[str]) -> list[str]:
    """Names of arms without the settings that all of them share; as they are where that would make two alike.

    >>> labels(["fedavg:lr=0.1", "fedprox:mu=1,lr=0.1", "fedavg:lr=0.1+gel"])
    ['fedavg', 'fedprox:mu=1', 'fedavg+gel']
    """
    try:
        parsed = [grammar.parse(name) for name in names]
    except InputError:
        parsed = []
    if not parsed or len(set(names)) < 2:
        return list(names)
    common = set.intersection(*(set(map(repr, segments[0][1].items())) for segments in parsed))
    short = []
    for name, ((head, values), *parts) in zip(names, parsed, strict=True):
        own = {key: value for key, value in values.items() if repr((key, value)) not in common}
        short.append(grammar.write([(head, own), *parts]) if len(own) < len(values) else name)
    return short if len(set(short)) == len(set(names)) else list(names)


def not_started(folders: Sequence[Path]) -> list[tuple[str, int]]:
    """The (algorithm, seed) that a comparison in these folders plans and has not started."""
    found = []
    for folder in folders:
        for name, seed in product(*_planned(folder)):
            history = folder / folder_name(name) / f"seed-{seed}" / "history.jsonl"
            if not history.exists() or history.stat().st_size == 0:
                found.append((name, seed))
    return found


def _planned(folder: Path) -> tuple[list[str], list[int]]:
    """The algorithms and the seeds of the comparison in a folder; none without one."""
    whole = (folder / CONFIG).exists() or (folder / "summary.json").exists()  # a comparison that ended has both
    config = read_json(folder / CONFIG) if whole else {}
    names, seeds = config.get("algorithms"), config.get("seeds")
    if not isinstance(names, list) or not isinstance(seeds, list):
        return [], []
    return [str(name) for name in names], [seed for seed in seeds if isinstance(seed, int)]
