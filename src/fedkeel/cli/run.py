"""`fedkeel run`: train one algorithm, or compare several."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from . import flags

if TYPE_CHECKING:
    from rich.console import Console

    from ..lab.study import Study

EXAMPLES = """examples:
  fedkeel run synthetic fedavgcm fedavgcm+gel --rounds 200 --seeds 5
  fedkeel run synthetic fedavg:lr=0.1 fedprox:mu=1 --budget 2e --cohort 0.1 --target 0.8
  fedkeel run mnist-writers fedavgcm gel fedbuff --fleet phones --deadline p80 --sim-seconds 3600
  fedkeel run --config runs/demo/config.json --out runs/again

An algorithm is NAME[:key=value,...][+PART[:key=value,...]]..., for example fedprox:mu=0.01,lr=0.1+gel:steps=5.
`fedkeel list` shows the names, `fedkeel explain NAME` what each computes and its keys."""


def add_command(commands: Any) -> None:
    """Add `run` to the command's parser."""
    run = flags.add_command(commands, "run", do, "train one algorithm, or compare several", EXAMPLES)
    run.description = "Train algorithms on a task with paired seeds, and compare them."
    run.add_argument("task", nargs="?", metavar="TASK", help="a task's name, see fedkeel list tasks")
    run.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help="one or more; the first is the baseline")
    run.add_argument("--config", type=Path, metavar="FILE", help="repeat the run of this config.json")
    run.add_argument(
        "--track", metavar="NAME[:DIR]", action="append", default=[], help="send rows to tensorboard, mlflow or wandb"
    )
    flags.add_jobs(run, "default 1, which has all cores")
    flags.add_ui(run)
    flags.add_settings(run)


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel run TASK ALGORITHM...`."""
    from ..run.folder import check_new, new_folder

    study = replace(_study(arguments), track=arguments.track)
    if study.track and (flags.jobs(arguments, "run") or 1) > 1:
        raise InputError(
            "Runs that are carried out side by side send nothing to trackers; leave out --track or --jobs."
        )
    out = arguments.out or flags.new_place(study.task)
    check_new(out, arguments.overwrite)
    task = study.made_task()
    study.check(task)
    study.check_kernels(task)
    new_folder(out, arguments.overwrite)
    return carry_out(study, out, arguments)


def _study(arguments: argparse.Namespace) -> Study:
    from ..files import read_json
    from ..lab.study import Study
    from ..run.config import RunConfig
    from ..world import World

    if arguments.config is None:
        if arguments.task is None or not arguments.algorithms:
            raise InputError(
                "Give a task and at least one algorithm: fedkeel run synthetic fedavg gel (or --config FILE)."
            )
        return flags.study_of(arguments, arguments.algorithms)
    given = [*flags.given(arguments, RunConfig), *flags.given(arguments, World)]
    given += [] if arguments.seeds is None else ["seeds"]
    if given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(f"--config sets everything already; leave out {names}, or change a copy of the file.")
    if arguments.task is not None:
        raise InputError("--config names the task and the algorithms already; leave them out.")
    return Study.from_config(read_json(arguments.config, edited=True))


def carry_out(study: Study, out: Path, arguments: argparse.Namespace) -> int:
    """Run the rest of a study, print its outcome and return the exit code."""
    from rich.console import Console

    from ..lab import study as studies
    from ..lab.report.progress import Watching

    messages = Console(stderr=True)
    flags.say_preparation(study.task, study)
    with Watching(study, messages, arguments.verbose) as watching, _live_page(out, arguments.ui, messages):
        try:
            arms = studies.carry_out(study, out, watching.row, watching.began, flags.jobs(arguments, "run") or 1)
        except KeyboardInterrupt:
            watching.stop()
            interrupted = f"Interrupted; nothing is lost. Continue with: fedkeel resume {out}"
            messages.print(interrupted, style="yellow", soft_wrap=True)
            return 130
    if arguments.json:
        print(json.dumps(_document(study, out, arms)))
    else:
        _print_tables(study, out, arms, watching.has_kernels)
    diverged: list[str] = []
    for arm in arms:
        ended = zip(study.seeds, arm.statuses, strict=True)
        diverged += [f"{arm.name} (seed {seed})" for seed, status in ended if status == "diverged"]
    if diverged:
        messages.print(f"Diverged: {', '.join(diverged)}. A smaller lr is the usual cure.", style="red", soft_wrap=True)
    return 3 if diverged else 0


def _document(study: Study, out: Path, arms: list[Any]) -> dict[str, Any]:
    from ..lab.compare import summary

    runs: list[dict[str, Any]] = []
    for arm in arms:
        for seed, status, history in zip(study.seeds, arm.statuses, arm.histories, strict=True):
            runs.append({"algorithm": arm.name, "seed": seed, "status": status, "history": history})
    return {"task": study.task, "out": str(out), **summary(arms, arms[0].target), "runs": runs}


def _print_tables(study: Study, out: Path, arms: list[Any], has_kernels: bool) -> None:
    from ..lab.report.diagnosis import diagnosis
    from ..lab.report.terminal import draw, table

    console, target = flags.terminal(), arms[0].target
    draw({arm.name: arm.histories for arm in arms}, target, console)
    table(arms, target, study.rounds, console, study.sim_seconds)
    diagnosis({arm.name: arm.histories for arm in arms}, console)
    saved = f"Saved in {out}; repeat with: fedkeel run --config {out / 'config.json'}"
    console.print(saved, style="dim", soft_wrap=True)
    if has_kernels:
        faster = "--compile trains this model by C kernels, which is faster; numbers then differ by roundings."
        console.print(faster, style="dim", soft_wrap=True)


@contextmanager
def _live_page(out: Path, wanted: bool, messages: Console) -> Iterator[None]:
    """Serve the report of the runs while they run."""
    if not wanted:
        yield
        return
    from ..lab.report.ui import Ui

    with Ui([out], replays=False) as ui:
        messages.print(f"Watch it at {ui.url}", soft_wrap=True, highlight=False)
        try:
            yield
        finally:
            ui.linger()
