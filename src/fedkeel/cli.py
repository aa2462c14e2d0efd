"""The `fedkeel` command. The same words as in Python: a task, algorithms, a world."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import EngineWarning, FedkeelError, InputError, StabilityWarning

if TYPE_CHECKING:
    from .study import Study

EXAMPLES = """examples:
  fedkeel run synthetic fedavgcm fedavgcm+gel --rounds 200 --seeds 5
  fedkeel run synthetic fedavg:lr=0.1 fedprox:mu=1 --budget 2e --cohort 0.1 --target 0.8
  fedkeel run --config runs/demo/config.json --out runs/again

An algorithm is NAME[:key=value,...][+PART[:key=value,...]]..., for example fedprox:mu=0.01,lr=0.1+gel:steps=5.
`fedkeel list` shows the names, `fedkeel explain NAME` what each computes and its keys."""


class Parser(argparse.ArgumentParser):
    """argparse, with one line for an error."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit code: 0 done, 1 failed on the way, 2 bad input, 3 diverged, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        with _telling_warnings():
            return int(arguments.do(arguments))
    except InputError as error:
        return _fail(error, 2)
    except FedkeelError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has left
        sys.stderr.close()
        return 0
    except OSError as error:  # a full disk, a folder that went away
        return _fail(f"{error.filename or 'output'}: {error.strerror}", 1)


