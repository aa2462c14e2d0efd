"""`fedkeel report` and `fedkeel ui`: a page of runs, written to a file or served live."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import flags

EXAMPLES = """examples:
  fedkeel report runs/demo
  fedkeel report runs/demo runs/again --out both.html --open"""


def add_command(subparsers: Any) -> None:
    """Add `report` and `ui` to a parser's commands; each sets `do`, a function of the arguments."""
    help = "write runs as one self-contained HTML page"
    report = flags.add_command(subparsers, "report", write_report, help, EXAMPLES)
    report.add_argument("folders", metavar="RUN", nargs="+", type=Path, help="a run's directory, or a comparison's")
    report.add_argument("--out", metavar="FILE", type=Path, help="default report.html in the first RUN")
    report.add_argument("--open", action="store_true", help="show it in the browser")
    ui = flags.add_command(subparsers, "ui", watch, "watch runs in the browser, on this machine only, and stop them")
    ui.add_argument("folders", metavar="DIR", nargs="+", type=Path, help="directories of runs or comparisons")
    ui.add_argument("--port", type=int, default=0, metavar="N", help="default: any free port")
    ui.add_argument("--open", action="store_true", help="show it in the browser")


def write_report(arguments: argparse.Namespace) -> int:
    """`fedkeel report RUN...`."""
    from ..files import write_text
    from ..lab.report.page import as_html, read

    page = as_html(read(arguments.folders))
    out: Path = arguments.out or arguments.folders[0] / "report.html"

    try:
        if out.is_dir():
            raise InputError(f"{out} is a directory; --out names a file.")
        write_text(out, page)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror}.") from error
    print(f"written to {out}")
    if arguments.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


def watch(arguments: argparse.Namespace) -> int:
    """`fedkeel ui DIR...`, until interrupted."""
    from ..lab.report.ui import Ui

    for folder in arguments.folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a directory.")
    with Ui(arguments.folders, arguments.port) as ui:
        print(f"{ui.url} (end with Ctrl-C; the runs go on)", flush=True)
        if arguments.open:
            webbrowser.open(ui.url)
        ui.wait()
    return 0
