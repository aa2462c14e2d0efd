"""`fedkeel reproduce`: run a paper's table again and compare the results."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from ..lab.reproduce import SCALES
from . import flags

EXAMPLES = """examples:
  fedkeel reproduce --list
  fedkeel reproduce gel/table2
  fedkeel reproduce ghbm/fig1 --out docs/results
  fedkeel reproduce --index --out docs/results

Runs are kept below --runs; a stopped study is continued, a finished one is only read."""


def add_command(commands: Any) -> None:
    """Add `reproduce` to a parser's commands."""
    help = "run a table or figure of a paper again and compare"
    parser = flags.add_command(commands, "reproduce", reproduce, help, EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="for example gel/table2, see --list")
    parser.add_argument("--list", action="store_true", help="the tables and figures there are")
    parser.add_argument("--index", action="store_true", help="the verdicts of all of them, from the pages in --out")
    parser.add_argument("--scale", choices=SCALES, default="small", help="small (default, minutes) or paper")
    parser.add_argument("--runs", type=Path, metavar="DIR", default=Path("runs/reproduce"), help="where runs are kept")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the page (or the index) below DIR")
    flags.add_output(parser)


def reproduce(arguments: argparse.Namespace) -> int:
    """`fedkeel reproduce`."""
    from ..errors import InputError

    wanted = [arguments.name is not None, arguments.list, arguments.index]
    if sum(wanted) != 1:
        raise InputError("Give one of: a NAME (fedkeel reproduce gel/table2), --list, --index.")
    if arguments.index:
        from ..lab.reproduce import page

        print(page.write_index(arguments.out or Path("docs/results")), end="")
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

    from ..lab.report.progress import Watching
    from ..lab.reproduce import page, plan
    from ..lab.reproduce.carry_out import carry_out

    messages = Console(stderr=True)
    watch = partial(Watching, console=messages, verbose=arguments.verbose)
    made = plan.load(arguments.name, arguments.scale)
    result = page.result(made, carry_out(made, arguments.runs / made.name / made.scale, watch))
    if arguments.out is not None:
        messages.print(f"Written to {page.write(result, arguments.out)}", style="dim", soft_wrap=True)
    console = Console()
    if arguments.json:
        print(json.dumps(result))
    elif console.is_terminal:
        console.print(Markdown(page.page(result)))
    else:
        print(page.page(result), end="")
    return 0
