"""The page of a study as Markdown, made from the records of its runs."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from ...run.config import SharedConfig
from ...run.history import History
from ...world import World
from ..compare import beyond
from ..stats import SAME, interval
from ..sweep.grid import BY
from . import HEADINGS
from .carry_out import Measured, texts_of
from .picture import axis, curves
from .plan import COSTS, WORLD, Panel, Plan
from .verdict import Judged, counted, judge, missed, per_seed

UNITS = {
    "rounds": "rounds to the target", "gradients": "batch gradients to the target", "megabytes": "MB to the target",
    "samples": "per-sample gradients to the target", "accuracy": "test accuracy after the last round, %",
    "last": "mean test accuracy of the last rounds, %",
}  # fmt: skip
WORK = {"gradients": "batch gradients saved", "samples": "per-sample gradients saved"}
RULE = "README.md#how-a-verdict-is-reached"
POINTS = ("accuracy", "last")  # metrics in percentage points
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of the rounds, at which a course is shown


def page(plan: Plan, measured: Sequence[Measured]) -> str:
    """The page of a study."""
    lines = [f"# {plan.title}", "", f"{plan.paper}. {plan.what}", ""]
    lines += [f"- {summary(one_heading, found)}" for one_heading, found in by_heading(measured).items()]
    lines += [f"- {text}." for text in [controls(measured)] if text]
    lines += ["", plan.note] if plan.note else []
    lines += [
        "",
        *_commands(f"fedkeel reproduce {plan.name} --out docs/results     # reads the records, runs what is missing"),
        "",
        "± and [ ] are 95 % intervals over seeds (Student's t). The repository has the records, below `docs/results`.",
        f"[The rule of the verdicts]({'../' * plan.name.count('/')}{RULE}). Every panel has its commands;",
        "another machine or `--compile` rounds differently, so a repeated run need not have the same digits.",
    ]
    for heading, found in by_heading(measured).items():
        lines += ["", f"## {HEADINGS[heading]}"]
        for one in found:
            lines += ["", f"### {one.panel.name}", "", *_panel_lines(plan, one)]
    return "\n".join(lines) + "\n"


def by_heading(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The panels below the headings that have some, in their order."""
    found = {heading: [one for one in measured if one.panel.heading == heading] for heading in HEADINGS}
    return {heading: some for heading, some in found.items() if some}


def summary(heading: str, measured: Sequence[Measured]) -> str:
    """What came out below a heading, in a sentence."""
    if heading == "not run":
        return f"{HEADINGS[heading]}: {'; '.join(one.panel.name for one in measured)}."
    done = [one for one in measured if one.arms]
    text = counted([claim.verdict for claim in chain.from_iterable(map(judge, done))]) if done else "no run has ended"
    late = (
        f"; {len(measured) - len(done)} of {len(measured)} panels have not begun" if len(done) < len(measured) else ""
    )
    also = " (this says nothing about the paper's claims)" if heading == "stand-in" else ""
    return f"{HEADINGS[heading]}{also}: {text}{late if done else ''}."


def controls(measured: Sequence[Measured]) -> str:
    """How often a control, which has nothing of the paper's idea, is as good as the paper's arm; "" without one."""
    claims = chain.from_iterable(map(judge, measured))
    against = [claim.over_control for claim in claims if claim.over_control is not None]
    if not against:
        return ""
    level = sum(gain[0] <= 0 for gain in against)
    return f"The control is at least as good in the mean in {level} of {len(against)} comparisons"


def settings(panel: Panel) -> str:
    """How a panel is run, in a line."""
    given = {name: getattr(panel, name) for name in WORLD if getattr(panel, name) != getattr(World(), name)}
    given |= {"batch": panel.batch_size, "lr": panel.lr}
    given["target"] = panel.target if panel.quality_of is None else f"the last accuracy of {panel.quality_of}"
    parts = [f"{name} {value}" for name, value in given.items() if value is not None]
    length = f"{panel.rounds} rounds" if panel.sim_seconds is None else f"{panel.sim_seconds:g} simulated seconds"
    parts += [length, f"evaluated every {panel.eval_every}"]
    parts.append(f"seeds {panel.seeds[0]} to {panel.seeds[-1]}" if len(panel.seeds) > 1 else f"seed {panel.seeds[0]}")
    usual, said = SharedConfig().plain(), ("rounds", "batch_size", "lr", "target", "eval_every", "sim_seconds")
    parts += [f"{name} {value}" for name, value in panel.plain().items() if name not in said and value != usual[name]]
    return f"`{panel.task}`, " + ", ".join(parts)


