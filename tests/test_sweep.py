"""Sweeps: what is run, that nothing is run twice, and what is said of the outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedkeel as fk
from fedkeel import files
from fedkeel.cli import main
from fedkeel.lab.report.heatmap import verdict
from fedkeel.lab.stats import Arm
from fedkeel.lab.sweep.grid import BY, Choice, Grid
from fedkeel.run.history import History

SMALL = ["sweep", "synthetic:users=6", "fedavg", "--rounds", "3", "--cohort", "3"]


def arm(*finals: float, target: float | None = None, status: str = "done") -> Arm:
    """An arm whose accuracy is flat, the same on validation and test data; it reaches a target in round 1 or never."""
    histories = []
    for a in finals:
        flat = [a if t else 0.0 for t in range(4)]
        histories.append(History({"round": t, "accuracy": v, "validation_accuracy": v} for t, v in enumerate(flat)))
    return Arm(str(finals), target, histories, [status] * len(finals))


def choice(values: dict[str, list[Any]], arms: list[Arm], by: str = "validation_accuracy") -> Choice:
    grid = Grid("fedavg", values)
    return Choice.of(grid, list(grid.cells()), arms, by)


def test_a_grid_is_every_combination_and_reads_what_it_writes() -> None:
    grid = Grid.parse("fedprox:lr=1+gel", ["lr=0.01,0.1", "gel.steps=5,25%"])
    assert [grid.algorithm(cell) for cell in grid.cells()] == [
        "fedprox:lr=0.01+gel:steps=5", "fedprox:lr=0.01+gel:steps=25%",
        "fedprox:lr=0.1+gel:steps=5", "fedprox:lr=0.1+gel:steps=25%",
    ]  # fmt: skip
    assert Grid.parse(grid.base, grid.texts()) == grid
    searched = Grid.parse("fedavg", ["lr=0.001..1", "momentum=0,0.9"])
    assert searched.ranges == {"lr": (0.001, 1)}
    assert Grid.parse("fedavg", searched.texts()) == searched


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--grid", "lr"], "write KEY=VALUE"),
        (["--grid", "lr=,"], "write KEY=VALUE"),
        (["--grid", "lr=0.1"], "at least two cells"),
        (["--grid", "lr=0.1,0.1"], "a value twice"),
        (["--grid", "lr=0.1,0.2", "lr=1"], "'lr' is given twice"),
        (["--grid", "lr=1..0.1"], "the smaller first"),
        (["--grid", "lr=0.1..1"], "add --optuna N"),
        (["--grid", "lr=0.1,0"], "must be a number in [1e-30, 1e38]"),
        (["--grid", "colour=1,2"], "Unknown parameter of fedavg 'colour'"),
        (["--grid", "gel.steps=1,2"], "Unknown part of fedavg 'gel'"),
        (["--grid", "lr=0.1,1", "--by", "beauty"], "validation_accuracy, validation_loss, train_loss"),
        (["--grid", "lr=0.1,1", "--jobs", "0"], "'jobs' parameter of sweep"),
        (["--grid", "lr=0.1,1", "--optuna", "1"], "'optuna' parameter of sweep"),
        (["--grid", "lr=1,2", "momentum=0,0.5", "server_lr=1,2", "--png", "x.png"], "one or two keys"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    if "--optuna" in words:
        pytest.importorskip("optuna", reason="optuna is an extra")
    assert main([*SMALL, *words, "--out", str(tmp_path / "d")]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
    assert not (tmp_path / "d").exists()


def test_several_algorithms_and_a_list_of_seeds_are_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "synthetic", "fedavg", "gel", "--grid", "lr=0.1,1"]) == 2
    assert "A sweep takes one algorithm. Sweep fedavg and gel each on its own" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sweep", "synthetic", "fedavg", "--grid", "lr=0.1,1", "--seeds", "0,1,2"])
    assert "'0,1,2' is no number of seeds; write how many" in capsys.readouterr().err


def test_without_optuna_the_command_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main([*SMALL, "--grid", "lr=0.1..1", "--optuna", "3", "--out", str(tmp_path / "d")]) == 1
    assert 'pip install "optuna>=4"' in capsys.readouterr().err


def test_a_sweep_gives_every_cell_the_run_it_would_have_alone(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "d"
    words = [
        *SMALL,
        "--grid",
        "lr=0.01,0.1",
        "momentum=0,0.9",
        "--seeds",
        "2",
        "--by",
        "test_accuracy",
        "--out",
        str(out),
    ]
    assert main([*words, "--png", str(tmp_path / "map.png"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {k: v for k, v in told.items() if k != "out"} == files.read_json(out / "sweep.json")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(out.glob("*/seed-*/model.safetensors"))) == 8
    assert len(told["cells"]) == 4 and told["by"] == "test_accuracy"
    means = [cell["mean"] for cell in told["cells"]]
    assert means == sorted(means, reverse=True) and told["best"] == told["cells"][0]
    alone = fk.train(fk.tasks.get("synthetic:users=6"), "fedavg:lr=0.1,momentum=0.9", fk.World(3), 3, seed=1)
    swept = load_file(out / "fedavg_lr=0.1_momentum=0.9" / "seed-1" / "model.safetensors")
    assert torch.equal(torch.cat([swept[name].flatten() for name in ("weight", "bias")]), alone.params)
    # the same command again: all is there, nothing is run
    stamps = {file: file.stat().st_mtime_ns for file in out.glob("*/seed-*/*")}
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "lr \\ momentum" in shown and "Best: fedavg:lr=" in shown
    assert (
        f"fedkeel run synthetic:users=6 {told['best']['algorithm']} --rounds 3 --cohort 3 --seed 2 --seeds 3" in shown
    )
    assert stamps == {file: file.stat().st_mtime_ns for file in out.glob("*/seed-*/*")}
    assert main([*words, "--rounds", "4"]) == 2
    assert "holds something else" in capsys.readouterr().err


@contextmanager
def started(out: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A sweep in `out` too long to end, once each of its two runs has gone ten rounds beyond where it was."""
    before = rounds_of(out)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedkeel", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    with process:
        try:
            while len(now := rounds_of(out)) < 2 or any(now[run] < before.get(run, 0) + 10 for run in now):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: the sweep and its children


