"""Directories: what --overwrite may empty, and that only one process writes at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.conformance import toy, toy_world
from fedkeel.run import folder

RUN = ["run", "synthetic:users=4", "fedavg", "--rounds", "2"]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(folder, "PATIENCE", 0.0)


def tree(place: Path) -> dict[str, bytes | None]:
    return {str(f.relative_to(place)): f.read_bytes() if f.is_file() else None for f in sorted(place.rglob("*"))}


def refused(words, capsys) -> str:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


# --overwrite


def test_a_folder_of_the_users_own_is_never_emptied(tmp_path, capsys):
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter1.tex").write_text("years of work")
    (thesis / "config.json").write_text('{"editor": "vi"}')
    before = tree(thesis)
    assert "was not written by fedkeel" in refused([*RUN, "--out", str(thesis), "--overwrite"], capsys)
    assert tree(thesis) == before


@pytest.mark.parametrize("where", ["notes.txt", "checkpoint/notes.txt", "fedavg/notes.txt", "fedavg/seed-0/notes.txt"])
def test_one_foreign_file_in_a_comparison_stops_the_emptying_and_is_named(tmp_path, capsys, where):
    out = tmp_path / "out"
    assert main([*RUN[:3], "gel", *RUN[3:], "--out", str(out)]) == 0
    (out / where).parent.mkdir(exist_ok=True)
    (out / where).write_text("mine")
    before = tree(out)
    capsys.readouterr()
    error = refused([*RUN, "--out", str(out), "--overwrite"], capsys)
    assert str(out / where) in error and "nothing was deleted" in error
    assert tree(out) == before


def test_what_fedkeel_wrote_is_emptied(tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*RUN[:3], "gel", *RUN[3:], "--seeds", "2", "--out", str(out)]) == 0
    (out / "fedavg" / "seed-0" / ".model.safetensors.4711").write_text("a killed run was writing this")
    assert main(["report", str(out)]) == 0
    capsys.readouterr()
    assert "not empty" in refused([*RUN, "--out", str(out)], capsys)
    assert main([*RUN, "--out", str(out), "--overwrite"]) == 0
    assert {f.name for f in out.iterdir()} == {
        ".fedkeel.json", "config.json", "environment.json", "history.csv", "history.jsonl", "model.safetensors",
        "outcome.json",
    }  # fmt: skip


def test_a_directory_of_version_0_1_counts_by_its_configuration(tmp_path):
    out = tmp_path / "out"
    assert main([*RUN, "--out", str(out)]) == 0
    for name in (".fedkeel.json", "outcome.json"):
        (out / name).unlink()
    assert main([*RUN, "--out", str(out), "--overwrite"]) == 0


@pytest.mark.parametrize("kind", ["out", "inside", "below", "mark"])
def test_links_are_never_followed(tmp_path, capsys, kind):
    precious, out = tmp_path / "precious", tmp_path / "out"
    assert main([*RUN, "--out", str(precious)]) == 0
    before = tree(precious)
    if kind == "out":
        out.symlink_to(precious)
    else:
        assert main([*RUN, "--out", str(out)]) == 0
        name = {"inside": "summary.json", "below": "gel", "mark": ".fedkeel.json"}[kind]
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(precious / "config.json" if kind != "below" else precious)
    capsys.readouterr()
    refused([*RUN, "--out", str(out), "--overwrite"], capsys)
    assert tree(precious) == before


def test_a_plain_file_is_kept(tmp_path, capsys):
    file = tmp_path / "thesis.tex"
    file.write_text("years of work")
    assert "is a file" in refused([*RUN, "--out", str(file), "--overwrite"], capsys)
    assert file.read_text() == "years of work"


@pytest.mark.parametrize("wrong", [["--track", "nothing"], ["--budget", "x"], ["--cohort", "99"], ["--compile"]])
def test_nothing_is_emptied_before_every_argument_is_checked(tmp_path, capsys, wrong, monkeypatch):
    out = tmp_path / "out"
    assert main([*RUN, "--out", str(out)]) == 0
    before = tree(out)
    capsys.readouterr()
    monkeypatch.setenv("PATH", "")  # no C compiler
    refused([*RUN, *wrong, "--out", str(out), "--overwrite"], capsys)
    assert tree(out) == before


# The lock

HOLD = """
import sys, time
from pathlib import Path
from fedkeel.run.folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_writer_is_refused_and_learns_who_holds_the_directory(tmp_path, holder, capsys):
    error = refused([*RUN, "--out", str(tmp_path / "out")], capsys)
    assert f"process {holder.pid} on " in error and "since 20" in error
    with pytest.raises(fk.InputError, match="being written"):
        fk.train(toy(), "fedavg", toy_world(), 1, checkpoint=tmp_path / "out")
    assert [f.name for f in (tmp_path / "out").iterdir()] == [".fedkeel.json"]