def command(panel: Panel, text: str, budget: str | None = None) -> str:
    """The line that repeats an arm's runs, also outside a study."""
    words = ["fedkeel", "run", panel.task, text]
    world = {name: getattr(panel, name) for name in WORLD if getattr(panel, name) != getattr(World(), name)}
    world |= {"budget": budget or panel.budget}
    usual = SharedConfig().plain()
    given = world | {name: value for name, value in panel.plain().items() if value != usual[name]}
    for name, value in given.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    words += ["--seed", str(panel.seeds[0])]
    return shlex.join(words + (["--seeds", str(len(panel.seeds))] if len(panel.seeds) > 1 else []))


def _panel_lines(plan: Plan, measured: Measured) -> list[str]:
    panel = measured.panel
    lines = [f"{settings(panel)}.", *([f"Differs from the paper: {panel.differs}."] if panel.differs else []), ""]
    if panel.heading == "not run":
        hours = "" if panel.hours is None else f" About {panel.hours:g} hours on two cores."
        return [
            *lines,
            f"Not run: {panel.why}.{hours}",
            "",
            *_planned(panel),
            "",
            *_commands(f'fedkeel reproduce {plan.name} --panel "{panel.name}"'),
        ]
    own, paper = panel.heading == "ours", "paper" if panel.differs is None else "paper, at its own setting"
    titles = [_unit(panel), "algorithm", None if own else paper, "ours", "by seed"]
    lines += table(titles, [_arm_cells(measured, name) for name in panel.arms])
    if curves(measured) is not None:
        place = f"{plan.name.rpartition('/')[2]}/{panel.folder}.svg"
        lines += ["", f"![test accuracy in percent by {axis(panel)}, mean over seeds]({place})"]
    if claims := judge(measured):
        titles = ["claim", None if own else "paper's gain", "our gain", "gain over the control", "verdict"]
        lines += ["", *table(titles, map(_claim_cells, claims))]
    for part in (_savings(measured), _courses(measured), _tuning(measured), _cells(measured)):
        lines += ["", *part] if part else []
    again = [f'fedkeel reproduce {plan.name} --panel "{panel.name}"']
    for name, arm in panel.arms.items():
        again += [command(panel, text, arm.budget) for text in texts_of(arm, measured.choices)
                  if arm.take == "best" and name in measured.arms]  # fmt: skip
    if measured.records and all(record.compiled for record in measured.records):
        again = [f"{line} --compile" for line in again]
    return [*lines, "", *_commands(*again), "", *_provenance(measured)]


