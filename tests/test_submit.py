"""Job arrays, by submitit's executor for this machine: a preempted job goes on, with the bits of a local run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.files import read_json, write_json
from fedkeel.lab import submit

ROUNDS = 600  # seconds of training, so that a job is still at work when its first checkpoint has been seen
COMMAND = ["run", "synthetic", "fedavg", "gel", "--rounds", str(ROUNDS), "--checkpoint-every", "5"]


def test_a_missing_submitit_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["submit", "slurm", "--minutes", "5", "--", *COMMAND, "--out", str(tmp_path / "runs")]) == 1
    assert 'pip install "submitit>=1.5"' in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_only_commands_that_train_can_be_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "slurm", "--", "list"]) == 2
    assert "after --" in capsys.readouterr().err


def test_a_job_that_would_be_signalled_while_it_starts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "slurm", "--minutes", "2", "--", *COMMAND, "--out", str(tmp_path / "runs")]) == 2
    assert "--minutes must be at least 5" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_queue_is_asked_without_slurms_accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for squeue: CI has no SLURM."""
    out, tools = tmp_path / "runs", tmp_path / "bin"
    tools.mkdir()
    (tools / "squeue").write_text('#!/bin/sh\n[ "$3" = --jobs=7 ] && echo "7_0 RUNNING"\n')
    (tools / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    jobs = [{"algorithm": "gel", "seed": n, "folder": f"gel/seed-{n}", "job": f"7_{n}"} for n in range(2)]
    submit.beside(out).mkdir()
    write_json(submit.beside(out) / submit.ARRAY, {"where": "slurm", "jobs": jobs})
    assert submit.states(out) == [("gel #0", "not begun (running)"), ("gel #1", "not begun (not in the queue)")]


def working_on(folder: Path) -> dict[str, int]:
    """The processes in which jobs of this array run, by the job's number."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text()
            environment = (process / "environ").read_text().split("\0")
        except OSError:  # it has ended
            continue
        if "submitit.core._submit" in line and str(folder) in line:
            names = [each.partition("=")[2] for each in environment if each.startswith("SUBMITIT_LOCAL_JOB_ID=")]
            found |= dict.fromkeys(names, int(process.name))  # none, if it ended meanwhile
    return found


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # submitit does not wait for the processes it starts
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_job_that_is_preempted_goes_on_and_ends_with_the_bits_of_a_local_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    out = tmp_path / "runs"
    assert main(["submit", "local", "--minutes", "10", "--", *COMMAND, "--out", str(out)]) == 0
    jobs = read_json(submit.beside(out) / submit.ARRAY)["jobs"]
    assert len(jobs) == 2
    end = time.monotonic() + 200
    waiting = {job["job"]: out / job["folder"] / "checkpoint" for job in jobs}
    try:
        while sum("done (" in state for _, state in submit.states(out)) < 2:
            assert time.monotonic() < end
            working = working_on(submit.beside(out))
            for job in [job for job, checkpoint in waiting.items() if job in working and checkpoint.exists()]:
                os.kill(working[job], signal.SIGUSR2)  # as SLURM does before the end of a job's time
                del waiting[job]
            time.sleep(0.05)
    finally:
        for process in working_on(submit.beside(out)).values():
            os.kill(process, signal.SIGKILL)
    logs = "".join(file.read_text() for file in (submit.beside(out) / "logs").glob("*_log.*"))
    assert not waiting and logs.count("Requeued job") >= 1
    assert main(["submit", "status", str(out)]) == 0
    assert "fedavg #0" in capsys.readouterr().out
    assert main(["resume", str(out)]) == 0  # gathers
    assert (out / "summary.json").exists()
    for name in ("fedavg", "gel"):
        straight = fk.train(fk.tasks.synthetic(), name, rounds=ROUNDS)
        assert torch.equal(fk.load(out / name / "seed-0").params, straight.params)
