"""The live page: who may ask, what it shows, and that its stop button stops a run that can go on later."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.lab.report.progress import Watching
from fedkeel.lab.report.ui import Ui
from fedkeel.lab.study import Study


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`fedkeel ...` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedkeel", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def stopping(folder: Path, thread: threading.Thread) -> Iterator[None]:
    """A run must not outlive its test."""
    try:
        yield
    finally:
        (folder / "stop").touch()
        thread.join(timeout=30)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run with rounds left."""
    world = fk.World(cohort=3)
    fk.train(fk.tasks.synthetic(users=20), "fedavg", world, rounds=9, stop_after=4, checkpoint=tmp_path / "d")
    return tmp_path / "d"


def test_it_listens_on_this_machine_only(stopped: Path) -> None:
    with Ui([stopped]) as ui:
        assert ui.server.server_address[0] == "127.0.0.1"


def test_only_who_knows_the_token_and_names_this_host_is_answered(stopped: Path) -> None:
    with Ui([stopped]) as ui:
        root = f"http://127.0.0.1:{ui.port}"
        assert ask(ui.url)[0] == 200
        assert ask(ui.url + "data")[0] == 200
        assert ask(ui.url + "other")[0] == 404
        for url in (f"{root}/", f"{root}/data", f"{root}/wrong/data", f"{root}//data"):
            assert ask(url)[0] == 403
        assert ask(ui.url + "data", Host="evil.example")[0] == 403
        assert ask(ui.url + "stop", "POST", Origin="http://evil.example")[0] == 403
        assert ask(ui.url + "stop", "POST", Host=f"evil.example:{ui.port}")[0] == 403
        assert ask(ui.url + "stop")[0] == 404  # a link must not stop a run
    assert not (stopped / "stop").exists()


def test_a_run_made_again_in_its_folder_is_shown_anew(tmp_path: Path) -> None:
    ui = Ui([tmp_path])
    try:
        for seed in (0, 1):
            fk.train(fk.tasks.synthetic(users=20), "fedavg", rounds=2, seed=seed, checkpoint=tmp_path)
            shown = ui.document()
            assert shown["runs"][0]["seed"] == seed
            assert ui.document() is shown  # nothing changed: nothing is computed
    finally:
        ui.server.server_close()


def test_it_shows_how_far_a_run_is_and_waits_for_one_that_has_not_begun(stopped: Path, tmp_path: Path) -> None:
    with Ui([stopped, tmp_path / "later"]) as ui:
        known = json.loads(ask(ui.url + "data")[1])
        assert known["live"] is True
        assert [(run["round"], run["rounds"], run["status"]) for run in known["runs"]] == [(4, 9, "stopped")]
        assert known["verdict"]["headline"].startswith("So far, at round 4 of 9, fedavg has a test accuracy of 0.")
        assert known["clients"]["labels"]["why"] == "Shown when all runs have ended."
        fk.resume(stopped)
        known = json.loads(ask(ui.url + "data")[1])
        assert known["runs"][0]["status"] == "done"
        assert "cells" in known["clients"]["labels"]
    with Ui([tmp_path / "later"]) as ui:
        assert json.loads(ask(ui.url + "data")[1])["arms"] == []


def test_a_damaged_folder_is_shown_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"round": 0}\n')
    (tmp_path / "config.json").write_text("{")
    with Ui([tmp_path]) as ui:
        assert "cannot be read as JSON" in json.loads(ask(ui.url + "data")[1])["error"]