def table(titles: Sequence[str | None], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table; a column without a title is left out.

    >>> table(["arm", None, "ours"], [["GEL", 112, 137]])
    ['| arm | ours |', '|---|---|', '| GEL | 137 |']
    """
    kept = [index for index, title in enumerate(titles) if title is not None]
    lines = [[row[index] for index in kept] for row in (titles, *rows)]
    head, *body = [f"| {' | '.join(map(str, cells))} |" for cells in lines]
    return [head, "|---" * len(kept) + "|", *body]


def _unit(panel: Panel) -> str:
    if panel.metric == "last" and panel.sim_seconds is not None:
        return "mean test accuracy of the last quarter of the time, %"
    return UNITS[panel.metric]


def _planned(panel: Panel) -> list[str]:
    """What would be run, and the paper's figures."""
    rows = []
    for name, arm in panel.arms.items():
        values = "; ".join(f"{key} {', '.join(map(str, some))}" for key, some in arm.values.items())
        budget = f", budget {arm.budget}" if arm.budget else ""
        rows.append([name, f"`{arm.run}`{budget}", values, panel.paper.get(name, "")])
    return table([_unit(panel), "algorithm", "best of", "paper"], rows)


def _commands(*lines: str) -> list[str]:
    """As a block that may follow a list."""
    return ["```sh", *lines, "```"]


def _provenance(measured: Measured) -> list[str]:
    if not measured.records:
        return ["No run of it has ended."]
    commits = sorted({record.commit for record in measured.records})
    hours = sum(record.seconds for record in measured.records) / 3600
    dirty = " With uncommitted changes where a commit says so." if any("dirty" in one for one in commits) else ""
    runs = f"{len(measured.records)} run{'s' if len(measured.records) > 1 else ''}"
    return [f"{runs} at commit {', '.join(commits)}, {hours:.2f} hours in all.{dirty}"]


def _arm_cells(measured: Measured, name: str) -> list[str]:
    """A row of the table; of an arm without runs, only what the paper says."""
    panel, metric = measured.panel, measured.panel.metric
    title = f"**control**: {name}" if name in panel.controls else name
    paper = str(panel.paper.get(name, ""))
    values = per_seed(measured, name, metric)
    if not values:
        return [title, f"`{panel.arms[name].run}`", paper, "not run yet", ""]
    runs = measured.arms[name]
    digits = 2 if metric in ("accuracy", "last", "megabytes") else 1 if metric == "rounds" else 0
    lost, half = len(missed(measured, name, metric)), interval(list(values.values()))
    mean = f"{'> ' if lost else ''}{statistics.mean(values.values()):.{digits}f}"
    mean += f" ± {half:.{digits}f}" if half is not None and half > SAME else ""  # of seeds that agree it is unknown
    counts = {"missed": lost, "diverged": sum(one.diverged for one in runs.values())}
    notes = [f"{count} {what}" for what, count in counts.items() if count]
    notes += [f"{len(values)} of {len(panel.seeds)} seeds"] if len(values) < len(panel.seeds) else []
    extra = f" ({', '.join(notes)})" if notes else ""
    algorithm = f"`{next(iter(runs)) if len(runs) == 1 else panel.arms[name].run}`"
    algorithm += f", budget {panel.arms[name].budget}" if panel.arms[name].budget else ""
    seeds = ", ".join(f"{value:.{0 if metric in COSTS else digits}f}" for value in values.values())
    return [title, algorithm, paper, f"{mean}{extra}", seeds]


def _claim_cells(claim: Judged) -> list[str]:
    paper = "not printed" if claim.paper is None else gain_text([claim.paper], claim.metric)
    gain = gain_text(claim.gain, claim.metric, claim.bound)
    over = "" if claim.over_control is None else gain_text(claim.over_control, claim.metric, claim.bound_over_control)
    verdict = claim.verdict or "one seed, no verdict"
    return [claim.text, paper, gain, over, f"{verdict}; {claim.note}" if claim.note else verdict]


def gain_text(gain: Sequence[float], metric: str, bound: str | None = "") -> str:
    """A gain and, where they are given, the ends of its interval; "-" where the bound is None: it is unknown.

    >>> gain_text([0.25, 0.1, 0.4], "rounds"), gain_text([1.5, -1, 4], "accuracy")
    ('+25.0 % [+10.0, +40.0]', '+1.50 points [-1.00, +4.00]')
    >>> gain_text([0.25], "rounds", "at most"), gain_text([0.25], "rounds", None)
    ('at most +25.0 %', '-')
    """
    if bound is None:
        return "-"
    times, digits, unit = (1, 2, "points") if metric in POINTS else (100, 1, "%")
    value, *ends = (f"{times * part:+.{digits}f}" for part in gain)
    return f"{bound} {value} {unit}".strip() + (f" [{', '.join(ends)}]" if ends else "")


def _savings(measured: Measured) -> list[str]:
    """What arms save on the way to the target, and how far beyond it they are when the arm that they are compared with
    reaches it: for the arms of claims, those that they are claimed to be better than; for others, the first.
    """
    panel, (first, *_) = measured.panel, measured.panel.arms
    if panel.target is None or panel.metric not in COSTS:
        return []
    work = "samples" if any(claim.metric == "samples" for claim in panel.claims) else "gradients"
    rows = []
    for name in measured.arms:
        claimed = [claim.than for claim in panel.claims if name in (claim.arm, claim.control)]
        for base in dict.fromkeys(claimed or [first]):
            if base == name or base not in measured.arms:
                continue
            cells = [_beyond(measured, base, name)]
            cells += [_saved(measured, base, name, metric) for metric in (work, "megabytes")]
            if any(cell != "-" for cell in cells):
                rows.append([name, base, *cells])
    titles = ["arm", "against", "accuracy beyond the target", WORK[work], "network saved"]
    return table(titles, rows) if rows else []


def _saved(measured: Measured, base: str, name: str, metric: str) -> str:
    """1 - (cost of the arm) / (cost of the other one), in percent; "-" where a seed of either missed the target."""
    other, own = (per_seed(measured, arm, metric) for arm in (base, name))
    shared = [seed for seed in own if seed in other]
    if not shared or missed(measured, base, metric) or missed(measured, name, metric):
        return "-"
    saved = 1 - statistics.mean(own[s] for s in shared) / statistics.mean(other[s] for s in shared)
    return f"{100 * saved:+.1f} %"


def _beyond(measured: Measured, base: str, name: str) -> str:
    """Mean over the seeds in which the arm that it is compared with reaches the target."""
    target = measured.panel.target
    assert target is not None
    own, other = (_by_seed(measured, arm) for arm in (name, base))
    shared = [run for run in own if run in other]
    values = [value for run in shared if (value := beyond(own[run], other[run], target)) is not None]
    part = f" ({len(values)} of {len(shared)} seeds)" if len(values) < len(shared) else ""
    return f"{100 * statistics.mean(values):+.2f} points{part}" if values else "-"


def _by_seed(measured: Measured, arm: str) -> dict[tuple[int, int], History]:
    """The runs of an arm by the number of the algorithm, of which a grid has several, and the seed."""
    runs = enumerate(measured.arms[arm].values())
    return {(k, seed): history for k, one in runs for seed, history in zip(one.seeds, one.histories, strict=True)}


def _courses(measured: Measured) -> list[str]:
    """Columns of the history over the rounds, mean over seeds."""
    panel, rounds = measured.panel, [round(share * measured.panel.rounds) for share in SHARES]
    rows: list[list[str]] = []
    for column in panel.shows:
        for name in measured.arms:
            values = [_at(measured, name, column, t) for t in rounds]
            if any(value is not None for value in values):
                rows.append([f"{column}, {name}", *("-" if value is None else f"{value:.4g}" for value in values)])
    return table(["after round", *map(str, rounds)], rows) if rows else []


def _at(measured: Measured, name: str, column: str, limit: int) -> float | None:
    """The mean over seeds of the last value up to this round."""
    found = []
    for history in measured.histories(name):
        values = [row[column] for row in history if row["round"] <= limit and row.get(column) is not None]
        found += values[-1:]
    return statistics.mean(found) if found else None


def _tuning(measured: Measured) -> list[str]:
    panel = measured.panel
    if panel.tuned_on is not None:
        return [f"Tuned on '{panel.tuned_on}'."]
    if not measured.choices:
        return []
    rounds = f", {panel.tuning_rounds} rounds" if panel.tuning_rounds else ""
    every = f"evaluated every {panel.tuning_eval_every or panel.eval_every}"
    lines = [f"Tuned on seed {panel.tuning_seed}{rounds}, {every}, by {BY[panel.by]}; the best first:", ""]
    for arm, choice in measured.choices.items():
        edge = f" **on the edge of the grid in {', '.join(measured.edges[arm])}**" if arm in measured.edges else ""
        lines.append(f"- {arm}: " + ", ".join(f"`{one.arm.name}` {one.word}" for one in choice.ranked) + edge)
    return lines


def _cells(measured: Measured) -> list[str]:
    """Every combination of the grids that are averaged."""
    lines = []
    for name, runs in measured.arms.items():
        if len(runs) > 1:
            lasts = {text: [100 * (h.last("accuracy") or 0.0) for h in one.histories] for text, one in runs.items()}
            cells = ", ".join(f"`{text}` {statistics.mean(values):.1f}" for text, values in lasts.items())
            lines += [f"{name}, every combination, mean accuracy over seeds, %:", "", cells, ""]
    return lines


def data(plan: Plan, measured: Sequence[Measured]) -> dict[str, Any]:
    """What a page says, as plain data, for `--json`."""
    panels = []
    for one in measured:
        values = {name: per_seed(one, name, one.panel.metric) for name in one.arms}
        claims = [vars(claim) for claim in judge(one)]
        panels.append({"name": one.panel.name, "heading": one.panel.heading, "metric": one.panel.metric,
                       "values": values, "claims": claims})  # fmt: skip
    return {"name": plan.name, "title": plan.title, "paper": plan.paper, "panels": panels}
