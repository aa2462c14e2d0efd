"""`fedkeel reproduce`: run a paper's table again and compare the results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import flags

if TYPE_CHECKING:
    from ..lab.reproduce.estimate import Left
    from ..lab.reproduce.plan import Plan

EXAMPLES = """examples:
  fedkeel reproduce --list
  fedkeel reproduce gel/table2 --dry-run
  fedkeel reproduce gel/table2 --panel "Synthetic, tuned"
  fedkeel reproduce ghbm/fig1 --compile --out docs/results
  fedkeel reproduce ghbm/fig1 --arm FedAvg --arm FedHBM --seeds 1 --out docs/results
  fedkeel reproduce --index --out docs/results

Runs are kept below --runs; a stopped study is continued. A finished run becomes one small file below --out, which is
read from then on instead of running it again. Panels that are marked as not run are run only by --panel."""


def add_command(commands: Any) -> None:
    """Add `reproduce` to a parser's commands."""
    help = "run a table or figure of a paper again and compare"
    parser = flags.add_command(commands, "reproduce", reproduce, help, EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="for example gel/table2, see --list")
    parser.add_argument("--list", action="store_true", help="the tables and figures there are")
    parser.add_argument("--index", action="store_true", help="write all pages again from the records in --out")
    parser.add_argument("--panel", action="append", metavar="PANEL", help="only this one; may be given several times")
    parser.add_argument("--arm", action="append", metavar="ARM", help="only this one; may be given several times")
    parser.add_argument("--seeds", type=int, metavar="N", help="only the first N seeds; the others can follow")
    parser.add_argument("--dry-run", action="store_true", help="what would be run, and how long that takes here")
    parser.add_argument("--compile", action="store_true", help="train by C kernels where there are some")
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda or mps")
    flags.add_jobs(parser, "default one per core, or one on another device")
    parser.add_argument("--engine", metavar="ray[:KEY=VALUE,...]", help="spread the runs over a cluster of Ray")
    parser.add_argument("--runs", type=Path, metavar="DIR", default=Path("runs/reproduce"), help="where runs are kept")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where pages and records are; default: no page")
    flags.add_output(parser)


def reproduce(arguments: argparse.Namespace) -> int:
    """`fedkeel reproduce`."""
    from ..errors import InputError

    wanted = [arguments.name is not None, arguments.list, arguments.index]
    if sum(wanted) != 1:
        raise InputError("Give one of: a NAME (fedkeel reproduce gel/table2), --list, --index.")
    if arguments.index:
        from ..lab.reproduce import index

        print(index.write_index(arguments.out or Path("docs/results")), end="")
        return 0
    return _list() if arguments.list else _run(arguments)


def _list() -> int:
    from rich.console import Console
    from rich.table import Table

    from ..lab.reproduce import plan

    table = Table("name", "what", box=None, pad_edge=False)
    for name in plan.names():
        made = plan.load(name)
        table.add_row(name, f"{made.paper}: {made.title}")
    Console().print(table)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markdown import Markdown

    from ..engine.threads import cores
    from ..errors import InputError
    from ..lab.reproduce import estimate, index, page, plan
    from ..lab.reproduce.carry_out import Place, carry_out, read
    from ..lab.reproduce.progress import Progress
    from ..lab.spread import is_spread

    if arguments.engine is not None and not is_spread(arguments.engine):
        raise InputError(f"--engine must be ray here, as in ray:address=auto. Got {arguments.engine!r} instead.")
    messages = Console(stderr=True)
    whole = plan.load(arguments.name)
    made = plan.chosen(whole, arguments.panel, arguments.seeds, arguments.arm)
    place = Place(made, arguments.runs, arguments.out, arguments.compile, arguments.device)
    messages.print("Measuring how long a round takes ...", style="dim")
    jobs = flags.jobs(arguments, "reproduce") or (cores() if arguments.device == "cpu" else 1)
    left = estimate.left(made, place, not arguments.dry_run, jobs)
    if arguments.dry_run:
        _show(made, left, Console(), arguments.json)
        return 0
    with Progress(left, messages) as progress:
        measured = list(carry_out(made, place, progress.row, arguments.engine, jobs))
    if arguments.out is not None:
        all_panels = list(read(whole, place))  # also those that were run before
        messages.print(f"Written to {index.write_page(whole, all_panels, arguments.out)}", style="dim", soft_wrap=True)
    console = Console()
    if arguments.json:
        print(json.dumps(page.data(made, measured)))
    elif console.is_terminal:
        console.print(Markdown(page.page(made, measured)))
    else:
        print(page.page(made, measured), end="")
    return 0


def _show(plan: Plan, left: Sequence[Left], console: Any, as_json: bool) -> None:
    """What would be run."""
    from rich.table import Table

    rows = []
    for one in left:
        row: dict[str, Any] = {"panel": one.panel.name, "heading": one.panel.heading, "known": one.known}
        row |= {"to run": len(one.runs), "rounds": None, "steps": None, "hours": None}
        if not one.missing:
            row |= {"rounds": sum(map(one.rounds_of, one.runs)), "steps": one.steps}
            row["hours"] = float(f"{one.seconds / 3600:.2g}")  # of a short study they are few
        rows.append(row)
    if as_json:
        print(json.dumps({"name": plan.name, "panels": rows}))
        return
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
                        for value in row.values()))  # fmt: skip
    console.print(table)
    for why in dict.fromkeys(one.missing for one in left if one.missing):
        console.print(f"Not estimated: {why}", soft_wrap=True)
    if all(one.missing for one in left):
        console.print("Nothing was run.")
        return
    hours = sum(one.seconds for one in left if not one.missing) / 3600
    grids = any(arm.tuned for one in left for arm in one.panel.arms.values())
    more = " Grids whose best value is at an edge are extended, which takes longer." if grids else ""
    console.print(f"About {hours:.2f} hours on this machine.{more} Nothing was run.", soft_wrap=True)
