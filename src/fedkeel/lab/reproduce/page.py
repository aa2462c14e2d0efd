"""What came out, as data and as Markdown: a page per table, and the index over every table of the papers."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from ...files import read_json, write_json, write_text
from ...run.checkpoint import environment
from ...run.config import SharedConfig
from ..stats import interval
from . import plan as plans
from . import verdict
from .carry_out import Measured, Runs
from .plan import COSTS, Panel, Plan
from .verdict import CANNOT, NOT_RUN, judge, missed, number, overall, per_seed

UNITS = {
    "rounds": "rounds to the target", "gradients": "batch gradients to the target", "megabytes": "MB to the target",
    "samples": "per-sample gradients to the target", "accuracy": "test accuracy after the last round, %",
    "last": "mean test accuracy of the last rounds, %", "lr": "client rate, last over first",
}  # fmt: skip
RULE = "../README.md#how-a-verdict-is-reached"
POINTS = ("accuracy", "last")  # metrics in percentage points
INDEX = """# Results

Every table and figure of the five papers, and what `fedkeel reproduce` made of it on two cores. This page is
written by

    fedkeel reproduce --index --out docs/results

and each study's page by `fedkeel reproduce NAME --out docs/results`; the figures behind a page are in the
JSON file beside it. `small` changes tasks, rounds and seeds as the study's file says, with stand-ins where
the paper's data are not here; `--scale paper` runs the paper's own setting and was not run."""


def result(plan: Plan, measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything a page says, as plain data."""
    panels = [_panel(one, plan.scale) for one in measured]
    verdicts = [claim["verdict"] for claim in _claims(panels)]
    why_not = [f"{panel['name']}: {panel['why_not']}" for panel in panels if panel["why_not"]]
    if verdicts:
        verdict = overall(verdicts) + (f"; {len(why_not)} of {len(panels)} panels not run" if why_not else "")
    elif why_not:
        skipped = all(one.panel.skip is not None for one in measured)
        verdict = f"{NOT_RUN if skipped else CANNOT} ({why_not[0]})"
    else:
        verdict = "run, nothing is claimed"
    return {
        **{key: getattr(plan, key) for key in ("name", "scale", "title", "paper", "what", "note")},
        "verdict": verdict,
        "stand_ins": list(dict.fromkeys(p["stand_in"] for p in panels if p["stand_in"] and not p["why_not"])),
        "panels": panels,
        "commit": commit(),
        "environment": environment(),
        "wall_seconds": round(sum(one.wall_seconds for one in measured), 1),
    }


