"""The command as a user meets it: what it prints, writes and exits with."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.explain import explain
from fedkeel.lab.report.terminal import table
from fedkeel.lab.stats import Arm
from fedkeel.recipes import RECIPES
from fedkeel.run.history import History

SMALL = ["--rounds", "3", "--cohort", "4"]


def run(*words: str) -> int:
    return main(["run", "synthetic", *words])


def test_one_algorithm_and_one_seed_fill_the_directory_itself(tmp_path: Path) -> None:
    assert run("fedavgcm+gel", *SMALL, "--out", str(tmp_path / "d")) == 0
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [
        ".fedkeel.json", "config.json", "environment.json", "history.csv", "history.jsonl", "model.safetensors",
        "outcome.json",
    ]  # fmt: skip
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    named = "fedkeel task algorithm parameters world rounds seed batch_size dtype engine chunk target eval_every"
    assert set(named.split()) <= set(config)
    assert config["algorithm"] == "fedavgcm+gel"
    assert config["parameters"]["client"]["momentum"] == 0.9
    assert config["world"]["expected_steps"] == 18
    assert config["rerunnable"] is True
    rows = [json.loads(line) for line in (tmp_path / "d" / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert list(rows[0])[:13] == [
        "round", "loss", "accuracy", "train_loss", "gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes",
        "wall_seconds", "clients", "dropped",
    ]  # fmt: skip
    assert rows[3]["bytes_down"] == rows[3]["bytes_up"] == 3 * 4 * 305 * 4  # rounds x clients x parameters x float32
    assert set(load_file(tmp_path / "d" / "model.safetensors")) == {"weight", "bias"}


def test_several_arms_and_seeds_get_a_directory_each_and_a_summary(tmp_path: Path) -> None:
    out = tmp_path / "d"
    assert run("fedavg", "fedprox:mu=0.1,lr=0.02+gel", *SMALL, "--seed", "3", "--seeds", "2", "--out", str(out)) == 0
    assert sorted(str(p.parent.relative_to(out)) for p in out.glob("*/*/config.json")) == [
        "fedavg/seed-3",
        "fedavg/seed-4",
        "fedprox_mu=0.1_lr=0.02+gel/seed-3",
        "fedprox_mu=0.1_lr=0.02+gel/seed-4",
    ]
    summary = json.loads((out / "summary.json").read_text())
    assert [arm["algorithm"] for arm in summary["arms"]] == ["fedavg", "fedprox:mu=0.1,lr=0.02+gel"]
    assert json.loads((out / "config.json").read_text())["seeds"] == [3, 4]


@pytest.mark.parametrize("arms", [["gel:lr=0.003"], ["fedavg", "fedavgcm:server_lr=match-gel"]])
def test_a_configuration_repeats_its_run_bit_for_bit(tmp_path: Path, arms: list[str]) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert run(*arms, *SMALL, "--lr", "0.004", "--seed", "7", "--out", str(first)) == 0
    assert main(["run", "--config", str(first / "config.json"), "--out", str(again)]) == 0
    for file in first.rglob("model.safetensors"):
        one, two = load_file(file), load_file(again / file.relative_to(first))
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_configuration_repeats_the_chunks_too(tmp_path: Path) -> None:
    first = fk.train(fk.tasks.synthetic(), "fedavg", rounds=3, engine=fk.Local(chunk=3))
    first.save(tmp_path / "first")
    assert main(["run", "--config", str(tmp_path / "first" / "config.json"), "--out", str(tmp_path / "again")]) == 0
    assert torch.equal(fk.load(tmp_path / "again").params, first.params)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"world": None}, "cannot be read"), ({"world": {"budget": [5]}}, "'budget' param"),
        ({"task": None}, "'task' parameter of run"), ({"parameters": {}}, "do not make an algorithm: 'client'"),
        ({"algorithm": 5}, "'algorithms' parameter of run"), ({"algorithms": ["gel"], "seeds": []}, "'seeds' param"),
        ({"algorithms": "gel", "seeds": [0]}, "'algorithms' parameter of run"), ({"seed": "x"}, "'seed' parameter"),
    ],
)  # fmt: skip
def test_a_configuration_edited_by_hand_gets_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], told: str
) -> None:
    config = fk.train(fk.tasks.synthetic(users=5), "fedavg", rounds=1).config | {"lr": None} | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["run", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "d")]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
    assert not (tmp_path / "d").exists()


def test_a_comparison_is_not_taken_for_a_run(tmp_path: Path) -> None:
    assert run("fedavg", "gel", "--rounds", "1", "--cohort", "2", "--out", str(tmp_path / "d")) == 0
    for read in (fk.load, fk.resume):
        with pytest.raises(fk.InputError, match="holds a comparison"):
            read(tmp_path / "d")


def test_a_stopped_comparison_is_continued_where_it_stopped(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    arms = ["fedavg", "scaffold", "--rounds", "6", "--cohort", "4", "--checkpoint-every", "2"]
    assert run(*arms, "--out", str(whole)) == 0
    assert run(*arms, "--out", str(cut)) == 0
    # as if killed in round 5 of the second arm: its checkpoint is of round 4, its last rows are not to be trusted
    arm = cut / "scaffold" / "seed-0"
    task = fk.tasks.synthetic()
    fk.train(task, "scaffold", fk.World(cohort=4), rounds=6, stop_after=4, checkpoint=arm)
    (arm / "model.safetensors").unlink()
    (cut / "summary.json").unlink()
    with open(arm / "history.jsonl", "a") as file:
        file.write('{"round": 5, "loss"')
    assert main(["resume", str(cut)]) == 0
    one, two = (load_file(d / "scaffold" / "seed-0" / "model.safetensors") for d in (whole, cut))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (cut / "summary.json").exists()


def test_json_is_one_document_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fedavg", *SMALL, "--target", "0.2", "--json", "--out", str(tmp_path / "d")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["runs"][0]["history"][-1]["round"] == 3
    assert document["arms"][0]["algorithm"] == "fedavg"


def test_the_table_and_the_curve_name_every_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fedavg", "gel", *SMALL, "--seeds", "2", "--target", "0.3", "--out", str(tmp_path / "d")) == 0
    out = capsys.readouterr().out
    assert "to 0.3: rounds" in out
    assert "speed-up" in out
    assert "±" in out
    assert len(re.findall("■ +fedavg", out)) == len(re.findall("■ +gel", out)) == 2  # beside the curve, in the table


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_last_column_of_the_table_is_whole_in_any_terminal(width: int) -> None:
    rows = [{"round": 1, "accuracy": 0.25, "gradients": 10, "bytes_down": 4, "bytes_up": 4}]
    seeds = [History([*rows, {**rows[0], "round": 2, "accuracy": end}]) for end in (0.75, 0.7)]
    arms = [Arm(name, 0.9, seeds, ["done"] * 2) for name in ("fedavg", "fedprox:mu=0.01+gel:steps=5")]
    console = Console(width=width, file=io.StringIO())
    table(arms, 0.9, 2, console)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert len(re.findall(r"0\.7250 ± 0\.317\d", out)) == 2
    assert ("gradients" in out.splitlines()[0]) == (width >= 80)


def test_the_table_says_who_has_which_client_momentum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = ["fedprox", "fedprox+gel", "fedavgcm+gel", "fedavg:momentum=0.5+gel", "gel:client=adam"]
    assert run(*arms, "--rounds", "1", "--cohort", "2", "--out", str(tmp_path / "d")) == 0
    said = " ".join(capsys.readouterr().out.split())
    own = "fedprox+gel and fedavgcm+gel have client momentum 0.9, fedavg:momentum=0.5+gel has 0.5, fedprox has none."
    assert own in said


def test_a_stability_warning_is_one_line_without_our_code(tmp_path: Path) -> None:
    words = ["run", "synthetic:users=4", "fedhbm", "--cohort", "all", "--rounds", "1", "--out", str(tmp_path / "d")]
    done = subprocess.run([sys.executable, "-m", "fedkeel", *words], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"fedkeel: warning: FedHBM with beta=1, s=1: k = .* >= 1, .* use beta=0\.\d+ or less.*\n", done.stderr
    )


def test_verbose_says_which_engine_was_chosen_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fedavg", *SMALL, "-v", "--out", str(tmp_path / "d")) == 0
    assert "engine batched in chunks of 64: every layer has a client-axis form" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["synthetc", "fedavg"], "Did you mean 'synthetic'?"),
        (["synthetic", "fedavgg"], "Did you mean"),
        (["synthetic"], "at least one algorithm"),
        (["synthetic", "fedavg:lr=0"], "must be a number in [1e-30, 1e38]. Got 0 instead"),
        (["synthetic", "fedavg:momentum=1"], "must be a number in [0, 1). Got 1 instead"),
        (["synthetic", "fedprox:nu=1"], "Unknown parameter of fedprox 'nu'"),
        (["synthetic", "fedavg:lr"], "is not key=value"),
        (["synthetic", "fedavg", "fedavg"], "given twice"),
        (["synthetic", "fedavg", "--budget", "9:3"], "Got 3 instead"),
        (["synthetic", "fedavg", "--budget", "x"], "is not one of 4:13"),
        (["synthetic", "fedavg", "--cohort", "5000"], "larger than the population"),
        (["synthetic", "fedavg", "--cohort", "2.5"], "a fraction in (0, 1]"),
        (["synthetic", "fedavg", "--cohort", "many"], "not a number, a fraction or all"),
        (["synthetic", "fedavg", "--rounds", "0"], "must be an integer in [1, 1e"),
        (["synthetic", "fedavg", "gel", "--rounds", "0"], "'rounds' parameter of train must be"),
        (["synthetic", "fedavg", "gel", "--seed", "-1"], "'seed' parameter of train must be"),
        (["synthetic", "fedavg", "gel", "--batch-size", "0"], "'batch_size' parameter of train must be"),
        (["synthetic", "fedavg", "gel", "--eval-every", "0"], "'eval_every' parameter of train must be"),
        (["--config", "any.json", "--rounds", "9", "--eval-every", "2"], "leave out --rounds, --eval-every"),
        (["synthetic", "fedavg", "--engine", "warp"], "'auto', 'serial', 'batched', 'probe' or 'ray'"),
        (["synthetic", "fedavg:momentum=0+gel"], "give momentum=0.9"),
        (["synthetic", "gel:client=adam,steps=inf"], "never settle"),
        (["synthetic", "gel", "--budget", "2e"], "--expected-steps"),
        (["synthetic:users=0", "fedavg"], "must be an integer in [1, 1e"),
        (["synthetic:colour=red", "fedavg"], "task synthetic 'colour'. Known: pretrained, seed, users."),
        (["--config", "nowhere.json"], "is not there"),
        (["--config", "."], ". cannot be read as JSON: Is a directory."),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    out = tmp_path / "d"
    try:
        code = main(["run", *words, "--out", str(out)])
    except SystemExit as stop:  # what argparse refuses by itself
        code = stop.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert code == 2
    assert told in error
    assert len(error.strip().splitlines()) == 1
    assert not out.exists()


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    assert run("fedavg", *SMALL, "--out", str(tmp_path)) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


def test_an_old_run_is_not_thrown_away_for_one_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    assert run("fedavg", "--rounds", "0", "--out", str(tmp_path), "--overwrite") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


def test_a_place_that_cannot_be_written_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert run("fedavg", *SMALL, "--out", str(file)) == 2
    assert capsys.readouterr().err == f"fedkeel: Cannot create {file}: {file} is a file. Choose another --out.\n"
    assert run("fedavg", *SMALL, "--out", str(file / "below")) == 2
    assert (
        capsys.readouterr().err == f"fedkeel: Cannot create {file / 'below'}: {file} is a file. Choose another --out.\n"
    )
    assert main(["resume", str(file)]) == 2
    assert file.read_text() == "mine"


def test_a_folder_one_may_not_write_to_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda place, how: not (Path(place) == tmp_path and how == os.W_OK))
    assert run("fedavg", *SMALL, "--out", str(tmp_path / "a" / "b")) == 2
    assert f"{tmp_path} is not writable" in capsys.readouterr().err


def test_a_disk_that_fails_amid_a_run_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "history.jsonl")

    monkeypatch.setattr("fedkeel.run.training.Log.add", full)
    assert run("fedavg", *SMALL, "--out", str(tmp_path / "d")) == 1
    assert capsys.readouterr().err == "fedkeel: history.jsonl: No space left on device\n"


def test_a_warning_is_one_line_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ghbm:server_lr=2", *SMALL, "--seeds", "2", "--out", str(tmp_path / "d")) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedkeel: warning: GHBM with server_lr=2 and beta=0.9")


def test_a_diverging_run_exits_with_3_and_keeps_its_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fedavg:lr=1e38", *SMALL, "--out", str(tmp_path / "d")) == 3
    captured = capsys.readouterr()
    assert "Diverged" in captured.err
    assert "diverged" in captured.out
    rows = [json.loads(line) for line in (tmp_path / "d" / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["dropped"] == 4
    assert main(["resume", str(tmp_path / "d")]) == 3


def test_an_interrupt_exits_with_130_and_the_run_goes_on_from_there(tmp_path: Path, let_end: Any) -> None:
    out = tmp_path / "d"
    words = [sys.executable, "-m", "fedkeel", "run", "synthetic", "scaffold", "--rounds", "100000", "--out", str(out)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    deadline = time.monotonic() + 120
    while not (out / "checkpoint" / "state.safetensors").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"fedkeel resume {out}" in error
    rounds = len((out / "history.jsonl").read_text().splitlines()) - 1
    let_end(out, rounds + 2)
    assert main(["resume", str(out)]) == 0
    straight = fk.train(fk.tasks.synthetic(), "scaffold", rounds=rounds + 2)
    resumed = load_file(out / "model.safetensors")
    assert torch.equal(torch.cat([resumed[name].flatten() for name in ("weight", "bias")]), straight.params)


def test_lists_name_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in RECIPES)
    assert "synthetic" in out
    assert "Proximal" in out
    assert main(["list", "tasks"]) == 0
    assert "fedyogi" not in capsys.readouterr().out


@pytest.mark.parametrize("name", RECIPES)
def test_every_algorithm_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: {RECIPES[name].summary}")
    assert "sent per client and round" in out
    assert "kept on the server: x" in out


def test_an_explanation_shows_the_papers_box_and_true_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "ghbm:tau=2+gel"])
    ghbm: Any = capsys.readouterr().out
    assert "y <- y + (beta / J_i) M" in ghbm
    assert "c(q) = a (1 - a^q) / (1 - a)" in ghbm
    assert "2 down, 1 up (1.5x FedAvg" in ghbm
    main(["explain", "mimemom"])
    assert "prints 3x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("gel:client=adam", "q more steps like these, with the last g in place of a new gradient"),
        ("gel:client=adam,proxy=zero", "q more steps like these, with g = 0 in place of a new gradient"),
        ("fedavgcm:nesterov=true+gel", "c(q) = a^2 (1 - a^q) / (1 - a)"),
        ("gel:steps=25%", "q = 25% of J_i"),
        (
            "ghbm:nesterov_push=true",
            "client i: y <- x\n      y <- y + (beta / J_i) M        beta = 0.9\n    then J_i times",
        ),
        ("ghbm:warmup=truncate", "while t <= tau: M <- (x - x^0) / (t - 1))"),
        ("fathom:steps=floor", "floor(E n_i / B)"),
        ("fathom", "y <- y - lr g        lr = 0.1"),
        (
            "fedyogi",
            "x <- x + server_lr m / (sqrt(v) + eps)        eps = 0.001, v starts at 1e-06        server_lr = 0.01",
        ),
        ("feddyn:adaptive=true", "alpha_i = alpha (mean of n) / n_i"),
        ("fednova:tau_eff=steps", "tau_eff = sum_i p_i J_i"),
        ("deltasgd:batch_mode=consecutive", "g_last the last step's gradient"),
        ("sps:max=2", "eta <- min(max(0, f(y) - fstar) / (c ||g||^2 + 1e-8), max)"),
    ],
)
def test_a_parameter_that_changes_the_update_changes_its_box(text: str, line: str) -> None:
    assert line in explain(text)


@pytest.mark.parametrize("text", [*RECIPES, "fedprox:mu=0.1+gel:steps=5", "fathom:steps=floor+gel", "gel:client=adam"])
def test_what_an_explanation_gives_in_full_is_the_same_algorithm(text: str) -> None:
    (full,) = (line.partition(": ")[2] for line in explain(text).splitlines() if line.startswith("  in full: "))
    assert fk.algorithm(full).parameters() == fk.algorithm(text).parameters()


def test_an_explanation_does_not_warn_about_the_toy_it_counts_bytes_on(recwarn: pytest.WarningsRecorder) -> None:
    explain("fedhbm:beta=9")
    assert not recwarn.list


def test_the_folder_one_stands_in_is_never_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "below"):
        monkeypatch.chdir(place)
        assert run("fedavg", *SMALL, "--out", str(tmp_path), "--overwrite") == 2
        assert (tmp_path / "mine.txt").read_text() == "mine"
