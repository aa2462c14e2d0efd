"""What a reproduction runs, read from its TOML file and checked.

A file has `title`, `paper`, `what` and one `[[panel]]` per experiment. Keys of `[defaults]` hold for every panel. Keys
of a panel:

    name            what the table calls it
    like            another panel of the file, whose keys hold for this one as well
    heading         "paper": the paper's own setting; "near": its model, partition rule, cohort, local work and at least
                    half of its rounds, on data of the same source; "stand-in": anything else; "not run"; "ours": a
                    study of our own
    differs         how it differs from the paper's setting, for "near" and "stand-in"
    why, hours      of a panel that is not run: the reason; and how long a dry run says that it takes on two cores
    task            a task's text
    arms            name -> algorithm, or a table: run, and a grid (key -> values); take = "best" or "mean" of the grid;
                    budget, where the arm has one of its own
    controls        names of arms the paper does not have
    paper           arm -> the paper's figure; "1500+" was not reached, "x" failed
    metric          rounds, gradients, samples or megabytes to the target; accuracy (percent, last); last (percent, mean
                    of the last rounds)
    quality_of      the arm whose last accuracy is the target, instead of `target`
    shows           columns of the history that the page shows over the rounds
    claims          { better = ARM, than = ARM } or { no_worse = ARM, than = ARM, margin = M }; with gain (where
                    `paper` does not give it), metric (where it is another one), control (the arm that would explain
                    the gain away). than may be a list, or "all": every other arm of the paper
    seeds           [first, how many]
    rounds, ...     every setting of `SharedConfig`
    cohort, budget, expected_steps, fleet, deadline, late, invite         of the runs' world
    tuning_seed     seed on which the best of a grid is chosen; it is not reported
    tuning_rounds   rounds of the runs that choose, where they are shorter; tuning_eval_every: between their evaluations
    by              what the best is chosen by, see `fedkeel sweep --help`; by validation data a tenth of every client's
                    samples is not trained on while tuning; reported runs train on all
    tuned_on        the panel whose choices are taken over
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from ... import grammar, tasks
from ...errors import InputError, check, is_number, unknown
from ...ranges import REPEATS
from ...run.config import SharedConfig
from ...settings import check_settings
from ...world import World
from ..study import folder_name
from ..sweep.grid import BY, Cell, Grid
from . import HEADINGS

COSTS = ("rounds", "gradients", "samples", "megabytes")  # less is better
METRICS = (*COSTS, "accuracy", "last")
PAPERS = Path(__file__).parent / "papers"
WORLD = ("cohort", "budget", "expected_steps", "fleet", "deadline", "late", "invite")
OWN = ("name", "heading", "differs", "why", "hours")  # what a panel does not take over from one that it is like


@dataclass(frozen=True)
class Line:
    """One line of the table: an algorithm, or a grid of them.

    >>> Line("SGD", "sgd", {"lr": [0.1, 0.5]}).texts()
    ['sgd:lr=0.1', 'sgd:lr=0.5']
    """

    name: str
    run: str
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    take: str = "best"
    budget: str | None = None

    def __post_init__(self) -> None:
        check(self.take in ("best", "mean"), f"arm {self.name}", "take", "best or mean", self.take)
        self.texts()

    @cached_property
    def grid(self) -> Grid:
        return Grid(self.run, self.values)

    def texts(self) -> list[str]:
        """The algorithms of the grid; without one, the only algorithm."""
        return [written(self.grid, cell) for cell in self.grid.cells()]

    @property
    def tuned(self) -> bool:
        """The best of several algorithms is taken."""
        return self.take == "best" and self.grid.size > 1


def written(grid: Grid, cell: Cell) -> str:
    """A cell's algorithm, written as everywhere."""
    return grammar.write(grammar.parse(grid.algorithm(cell)))


@dataclass(frozen=True)
class Claim:
    """What the paper says of two arms."""

    arm: str
    than: str
    margin: float | None = None  # of "no worse"; None claims "better"
    gain: float | None = None  # the paper's, where its figures do not give it
    metric: str | None = None
    control: str | None = None


