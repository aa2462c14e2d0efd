"""`fedkeel data`: list, get, add and show data sets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Column, Table

from ..data.catalogue import KNOWN
from . import flags

EXAMPLES = """examples:
  fedkeel data list
  fedkeel data get fmnist
  fedkeel data add cifar10 ~/Downloads/cifar-10-binary.tar.gz
  fedkeel data show cifar10:alpha=0.3 --out cifar10.png

Data sets live below FEDKEEL_DATA (default ~/.cache/fedkeel)."""


def add_command(subparsers: Any) -> None:
    """Add `data` and its own commands to a parser's commands; each sets `do`, a function of the arguments."""
    help = "get data sets, add local files, see how clients differ"
    data = flags.add_command(subparsers, "data", None, help, EXAMPLES)
    commands = data.add_subparsers(required=True, metavar="COMMAND")
    flags.add_command(commands, "list", list_sets, "the data sets, and how to get those that are missing")
    get = flags.add_command(commands, "get", get_sets, "download data sets")
    get.add_argument("names", metavar="NAME", nargs="+", help="for example fmnist cifar10")
    add = flags.add_command(commands, "add", add_set, "add local files")
    add.add_argument("name", metavar="NAME", help="the data set they belong to")
    add.add_argument("path", metavar="PATH", type=Path, help="a folder, a file or an archive")
    add.add_argument("--link", action="store_true", help="link the files instead of copying them")
    show = flags.add_command(commands, "show", show_task, "a picture of who holds which labels, and how much")
    show.add_argument("task", metavar="TASK", help="for example cifar10:alpha=0.3")
    show.add_argument("--out", metavar="FILE", type=Path, help="write a PNG instead (needs matplotlib)")


def list_sets(arguments: argparse.Namespace) -> int:
    """`fedkeel data list`."""
    from ..data import store

    console = Console()
    table = Table("name", "here", "what", Column("licence", overflow="fold"), box=None, pad_edge=False)
    for name, one in KNOWN.items():
        table.add_row(name, "yes" if store.present(name) else "no", escape(one.title), escape(one.licence))
    console.print(table)
    console.print(f"\nThey live in {escape(str(store.root()))}. What is missing:", highlight=False, soft_wrap=True)
    for name, one in KNOWN.items():
        if not store.present(name):
            console.print(f"  {name}: {escape(store.advice(one))}", highlight=False, soft_wrap=True)
    return 0


def get_sets(arguments: argparse.Namespace) -> int:
    """`fedkeel data get NAME...`."""
    from ..data import store

    for name in arguments.names:
        store.known(name)  # report a wrong name before any download
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    for name in arguments.names:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            lines: dict[str, Any] = {}

            def show(file: str, done: int, total: int | None, progress: Any = progress, lines: Any = lines) -> None:
                if file not in lines:
                    lines[file] = progress.add_task(file, total=total)
                progress.update(lines[file], completed=done, total=total)

            folder = store.get(name, show)
        print(f"{name} is in {folder}")
    return 0


def add_set(arguments: argparse.Namespace) -> int:
    """`fedkeel data add NAME PATH`."""
    from ..data import store

    print(f"{arguments.name} is in {store.add(arguments.name, arguments.path, arguments.link)}")
    return 0


def show_task(arguments: argparse.Namespace) -> int:
    """`fedkeel data show TASK`."""
    from .. import tasks
    from ..data import show

    task = tasks.get(arguments.task)
    flags.say_preparation(arguments.task)
    if arguments.out is None:
        show.draw(task, Console())
    else:
        show.save(task, arguments.out)
        print(f"written to {arguments.out}")
    return 0
