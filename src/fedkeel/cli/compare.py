"""`fedkeel compare`: the tables of finished comparisons, and ranks across tasks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from . import flags


def add_command(commands: Any) -> None:
    """Add `compare` to the command's parser."""
    compare = flags.add_command(commands, "compare", do, "the tables of finished comparisons, and ranks across tasks")
    compare.add_argument("folders", metavar="DIR", type=Path, nargs="+", help="their directories, one task each")
    compare.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel compare DIR...`."""
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
