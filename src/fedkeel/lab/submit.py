"""Job arrays: every run of a comparison or a sweep, or every panel of a reproduction, is a job of SLURM by submitit.

A job is a number in the array and works on one run directory, where a local run would have it. When SLURM preempts it
or its time is up, submitit queues it again and it goes on from its checkpoint. What it does is in `FOLDER.submit/`,
beside the runs, together with the logs and with submitit's own files.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import InputError, MissingExtra
from ..files import read_json, write_json
from ..run.checkpoint import ended
from ..run.folder import CONFIG
from .spread import newest_row
from .study import Study, one_run

ARRAY = "array.json"
SIGNAL = 90  # seconds before the end of a job's time at which it is queued again
LEAST = 5  # minutes of a job; SLURM may signal a minute early, and a process that is still starting dies of it


def beside(out: Path) -> Path:
    """Where the array of these runs is described."""
    return out.with_name(out.name + ".submit")


def library() -> Any:
    """submitit, which is an extra."""
    try:
        return import_module("submitit")
    except ImportError as error:
        raise MissingExtra("submitit", "slurm", "A job array") from error


@dataclass(frozen=True)
class Job:
    """A job of the array, which submitit sends to a machine."""

    out: str
    number: int

    def __call__(self) -> str:
        return work(Path(self.out), self.number)

    def checkpoint(self) -> Any:
        """What is queued again when the job is preempted or out of time: the same, which then resumes."""
        return import_module("submitit.helpers").DelayedSubmission(self)


def submit(
    out: Path, jobs: Sequence[dict[str, Any]], about: dict[str, Any], where: str, asked: dict[str, Any], retries: int
) -> None:
    """Send an array of jobs. where: "slurm", or "local" for processes of this machine; asked: submitit's parameters;
    retries: how often a job may run out of time.
    """
    submitit, folder = library(), beside(out)
    if (folder / ARRAY).exists():
        raise InputError(f"{folder} holds an array already; see: fedkeel submit status {out}.")
    folder.mkdir(parents=True, exist_ok=True)
    again = {f"{where}_max_num_timeout": retries}
    executor = submitit.AutoExecutor(folder=folder / "logs", cluster=where, **again)
    executor.update_parameters(name=f"fedkeel-{out.name}", slurm_signal_delay_s=SIGNAL, **asked)
    write_json(folder / ARRAY, about | {"where": where, "jobs": list(jobs)})  # before the first job can look for it
    with executor.batch():
        sent = [executor.submit(Job(str(out.resolve()), number)) for number in range(len(jobs))]
    known = [one | {"job": str(job.job_id)} for one, job in zip(jobs, sent, strict=True)]
    write_json(folder / ARRAY, about | {"where": where, "jobs": known})


def jobs_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """A job for each run of a comparison or a sweep."""
    plan = Study.from_config(config).plan()
    return [{"algorithm": text, "seed": seed, "folder": str(folder)} for text, seed, folder in plan]


def work(out: Path, number: int) -> str:
    """Do one job of an array; gives how its run ended."""
    about = read_json(beside(out) / ARRAY)
    job = about["jobs"][number]
    if "panel" in job:
        return _panel(about["reproduce"], job["panel"])
    study = Study.from_config(read_json(out / CONFIG))
    folder = out / job["folder"]
    return one_run(study, study.made_task(), job["algorithm"], job["seed"], folder, lambda *row: None)[1]


def _panel(about: dict[str, Any], panel: str) -> str:
    from .reproduce import plan
    from .reproduce.carry_out import Place, carry_out

    made = plan.chosen(plan.load(about["name"]), [panel], about["seeds"], about["arms"])
    records = None if about["out"] is None else Path(about["out"])
    place = Place(made, Path(about["runs"]), records, about["compile"], about["device"])
    return f"{len(list(carry_out(made, place, lambda wanted, row: None)))} panel done"


def states(out: Path) -> list[tuple[str, str]]:
    """The name of each job of an array, and what has become of it."""
    about = read_json(beside(out) / ARRAY)
    sent = [job["job"] for job in about["jobs"] if "job" in job]
    queue = _in_slurm(sent) if about["where"] == "slurm" else _here(out, sent)
    found = []
    for job in about["jobs"]:
        name = job.get("panel") or f"{job['algorithm']} #{job['seed']}"
        found.append((name, f"{_state(out, job)} ({queue.get(job.get('job', ''), 'not in the queue')})"))
    return found


def _state(out: Path, job: dict[str, Any]) -> str:
    if "panel" in job:
        return "a panel"
    folder = out / job["folder"]
    if (folder / CONFIG).exists() and (known := ended(folder)) is not None:
        return known.status
    row = newest_row(folder)
    return "not begun" if row is None else f"round {row['round']}"


def _in_slurm(jobs: Sequence[str]) -> dict[str, str]:
    """What SLURM's queue says of these jobs; those that have ended are not in it. Accounting, which submitit would ask,
    is often switched off.
    """
    arrays = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    command = ["squeue", "--noheader", "--array", f"--jobs={arrays}", "--format=%i %T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"SLURM's command squeue cannot be run here: {error}.") from error
    rows = (line.split() for line in answer.stdout.splitlines())  # an error: SLURM has forgotten the array
    return {row[0]: row[1].lower() for row in rows if len(row) == 2}


def _here(out: Path, jobs: Sequence[str]) -> dict[str, str]:
    """What has become of jobs that are processes of this machine."""
    local = library().LocalJob
    return {job: str(local(beside(out) / "logs", job).state).lower() for job in jobs}