def test_a_crash_releases_the_lock_at_once(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert fk.train(toy(), "fedavg", toy_world(), 1, checkpoint=tmp_path / "out").status == "done"


def test_a_run_that_goes_on_cannot_be_overwritten_or_resumed_but_read(tmp_path):
    out, task = tmp_path / "out", fk.tasks.get("synthetic:users=4")
    script = """
import sys
from fedkeel.cli import main
from fedkeel.run import folder
folder.PATIENCE = 0.0
sys.exit(main(sys.argv[1:]))
"""
    seen = []

    def while_it_runs(row):
        if row["round"] == 1:
            for words in ([*RUN, "--out", str(out), "--overwrite"], ["resume", str(out)], ["report", str(out)]):
                done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
                seen.append((done.returncode, "being written" in done.stderr))

    run = fk.train(task, "fedavg", rounds=2, checkpoint=out, callbacks=[while_it_runs])
    assert seen == [(2, True), (2, True), (0, False)]
    assert fk.load(out, task).history == run.history


def test_where_locks_do_not_work_there_is_one_warning(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(folder.fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot be locked") as found:
        fk.train(toy(), "fedavg", toy_world(), 1, checkpoint=tmp_path)
    assert len(found) == 1


def test_what_a_killed_process_was_writing_is_swept_and_other_hidden_files_are_not(tmp_path):
    for name in (".history.jsonl.99", ".config.json.123", ".mine.99", ".hidden"):
        (tmp_path / name).write_text("x")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / ".state.safetensors.7").write_text("x")
    fk.train(toy(), "fedavg", toy_world(), 3, checkpoint=tmp_path, stop_after=2)
    assert {f.name for f in tmp_path.rglob(".*")} == {".fedkeel.json", ".mine.99", ".hidden"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checkpoint/state.safetensors"])
def test_training_does_not_write_over_files_of_the_users_own(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(fk.InputError, match="was not written by fedkeel"):
        fk.train(toy(), "fedavg", toy_world(), 1, checkpoint=tmp_path)
    assert tree(tmp_path)[name] == b"mine" and not (tmp_path / ".fedkeel.json").exists()


def test_a_foreign_file_beside_the_checkpoints_outlives_the_run(tmp_path):
    fk.train(toy(), "fedavg", toy_world(), 4, checkpoint=tmp_path, every=2, stop_after=2)
    (tmp_path / "checkpoint" / "mine.txt").write_text("mine")
    assert fk.resume(tmp_path, toy()).status == "done"
    assert [file.name for file in (tmp_path / "checkpoint").iterdir()] == ["mine.txt"]


def test_a_damaged_mark_is_no_obstacle(tmp_path):
    (tmp_path / ".fedkeel.json").write_bytes(b"\xff{")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fk.train(toy(), "fedavg", toy_world(), 1, checkpoint=tmp_path)
    assert json.loads((tmp_path / ".fedkeel.json").read_text())["pid"] == os.getpid()
    assert time.time() - json.loads((tmp_path / ".fedkeel.json").read_text())["since"] < 60


@pytest.mark.parametrize("name", ["config.json", "fedavg/seed-0/history.jsonl", "fedavg/seed-0/config.json"])
def test_a_report_does_not_leave_out_what_is_missing_and_nothing_is_trained_again(tmp_path, capsys, name):
    place = tmp_path / "d"
    words = ["run", "synthetic:users=6", "fedavg", "gel", "--rounds", "2", "--cohort", "3", "--out", str(place)]
    assert main(words) == 0
    (place / name).unlink()
    capsys.readouterr()
    for command in ("report", "resume"):
        assert main([command, str(place)]) == 2
        assert capsys.readouterr().err == f"fedkeel: {place / name} is not there.\n"