def _claims(panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(chain.from_iterable(panel["claims"] for panel in panels))


def commit() -> str:
    """The commit of the source, with a mark where files differ from it; "unknown" outside a repository."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _panel(measured: Measured, scale: str) -> dict[str, Any]:
    panel = measured.panel
    return {
        "name": panel.name,
        "settings": settings(panel),
        "stand_in": panel.stand_in if scale == "small" else None,
        "metric": panel.metric,
        "why_not": measured.why_not,
        "arms": [_arm(measured, name) for name in panel.arms],
        "tried": measured.tried,
        "cells": {name: _cells(runs) for name, runs in measured.arms.items() if len(runs) > 1},
        "claims": [asdict(one) for one in judge(measured)] if measured.why_not is None else [],
    }


def settings(panel: Panel) -> str:
    """How a panel was run, in a line."""
    given = {
        "cohort": panel.cohort, "budget": panel.budget, "batch": panel.batch_size, "lr": panel.lr,
        "target": panel.target if panel.quality_of is None else f"the last accuracy of {panel.quality_of}",
    }  # fmt: skip
    parts = [f"{name} {value}" for name, value in given.items() if value is not None]
    parts += [f"at most {panel.rounds} rounds", f"evaluated every {panel.eval_every}"]
    parts.append(f"seeds {panel.seeds[0]} to {panel.seeds[-1]}")
    usual, said = SharedConfig().plain(), ("rounds", "batch_size", "lr", "target", "eval_every")
    parts += [f"{name} {value}" for name, value in panel.plain().items() if name not in said and value != usual[name]]
    return f"`{panel.task}`, " + ", ".join(parts)


def _arm(measured: Measured, name: str) -> dict[str, Any]:
    """A line of the table; of a panel that was not run, only what the paper says."""
    panel, first = measured.panel, next(iter(measured.panel.arms))
    paper = panel.paper.get(name)
    row = {
        "name": name,
        "algorithm": panel.arms[name].run,
        "control": name in panel.controls,
        "paper": paper,
        "paper_arrow": _arrow(number(paper), number(panel.paper.get(first))),
    }
    if measured.why_not is not None:
        return row
    runs, values = measured.arms[name], per_seed(measured, name, panel.metric)
    return row | {
        "algorithm": next(iter(runs)) if len(runs) == 1 else panel.arms[name].run,
        "budget": panel.arms[name].budget,
        "values": values,
        "mean": statistics.mean(values),
        "half": interval(values),
        "missed": missed(measured, name, panel.metric),
        "diverged": sum(one.diverged for one in runs.values()),
        "arrow": _arrow(statistics.mean(values), statistics.mean(per_seed(measured, first, panel.metric))),
    }


def _arrow(value: float | None, first: float | None) -> str:
    if value is None or first is None or value == first:
        return ""
    return "↑" if value > first else "↓"


def _cells(runs: Runs) -> dict[str, float]:
    """Of a grid that is averaged: algorithm -> mean over seeds of the last accuracies."""
    lasts = {text: [100 * (h.last("accuracy") or 0.0) for h in one.histories] for text, one in runs.items()}
    return {text: statistics.mean(values) for text, values in lasts.items()}


def page(outcome: dict[str, Any]) -> str:
    """The page of a result."""
    where, control = outcome["environment"], controls(outcome)
    lines = [
        f"# {outcome['title']}",
        "",
        f"{outcome['paper']}. {outcome['what']}",
        "",
        f"**Verdict at the {outcome['scale']} scale: {outcome['verdict']}.**",
        *([f"{control}."] if control else []),
        *([f"Stand-ins: {'; '.join(outcome['stand_ins'])}."] if outcome["stand_ins"] else []),
        *(["", outcome["note"]] if outcome["note"] else []),
        "",
        f"    fedkeel reproduce {outcome['name']} --scale {outcome['scale']}",
        "",
        f"Commit {outcome['commit']}, {where['cores']} cores, torch {where['torch']}, Python {where['python']},"
        f" {outcome['wall_seconds'] / 60:.1f} minutes of reported runs. ± and [ ] are 95 % intervals over seeds",
        f"(Student's t); arrows compare with the first line, the paper's and ours. [The rule of the verdicts]({RULE}).",
    ]
    for panel in outcome["panels"]:
        lines += ["", f"## {panel['name']}", "", *_panel_lines(panel)]
    return "\n".join(lines) + "\n"


def controls(outcome: dict[str, Any]) -> str:
    """How often a control, which has nothing of the paper's idea, is as good as the paper's arm; "" without one."""
    against = [claim["over_control"] for claim in _claims(outcome["panels"]) if claim["control"]]
    if not against:
        return ""
    level = sum(mean <= 0 for mean, _, _ in against)
    return f"The control is at least as good in the mean in {level} of {len(against)} comparisons"


def _panel_lines(panel: dict[str, Any]) -> list[str]:
    lines = [f"{panel['settings']}.", *([f"Stand-in: {panel['stand_in']}."] if panel["stand_in"] else []), ""]
    if panel["why_not"]:
        lines += [f"Not run: {panel['why_not'].rstrip('.')}.", ""]
    lines += [f"| {UNITS[panel['metric']]} | algorithm | paper | ours | by seed |", "|---|---|---|---|---|"]
    lines += [_arm_line(arm, panel["metric"]) for arm in panel["arms"]]
    if panel["claims"]:
        lines += ["", "| claim | paper's gain | our gain | gain over the control | verdict |", "|---|---|---|---|---|"]
        lines += [_claim_line(claim) for claim in panel["claims"]]
    if panel["tried"]:
        lines += ["", "Tried on the tuning seed, mean accuracy of the last rounds (-1: diverged):", ""]
        lines += [f"- {arm}: " + ", ".join(f"`{text}` {value:.3f}" for text, value in some.items())
                  for arm, some in panel["tried"].items()]  # fmt: skip
    for arm, cells in panel["cells"].items():
        lines += ["", f"{arm}, every combination, mean accuracy over seeds, %:", ""]
        lines += [", ".join(f"`{text}` {value:.1f}" for text, value in cells.items())]
    return lines


def _arm_line(arm: dict[str, Any], metric: str) -> str:
    name = f"**control**: {arm['name']}" if arm["control"] else arm["name"]
    paper = "" if arm["paper"] is None else f"{arm['paper']} {arm['paper_arrow']}".strip()
    if "values" not in arm:
        return f"| {name} | `{arm['algorithm']}` | {paper} | not run | |"
    digits = 2 if metric in ("accuracy", "last", "lr", "megabytes") else 1 if metric == "rounds" else 0
    mean = f"{'> ' if arm['missed'] else ''}{arm['mean']:.{digits}f}"
    half = f" ± {arm['half']:.{digits}f}" if arm["half"] is not None else ""
    notes = [f"{arm[what]} {what}" for what in ("missed", "diverged") if arm[what]]
    extra = f" ({', '.join(notes)})" if notes else ""
    budget = f", budget {arm['budget']}" if arm["budget"] else ""
    seeds = ", ".join(f"{value:.{0 if metric in COSTS else digits}f}" for value in arm["values"])
    return f"| {name} | `{arm['algorithm']}`{budget} | {paper} | {mean}{half} {arm['arrow']}{extra} | {seeds} |"


def _claim_line(claim: dict[str, Any]) -> str:
    metric, control = claim["metric"], claim["over_control"]
    paper = "not printed" if claim["paper"] is None else gain_text([claim["paper"]], metric)
    over = "" if control is None else gain_text(control, metric)
    return f"| {claim['text']} | {paper} | {gain_text(claim['gain'], metric)} | {over} | {claim['verdict']} |"


def gain_text(gain: Sequence[float], metric: str) -> str:
    """A gain and, where they are given, the ends of its interval.

    >>> gain_text([0.25, 0.1, 0.4], "rounds"), gain_text([1.5, -1, 4], "accuracy"), gain_text([0.25], "rounds")
    ('+25.0 % [+10.0, +40.0]', '+1.50 points [-1.00, +4.00]', '+25.0 %')
    """
    times, digits, unit = (1, 2, "points") if metric in POINTS else (100, 1, "%")
    value, *ends = (f"{times * part:+.{digits}f}" for part in gain)
    return f"{value} {unit}" + (f" [{', '.join(ends)}]" if ends else "")


def write(outcome: dict[str, Any], out: Path) -> Path:
    """Write NAME.md and the data behind it; gives the page."""
    file = out / f"{outcome['name']}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file.with_suffix(".json"), outcome)
    write_text(file, page(outcome))
    return file


def write_index(out: Path) -> str:
    """Write every page again from the data beside it, and README.md: the verdict of every table, or why it has none."""
    for name in plans.names():
        if (file := out / f"{name}.json").exists():
            file.with_suffix(".md").write_text(page(read_json(file)))
    lines = [INDEX]
    for paper in plans.contents().values():
        lines += ["", f"## {paper['title']}", "", "| | what | verdict, small scale |", "|---|---|---|"]
        lines += [f"| {item['item']} | {item['what']} | {_answer(item, out)} |" for item in paper["items"]]
    first, rest = (verdict.__doc__ or "").strip().split(". ", 1)
    lines += ["", "## How a verdict is reached", "", f"{first}.", rest, "", "## Other studies", ""]
    pages = sorted(file for file in out.glob("*.md") if file.name != "README.md")
    lines += [f"- [{file.read_text().splitlines()[0].removeprefix('# ')}]({file.name})" for file in pages]
    text = "\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(text)
    return text


def _answer(item: dict[str, str], out: Path) -> str:
    if "why" in item:
        return f"not covered: {item['why']}"
    name = item["study"]
    file = out / f"{name}.json"
    if not file.exists():
        return f"not run (`fedkeel reproduce {name}`)"
    outcome = read_json(file)
    control, stand_ins = controls(outcome).lower(), "; ".join(outcome["stand_ins"])
    notes = [control, f"stand-ins: {stand_ins}" if stand_ins else ""]
    return "; ".join([f"[{outcome['verdict']}]({name}.md)", *filter(None, notes)])
