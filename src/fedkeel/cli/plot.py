"""`fedkeel plot`: the curves of finished runs as a figure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import install_command
from . import flags

EXAMPLES = f"""examples:
  fedkeel plot runs/demo --out fig.pdf
  fedkeel plot runs/synthetic runs/digits --out both.svg --x gradients

Lines are means over seeds, bands their 95 % intervals (Student's t) or what --band says. Directories of one task share
a panel, others get one each. Needs matplotlib: {install_command("plot")}"""


def add_command(commands: Any) -> None:
    """Add `plot` to the command's parser."""
    plot = flags.add_command(commands, "plot", do, "the curves of finished runs as a figure: PDF, PNG or SVG", EXAMPLES)
    plot.add_argument("folders", metavar="DIR", type=Path, nargs="+", help="directories of runs or comparisons")
    plot.add_argument("--out", metavar="FILE", type=Path, required=True, help="a name that ends in .pdf, .png or .svg")
    plot.add_argument("--x", metavar="NAME", default="rounds", help="rounds (default), gradients, MB or seconds")
    plot.add_argument("--y", metavar="COLUMN", help="a column of the histories; default the accuracy, else the loss")
    plot.add_argument(
        "--band", metavar="KIND", default="95", help="95 (interval of the mean, default), minmax (of the seeds) or none"
    )


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel plot DIR... --out FILE`."""
    from ..lab.comparison import Comparison
    from ..lab.report.figure import save

    by_task: dict[str, list[Path]] = {}
    for folder in arguments.folders:
        by_task.setdefault(Comparison.read(folder).title, []).append(folder)
    known = [Comparison(folders) for folders in by_task.values()]
    save(known, arguments.out, arguments.x, arguments.y, arguments.band)
    print(f"written to {arguments.out}")
    return 0
