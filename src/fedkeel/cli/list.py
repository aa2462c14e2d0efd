"""`fedkeel list`: all tasks, algorithms, keys and rules."""

from __future__ import annotations

import argparse
from typing import Any

from . import flags


def add_command(commands: Any) -> None:
    """Add `list` to the command's parser."""
    show = flags.add_command(commands, "list", do, "all tasks, algorithms, keys and rules")
    show.add_argument("what", nargs="?", choices=["tasks", "algorithms", "rules"], help="only these")


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel list [tasks|algorithms|rules]`."""
    from ..recipes import COMMON, PARTS, RECIPES
    from ..rules import RULES
    from ..tasks import TASKS

    if arguments.what in (None, "tasks"):
        _show("tasks", {name: _first_line(make) for name, make in TASKS.items()})
    if arguments.what in (None, "algorithms"):
        lines = {name: recipe.summary + _keys(name, recipe.keys) for name, recipe in RECIPES.items()}
        _show("algorithms, with their own keys and defaults (combine with +)", lines)
        lines = {name: recipe.summary + _keys(name, recipe.keys) for name, recipe in PARTS.items()}
        _show("parts against bad clients (add one to an algorithm with +)", lines)
        _show("keys of every algorithm", COMMON)
    if arguments.what in (None, "rules"):
        lines = {rule.__name__: _first_line(rule) for rule in RULES.values()}
        _show("rules (for Algorithm(rules=[...]) in Python)", lines)
    return 0


def _keys(name: str, keys: Any) -> str:
    from ..grammar import write

    written = write([(name, dict(keys))]).partition(":")[2].replace(",", ", ")
    return f"  [{written}]" if written else ""


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _show(title: str, lines: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    for name, text in lines.items():
        grid.add_row(name, Text(text))
    Console().print(grid)
