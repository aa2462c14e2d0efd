"""Flags that several commands share."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, brief

if TYPE_CHECKING:
    from rich.console import Console

    from ..lab.study import Study


Command = Callable[[argparse.Namespace], int]  # the exit code


def add_command(
    commands: Any, name: str, do: Command | None, help: str, examples: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that calls `do`, or has commands of its own; the examples are printed at the end of its help."""
    kind = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, epilog=examples, formatter_class=kind)
    parser.set_defaults(do=do)
    return parser


def add_settings(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """The flags of all commands that train: settings, world, seeds and output directory.

    defaults: those of settings that this command has of its own.
    """
    from ..run.config import RunConfig
    from ..settings import add_flags
    from ..world import World

    add_flags(parser, RunConfig, defaults)
    parser.add_argument("--seeds", type=_how_many, metavar="K", help="repeat with K seeds in a row; default 1")
    add_flags(parser, World)
    parser.add_argument("--out", type=Path, metavar="DIR", help="default runs/TASK-TIME")
    parser.add_argument("--overwrite", action="store_true", help="empty DIR first")
    add_output(parser)


def _how_many(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        use = "write how many, and which is the first: --seed 0 --seeds 3 is 0, 1 and 2"
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seeds; {use}") from error


def add_ui(parser: argparse.ArgumentParser) -> None:
    """The flag for a live page."""
    parser.add_argument("--ui", action="store_true", help="serve a live page of the run, on this machine only")


def add_jobs(parser: argparse.ArgumentParser, default: str) -> None:
    """The flag for runs side by side."""
    parser.add_argument("--jobs", type=int, metavar="N", help=f"processes, each with a whole run at a time; {default}")


def jobs(arguments: argparse.Namespace, command: str) -> int | None:
    """The number of processes that the user asked for."""
    from ..errors import check
    from ..ranges import WORKERS

    wanted: int | None = arguments.jobs
    check(wanted is None or wanted in WORKERS, command, "jobs", str(WORKERS), wanted)
    return wanted


def add_output(parser: argparse.ArgumentParser) -> None:
    """The flags for the output."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what was chosen, and why")


def given(arguments: argparse.Namespace, owner: type) -> dict[str, Any]:
    """The settings of `owner` that the user gave a flag for."""
    from ..settings import settings

    return {name: value for name in settings(owner) if (value := getattr(arguments, name)) is not None}


def words_of(known: Mapping[str, Any], owner: type) -> list[str]:
    """The flags that give these settings of `owner`; those that are missing or at their defaults need none.

    >>> from fedkeel.run.config import RunConfig
    >>> words_of({"rounds": 50, "lr": None, "client_test": 0.2, "compile": True}, RunConfig)
    ['--rounds', '50', '--client-test', '0.2', '--compile']
    """
    from ..settings import settings

    words: list[str] = []
    for name, one in settings(owner).items():
        if (value := known.get(name, one.default)) != one.default:
            flag = "--" + name.replace("_", "-")
            words += [flag] if value is True else [flag, str(value)]
    return words


def study_of(arguments: argparse.Namespace, algorithms: Sequence[str]) -> Study:
    """The study that the flags of `add_settings` describe."""
    from ..lab.study import Study
    from ..ranges import REPEATS
    from ..recipes import algorithm
    from ..run.config import RunConfig
    from ..world import World

    if arguments.seeds is not None and arguments.seeds not in REPEATS:
        raise InputError(f"--seeds must be {REPEATS}. Got {brief(arguments.seeds)} instead.")
    chosen = given(arguments, RunConfig)
    first = chosen.pop("seed", RunConfig.seed)
    return Study(
        task=arguments.task,
        algorithms=[str(algorithm(text).spec) for text in algorithms],
        world=World.from_parameters(given(arguments, World)),
        seeds=list(range(first, first + (arguments.seeds or 1))),
        **chosen,
    )


def new_place(task: str) -> Path:
    """The default folder of runs."""
    return Path("runs", f"{task.partition(':')[0]}-{time.strftime('%Y%m%d-%H%M%S')}")


def terminal() -> Console:
    """The console for tables."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=110)  # a file or a pipe has no width


def say_preparation(task: str, study: Study | None = None) -> None:
    """Print on stderr how the columns of a table of the user's own become inputs; nothing for other tasks.

    study: what keeps some of the rows from training.
    """
    from .. import grammar, tasks
    from ..data.csv_files import csv_summary

    name, values = grammar.parse(task)[0]
    if name == "csv":
        made = tasks.get(task) if study is None else study.prepared(tasks.get(task))
        print(csv_summary(str(values.get("file")), made.data), file=sys.stderr)
