"""Runs the arms of a plan; runs that are done are read, runs that were stopped go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...errors import InputError, MissingExtra
from ...run import checkpoint as files
from ...run.config import SharedConfig
from ...run.history import Row
from .. import study
from ..stats import Arm
from ..study import Study
from .plan import Line, Panel, Plan
from .verdict import score

Runs = dict[str, Arm]  # algorithm -> its runs


class Watcher(Protocol):
    """Sees a study's runs as they go on."""

    def row(self, algorithm: str, seed: int, row: Row) -> Any: ...

    def began(self, config: dict[str, Any]) -> None: ...


Watch = Callable[[Study], AbstractContextManager[Watcher]]


@dataclass
class Measured:
    """What the runs of a panel gave: for each arm its algorithms and their runs, or why there are none."""

    panel: Panel
    arms: dict[str, Runs] = field(default_factory=dict)
    tried: dict[str, dict[str, float]] = field(default_factory=dict)  # arm -> algorithm -> score on the tuning seed
    why_not: str | None = None

    @property
    def wall_seconds(self) -> float:
        """Of the reported runs."""
        histories = (h for runs in self.arms.values() for runs_of in runs.values() for h in runs_of.histories)
        return float(sum(history[-1]["wall_seconds"] for history in histories))


def carry_out(plan: Plan, root: Path, watch: Watch) -> list[Measured]:
    """Run every panel below `root`; a panel whose data or algorithm are not here says so, the others go on."""
    done: dict[str, Measured] = {}
    for panel in plan.panels:
        if panel.skip is not None:
            done[panel.name] = Measured(panel, why_not=panel.skip)
            continue
        try:
            chosen = _taken_over(done, panel.tuned_on) if panel.tuned_on is not None else None
            done[panel.name] = _panel(panel, root / panel.folder, chosen, watch)
        except (InputError, MissingExtra) as error:
            done[panel.name] = Measured(panel, why_not=str(error))
    return list(done.values())


def _taken_over(done: dict[str, Measured], panel: str) -> dict[str, dict[str, float]]:
    if panel not in done or not done[panel].tried:
        raise InputError(f"the rates were to be tuned on '{panel}', which was not run")
    return done[panel].tried


def _panel(panel: Panel, root: Path, chosen: dict[str, dict[str, float]] | None, watch: Watch) -> Measured:
    measured = Measured(panel)
    measured.tried = _tune(panel, root / "tuning", watch) if chosen is None else chosen
    for budget in dict.fromkeys(arm.budget for arm in panel.arms.values()):
        arms = [arm for arm in panel.arms.values() if arm.budget == budget]
        texts = {arm.name: _reported(arm, measured.tried) for arm in arms}
        out = root / ("runs" if budget is None else f"budget-{budget.replace(':', '-')}")
        runs = _study(panel, arms[0], (text for some in texts.values() for text in some), panel.seeds, out, watch)
        measured.arms |= {name: {text: runs[text] for text in some} for name, some in texts.items()}
    measured.arms = {name: measured.arms[name] for name in panel.arms}  # in the table's order
    return measured


def _reported(arm: Line, tried: dict[str, dict[str, float]]) -> list[str]:
    if arm.name not in tried:
        return arm.cells()
    return [max(tried[arm.name], key=lambda text: tried[arm.name][text])]


def _tune(panel: Panel, out: Path, watch: Watch) -> dict[str, dict[str, float]]:
    """Every algorithm of the grids of which the best is taken, on the tuning seed; one that diverges is never best."""
    tuned = [arm for arm in panel.arms.values() if arm.take == "best" and len(arm.cells()) > 1]
    if not tuned:
        return {}
    assert panel.tuning_seed is not None
    tried: dict[str, dict[str, float]] = {}
    for arm in tuned:
        runs = _study(panel, arm, arm.cells(), [panel.tuning_seed], out, watch)
        tried[arm.name] = {
            text: -1.0 if "diverged" in runs[text].statuses else score(runs[text].histories[0])
            for text in arm.cells()
        }  # fmt: skip
    return tried


def _study(panel: Panel, arm: Line, texts: Iterable[str], seeds: list[int], out: Path, watch: Watch) -> Runs:
    settings = panel.plain() | {"checkpoint_every": 20}
    made = Study(panel.task, list(dict.fromkeys(texts)), panel.world(arm), seeds, **settings)
    _same_settings(made, out)
    with watch(made) as watcher:
        done = study.carry_out(made, out, watcher.row, watcher.began)
    return {one.name: one for one in done}


def _same_settings(made: Study, out: Path) -> None:
    """Refuse runs that an earlier version of the file left here: they would be read as this one's."""
    if not (out / "config.json").exists():
        return
    free = ("algorithms", "seeds", "fedkeel")  # each run has a folder of its own
    before = SharedConfig().plain() | files.read_json(out / "config.json")  # an earlier version wrote fewer settings
    now = json.loads(json.dumps(made.config()))
    changed = [key for key in now if key not in free and before.get(key) != now[key]]
    if changed:
        raise InputError(f"The runs in {out} were made with another {changed[0]}; remove them to run again.")