def rounds_of(out: Path) -> dict[Path, int]:
    """The rows of the runs that have a checkpoint."""
    runs = [file.parents[1] for file in out.glob("*/seed-0/checkpoint/state.safetensors")]
    return {run: (run / "history.jsonl").read_text().count("\n") for run in runs}


def wait_for_the_children(group: int) -> None:
    """Fail when a process of the sweep outlives it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listed = subprocess.run(
            ["ps", "-e", "-o", "pgid=", "-o", "stat="], capture_output=True, text=True, check=True
        ).stdout
        # the dead (Z) stay listed where nobody collects orphans, as in a container
        if not any(int(line.split()[0]) == group and line.split()[1][0] != "Z" for line in listed.splitlines()):
            return
        time.sleep(0.2)
    pytest.fail("a child outlived the sweep")


def shorten(out: Path, let_end: Any) -> int:
    """Let every run end two rounds after where the last one was stopped; gives the rounds."""
    runs = [file.parent for file in out.glob("*/seed-0/config.json")]
    rounds = 1 + max(len((run / "history.jsonl").read_text().splitlines()) for run in runs)
    for run in [out, *runs]:
        let_end(run, rounds)
    return rounds


@pytest.mark.extra  # slow
def test_a_sweep_goes_on_bit_for_bit_whatever_stopped_it(tmp_path: Path, let_end: Any) -> None:
    """One sweep, since its processes take long to start: a child dies, a file `stop`, Ctrl-C, and a kill."""
    out = tmp_path / "d"

    def end(process: subprocess.Popen[str], code: int) -> str:
        _, error = process.communicate(timeout=90)
        wait_for_the_children(process.pid)
        assert process.returncode == code and "Traceback" not in error
        return error

    words = ["sweep", "synthetic", "scaffold", "--grid", "lr=0.01,0.1", "--rounds", "100000", "--jobs", "2"]
    with started(out, *words, "--out", str(out)) as process:
        listing = ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(process.pid)]
        listed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
        os.kill(next(int(line.split()[0]) for line in listed if "spawn_main" in line), signal.SIGKILL)
        error = end(process, 1)
        assert "died; the other runs are kept" in error and len(error.splitlines()) == 1
    with started(out, "resume", str(out)) as process:
        (out / "scaffold_lr=0.1" / "seed-0" / "stop").touch()
        error = end(process, 130)
        assert f"fedkeel resume {out}" in error and "died" not in error
    with started(out, "resume", str(out)) as process:
        process.send_signal(signal.SIGINT)
        assert f"fedkeel resume {out}" in end(process, 130)
    with started(out, "resume", str(out)) as process:
        process.send_signal(signal.SIGKILL)
        end(process, -signal.SIGKILL)
    rounds = shorten(out, let_end)
    assert main(["resume", str(out)]) == 0
    assert json.loads((out / "sweep.json").read_text())["best"] is not None
    for text in ("scaffold:lr=0.01", "scaffold:lr=0.1"):
        straight = fk.train(fk.tasks.synthetic(), text, rounds=rounds, validation=0.1)
        model = load_file(out / text.replace(":", "_") / "seed-0" / "model.safetensors")
        assert torch.equal(torch.cat([model[name].flatten() for name in ("weight", "bias")]), straight.params)


def test_a_sweep_is_probed_once_and_goes_on_with_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, asked = tmp_path / "d", []
    monkeypatch.setattr("fedkeel.engine.threads.probe", lambda *a: asked.append(a) or ("serial", "probed: by hand"))
    words = [*SMALL, "--grid", "lr=0.01,0.1", "--engine", "probe", "--out", str(out)]
    assert main(words) == 0
    configs = [json.loads(file.read_text()) for file in (out / "config.json", *out.glob("*/seed-0/config.json"))]
    assert [(c["engine"], c["engine_reason"]) for c in configs] == [("serial", "probed: by hand")] * 3
    assert main(words) == 0 and main(["resume", str(out)]) == 0
    assert len(asked) == 1


def test_a_search_asks_for_the_same_trials_again(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("optuna", reason="optuna is an extra")
    out = tmp_path / "d"
    words = [*SMALL, "--grid", "lr=0.001..1", "momentum=0,0.9", "--optuna", "5", "--jobs", "2", "--out", str(out)]
    assert main([*words, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert 2 <= len(first["cells"]) <= 5
    assert all(0.001 <= cell["values"]["lr"] <= 1 for cell in first["cells"])
    stamps = {file: file.stat().st_mtime_ns for file in out.glob("*/seed-*/*")}
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert stamps == {file: file.stat().st_mtime_ns for file in out.glob("*/seed-*/*")}


def test_rounds_to_the_target_choose_when_asked_and_failures_come_last() -> None:
    arms = [arm(0.4, 0.9, target=0.5), arm(0.6, 0.7, target=0.5), arm(0.9, 0.9, target=0.5, status="diverged")]
    picked = choice({"lr": [1, 2, 3]}, arms, "test_rounds")
    assert picked.best is not None and picked.best.cell == (2,)
    assert {one.word for one in picked.ranked[1:]} == {"> 2.0 (1/2)", "diverged"}
    assert "Chosen on test data" in verdict(picked)[-1]


def test_a_cell_is_chosen_on_validation_data_and_never_on_test_data_unless_asked() -> None:
    def rows(valid: float, test: float, loss: float) -> History:
        late = {"validation_accuracy": valid, "validation_loss": loss, "train_loss": 1 - loss, "accuracy": test}
        return History({"round": t, **late} for t in range(9))

    arms = [Arm("a", None, [rows(0.9, 0.1, 0.3)], ["done"]), Arm("b", None, [rows(0.2, 0.8, 0.1)], ["done"])]
    best = {by: choice({"lr": [1, 2]}, arms, by).ranked[0].arm.name for by in BY if by != "test_rounds"}
    assert best == {"validation_accuracy": "a", "validation_loss": "b", "train_loss": "a", "test_accuracy": "b",
                    "test_best": "b"}  # fmt: skip


def test_the_last_rounds_are_what_counts() -> None:
    early = History({"round": t, "train_loss": 0.0 if t < 15 else 1.0} for t in range(21))
    late = History({"round": t, "train_loss": 1.0 if t < 16 else 0.5} for t in range(21))
    picked = choice({"lr": [1, 2]}, [Arm("e", None, [early], ["done"]), Arm("l", None, [late], ["done"])], "train_loss")
    assert picked.ranked[0].arm.name == "l"


def test_a_sweep_keeps_a_tenth_for_validation_and_reports_how_it_chose(tmp_path: Path, capsys: Any) -> None:
    assert main([*SMALL, "--grid", "lr=0.01,0.1", "--out", str(tmp_path / "d"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["by"] == "validation_accuracy" and said["validation"] == 0.1
    history = [
        json.loads(line) for line in (tmp_path / "d/fedavg_lr=0.1/seed-0/history.jsonl").read_text().splitlines()
    ]
    assert said["cells"][0]["mean"] is not None and "validation_accuracy" in history[-1]
    assert main([*SMALL, "--grid", "lr=0.01,0.1", "--by", "train_loss", "--out", str(tmp_path / "e"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["validation"] == 0.0


def test_the_help_of_a_sweep_lists_what_to_choose_by_and_its_own_validation_share(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "validation: not trained on, evaluated; default 0.1" in said
    assert f"--by NAME what a cell is chosen by: {', '.join(BY)}; default the first" in said


def test_a_sweep_of_a_table_says_that_tests_of_clients_need_the_same_share(tmp_path: Path, capfd: Any) -> None:
    rows = "".join(f"{'ab'[i % 2]},{i % 7},{i % 2}\n" for i in range(80))
    (tmp_path / "t.csv").write_text("c,x,y\n" + rows)
    words = ["sweep", f"csv:file={tmp_path}/t.csv,client=c,target=y,test=0", "fedavg", "--grid", "lr=0.01,0.1"]
    for number, more in enumerate(([], ["--client-test", "0.2"])):
        assert main([*words, *more, "--rounds", "1", "--jobs", "1", "--out", str(tmp_path / str(number))]) == 0
        said = capfd.readouterr()
        assert ("sweep with the same --client-test" in said.out) == (not more)
        assert "no test set" not in said.err  # of its processes, either


def test_a_grid_goes_on_beyond_its_ends_by_its_own_ratio() -> None:
    grid = Grid("fedavg", {"lr": [0.1, 0.01, 1], "momentum": [0, 0.9]})
    assert grid.beyond("lr", 1).values["lr"] == [0.01, 0.1, 1, 10.0]
    assert grid.beyond("lr", 0.01).values["lr"] == [0.001, 0.01, 0.1, 1]


def test_the_runner_up_is_told_apart_only_by_paired_seeds_that_agree() -> None:
    shifted = [arm(0.50, 0.60, 0.70), arm(0.52, 0.62, 0.72)]  # every seed says the same, though seeds differ much
    assert choice({"lr": [1, 2]}, shifted).told_apart is True
    crossed = [arm(0.50, 0.60, 0.70), arm(0.72, 0.62, 0.52)]
    assert choice({"lr": [1, 2]}, crossed).told_apart is False
    assert choice({"lr": [1, 2]}, [arm(0.5), arm(0.9)]).told_apart is None


def test_a_best_cell_on_the_edge_is_warned_about() -> None:
    inner = choice({"lr": [1, 2, 3]}, [arm(0.1), arm(0.9), arm(0.2)])
    assert inner.on_edge == [] and not any("edge" in line for line in verdict(inner))
    outer = choice({"lr": [1, 2, 3], "nesterov": [True, False]}, [arm(a) for a in (0.1, 0.1, 0.1, 0.1, 0.9, 0.1)])
    assert outer.on_edge == ["lr"]
    assert verdict(outer)[-1] == "Warning: the best lies on the grid's edge in lr; widen the grid."


def test_where_every_cell_failed_there_is_no_best() -> None:
    none = choice({"lr": [1, 2]}, [arm(0.5, status="diverged")] * 2)
    assert none.best is None and verdict(none) == ["No cell has a number: diverged."]
