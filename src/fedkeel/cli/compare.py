"""`fedkeel compare`: the tables of finished comparisons, and ranks across tasks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import flags


def add_command(commands: Any) -> None:
    """Add `compare` to the command's parser."""
    compare = flags.add_command(commands, "compare", do, "the tables of finished comparisons, and ranks across tasks")
    compare.add_argument("folders", metavar="DIR", type=Path, nargs="+", help="their directories, one task each")
    compare.add_argument(
        "--clients", action="store_true", help="accuracies by client, of runs with --client-test, instead of algorithms"
    )
    shape = compare.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")
    shape.add_argument("--latex", action="store_true", help="tables for LaTeX, with booktabs")
    shape.add_argument("--csv", action="store_true", help="the numbers of the tables for spreadsheets")
    shape.add_argument("--markdown", action="store_true", help="tables in Markdown")


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel compare DIR...`."""
    if arguments.clients:
        return _clients(arguments)
    if arguments.latex or arguments.csv or arguments.markdown:
        print(_exported(arguments), end="")
        return 0
    from ..lab.compare import score, summary, top_share
    from ..lab.report.terminal import ranks, table
    from ..lab.study import finished

    known = [finished(folder) for folder in arguments.folders]
    several = len({study.task for study, _ in known}) > 1
    share = top_share([{arm.name: score(arm) for arm in arms} for _, arms in known] if several else [])
    if arguments.json:
        comparisons = [
            {"task": study.task, "out": str(folder), **summary(arms, arms[0].target)}
            for folder, (study, arms) in zip(arguments.folders, known, strict=True)
        ]
        print(json.dumps({"comparisons": comparisons, "top_share": share}))
        return 0
    console = flags.terminal()
    for folder, (study, arms) in zip(arguments.folders, known, strict=True):
        console.print(f"{study.task} ({folder})", style="bold", highlight=False, soft_wrap=True)
        table(arms, arms[0].target, study.rounds, console, study.sim_seconds)
    if share:
        ranks(share, console)
    elif len(known) > 1:
        console.print("All of these are of one task, so there are no ranks across tasks.", style="dim")
    return 0


def _exported(arguments: argparse.Namespace) -> str:
    from ..lab.comparison import Comparison
    from ..lab.report import export

    known = [Comparison.read(folder) for folder in arguments.folders]
    if arguments.csv:
        return export.as_csv({str(one.folders[0]): (one.title, one.numbers) for one in known})
    tables = [(one.title, one.to_latex() if arguments.latex else one.to_markdown()) for one in known]
    return _one_after_another(arguments, tables)


def _one_after_another(arguments: argparse.Namespace, tables: Sequence[tuple[str, str]]) -> str:
    """Tables for LaTeX or in Markdown, each below its title if there are several."""
    if len(tables) == 1:
        return tables[0][1]
    heads = [f"% {title}" if arguments.latex else f"**{title}**\n" for title, _ in tables]
    return "\n".join(f"{head}\n{table}" for head, (_, table) in zip(heads, tables, strict=True))


def _clients(arguments: argparse.Namespace) -> int:
    """`fedkeel compare DIR... --clients`."""
    from ..lab.comparison import Comparison
    from ..lab.report import export, terminal

    read = [Comparison.read(folder) for folder in arguments.folders]
    known = {str(one.folders[0]): (one.title, one.clients()) for one in read}
    if arguments.csv:
        print(export.clients_csv(known), end="")
        return 0
    if arguments.json:
        comparisons = [{"task": task, "out": folder, "clients": found} for folder, (task, found) in known.items()]
        print(json.dumps({"comparisons": comparisons}))
        return 0
    if arguments.latex or arguments.markdown:
        made = export.clients_latex if arguments.latex else export.clients_markdown
        print(_one_after_another(arguments, [(task, made(found)) for task, found in known.values()]), end="")
        return 0
    console = flags.terminal()
    for folder, (task, found) in known.items():
        console.print(f"{task} ({folder})", style="bold", highlight=False, soft_wrap=True)
        terminal.clients(*export.client_texts(found), console)
    return 0
