"""`fedkeel sweep`: try values of an algorithm's keys, in parallel, and see which is best."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from . import flags

EXAMPLES = """examples:
  fedkeel sweep synthetic fedavgcm+gel --grid lr=0.001,0.01,0.1 server_lr=0.5,1,2 --seeds 3
  fedkeel sweep synthetic fedprox --grid lr=0.001..1 mu=0,0.01,0.1 --optuna 20 --target 0.8

A key belongs to the algorithm's first name; write PART.KEY for a later one (gel.steps=5,10). The same command
with the same --out continues a stopped sweep, as does fedkeel resume DIR. The best cell is chosen on validation
data: a tenth of every client's samples that is not trained on (--validation). --by says by what: validation_accuracy
(default), validation_loss, train_loss, each the mean of the last rounds; test_accuracy, test_best and test_rounds look
at the test set, and the table says so. Report the best cell with fedkeel run: all training data, other seeds; the last
line of the output is that command. Tune every algorithm that you compare, each by a sweep of its own."""

# Of a table of one's own; other tasks have a test set that every run shares.
UNTESTED = (
    "To test the best on each client by fedkeel run --client-test SHARE, sweep with the same --client-test: this sweep "
    "has used those rows to train and to choose."
)


def add_command(commands: Any) -> None:
    """Add `sweep` to the command's parser."""
    from ..lab.sweep.grid import BY, VALIDATION

    help = "try values of an algorithm's keys in parallel, find the best"
    sweep = flags.add_command(commands, "sweep", do, help, EXAMPLES)
    sweep.add_argument("task", metavar="TASK", help="a task's name, see fedkeel list tasks")
    sweep.add_argument("algorithm", metavar="ALGORITHM", help="for example fedavgcm+gel")
    sweep.add_argument("others", nargs="*", help=argparse.SUPPRESS)  # refused with what to do
    sweep.add_argument("--grid", metavar="KEY=VALUES", nargs="+", required=True, help="lr=0.01,0.1, or lr=0.001..1")
    flags.add_jobs(sweep, "default one per core")
    sweep.add_argument("--by", metavar="NAME", help=f"what a cell is chosen by: {', '.join(BY)}; default the first")
    sweep.add_argument("--optuna", type=int, metavar="N", help="search with N trials (needs optuna)")
    sweep.add_argument("--png", type=Path, metavar="FILE", help="write the heat map as a picture (needs matplotlib)")
    flags.add_settings(sweep, validation=VALIDATION)


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel sweep TASK ALGORITHM --grid ...`."""
    from ..engine.threads import cores
    from ..errors import InputError
    from ..lab.report import heatmap
    from ..lab.sweep.grid import Grid
    from ..lab.sweep.run import configuration
    from ..run.folder import new_folder

    if arguments.others:
        raise InputError(
            f"A sweep takes one algorithm. Sweep {arguments.algorithm} and {', '.join(arguments.others)} each on its "
            "own, then compare the best of each by fedkeel run."
        )
    jobs = flags.jobs(arguments, "sweep") or cores()
    grid = Grid.parse(arguments.algorithm, arguments.grid)
    if arguments.png is not None:
        if len(grid.keys) > 2:
            raise InputError("--png draws one or two keys; leave it out.")
        heatmap.figures()
    study = flags.study_of(arguments, [arguments.algorithm])
    config = configuration(study, grid, arguments.by, arguments.optuna, jobs)
    out = arguments.out or flags.new_place(study.task)
    if arguments.overwrite or not _same_sweep(config, out):
        new_folder(out, arguments.overwrite)
    return go_on(config, out, arguments)


def _same_sweep(config: dict[str, Any], out: Path) -> bool:
    """Whether `out` holds the same sweep, to be continued; the trials of a search so far are not compared."""
    from ..errors import InputError
    from ..files import read_json
    from ..run.config import SharedConfig

    if not (out / "config.json").exists():
        return False
    known = SharedConfig().plain() | read_json(out / "config.json")  # an earlier version wrote fewer settings
    found = ["sweep"]  # the sweep itself sets these
    found += ["algorithms"] if config["sweep"]["optuna"] is not None else []
    found += ["engine"] if config["engine"] == "probe" else []
    if known.get("sweep", {}) | {"batch": 0, "by": 0} != config["sweep"] | {"batch": 0, "by": 0} or any(
        known.get(key) != config[key] for key in config if key not in found
    ):
        raise InputError(f"{out} holds something else. Choose another --out, or add --overwrite.")
    config["sweep"]["batch"] = known["sweep"]["batch"]
    if config["engine"] == "probe":
        config |= {key: known[key] for key in ("engine", "engine_reason") if key in known}
    return True


def _report(config: dict[str, Any], best: str) -> str:
    """The command that runs the best cell as the sweep did, with other seeds and without validation data."""
    from ..run.config import SharedConfig
    from ..world import World

    shared = {name: value for name, value in config.items() if name not in ("validation", "engine")}
    seeds = ["--seed", str(max(config["seeds"]) + 1), "--seeds", "3"]
    words = [*flags.words_of(shared, SharedConfig), *flags.words_of(config["world"], World), *seeds]
    return shlex.join(["fedkeel", "run", config["task"], best, *words])


def go_on(config: dict[str, Any], out: Path, arguments: argparse.Namespace) -> int:
    """Run the rest of a sweep and print its outcome; also used by `fedkeel resume`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..engine.threads import cores
    from ..lab.report import heatmap
    from ..lab.sweep.run import carry_out, document

    messages = Console(stderr=True)
    columns = [TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()]
    columns.append(TextColumn("{task.fields[latest]}"))
    runs = (config["sweep"].get("optuna") or len(config["algorithms"])) * len(config["seeds"])
    ended: set[tuple[str, int]] = set()
    with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
        line = progress.add_task("runs", total=runs, latest="")

        def show(item: tuple[str, int, str], status: str) -> None:
            ended.add(item[:2])  # a search reads earlier runs again
            progress.update(line, completed=len(ended), latest=f"{item[0]} #{item[1]} {status}")

        try:
            choice = carry_out(config, out, flags.jobs(arguments, "sweep") or cores(), show)
        except KeyboardInterrupt:
            progress.stop()
            interrupted = f"Interrupted; nothing is lost. Continue with: fedkeel resume {out}"
            messages.print(interrupted, style="yellow", soft_wrap=True, highlight=False)
            return 130
    if arguments.json:
        print(json.dumps({"out": str(out), **document(config, choice)}))
    else:
        console = flags.terminal()
        heatmap.draw(choice, console)
        console.print(f"Saved in {out}.", style="dim", soft_wrap=True, highlight=False)
        if config["task"].startswith("csv:") and not config.get("client_test"):
            console.print(UNTESTED, style="dim", soft_wrap=True, highlight=False)
        if choice.best is not None:
            command = _report(config, choice.best.arm.name)
            console.print(f"Report it with other seeds: {command}", soft_wrap=True, highlight=False, markup=False)
    if getattr(arguments, "png", None) is not None:
        heatmap.save(choice, arguments.png)
    return 3 if all(one.arm.diverged for one in choice.ranked) else 0
