"""`fedkeel resume`: continue a run, a comparison or a sweep that was stopped."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import flags


def add_command(commands: Any) -> None:
    """Add `resume` to the command's parser."""
    resume = flags.add_command(commands, "resume", do, "continue a run or a comparison that was stopped")
    resume.add_argument("folder", metavar="DIR", type=Path, help="its directory: runs/TASK-TIME, or that of --out")
    resume.add_argument("--engine", metavar="ENGINE", help="go on at another place, such as ray:address=auto or auto")
    flags.add_jobs(resume, "default 1, for a sweep one per core")
    flags.add_ui(resume)
    flags.add_output(resume)


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel resume DIR`."""
    from ..files import read_json
    from ..lab.study import Study
    from . import run, sweep

    flags.jobs(arguments, "resume")  # refused before anything is read
    config = read_json(arguments.folder / "config.json")
    if "sweep" in config:
        config |= {} if arguments.engine is None else {"engine": arguments.engine}
        return sweep.go_on(config, arguments.folder, arguments)
    study = replace(Study.from_config(config), elsewhere=arguments.engine)
    return run.carry_out(study, arguments.folder, arguments)
