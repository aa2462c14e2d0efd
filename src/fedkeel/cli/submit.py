"""`fedkeel submit`: a comparison, a sweep or a reproduction as a job array of SLURM."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import flags

EXAMPLES = """examples:
  fedkeel submit slurm --minutes 60 --cpus 2 -- run synthetic fedavg gel --seeds 20 --out runs/many
  fedkeel submit slurm --partition cpu -- sweep synthetic gel --grid lr=0.001,0.01,0.1 --out runs/rates
  fedkeel submit slurm -- reproduce gel/table2 --out docs/results
  fedkeel submit status runs/many
  fedkeel resume runs/many          # when all jobs have ended: the table, and summary.json

A job is one run, or one panel of a reproduction. It is queued again when it is preempted or out of time, and goes on
from its checkpoint. All machines must see the same files. `submit local` starts the jobs as processes here."""


def add_command(commands: Any) -> None:
    """Add `submit` to the command's parser."""
    parser = flags.add_command(commands, "submit", None, "many runs as a job array of SLURM", EXAMPLES)
    places = parser.add_subparsers(required=True, metavar="slurm|local|status")
    for where, help in (("slurm", "send jobs to SLURM"), ("local", "start jobs as processes of this machine")):
        place = flags.add_command(places, where, do, help, EXAMPLES)
        place.set_defaults(where=where)
        place.add_argument("command", nargs="*", metavar="-- COMMAND", help="run, sweep or reproduce, as it is")
        place.add_argument("--minutes", type=int, default=240, metavar="M", help="time of a job; default 240")
        place.add_argument("--cpus", type=int, default=1, metavar="N", help="cores of a job; default 1")
        place.add_argument("--memory", type=float, metavar="GB", help="memory of a job")
        place.add_argument("--partition", metavar="NAME", help="SLURM's partition")
        place.add_argument("--at-once", type=int, metavar="N", help="jobs that may run at the same time")
        place.add_argument("--retries", type=int, default=10, metavar="N", help="how often a job may run out of time")
    status = flags.add_command(places, "status", show, "what has become of the jobs")
    status.add_argument("folder", metavar="DIR", type=Path, help="where the runs are")


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel submit slurm -- ...`."""
    from ..errors import InputError
    from ..lab.submit import LEAST
    from . import parser

    if arguments.where == "slurm" and arguments.minutes < LEAST:
        raise InputError(f"--minutes must be at least {LEAST}, since a job is queued again 90 seconds before its end.")
    if not arguments.command or arguments.command[0] not in ("run", "sweep", "reproduce"):
        raise InputError("Give a command after --: fedkeel submit slurm -- run synthetic fedavg gel --seeds 20.")
    wanted = parser().parse_args(arguments.command)
    prepare = {"run": _run, "sweep": _sweep, "reproduce": _reproduce}[arguments.command[0]]
    return prepare(wanted, arguments)


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters of submitit."""
    asked = {"timeout_min": arguments.minutes, "cpus_per_task": arguments.cpus, "mem_gb": arguments.memory}
    asked |= {"slurm_partition": arguments.partition, "slurm_array_parallelism": arguments.at_once}
    return {name: value for name, value in asked.items() if value is not None}


def _run(wanted: argparse.Namespace, arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from ..files import write_json
    from ..lab import submit
    from ..run.folder import CONFIG, check_new, new_folder
    from .run import _study

    submit.library()
    study = replace(_study(wanted), below=True)
    out = wanted.out or flags.new_place(study.task)
    check_new(out, wanted.overwrite)
    task = study.made_task()
    study.check(task)
    new_folder(out, wanted.overwrite)
    write_json(out / CONFIG, study.probed(task).config())
    return _send(out, study.config(), arguments)


def _sweep(wanted: argparse.Namespace, arguments: argparse.Namespace) -> int:
    from ..errors import InputError
    from ..files import write_json
    from ..lab import submit
    from ..lab.sweep.grid import Grid
    from ..lab.sweep.run import configuration
    from ..run.folder import CONFIG, new_folder

    submit.library()
    if wanted.optuna is not None:
        raise InputError("A search asks for its trials one batch after another, so it is no array; leave out --optuna.")
    study = flags.study_of(wanted, [wanted.algorithm])
    config = configuration(study, Grid.parse(wanted.algorithm, wanted.grid), wanted.by, None, 1)
    out = wanted.out or flags.new_place(study.task)
    new_folder(out, wanted.overwrite)
    write_json(out / CONFIG, config)
    return _send(out, config, arguments)


def _send(out: Path, config: dict[str, Any], arguments: argparse.Namespace) -> int:
    from ..lab import submit

    jobs = submit.jobs_of(config)
    submit.submit(out, jobs, {}, arguments.where, _asked(arguments), arguments.retries)
    print(f"Submitted: {len(jobs)}. Watch: fedkeel submit status {out}. When they have ended: fedkeel resume {out}.")
    return 0


def _reproduce(wanted: argparse.Namespace, arguments: argparse.Namespace) -> int:
    from ..errors import InputError
    from ..lab import submit
    from ..lab.reproduce import plan

    if wanted.name is None:
        raise InputError("Give the name of a table or figure: fedkeel submit slurm -- reproduce gel/table2.")
    made = plan.chosen(plan.load(wanted.name), wanted.panel, wanted.seeds, wanted.arm)
    folders = {"runs": str(wanted.runs.resolve()), "out": None if wanted.out is None else str(wanted.out.resolve())}
    given = {"name": wanted.name, "seeds": wanted.seeds, "arms": wanted.arm}
    about = given | {"compile": wanted.compile, "device": wanted.device, **folders}
    out = wanted.runs / made.name
    jobs = [{"panel": panel.name} for panel in made.panels]
    submit.submit(out, jobs, {"reproduce": about}, arguments.where, _asked(arguments), arguments.retries)
    print(f"Submitted: {len(jobs)}. Watch: fedkeel submit status {out}. At the end, give the command without submit.")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """`fedkeel submit status DIR`."""
    from rich.table import Table

    from ..lab import submit

    table = Table("job", "state", box=None, pad_edge=False)
    for name, state in submit.states(arguments.folder):
        table.add_row(name, state)
    flags.terminal().print(table)
    return 0
