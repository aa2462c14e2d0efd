"""Runs side by side in processes: the files they would have otherwise, and one line when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fedkeel.cli import main
from fedkeel.errors import FedkeelError, InputError
from fedkeel.lab.processes import carry_out

ARMS = ["synthetic:users=6", "fedavg", "gel", "--cohort", "3", "--rounds", "4"]


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes import this module."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])


def ignore(*anything: Any) -> None:
    pass


def work(job: tuple[str, Path], stop: Any) -> str:
    """A job that does what its name says, in a process that is not this one."""
    name, file = job
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "refuse":
        raise InputError("The value is out of range.")
    if name == "wait":  # as a run does, which asks after every round
        file.touch()
        while not stop():
            pass
        file.rename(file.with_suffix(".saved"))
        raise KeyboardInterrupt
    while name == "end" and not file.exists():  # until the other job is under way
        pass
    return f"{name} in {os.getpid()}"


@pytest.mark.usefixtures("importable")
def test_jobs_run_side_by_side_in_processes_of_their_own(tmp_path: Path) -> None:
    ended: dict[int, str] = {}
    jobs = [(name, tmp_path / "x") for name in "abc"]
    carry_out(2, work, jobs, ended.__setitem__, ignore, ["a", "b", "c"])
    assert [ended[index].split(" in ")[0] for index in range(3)] == ["a", "b", "c"]
    processes = {text.split(" in ")[1] for text in ended.values()}
    assert 1 <= len(processes) <= 2 and str(os.getpid()) not in processes


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("die", FedkeelError, "The process of its name died"), ("refuse", InputError, "its name: The value is out")],
)
def test_an_error_names_its_run_and_the_others_stop_after_their_round(
    tmp_path: Path, name: str, kind: type[Exception], message: str
) -> None:
    jobs = [("wait", tmp_path / "x"), ("end", tmp_path / "x"), (name, tmp_path / "x")]  # the third follows the second
    with pytest.raises(kind, match=message):
        carry_out(2, work, jobs, ignore, ignore, ["another", "a third", "its name"])
    assert (tmp_path / "x.saved").exists()


def without_times(file: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "wall_seconds"} for row in rows]


def test_a_comparison_in_two_processes_has_the_bits_of_one_in_this(tmp_path: Path, capsys: Any) -> None:
    assert main(["run", *ARMS, "--out", str(tmp_path / "one")]) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path / "one"), "OUT")
    assert main(["run", *ARMS, "--jobs", "2", "--out", str(tmp_path / "two")]) == 0
    assert capsys.readouterr().out.replace(str(tmp_path / "two"), "OUT") == printed
    for arm in ("fedavg", "gel"):
        one, two = (tmp_path / name / arm / "seed-0" for name in ("one", "two"))
        assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
        assert without_times(one / "history.jsonl") == without_times(two / "history.jsonl")
        assert (one / "config.json").read_bytes() == (two / "config.json").read_bytes()


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "runs"
    assert main(["run", *ARMS, "--jobs", "0", "--out", str(out)]) == 2
    assert "The 'jobs' parameter of run must be" in capsys.readouterr().err
    assert main(["run", *ARMS, "--jobs", "2", "--track", f"tensorboard:{out}", "--out", str(out)]) == 2
    assert "leave out --track or --jobs" in capsys.readouterr().err
    assert main(["resume", str(out), "--jobs", "-1"]) == 2
    assert "The 'jobs' parameter of resume must be" in capsys.readouterr().err
    assert not out.exists()