def test_a_file_named_stop_ends_a_run_that_goes_on_bit_for_bit(tmp_path: Path) -> None:
    task, folder = fk.tasks.synthetic(users=20), tmp_path / "d"
    folder.mkdir()
    (folder / "stop").touch()  # from an earlier stretch: not meant for this run

    def leave(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            (folder / "stop").touch()

    run = fk.train(task, "scaffold", fk.World(cohort=3), rounds=8, checkpoint=folder, callbacks=[leave])
    assert run.status == "stopped"
    assert run.history[-1]["round"] == 3
    assert not (folder / "stop").exists()
    assert torch.equal(fk.resume(folder).params, fk.train(task, "scaffold", fk.World(cohort=3), rounds=8).params)


def test_the_stop_button_of_another_process_ends_a_comparison_that_resumes(tmp_path: Path, let_end: Any) -> None:
    out, words = tmp_path / "d", ["synthetic:users=20", "fedavg", "gel", "--rounds", "20000", "--cohort", "2"]
    with command("run", *words, "--out", str(out)) as process:
        until(lambda: (out / "fedavg" / "seed-0" / "history.jsonl").exists() or process.poll() is not None)
        with Ui([out]) as ui:
            until(lambda: json.loads(ask(ui.url + "data")[1])["runs"])
            assert json.loads(ask(ui.url + "stop", "POST")[1]) == {"asked": 1}
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"fedkeel resume {out}" in error
    assert not list(out.rglob("stop"))
    assert not (out / "gel").exists()  # the next arm did not begin
    folder = out / "fedavg" / "seed-0"
    done = len((folder / "history.jsonl").read_text().splitlines()) - 1
    for place in (out, folder):
        let_end(place, done + 2)
    assert main(["resume", str(out)]) == 0
    straight = fk.train(fk.tasks.synthetic(users=20), "fedavg", fk.World(cohort=2), rounds=done + 2)
    resumed = load_file(folder / "model.safetensors")
    assert torch.equal(torch.cat([resumed[name].flatten() for name in ("weight", "bias")]), straight.params)


def test_a_run_serves_its_own_page(tmp_path: Path) -> None:
    words = ["run", "synthetic:users=20", "fedavg", "--rounds", "100000", "--ui", "--out", str(tmp_path / "d")]
    with command(*words) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", line)
        assert found is not None, line
        until(lambda: json.loads(ask(found[0] + "data")[1])["runs"])
        assert ask(found[0] + "stop", "POST")[0] == 200
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_the_watching_command_ends_with_an_interrupt_and_exit_code_0(stopped: Path) -> None:
    with command("ui", str(stopped)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert ask(url)[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


def test_bad_words_are_one_line_and_exit_code_2(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for words, said in (
            (["nowhere"], "nowhere is not a directory."),
            ([str(stopped), "--port", "70000"], "--port must be in 0..65535"),
            ([str(stopped), "--port", str(taken.getsockname()[1])], "cannot be used"),
        ):
            assert main(["ui", *words]) == 2
            error = capsys.readouterr().err
            assert said in error and len(error.splitlines()) == 1


def test_a_browser_watches_a_run_and_stops_it(tmp_path: Path, browser: Any) -> None:
    folder, ends = tmp_path / "d", []

    def run() -> None:
        slow = [lambda row: time.sleep(0.05)]
        ends.append(
            fk.train(fk.tasks.synthetic(users=20), "gel", rounds=2000, checkpoint=folder, callbacks=slow).status
        )

    training = threading.Thread(target=run)
    training.start()
    until(lambda: (folder / "history.jsonl").exists() and len((folder / "history.jsonl").read_text().splitlines()) > 2)
    with stopping(folder, training), Ui([folder]) as ui:
        browser.get(ui.url)

        def text(name: str) -> str:
            # in one go, because the page is drawn anew with every answer
            return str(browser.execute_script(f"return document.getElementById('{name}').textContent"))

        def far() -> int:
            found = re.search(r"round (\d+) of 2000", text("live"))
            return int(found[1]) if found else 0

        first = far()
        until(lambda: far() > first)
        browser.execute_script("document.getElementById('stop').click()")
        until(lambda: "Asked to stop" in text("state"))
        training.join(timeout=30)
    assert ends == ["stopped"]
    assert browser.get_log("browser") == []


def test_the_terminal_line_has_what_one_wants_to_know() -> None:
    watching = Watching(Study("synthetic", ["gel"], rounds=10), Console(), verbose=False)
    row = {
        "round": 4,
        "accuracy": 0.5,
        "bytes_down": 10**6,
        "bytes_up": 10**6,
        "dropped": 1,
    }
    watching.row("gel", 0, row)
    (line,) = watching.tasks
    state = " ".join(line.fields["state"].split())
    assert state == "4/10 0.500 best 0.500 2.0 MB 1 dropped"