@dataclass(frozen=True)
class Panel(SharedConfig):
    """One experiment: a part of a table, at the paper's setting or at another."""

    name: str
    task: str
    arms: dict[str, Line]
    claims: list[Claim]
    seeds: list[int]
    metric: str = "rounds"
    controls: Sequence[str] = ()
    paper: Mapping[str, Any] = field(default_factory=dict)
    cohort: int | float | str | None = None
    budget: str | None = None
    expected_steps: int | None = None
    fleet: str | None = None
    deadline: float | str | None = None
    late: str = "partial"
    invite: float = 1.0
    quality_of: str | None = None
    shows: Sequence[str] = ()
    tuning_seed: int | None = None
    tuning_rounds: int | None = None
    tuning_eval_every: int | None = None
    by: str = "validation_accuracy"
    tuned_on: str | None = None
    heading: str = "paper"
    differs: str | None = None
    why: str | None = None
    hours: float | None = None

    def __post_init__(self) -> None:
        owner = f"panel {self.name}"
        check_settings(self, owner)
        check(self.heading in HEADINGS, owner, "heading", f"one of {', '.join(HEADINGS)}", self.heading)
        other = self.heading in ("near", "stand-in")
        check(other == (self.differs is not None), owner, "differs", "given for 'near' and 'stand-in'", self.differs)
        left_out = self.heading == "not run"
        check(left_out == (self.why is not None), owner, "why", "given for what is not run", self.why)
        check(self.by in BY, owner, "by", f"one of {', '.join(BY)}", self.by)
        check(self.metric in METRICS, owner, "metric", f"one of {', '.join(METRICS)}", self.metric)
        goal = is_number(self.target) != (self.quality_of is not None)
        used = {self.metric, *(claim.metric for claim in self.claims)}
        check(goal or not used & set(COSTS), owner, "target", "a number, or quality_of an arm", self.target)
        named = [*self.controls, *self.paper, self.quality_of]
        for claim in self.claims:
            check(claim.metric in (None, *METRICS), owner, "metric of a claim", "a metric", claim.metric)
            named += [claim.arm, claim.than, claim.control]
        for name in named:
            if name is not None and name not in self.arms:
                raise unknown(f"arm of {owner}", name, self.arms)
        tuned = any(arm.tuned for arm in self.arms.values())
        check(not tuned or self.tuning_seed is not None, owner, "tuning_seed", "given, there is a grid", None)
        check(self.tuning_seed not in self.seeds, owner, "tuning_seed", "none of the seeds", self.tuning_seed)
        tasks.find(self.task)
        self.world()

    @property
    def folder(self) -> str:
        """Its directory within the study's."""
        return folder_name(self.name.replace(" ", "-"))

    def world(self, arm: Line | None = None) -> World:
        """Who takes part with how many steps, for an arm that may have a budget of its own."""
        budget = self.budget if arm is None or arm.budget is None else arm.budget
        given = {name: getattr(self, name) for name in WORLD}
        return World.from_parameters(given | {"budget": budget})


@dataclass(frozen=True)
class Plan:
    """A table or figure."""

    name: str
    title: str
    paper: str
    what: str
    panels: list[Panel]
    note: str = ""


def names() -> list[str]:
    """Every table and figure there is a file for.

    >>> "gel/table2" in names()
    True
    """
    files = (file.relative_to(PAPERS).with_suffix("") for file in PAPERS.rglob("*.toml"))
    found = (file.as_posix() for file in files if file.name != "contents")
    return sorted(found, key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def load(name: str) -> Plan:
    """The plan of a table; everything that needs no data is checked.

    >>> load("gel/table2").panels[0].arms["GEL"].run
    'fedavgcm+gel'
    """
    if name not in (known := names()):
        raise unknown("reproduction", name, known)
    content = tomllib.loads((PAPERS / f"{name}.toml").read_text())
    try:
        return read(name, content)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"The file of {name} cannot be read: {error}.") from error


