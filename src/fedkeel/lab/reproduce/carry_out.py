"""Runs the arms of a plan; runs that are done are read, runs that were stopped go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from ...errors import InputError, MissingExtra
from ...files import plain, read_json
from ...run.config import SharedConfig
from ...run.history import History
from .. import study
from ..report.progress import Watching
from ..stats import Arm
from ..study import Study
from .plan import Line, Panel, Plan
from .verdict import score

Runs = dict[str, Arm]  # algorithm -> its runs
Watch = Callable[[Study], AbstractContextManager[Watching]]  # shows the runs of a study


@dataclass
class Measured:
    """What the runs of a panel gave: for each arm its algorithms and their runs, or why there are none."""

    panel: Panel
    arms: dict[str, Runs] = field(default_factory=dict)
    tried: dict[str, dict[str, float]] = field(default_factory=dict)  # arm -> algorithm -> score on the tuning seed
    why_not: str | None = None

    def histories(self, arm: str) -> list[History]:
        """Of all algorithms and seeds of an arm."""
        return list(chain.from_iterable(one.histories for one in self.arms[arm].values()))

    @property
    def wall_seconds(self) -> float:
        """Of the reported runs."""
        return float(sum(h[-1]["wall_seconds"] for h in chain.from_iterable(map(self.histories, self.arms))))


def carry_out(plan: Plan, root: Path, watch: Watch) -> list[Measured]:
    """Run every panel below `root`; a panel whose data or algorithm are not here says so, the others go on."""
    done: dict[str, Measured] = {}
    for panel in plan.panels:
        measured = done[panel.name] = Measured(panel, why_not=panel.skip)
        if panel.skip is not None:
            continue
        try:
            if panel.tuned_on is None:
                measured.tried = _tune(panel, root / panel.folder / "tuning", watch)
            elif panel.tuned_on in done and done[panel.tuned_on].tried:
                measured.tried = done[panel.tuned_on].tried
            else:
                raise InputError(f"the rates were to be tuned on '{panel.tuned_on}', which was not run")
            measured.arms = _arms(panel, measured.tried, root / panel.folder, watch)
        except (InputError, MissingExtra) as error:
            done[panel.name] = Measured(panel, why_not=str(error))
    return list(done.values())


def _tune(panel: Panel, out: Path, watch: Watch) -> dict[str, dict[str, float]]:
    """Every algorithm of the grids of which the best is taken, on the tuning seed; one that diverges is never best."""
    tried: dict[str, dict[str, float]] = {}
    for arm in panel.arms.values():
        if arm.tuned:
            assert panel.tuning_seed is not None
            runs = _study(panel, arm, arm.cells(), [panel.tuning_seed], out, watch)
            tried[arm.name] = {t: -1.0 if runs[t].diverged else score(runs[t].histories[0]) for t in arm.cells()}
    return tried


def _arms(panel: Panel, tried: dict[str, dict[str, float]], root: Path, watch: Watch) -> dict[str, Runs]:
    """The runs of every arm: of the best algorithm of a grid that was tuned, of all of them otherwise."""
    texts = {name: arm.cells() for name, arm in panel.arms.items()}
    texts |= {name: [max(scores, key=lambda text: scores[text])] for name, scores in tried.items()}
    found: dict[str | None, Runs] = {}
    for budget in dict.fromkeys(arm.budget for arm in panel.arms.values()):
        arms = [arm for arm in panel.arms.values() if arm.budget == budget]
        wanted = chain.from_iterable(texts[arm.name] for arm in arms)
        out = root / ("runs" if budget is None else f"budget-{budget.replace(':', '-')}")
        found[budget] = _study(panel, arms[0], wanted, panel.seeds, out, watch)
    return {name: {text: found[arm.budget][text] for text in texts[name]} for name, arm in panel.arms.items()}


def _study(panel: Panel, arm: Line, texts: Iterable[str], seeds: list[int], out: Path, watch: Watch) -> Runs:
    settings = panel.plain() | {"checkpoint_every": 20}
    made = Study(panel.task, list(dict.fromkeys(texts)), panel.world(arm), seeds, **settings)
    if (out / "config.json").exists():
        _refuse_other_settings(made, out)
    with watch(made) as watcher:
        done = study.carry_out(made, out, watcher.row, watcher.began)
    return {one.name: one for one in done}


def _refuse_other_settings(made: Study, out: Path) -> None:
    """Runs that an earlier version of the file left here would be read as this one's."""
    free = ("algorithms", "seeds", "fedkeel")  # each run has a folder of its own
    before = SharedConfig().plain() | read_json(out / "config.json")  # an earlier version wrote fewer settings
    now = plain(made.config())
    changed = [key for key in now if key not in free and before.get(key) != now[key]]
    if changed:
        raise InputError(f"The runs in {out} were made with another {changed[0]}; remove them to run again.")