@contextmanager
def _telling_warnings() -> Iterator[None]:
    """Our own warnings as one line each, told once although an arm is checked first and then run with every seed."""
    told: set[str] = set()

    def tell(message: Warning | str, *where: Any, **place: Any) -> None:
        if not isinstance(message, StabilityWarning | EngineWarning):
            as_ever(message, *where, **place)
        elif str(message) not in told:
            told.add(str(message))
            print(f"fedkeel: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        as_ever = warnings.showwarning
        for own in (StabilityWarning, EngineWarning):
            warnings.simplefilter("always", own)
        warnings.showwarning = tell
        yield


def _fail(error: object, code: int) -> int:
    print(f"fedkeel: {error}", file=sys.stderr)
    return code


def _parser() -> Parser:
    from .data import command as data
    from .report import command as report
    from .reproduce import command as reproduce
    from .sweep import command as sweep
    from .version import __version__

    parser = Parser(prog="fedkeel", description="Federated learning on an even keel.")
    parser.add_argument("--version", action="version", version=f"fedkeel {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    _add_run(commands)
    resume = commands.add_parser("resume", help="continue a run or a comparison that was stopped")
    resume.add_argument("folder", metavar="DIR", type=Path, help="its directory, runs/TASK-TIME or what --out said")
    _add_ui(resume)
    _add_output(resume)
    resume.set_defaults(do=_resume)
    compare = commands.add_parser("compare", help="the tables of comparisons that are done, and ranks across tasks")
    compare.add_argument("folders", metavar="DIR", type=Path, nargs="+", help="their directories, one task each")
    compare.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")
    compare.set_defaults(do=_compare)
    show = commands.add_parser("list", help="the tasks, algorithms, keys and rules there are")
    show.add_argument("what", nargs="?", choices=["tasks", "algorithms", "rules"], help="only these")
    show.set_defaults(do=_list)
    explain = commands.add_parser(
        "explain", help="an algorithm as its paper's box: updates, state, traffic, references"
    )
    explain.add_argument("algorithm", metavar="ALGORITHM", help="for example ghbm:tau=10+gel")
    explain.set_defaults(do=_explain)
    report.add_commands(commands)
    sweep.add_commands(commands)
    reproduce.add_commands(commands)
    data.add_commands(commands)
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="train one algorithm, or compare several",
        description="Train algorithms on a task with paired seeds, and compare them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("task", nargs="?", metavar="TASK", help="a task's name, see fedkeel list tasks")
    run.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help="one or more; the first is the baseline")
    run.add_argument("--config", type=Path, metavar="FILE", help="repeat the run of this config.json")
    run.add_argument(
        "--track", metavar="NAME[:DIR]", action="append", default=[], help="send rows to tensorboard, mlflow or wandb"
    )
    _add_ui(run)
    add_settings(run)
    run.set_defaults(do=_run)


def add_settings(run: Parser) -> None:
    """The flags of everything that trains: how long, in which world, with which seeds, to where."""
    from .run.config import RunConfig
    from .settings import add_flags
    from .world import World

    add_flags(run, RunConfig)
    run.add_argument("--seeds", type=int, metavar="K", help="repeat with K seeds in a row; default 1")
    add_flags(run, World)
    run.add_argument("--out", type=Path, metavar="DIR", help="default runs/TASK-TIME")
    run.add_argument("--overwrite", action="store_true", help="empty DIR first")
    _add_output(run)


def _add_ui(parser: Parser) -> None:
    parser.add_argument("--ui", action="store_true", help="serve a live page of it, on this machine only")


def _add_output(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what was chosen, and why")


def _given(arguments: argparse.Namespace, owner: type) -> dict[str, Any]:
    """The settings of `owner` that the user gave a flag for."""
    from .settings import settings

    return {name: value for name in settings(owner) if (value := getattr(arguments, name)) is not None}


def _run(arguments: argparse.Namespace) -> int:
    from .run import checkpoint as files
    from .run.config import RunConfig
    from .study import Study
    from .world import World

    if arguments.config is not None:
        given = [*_given(arguments, RunConfig), *_given(arguments, World)]
        given += [] if arguments.seeds is None else ["seeds"]
        if given:
            flags = ", ".join("--" + name.replace("_", "-") for name in given)
            raise InputError(f"--config says how to run already; leave out {flags}, or change a copy of the file.")
        if arguments.task is not None:
            raise InputError("--config names the task and the algorithms already; leave them out.")
        study = Study.from_config(files.read_json(arguments.config))
    else:
        if arguments.task is None or not arguments.algorithms:
            raise InputError(
                "Give a task and at least one algorithm: fedkeel run synthetic fedavg gel (or --config FILE)."
            )
        study = study_of(arguments, arguments.algorithms)
    study = replace(study, track=arguments.track)
    study.check(study.made_task())
    out = arguments.out or new_place(study.task)
    files.new_folder(out, arguments.overwrite)
    return _carry_out(study, out, arguments)


def study_of(arguments: argparse.Namespace, algorithms: Sequence[str]) -> Study:
    """The study that the flags of `add_settings` describe."""
    from .run.config import RunConfig
    from .study import Study
    from .world import World

    if arguments.seeds is not None and arguments.seeds < 1:
        raise InputError(f"--seeds must be at least 1. Got {arguments.seeds} instead.")
    given = _given(arguments, RunConfig)
    first = given.pop("seed", RunConfig.seed)
    return Study(
        task=arguments.task,
        algorithms=[_canonical(text) for text in algorithms],
        world=World.from_parameters(_given(arguments, World)),
        seeds=list(range(first, first + (arguments.seeds or 1))),
        **given,
    )


def new_place(task: str) -> Path:
    """Where runs go that were not told where."""
    return Path("runs", f"{task.partition(':')[0]}-{time.strftime('%Y%m%d-%H%M%S')}")


def _resume(arguments: argparse.Namespace) -> int:
    from .run import checkpoint as files
    from .study import Study
    from .sweep.command import go_on

    config = files.read_json(arguments.folder / "config.json")
    if "sweep" in config:
        return go_on(config, arguments.folder, arguments)
    return _carry_out(Study.from_config(config), arguments.folder, arguments)


def _canonical(text: str) -> str:
    from .recipes import algorithm

    spec = algorithm(text).spec
    assert spec is not None
    return spec


def _carry_out(study: Any, out: Path, arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from .compare import summary
    from .report.diagnosis import diagnosis
    from .report.progress import Watching
    from .report.terminal import draw, table
    from .study import carry_out

    talk = Console(stderr=True)
    with Watching(study, talk, arguments.verbose) as watching, _live_page(out, arguments.ui, talk):
        try:
            arms = carry_out(study, out, watching.row, watching.began)
        except KeyboardInterrupt:
            watching.stop()
            talk.print(
                f"Interrupted; nothing is lost. Continue with: fedkeel resume {out}", style="yellow", soft_wrap=True
            )
            return 130
    target = arms[0].target
    if arguments.json:
        runs = [
            {"algorithm": arm.name, "seed": seed, "status": status, "history": history}
            for arm in arms
            for seed, status, history in zip(study.seeds, arm.statuses, arm.histories, strict=True)
        ]
        print(json.dumps({"task": study.task, "out": str(out), **summary(arms, target), "runs": runs}))
    else:
        console = terminal()
        draw({arm.name: arm.histories for arm in arms}, target, console)
        table(arms, target, study.rounds, console)
        diagnosis({arm.name: arm.histories for arm in arms}, console)
        console.print(
            f"Saved in {out}; repeat with: fedkeel run --config {out / 'config.json'}", style="dim", soft_wrap=True
        )
    diverged = [f"{arm.name} (seed {s})" for arm in arms for s, status in zip(study.seeds, arm.statuses, strict=True)
                if status == "diverged"]  # fmt: skip
    if diverged:
        talk.print(f"Diverged: {', '.join(diverged)}. A smaller lr is the usual cure.", style="red", soft_wrap=True)
    return 3 if diverged else 0


def _compare(arguments: argparse.Namespace) -> int:
    from .compare import score, summary, top_share
    from .report.terminal import ranks, table
    from .study import finished

    known = [finished(folder) for folder in arguments.folders]
    share = top_share([{arm.name: score(arm) for arm in arms} for _, arms in known])
    if arguments.json:
        told = [
            {"task": study.task, "out": str(folder), **summary(arms, arms[0].target)}
            for folder, (study, arms) in zip(arguments.folders, known, strict=True)
        ]
        print(json.dumps({"comparisons": told, "top_share": share}))
        return 0
    console = terminal()
    for folder, (study, arms) in zip(arguments.folders, known, strict=True):
        console.print(f"{study.task} ({folder})", style="bold", highlight=False, soft_wrap=True)
        table(arms, arms[0].target, study.rounds, console)
    if len(known) > 1:
        ranks(share, console)
    return 0


def terminal() -> Any:
    """Where tables go."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=110)  # a file or a pipe has no width to keep to


@contextmanager
def _live_page(out: Path, wanted: bool, talk: Any) -> Iterator[None]:
    """Serve the report of what is being run, while it runs."""
    if not wanted:
        yield
        return
    from .report.ui import Ui

    with Ui([out], replays=False) as ui:
        talk.print(f"Watch it at {ui.url}", soft_wrap=True, highlight=False)
        try:
            yield
        finally:
            ui.linger()


def _list(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from .grammar import write
    from .recipes import COMMON, RECIPES
    from .rules import RULES
    from .tasks import TASKS

    console = Console()

    def show(title: str, lines: dict[str, str]) -> None:
        grid = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column()
        for name, text in lines.items():
            grid.add_row(name, Text(text))
        console.print(grid)

    def first_line(thing: object) -> str:
        return (thing.__doc__ or "").strip().splitlines()[0]

    if arguments.what in (None, "tasks"):
        show("tasks", {name: first_line(make) for name, make in TASKS.items()})
    if arguments.what in (None, "algorithms"):
        written = {
            name: write([(name, dict(recipe.keys))]).partition(":")[2].replace(",", ", ")
            for name, recipe in RECIPES.items()
        }
        show("algorithms, with their own keys and defaults (put together with +)", {
            name: recipe.summary + (f"  [{written[name]}]" if written[name] else "") for name, recipe in RECIPES.items()
        })  # fmt: skip
        show("keys of every algorithm", COMMON)
    if arguments.what in (None, "rules"):
        show(
            "rules (for Algorithm(rules=[...]) in Python)", {rule.__name__: first_line(rule) for rule in RULES.values()}
        )
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from .explain import explain

    print(explain(arguments.algorithm))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
