"""Odd surroundings: locales without UTF-8, no home, signals at any moment, a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel import files
from fedkeel.cli import main
from fedkeel.data import store

COMMAND = [sys.executable, "-c", "import sys, fedkeel_command; sys.exit(fedkeel_command.main())"]  # the entry point
RUN = [*COMMAND, "run", "synthetic:users=4", "fedavg", "--cohort", "2"]


def with_usual_signals() -> None:
    """What nohup, or a shell's background, has ignored would stay ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def test_a_terminal_without_utf_8_gets_ascii(tmp_path):
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    out = tmp_path / "out"
    words = [*RUN[:6], "gel", *RUN[6:], "--rounds", "3", "--seeds", "2", "--out", str(out)]
    done = subprocess.run(words, env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode("ascii")
    assert "round 0" in shown and "*" in shown and "fedavg" in shown and "?" not in shown
    again = subprocess.run([*COMMAND, "report", str(out)], env=env, capture_output=True)
    assert again.returncode == 0, again.stderr


def test_without_a_home_the_error_names_the_variable(monkeypatch, capsys):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)

    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(fk.InputError, match="FEDKEEL_DATA"):
        store.root()
    assert main(["run", "cifar10", "fedavg"]) == 2
    assert "FEDKEEL_DATA" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_start_up_is_one_line(tmp_path, number):
    words = [*RUN, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=with_usual_signals)
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and maps.exists() and b"torch" not in maps.read_bytes():
        time.sleep(0.02)  # until torch is being imported
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (process.returncode, error) == (130, "fedkeel: interrupted\n")
    else:  # until the command has begun, the signal itself ends the process
        assert process.returncode in (-number, 130) and len(error.splitlines()) <= 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "number"), [("run", signal.SIGHUP), ("sweep", signal.SIGTERM)])
def test_a_signal_finishes_the_round_and_says_how_to_go_on(tmp_path, kind, number):
    out = tmp_path / "out"
    words = [*COMMAND, kind, *RUN[4:], "--rounds", "100000", "--out", str(out), "--checkpoint-every", "5"]
    words += ["--grid", "lr=0.01,0.1"] if kind == "sweep" else []
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=with_usual_signals
    )
    try:
        deadline = time.monotonic() + 120
        while not list(out.rglob("state.safetensors")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert error.splitlines() == [f"Interrupted; nothing is lost. Continue with: fedkeel resume {out}"]


class Full:
    """A disk on which only a few more bytes fit."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, number: int) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("room", range(6))
def test_a_full_disk_names_the_file_and_the_run_can_be_resumed(tmp_path, monkeypatch, capsys, room):
    disk = Full(room)
    monkeypatch.setattr(files.os, "fsync", disk)
    words = ["run", "synthetic:users=4", "fedavg", "--rounds", "4", "--checkpoint-every", "2"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error and str(tmp_path / "out") in error and len(error.splitlines()) == 1
    monkeypatch.undo()
    if (tmp_path / "out" / "config.json").exists():
        assert main(["resume", str(tmp_path / "out")]) == 0
    straight = fk.train(fk.tasks.get("synthetic:users=4"), "fedavg", rounds=4)
    if (tmp_path / "out" / "outcome.json").exists():
        assert fk.load(tmp_path / "out").params.equal(straight.params)
