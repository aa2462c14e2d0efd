"""The index over every table and figure of the papers, and all pages, from the records below a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...files import write_text
from . import HEADINGS, verdict
from . import plan as plans
from .carry_out import Measured, Place, read
from .page import controls, page
from .picture import curves
from .plan import Plan
from .verdict import counted, judge, per_seed

INTRODUCTION = """# Results

Panels of the five papers' tables and figures, by how close to the paper they were run, on two cores:

- **At the paper's setting**: its data, model, partition, cohort, local work and rounds.
- **Near the paper's setting**: its model, partition rule, cohort, local work and at least half of its rounds, on data
  of the same source. What differs is named.
- **On a stand-in**: something smaller. It says nothing about the paper's claim.
- **Not run**, with the reason and, where it was measured, the hours it would take on two cores, with `--compile` where
  there are kernels. They are from dry runs on an AMD EPYC in November 2026, those of like arms, seeds and rounds in
  proportion; an Intel Xeon takes about 1.7 times as long. Panels that are "planned" come next.

Each study's page has the figures by seed, with intervals, commits and the commands that repeat them. The runs are kept
as small files below `STUDY/runs`; `fedkeel reproduce STUDY --out docs/results` reads those and runs what is missing,
and `fedkeel reproduce --index --out docs/results` writes all pages again without running anything."""
Study = tuple[Plan, list[Measured]]


def write_page(plan: Plan, measured: Sequence[Measured], out: Path) -> Path:
    """Write NAME.md, and the curves of its panels beside it."""
    file = out / f"{plan.name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    for one in measured:
        if (drawing := curves(one)) is not None:
            write_text(out / plan.name / f"{one.panel.folder}.svg", drawing)
    write_text(file, page(plan, measured))
    return file


def write_index(out: Path) -> str:
    """Write every page again from the records, and README.md: what holds under each heading, and what was not run."""
    studies: dict[str, Study] = {}
    for name in plans.names():
        plan = plans.load(name)
        studies[name] = plan, list(read(plan, Place(plan, out, out)))
        write_page(*studies[name], out)
    contents = plans.contents()
    first, second = INTRODUCTION.split("\n\n- ", 1)
    lines = [first, "", *_overview(contents, studies), "", f"- {second}"]
    for heading, title in HEADINGS.items():
        lines += ["", f"## {title}", "", *_table(heading, contents, studies)]
    lines += ["", "## Not experiments, or without a study", ""]
    for paper in contents.values():
        without = [one for one in paper["items"] if "why" in one]
        lines += [f"- {paper['short']}, {one['item']} ({one['what']}): {one['why']}" for one in without]
    question, rule = (verdict.__doc__ or "").strip().split(". ", 1)
    lines += ["", "## How a verdict is reached", "", f"{question}.", rule, "", "## Other studies", ""]
    pages = sorted(file for file in out.glob("*.md") if file.stem not in ("README", *studies))
    lines += [f"- [{file.read_text().splitlines()[0].removeprefix('# ')}]({file.name})" for file in pages]
    text = "\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "README.md", text)
    return text


def _overview(contents: dict[str, Any], studies: dict[str, Study]) -> list[str]:
    """How many panels of each paper have runs, below which heading, and how many have none."""
    headings = [heading for heading in HEADINGS if heading != "ours"]
    titles = ["panels of", *(HEADINGS[heading].lower() for heading in headings)]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for paper in contents.values():
        names = {one["study"] for one in paper["items"] if "study" in one}
        found = [heading_of(one) for name in names for one in studies[name][1]]
        if "ours" not in found:
            lines.append(f"| {paper['title']} | {' | '.join(str(found.count(one) or '-') for one in headings)} |")
    return lines


def heading_of(measured: Measured) -> str:
    """The heading that a panel stands below: without a run, it is not run."""
    return measured.panel.heading if measured.arms else "not run"


def _table(heading: str, contents: dict[str, Any], studies: dict[str, Study]) -> list[str]:
    """The panels below a heading, by study."""
    left_out = heading == "not run"
    lines = [
        "| paper | panel | why | hours |" if left_out else "| paper | panel | seeds | result |",
        "|---|---|---|---|",
    ]
    for paper in contents.values():
        items: dict[str, list[str]] = {}
        for one in paper["items"]:
            items.setdefault(one.get("study", ""), []).append(one["item"])
        for name, (_, measured) in studies.items():
            for one in measured:
                if name in items and heading == heading_of(one):
                    where = f"[{paper['short']}, {', '.join(items[name])}]({name}.md)"
                    lines.append(f"| {where} | {one.panel.name} | {_answer(one)} |")
    return lines if len(lines) > 2 else ["None yet."]


def _answer(measured: Measured) -> str:
    panel = measured.panel
    if not measured.arms:
        why = panel.why if panel.heading == "not run" else f"planned, {HEADINGS[panel.heading].lower()}"
        return f"{why} | {'' if panel.hours is None else f'{panel.hours:g}'}"
    seeds = min(len(per_seed(measured, name, panel.metric)) for name in measured.arms)
    text = counted([claim.verdict for claim in judge(measured)])
    control = controls([measured])
    many = f"{seeds} of {len(panel.seeds)}" if seeds < len(panel.seeds) else str(seeds)
    return f"{many} | {text}" + (f"; {control[0].lower()}{control[1:]}" if control else "")