def chosen(
    plan: Plan, names: Sequence[str] | None, seeds: int | None = None, arms: Sequence[str] | None = None
) -> Plan:
    """The plan with these panels, and those they take their rates from; by default all but those marked as not run.

    seeds: only so many, the first ones. arms: only these, in the panels that have one of them.
    """
    check(seeds is None or seeds in REPEATS, "reproduce", "seeds", str(REPEATS), seeds)
    known = {panel.name: panel for panel in plan.panels}
    for name in names or ():
        if name not in known:
            raise unknown(f"panel of {plan.name}", name, known)
    wanted = set(names or (panel.name for panel in plan.panels if panel.heading != "not run"))
    wanted |= {tuned_on for name in wanted if (tuned_on := known[name].tuned_on) is not None}
    if not wanted:
        raise InputError(f"Every panel of {plan.name} is marked as not run; choose one with --panel.")
    panels = [replace(panel, seeds=panel.seeds[:seeds]) for panel in plan.panels if panel.name in wanted]
    if arms is not None:
        there = dict.fromkeys(chain.from_iterable(panel.arms for panel in panels))
        for arm in arms:
            if arm not in there:
                raise unknown(f"arm of {plan.name}", arm, there)
        panels = [_with_arms(panel, arms) for panel in panels if not panel.arms.keys().isdisjoint(arms)]
    return replace(plan, panels=panels)


def _with_arms(panel: Panel, names: Sequence[str]) -> Panel:
    """The panel with these arms alone, the one whose quality is the target, and what is said of them."""
    arms = {name: arm for name, arm in panel.arms.items() if name in (*names, panel.quality_of)}
    claims = [claim for claim in panel.claims if claim.arm in arms and claim.than in arms]
    return replace(
        panel,
        arms=arms,
        claims=[replace(claim, control=claim.control if claim.control in arms else None) for claim in claims],
        controls=[name for name in panel.controls if name in arms],
        paper={name: value for name, value in panel.paper.items() if name in arms},
    )


def contents() -> dict[str, Any]:
    """Every table and figure of the papers: the study that answers for it, or why there is none."""
    return tomllib.loads((PAPERS / "contents.toml").read_text())


def read(name: str, content: Mapping[str, Any]) -> Plan:
    """The plan of a file's content."""
    raw: dict[str, dict[str, Any]] = {}
    for given in content["panel"]:
        shared = dict(content.get("defaults", {}))
        if "like" in given:
            if given["like"] not in raw:
                raise unknown("panel before this one", given["like"], raw)
            shared = {key: value for key, value in raw[given["like"]].items() if key not in OWN}
        check(given["name"] not in raw, name, "panel", "named once", given["name"])
        raw[given["name"]] = shared | {key: value for key, value in given.items() if key != "like"}
    panels = [_panel(one) for one in raw.values()]
    return Plan(name, content["title"], content["paper"], content["what"], panels, content.get("note", ""))


def _panel(given: Mapping[str, Any]) -> Panel:
    for key in given:
        if key not in (known := [f.name for f in fields(Panel)]):
            raise unknown("key of a panel", key, known)
    controls = given.get("controls", ())
    arms = {arm: _line(arm, value) for arm, value in given["arms"].items()}
    claims = list(chain.from_iterable(_claims(text, arms, controls) for text in given.get("claims", ())))
    first, count = given["seeds"]
    check(count in REPEATS, f"panel {given['name']}", "seeds", f"[first, {REPEATS}]", given["seeds"])
    made = {"arms": arms, "claims": claims, "seeds": list(range(first, first + count))}
    return Panel(**{**given, **made})


def _line(name: str, given: str | Mapping[str, Any]) -> Line:
    if isinstance(given, str):
        return Line(name, given)
    rest = dict(given)
    return Line(name, rest.pop("run"), rest.pop("grid", {}), **rest)


def _claims(given: Mapping[str, Any], arms: Mapping[str, Line], controls: Sequence[str]) -> list[Claim]:
    rest = dict(given)
    arm, kept = rest.pop("better", None), rest.pop("no_worse", None)
    than = rest.pop("than")
    if (arm is None) == (kept is None) or (kept is None) != ("margin" not in rest):
        raise InputError(f"A claim is 'better', or 'no_worse' with a margin. Got {dict(given)} instead.")
    name = arm or kept
    others = [other for other in arms if other != name and other not in controls] if than == "all" else than
    return [Claim(name, other, **rest) for other in ([others] if isinstance(others, str) else others)]
