"""What a reproduction runs, read from its TOML file and checked.

A file has `title`, `paper`, `what` and one `[[panel]]` per part of the table. Keys of `[defaults]` hold for every
panel; at the small scale `[defaults.small]` and `[panel.small]` change what they name. Keys of a panel:

    name            what the table calls it
    task            a task's text
    arms            name -> algorithm, or a table: run, with {key} filled from `grid`; take = "best" or "mean" of the
                    grid; budget, where the arm has one of its own
    controls        names of arms the paper does not have
    paper           arm -> the paper's figure; "1500+" was not reached, "x" failed
    metric          rounds, gradients, samples or megabytes to the target; accuracy (percent, last); last (percent, mean
                    of the last rounds); lr (last over first)
    quality_of      the arm whose last accuracy is the target, instead of `target`
    claims          { better = ARM, than = ARM } or { no_worse = ARM, than = ARM, margin = M }; with gain (where
                    `paper` does not give it), metric (where it is another one), control (the arm that would explain
                    the gain away). than may be a list, or "all": every other arm of the paper
    seeds           [first, how many]
    rounds, ...     every setting of `SharedConfig`
    cohort, budget, expected_steps        of the runs' world
    tuning_seed     seed on which the best of a grid is chosen; it is not reported
    tuned_on        the panel whose choices are taken over; "" for none, where the paper's scale has one
    stand_in        what takes the place of data that are not here
    skip            why the panel is left out at this scale
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, product
from pathlib import Path
from typing import Any

from ... import grammar, tasks
from ...errors import InputError, check, is_number, unknown
from ...ranges import REPEATS
from ...run.config import SharedConfig
from ...settings import check_settings
from ...world import World
from ..study import folder_name
from . import SCALES

COSTS = ("rounds", "gradients", "samples", "megabytes")  # less is better
METRICS = (*COSTS, "accuracy", "last", "lr")
PAPERS = Path(__file__).parent / "papers"


@dataclass(frozen=True)
class Line:
    """One line of the table: an algorithm, or a grid of them.

    >>> Line("SGD", "sgd:lr={lr}", {"lr": [0.1, 0.5]}).cells()
    ['sgd:lr=0.1', 'sgd:lr=0.5']
    """

    name: str
    run: str
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    take: str = "best"
    budget: str | None = None

    def __post_init__(self) -> None:
        check(self.take in ("best", "mean"), f"arm {self.name}", "take", "best or mean", self.take)
        self.cells()

    def cells(self) -> list[str]:
        """The algorithms of the grid; without one, the only algorithm."""
        try:
            cells = (dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values()))
            filled = [self.run.format(**cell) for cell in cells]
        except (KeyError, IndexError) as error:
            raise InputError(f"Arm '{self.name}' has no grid for {error}.") from error
        return [grammar.write(grammar.parse(text)) for text in filled]

    @property
    def tuned(self) -> bool:
        """The best of several algorithms is taken."""
        return self.take == "best" and len(self.cells()) > 1


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
    """One part of a table, at one scale."""

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
    quality_of: str | None = None
    tuning_seed: int | None = None
    tuned_on: str | None = None
    stand_in: str | None = None
    skip: str | None = None

    def __post_init__(self) -> None:
        owner = f"panel {self.name}"
        check_settings(self, owner)
        check(len(self.seeds) > 1, owner, "seeds", "at least two", self.seeds)
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
        return World.from_parameters({"cohort": self.cohort, "budget": budget, "expected_steps": self.expected_steps})


@dataclass(frozen=True)
class Plan:
    """A table or figure at one scale."""

    name: str
    scale: str
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
    found = (f"{file.parent.name}/{file.stem}" for file in PAPERS.glob("*/*.toml"))
    return sorted(found, key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def load(name: str, scale: str = "small") -> Plan:
    """The plan of a table at a scale; everything that needs no data is checked.

    >>> load("gel/table2").panels[0].arms["GEL"].run
    'fedavgcm+gel'
    """
    check(scale in SCALES, "reproduce", "scale", " or ".join(SCALES), scale)
    if name not in (known := names()):
        raise unknown("reproduction", name, known)
    content = tomllib.loads((PAPERS / f"{name}.toml").read_text())
    try:
        return read(name, scale, content)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"The file of {name} cannot be read: {error}.") from error


def contents() -> dict[str, Any]:
    """Every table and figure of the papers: the study that answers for it, or why there is none."""
    return tomllib.loads((PAPERS / "contents.toml").read_text())


def read(name: str, scale: str, content: Mapping[str, Any]) -> Plan:
    """The plan of a file's content."""
    defaults = dict(content.get("defaults", {}))
    for_all = defaults.pop("small", {})
    panels = []
    for given in content["panel"]:
        merged = defaults | given
        small = for_all | merged.pop("small", {})
        panels.append(_panel(merged | small if scale == "small" else merged))
    seen = [panel.folder for panel in panels]
    check(len(set(seen)) == len(seen), name, "panel", "named once", seen)
    return Plan(name, scale, content["title"], content["paper"], content["what"], panels, content.get("note", ""))


def _panel(given: Mapping[str, Any]) -> Panel:
    for key in given:
        if key not in (known := [f.name for f in fields(Panel)]):
            raise unknown("key of a panel", key, known)
    controls = given.get("controls", ())
    arms = {arm: Line(arm, **({"run": value} if isinstance(value, str) else value))
            for arm, value in given["arms"].items()}  # fmt: skip
    claims = list(chain.from_iterable(_claims(text, arms, controls) for text in given.get("claims", ())))
    first, count = given["seeds"]
    check(count in REPEATS, f"panel {given['name']}", "seeds", f"[first, {REPEATS}]", given["seeds"])
    made = {"arms": arms, "claims": claims, "seeds": list(range(first, first + count))}
    return Panel(**{**given, **made, "tuned_on": given.get("tuned_on") or None})


def _claims(given: Mapping[str, Any], arms: Mapping[str, Line], controls: Sequence[str]) -> list[Claim]:
    rest = dict(given)
    arm, kept = rest.pop("better", None), rest.pop("no_worse", None)
    than = rest.pop("than")
    if (arm is None) == (kept is None) or (kept is None) != ("margin" not in rest):
        raise InputError(f"A claim is 'better', or 'no_worse' with a margin. Got {dict(given)} instead.")
    name = arm or kept
    others = [other for other in arms if other != name and other not in controls] if than == "all" else than
    return [Claim(name, other, **rest) for other in ([others] if isinstance(others, str) else others)]
