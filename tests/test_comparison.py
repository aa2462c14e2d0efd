"""Comparisons and sweeps in Python, and what the command does with runs that were made there."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.lab.report import figure
from fedkeel.lab.report.page import document
from fedkeel.lab.report.replay import IN_PYTHON
from fedkeel.lab.stats import interval
from fedkeel.run import training
from fedkeel.run.history import History

WORLD = fk.World(cohort=4, budget=fk.UniformSteps(1, 3))


class OwnNet(nn.Module):
    """A user's model."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(60, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x)
        return out


def own_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


class Halved(fk.Rule):
    """A user's rule."""

    def gradient(self, g: Any, y: Any, me: Any) -> Any:
        return g * 0.5


def own_task(**changes: Any) -> fk.Task:
    data = fk.tasks.synthetic(users=8).data
    known: dict[str, Any] = {"model": OwnNet, "loss": own_loss, "data": data, "name": "mine", "target": 0.3}
    return fk.Task(**(known | {"batch_size": 5, "lr": 0.05} | changes))


@pytest.fixture(scope="module")
def compared() -> fk.Comparison:
    arms = {"fedavg": "fedavg", "halved": fk.Algorithm(rules=[Halved()]), "gel": "gel"}
    return fk.compare(own_task(), arms, WORLD, rounds=6, seeds=3)


@pytest.fixture(scope="module")
def saved(compared: fk.Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compared.save(tmp_path_factory.mktemp("runs") / "saved")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# The runs


def test_the_runs_of_a_comparison_are_those_that_train_gives(compared: fk.Comparison) -> None:
    alone = fk.train(own_task(), "gel", WORLD, 6, seed=2)
    history = compared.groups[2].runs[2].history
    assert [row["accuracy"] for row in history] == [row["accuracy"] for row in alone.history]
    assert [group.name for group in compared.groups] == ["fedavg", "halved", "gel"]
    assert [len(arm.histories) for arm in compared.arms] == [3, 3, 3]


def test_named_comparisons_are_those_of_the_command(tmp_path: Path) -> None:
    task, texts = "synthetic:users=8", ["fedavg", "fedprox:mu=1"]
    fk.compare(fk.tasks.get(task), texts, WORLD, rounds=3, seeds=2, out=tmp_path / "python")
    words = ["run", task, *texts, "--rounds", "3", "--seeds", "2", "--cohort", "4", "--budget", "1:3"]
    assert main([*words, "--out", str(tmp_path / "command")]) == 0
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("python", "command"))
    for arm in (*one["arms"], *two["arms"]):
        arm["cost_to_baseline_quality"] = None  # has seconds of this machine
    assert one["arms"] == two["arms"]
    assert main(["run", "--config", str(tmp_path / "python" / "config.json"), "--out", str(tmp_path / "again")]) == 0


def test_the_same_call_goes_on_and_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, arms = tmp_path / "out", ["fedavg", fk.Algorithm(rules=[Halved()])]
    whole = fk.compare(own_task(), arms, WORLD, rounds=4, seeds=2)
    begun: list[bool] = []
    usual = training._play

    def stop(job: Any, model: Any, engine: Any, state: Any, *rest: Any) -> fk.Run:
        begun.append(state.round > 0)
        words = list(rest)
        words[3] = 2 if len(begun) == 3 else None
        return usual(job, model, engine, state, *words)

    monkeypatch.setattr(training, "_play", stop)
    with pytest.raises(KeyboardInterrupt):
        fk.compare(own_task(), arms, WORLD, rounds=4, seeds=2, out=out)
    assert begun == [False] * 3
    again = fk.compare(own_task(), arms, WORLD, rounds=4, seeds=2, out=out)
    assert begun[3:] == [True, False]  # the third goes on from its checkpoint, the fourth had not begun
    assert again.to_markdown() == whole.to_markdown()
    for other in ({"rounds": 5}, {"seeds": 3}, {"lr": 0.2}):
        with pytest.raises(fk.InputError, match="holds something else: its "):
            fk.compare(own_task(), arms, WORLD, **({"rounds": 4, "seeds": 2, "out": out} | other))
    x = torch.zeros(40, 60)
    data = fk.FederatedData.from_arrays(x, torch.zeros(40, dtype=torch.int64), clients=[0, 1, 2, 3] * 10)
    with pytest.raises(fk.InputError, match="its data_checksum is '"):
        fk.compare(own_task(data=data), arms, WORLD, rounds=4, seeds=2, out=out)
    assert len(fk.compare(own_task(), ["gel"], WORLD, rounds=1, seeds=1, out=out, overwrite=True).groups) == 1


def test_an_algorithm_that_is_added_runs_beside_those_that_are_done(tmp_path: Path) -> None:
    out, halved = tmp_path / "out", fk.Algorithm(rules=[Halved()])
    known: dict[str, Any] = {"rounds": 2, "seeds": 2}
    fk.compare(own_task(), ["fedavg", "gel"], WORLD, out=out, **known)
    stamps = {file: file.stat().st_mtime_ns for file in out.glob("*/seed-*/*")}
    more = fk.compare(own_task(), ["gel", halved, "fedavg"], WORLD, out=out, **known)
    assert stamps == {file: file.stat().st_mtime_ns for file in stamps}
    assert more.to_markdown() == fk.compare(own_task(), ["gel", halved, "fedavg"], WORLD, **known).to_markdown()
    with pytest.raises(fk.InputError, match=r"its rounds are 2, not 3\. Choose another out, or overwrite\."):
        fk.compare(own_task(), ["gel", halved, "fedavg", "fedprox"], WORLD, out=out, **(known | {"rounds": 3}))
    with pytest.raises(
        fk.InputError, match=r"its algorithms are \['gel', .*\], not \['fedprox'\]\. Give all"
    ) as caught:
        fk.compare(own_task(), ["fedprox"], WORLD, out=out, **known)
    assert f"read both: fk.Comparison.read({str(out)!r}, 'OTHER'), or fedkeel compare {out} OTHER." in str(caught.value)
    fk.compare(own_task(), ["fedprox"], WORLD, out=tmp_path / "other", **known)
    assert len(fk.Comparison.read(out, tmp_path / "other").groups) == 4


def test_another_value_of_a_rule_is_refused_with_the_arm_the_key_and_both_values(tmp_path: Path) -> None:
    def again(mu: float, **more: Any) -> None:
        arms = {"a": "fedavg", "mine": fk.Algorithm(rules=[fk.Proximal(mu)])}
        fk.compare(own_task(), arms, more.pop("world", WORLD), rounds=1, seeds=1, out=tmp_path / "out", **more)

    again(0.1)
    again(0.1)
    with pytest.raises(fk.InputError, match=r"its rules\.proximal\.mu of 'mine' is 0\.1, not 0\.5\."):
        again(0.5)
    with pytest.raises(fk.InputError, match=r"its world\.cohort is 4, not 3\."):
        again(0.1, world=replace(WORLD, cohort=3))


def test_runs_without_a_place_are_gone_with_the_comparison() -> None:
    made = fk.compare(own_task(), ["fedavg"], WORLD, rounds=1, seeds=[7])
    (folder,) = made.folders
    assert (folder / "fedavg" / "seed-7" / "config.json").exists()
    del made
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"algorithms": "fedavg"}, "must be a list of algorithms"),
        ({"algorithms": []}, "must be a list of algorithms"),
        ({"algorithms": [fk.Algorithm(), fk.Algorithm()]}, "Two algorithms are called 'sgd'; give them names"),
        ({"algorithms": {"a": 3}}, "made of Algorithms or their texts"),
        ({"seeds": 0}, "must be a number of seeds"),
        ({"seeds": []}, "must be a number of seeds"),
        ({"seeds": [1, -1]}, "must be a number of seeds"),
        ({"seeds": [1, 1]}, "A seed is given twice"),
        ({"rounds": 0}, "'rounds' parameter"),
        ({"task": "synthetic"}, "must be a Task, such as"),
        ({"world": 3}, "must be a World"),
        ({"seed": 3}, "Did you mean 'seeds'"),
        ({"algorithms": ["scaffold:momentum=0.9"]}, "momentum"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], error: str) -> None:
    known: dict[str, Any] = {"task": own_task(), "algorithms": ["fedavg"], "rounds": 1, "seeds": 1}
    with pytest.raises(fk.InputError, match=error) as raised:
        fk.compare(**(known | change))
    assert "\n" not in str(raised.value)


def test_train_with_several_seeds_says_what_to_use() -> None:
    for seeds in ([0, 1, 2], range(3), (0, 1, 2), np.arange(3)):
        for keyword in ("seed", "seeds"):
            with pytest.raises(
                fk.InputError, match=r"use fk.compare\(task, \[algorithm\], world, seeds=\[.*0.*2.*\]\)"
            ):
                fk.train(own_task(), "fedavg", rounds=1, **{keyword: seeds})
    with pytest.raises(fk.InputError, match=r"takes one seed; for several use fk.compare\(.*, world, seeds=3\)\."):
        fk.train(own_task(), "fedavg", rounds=1, seeds=3)


def test_train_with_several_algorithms_or_the_name_of_a_task_says_what_to_use() -> None:
    with pytest.raises(
        fk.InputError, match=r"one algorithm; for several use fk.compare\(task, \['fedavg', 'gel'\], world\)"
    ):
        fk.train(own_task(), ["fedavg", "gel"])  # type: ignore[arg-type]
    with pytest.raises(
        fk.InputError, match=r"of train must be a Task, such as fk\.tasks\.get\('digits'\)\. Got 'digits'"
    ):
        fk.train("digits", "fedavg")  # type: ignore[arg-type]
    with pytest.raises(fk.InputError, match=r"of compare must be a Task, such as fk\.tasks\.get\('digits'\)"):
        fk.compare("digits", ["fedavg"])  # type: ignore[arg-type]


def test_there_is_no_progress_bar_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    fk.compare(own_task(), ["fedavg"], WORLD, rounds=1, seeds=1)
    assert capfd.readouterr() == ("", "")


# Tables


def test_latex_escapes_its_marks_and_marks_the_best(compared: fk.Comparison, tmp_path: Path) -> None:
    text = compared.to_latex(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text() == text
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 4 and len({line.count(" & ") for line in rows}) == 1
    assert text.count("\\textbf{") >= 1
    body = "\n".join(rows)
    assert (
        not re.search(r"(?<!\\)[%_#]", body)
        and "±" not in body
        and "–" not in body
        and "\N{NO-BREAK SPACE}" not in body
    )
    assert not re.search(r"(?<![\w$])-\d", body)  # a minus is not a hyphen
    best = max(compared.arms, key=lambda arm: sum(arm.finals.values()))
    (line,) = (line for line in rows if line.startswith(f"{best.name} &"))
    assert "\\textbf{" in line


def test_csv_has_the_plain_numbers_of_the_summary(compared: fk.Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(compared.to_csv())))
    assert [row["algorithm"] for row in rows] == ["fedavg", "halved", "gel"]
    assert "gradients" in rows[0] and "simulated_seconds" not in rows[0]  # without devices there is no clock
    for row, arm in zip(rows, compared.summary()["arms"], strict=True):
        assert float(row["accuracy"]) == pytest.approx(arm["final_accuracy_mean"])
        assert float(row["accuracy_95"]) == pytest.approx(arm["final_accuracy_95"])
        if None not in arm["rounds_to_target"]:
            assert float(row["rounds"]) == pytest.approx(np.mean(arm["rounds_to_target"]))
    assert rows[0]["better"] == "" and float(rows[1]["better"]) == pytest.approx(
        compared.summary()["arms"][1]["difference_mean"]
    )


def test_markdown_has_a_line_for_each_algorithm_and_pipes_of_names_are_escaped() -> None:
    made = fk.compare(own_task(), {"a|b": "fedavg"}, WORLD, rounds=1, seeds=1)
    heads, marks, row = made.to_markdown().splitlines()
    assert heads.count("|") == marks.count("|") == row.count("|") and "a&#124;b" in row


def test_a_data_frame_has_every_row_of_every_run(compared: fk.Comparison) -> None:
    frame = compared.to_pandas()
    assert len(frame) == 3 * 3 * 7 and list(frame.columns[:3]) == ["algorithm", "seed", "round"]
    last = frame[(frame.algorithm == "gel") & (frame["round"] == 6)].accuracy
    assert last.tolist() == list(compared.arms[2].finals.values())


def test_it_prints_the_table_of_the_command(compared: fk.Comparison, saved: Path, capsys: Any) -> None:
    compared.table()
    mine = capsys.readouterr().out
    assert main(["compare", str(saved)]) == 0
    head, _, theirs = capsys.readouterr().out.partition("\n")
    assert head.startswith("mine (") and mine == theirs
    assert repr(compared) == "<Comparison of fedavg, halved, gel on mine: 6 rounds, seeds: 3>"


def test_names_are_shown_as_they_were_given() -> None:
    made = fk.compare(own_task(), {"FedAvg": "fedavg", "My method (v2)": "gel"}, WORLD, rounds=1, seeds=1)
    assert [arm.name for arm in made.arms] == ["FedAvg", "My method (v2)"]
    made = fk.compare(own_task(), {"FedAvg": "fedavg", "GEL": "gel"}, WORLD, rounds=1, seeds=1)
    assert [arm.name for arm in made.arms] == ["FedAvg", "GEL"]


def test_jupyter_gets_a_table_and_curves_and_names_stay_text() -> None:
    made = fk.compare(own_task(), {"<b>evil": "fedavg", "gel": "gel"}, WORLD, rounds=2, seeds=2)
    page = made._repr_html_()
    assert "<table>" in page and "<svg" in page and "&lt;b&gt;evil" in page and "<b>evil" not in page


def test_without_matplotlib_jupyter_gets_the_table_and_the_command() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.figure'] = None\n"
        "import fedkeel as fk\n"
        "c = fk.compare(fk.tasks.synthetic(users=5), ['fedavg'], rounds=1, seeds=1)\n"
        "page = c._repr_html_(); assert '<table>' in page and 'pip install' in page\n"
        "try: c.plot('x.pdf')\n"
        "except fk.MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == 'Writing a picture needs matplotlib: pip install "matplotlib>=3.8"'


# Figures


def test_figures_are_pdf_png_or_svg_and_the_same_each_time(compared: fk.Comparison, tmp_path: Path) -> None:
    starts = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}
    for kind, start in starts.items():
        one, two = (compared.plot(tmp_path / f"{name}.{kind}", x="MB").read_bytes() for name in ("one", "two"))
        assert one.startswith(start) and one == two
    text = (tmp_path / "one.svg").read_text()
    assert all(word in text for word in ("fedavg", "halved", "gel", "MB sent", "test accuracy", "target 0.3"))


def test_the_band_is_the_interval_of_the_table(compared: fk.Comparison) -> None:
    arm = compared.arms[0]
    for axis, cost in (("round", 6.0), ("gradients", np.mean([h[-1]["gradients"] for h in arm.histories]))):
        points = figure.curves(arm.histories, "accuracy", axis)
        assert points is not None
        xs, values = points
        finals = list(arm.finals.values())
        assert xs[-1] == pytest.approx(cost) and values[-1].tolist() == finals
        low, high = figure.band_of(values, "95") or ([], [])
        assert (high[-1] + low[-1]) / 2 == pytest.approx(np.mean(finals))
        assert (high[-1] - low[-1]) / 2 == pytest.approx(interval(finals))
        low, high = figure.band_of(values, "minmax") or ([], [])
        assert (low[-1], high[-1]) == (min(finals), max(finals))
        assert figure.band_of(values, "none") is None
        assert figure.band_of(values[:, :1], "95") is None  # of one seed
    assert figure.curves(arm.histories, "validation_accuracy", "round") is None


def test_a_band_is_chosen_and_another_word_is_refused(saved: Path, tmp_path: Path, capsys: Any) -> None:
    sizes = {}
    for band in ("95", "minmax", "none"):
        assert main(["plot", str(saved), "--out", str(tmp_path / f"{band}.svg"), "--band", band]) == 0
        sizes[band] = (tmp_path / f"{band}.svg").read_text().count("FillBetweenPolyCollection")
    assert sizes["95"] == sizes["minmax"] == 3 and sizes["none"] == 0
    assert (tmp_path / "95.svg").read_text() != (tmp_path / "minmax.svg").read_text()
    capsys.readouterr()
    assert "must be one of 95, minmax, none" in refused(["plot", str(saved), "--out", "f.pdf", "--band", "sd"], capsys)


def test_every_arm_of_a_figure_has_its_own_dash_and_the_task_is_named(compared: fk.Comparison, tmp_path: Path) -> None:
    looks = [(i % len(figure.COLOURS), i % len(figure.DASHES)) for i in range(20)]
    assert len(set(looks)) == 20 and len({dash for _, dash in looks[:7]}) == 7
    assert ">mine<" in compared.plot(tmp_path / "f.svg").read_text()


def test_seconds_are_simulated_ones_where_there_are_some(saved: Path, tmp_path: Path) -> None:
    made = fk.Comparison.read(saved)
    assert "seconds of computing" in made.plot(tmp_path / "a.svg", x="seconds").read_text()
    for group in made.groups:
        for run in group.runs:
            for row in run.history:
                row["sim_seconds"] = 10.0 * row["round"]
    assert "simulated seconds" in made.plot(tmp_path / "b.svg", x="seconds", y="loss").read_text()


def test_over_simulated_time_seeds_are_compared_at_equal_times() -> None:
    rows = [[(0, 0.0), (10, 0.5), (30, 0.7)], [(0, 0.2), (20, 0.5), (24, None), (25, 0.9), (40, 1.0)]]
    histories = []
    for some in rows:
        history = ({"round": k, "sim_seconds": t, "accuracy": a} for k, (t, a) in enumerate(some))
        histories.append(History(history))
    points = figure.curves(histories, "accuracy", "sim_seconds")
    assert points is not None
    xs, means = points[0], points[1].mean(1)
    assert (xs[0], xs[-1]) == (0, 30)  # where the first seed ends, although it has fewer rounds
    for time, mean in ((0, 0.1), (9.9, 0.1), (10.1, 0.35), (20.1, 0.5), (24.9, 0.5), (25.1, 0.7), (30, 0.8)):
        assert means[np.abs(xs - time).argmin()] == pytest.approx(mean)
    assert points[1][-1].tolist() == [0.7, 1.0 - 0.1]
    assert figure.curves(histories, "loss", "sim_seconds") is None


def test_the_command_plots_a_panel_for_each_task(saved: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["run", "synthetic:users=5", "fedavg", "--rounds", "2", "--out", str(tmp_path / "other")]
    assert main(words) == 0
    out = tmp_path / "deep" / "fig.svg"
    assert main(["plot", str(saved), str(tmp_path / "other"), "--out", str(out), "--x", "gradients"]) == 0
    text = out.read_text()
    assert ">mine<" in text and ">synthetic:users=5<" in text and text.count(">gradients computed<") == 2
    capsys.readouterr()
    plot = ["plot", str(saved), "--out"]
    assert "written as .pdf, .png or .svg" in refused([*plot, "fig.gif"], capsys)
    assert "Unknown x of a figure 'epochs'" in refused([*plot, "fig.pdf", "--x", "epochs"], capsys)
    assert "a column of the histories" in refused([*plot, "fig.pdf", "--y", "h"], capsys)
    assert "is not the directory" in refused(["plot", str(tmp_path / "none"), "--out", "fig.pdf"], capsys)
    assert not Path("fig.pdf").exists()


# Runs made in Python, and the command


def test_the_command_takes_comparisons_made_in_python(saved: Path, tmp_path: Path, capsys: Any) -> None:
    for shape, word in (("--latex", "\\begin{tabular}"), ("--markdown", "| halved |"), ("--csv", "mine,halved,3")):
        assert main(["compare", str(saved), shape]) == 0
        assert word in capsys.readouterr().out
    page = tmp_path / "report.html"
    assert main(["report", str(saved), "--out", str(page)]) == 0
    assert page.read_text().count(json.dumps(IN_PYTHON)[1:-1]) == 4  # in four panels, which the page says once
    capsys.readouterr()
    for words in (["resume", str(saved)], ["run", "--config", str(saved / "config.json")]):
        line = refused(words, capsys)
        assert "the task was made in Python; an algorithm was made in Python; call fk.compare again" in line


def test_two_comparisons_are_exported_one_after_the_other(saved: Path, capsys: Any) -> None:
    places = [str(saved), str(saved / "gel" / "seed-0")]
    assert main(["compare", *places, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["directory"] for row in rows] == [str(saved)] * 3 + [str(saved / "gel" / "seed-0")]
    assert main(["compare", *places, "--latex"]) == 0
    assert capsys.readouterr().out.count("% mine\n") == 2


def test_a_single_run_made_in_python_is_compared_and_plotted(tmp_path: Path, capsys: Any) -> None:
    fk.train(own_task(name=None), fk.Algorithm(rules=[Halved()]), WORLD, rounds=2).save(tmp_path / "run")
    assert main(["compare", str(tmp_path / "run")]) == 0
    assert "sgd+halved" in capsys.readouterr().out
    assert main(["plot", str(tmp_path / "run"), "--out", str(tmp_path / "fig.png")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0


def test_a_configuration_names_what_the_task_is_made_of(saved: Path) -> None:
    from functools import partial

    from fedkeel.data.partition import dirichlet

    config = json.loads((saved / "halved" / "seed-0" / "config.json").read_text())
    parts = config["task_parts"]
    assert config["task"] == "mine" and len(parts.pop("data_checksum")) == 16
    assert parts == {"model": "OwnNet", "parameters": 305, "loss": "own_loss"}
    y = np.arange(40) % 4
    deal = partial(dirichlet, clients=4, alpha=0.5)
    data = fk.FederatedData.from_arrays(np.zeros((40, 60)), y, deal, test=(np.zeros((4, 60)), y[:4]))
    config = fk.train(fk.Task(OwnNet, partial(own_loss), data), "fedavg", rounds=1).config
    assert config["task"] == "unnamed"
    assert config["task_parts"] | {"data_checksum": ""} == {
        "model": "OwnNet", "parameters": 305, "loss": "own_loss", "partition": "dirichlet", "clients": 4, "alpha": 0.5,
        "seed": 0, "data_checksum": "",
    }  # fmt: skip


def test_a_script_that_saves_again_is_told_how_in_python(compared: fk.Comparison, tmp_path: Path) -> None:
    compared.save(tmp_path / "twice")
    with pytest.raises(fk.InputError, match=r"is not empty.*overwrite=True"):
        compared.save(tmp_path / "twice")
    assert compared.save(tmp_path / "twice", overwrite=True).is_dir()


def test_runs_of_other_models_are_no_repetitions(tmp_path: Path) -> None:
    fk.train(own_task(), "fedavg", WORLD, rounds=2, seed=0).save(tmp_path / "one")
    fk.train(own_task(model=lambda: nn.Linear(60, 5)), "fedavg", WORLD, rounds=2, seed=1).save(tmp_path / "two")
    assert len(fk.Comparison.read(tmp_path / "one", tmp_path / "two").groups) == 2
    fk.train(own_task(), "fedavg", WORLD, rounds=2, seed=1).save(tmp_path / "three")
    assert len(fk.Comparison.read(tmp_path / "one", tmp_path / "three").groups) == 1


def test_a_report_written_in_python_has_the_panels_of_clients(
    compared: fk.Comparison, saved: Path, tmp_path: Path
) -> None:
    page = compared.report(tmp_path / "one.html").read_text()
    again = fk.Comparison.read(saved, task=own_task()).report(tmp_path / "two.html").read_text()
    for text in (page, again):
        assert json.dumps(IN_PYTHON)[1:-1] not in text and '"worst"' in text and '"participation": {"names"' in text


def test_what_has_not_ended_is_not_a_comparison(tmp_path: Path) -> None:
    fk.train(own_task(), "fedavg", WORLD, rounds=4, stop_after=2).save(tmp_path)
    with pytest.raises(fk.InputError, match="have ended"):
        fk.Comparison.read(tmp_path)


# Sweeps


def test_a_sweep_chooses_on_validation_data_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(lr: float) -> fk.Algorithm:
        return fk.Algorithm(client=fk.SGD(lr), rules=[Halved()])

    known: dict[str, Any] = {"world": WORLD, "rounds": 4, "seeds": 2, "out": tmp_path / "sweep"}
    found = fk.sweep(own_task(), make, {"lr": [1e-6, 0.1]}, **known)
    assert found.values == {"lr": 0.1} and found.best.client.lr == 0.1 and found.choice.by == "validation_accuracy"
    alone = fk.train(own_task(), make(0.1), WORLD, rounds=4, validation=0.1)
    run = found.comparison.groups[1].runs[0]
    assert [row["validation_accuracy"] for row in run.history] == [row["validation_accuracy"] for row in alone.history]
    frame = found.to_pandas()
    assert frame.columns.tolist() == ["lr", "validation_accuracy", "interval_95"] and frame.lr.tolist() == [0.1, 1e-6]
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text())["best"]["values"] == {"lr": 0.1}
    monkeypatch.setattr(training, "train", None)  # all runs are done
    assert repr(fk.sweep(own_task(), make, {"lr": [1e-6, 0.1]}, **known)) == repr(found)


def test_a_sweep_of_a_text_is_that_of_the_command(tmp_path: Path, capsys: Any) -> None:
    words = ["sweep", "synthetic:users=8", "fedprox", "--grid", "lr=0.001,0.1", "mu=0,1", "--rounds", "3", "--json"]
    assert main([*words, "--jobs", "1", "--out", str(tmp_path / "command")]) == 0
    theirs = json.loads(capsys.readouterr().out)
    found = fk.sweep(fk.tasks.synthetic(users=8), "fedprox", {"lr": [0.001, 0.1], "mu": [0, 1]}, rounds=3)
    mine = found.choice.as_dict()
    assert json.loads(json.dumps(mine)) == {name: theirs[name] for name in mine}
    found.table()
    assert "Best: fedprox" in capsys.readouterr().out
    assert "<table>" in found._repr_html_()
    assert found.plot(tmp_path / "heat.png").stat().st_size > 1000
    assert (found.save(tmp_path / "kept") / "sweep.json").exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"grid": {"lr": [0.1]}}, "must be made of 2 to 10,000 combinations. Got 1"),
        ({"grid": {"learning_rate": [0.1]}}, "'learning_rate'. The client learning rate is lr"),
        ({"grid": {"lr": 0.1}}, "a dict of lists; 'lr' has none"),
        ({"grid": {"lr": "0.1,1"}}, "a dict of lists; 'lr' has none"),
        ({"grid": {}}, "a dict of lists, such as"),
        ({"grid": {"lr": [0.1, 0.1]}}, "'lr' has a value twice"),
        ({"grid": {"mu": [1, 2]}}, "mu"),
        ({"by": "luck"}, "'by' parameter"),
        ({"by": "test_rounds", "task": own_task(target=None)}, "needs a target"),
        ({"algorithm": 3}, "a text or a function"),
        ({"algorithm": lambda lr: lr}, "a function that gives an Algorithm"),
        ({"algorithm": lambda mu: "fedavg"}, "The function that makes an algorithm fails"),
    ],
)
def test_a_bad_sweep_is_one_line(change: dict[str, Any], error: str) -> None:
    known: dict[str, Any] = {"task": own_task(), "algorithm": "fedavg", "grid": {"lr": [0.1, 1]}, "rounds": 1}
    with pytest.raises(fk.InputError, match=error) as raised:
        fk.sweep(**(known | change))
    assert "\n" not in str(raised.value)


def test_a_sweep_whose_cells_all_diverge_has_no_best() -> None:
    found = fk.sweep(own_task(), "fedavg", {"lr": [1e37, 1e38]}, WORLD, rounds=8)
    assert found.values == {} and "No cell has a number" in repr(found)
    with pytest.raises(fk.InputError, match="No cell of this sweep has a score"):
        _ = found.best


def test_a_named_task_with_other_settings_is_not_run_by_its_name(tmp_path: Path) -> None:
    task = fk.tasks.synthetic(users=5)
    for changed, can in ((task, True), (replace(task, batch_size=3), False), (replace(task, target=0.5), False)):
        folder = fk.compare(changed, ["fedavg"], rounds=1, seeds=1).save(
            tmp_path / f"{can}-{changed.batch_size}-{changed.target}"
        )
        assert json.loads((folder / "config.json").read_text())["rerunnable"] is can


# What tables say about their numbers


def said_by(comparison: fk.Comparison, capsys: Any) -> str:
    capsys.readouterr()
    comparison.table()
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["GEL", "FedAvgCM+GEL", "X"])
@pytest.mark.parametrize("text", ["gel", "fedavgcm+gel"])
def test_the_client_momentum_is_told_whatever_the_arm_is_called(name: str, text: str, capsys: Any) -> None:
    made = fk.compare(own_task(), {"FedAvg": "fedavg", name: text}, WORLD, rounds=1, seeds=1)
    assert said_by(made, capsys).endswith(f"{name} has client momentum 0.9, FedAvg has none.")
    assert f"% {name} has client momentum 0.9, FedAvg has none.\n" in made.to_latex()


def test_arms_of_one_client_momentum_are_not_told_apart_by_it(capsys: Any) -> None:
    made = fk.compare(own_task(), {"gel": "fedavgcm", "B": "gel"}, WORLD, rounds=1, seeds=1)
    assert "momentum" not in said_by(made, capsys) + made.to_latex()
    made = fk.compare(own_task(), ["fedavg", "fedavgcm"], WORLD, rounds=1, seeds=1)  # nobody guesses
    assert "momentum" not in said_by(made, capsys) + made.to_latex()


def test_a_draw_of_test_samples_is_called_one_wherever_numbers_are_shown(tmp_path: Path, capsys: Any) -> None:
    made = fk.compare(own_task(), ["fedavg", "gel"], WORLD, rounds=2, seeds=2, eval_samples=20)
    page = made.report(tmp_path / "r.html").read_text()
    figure_ = made.plot(tmp_path / "f.svg").read_text()
    for text in (said_by(made, capsys), made.to_latex(), made._repr_html_(), page, figure_):
        assert "on a fixed draw of 20 test samples" in text
    assert "on the test set" not in said_by(made, capsys) + made.to_latex()
    whole = fk.compare(own_task(), ["fedavg", "gel"], WORLD, rounds=2, seeds=2, eval_samples=100_000)
    for text in (said_by(whole, capsys), whole.to_latex()):  # there are not so many
        assert "on the test set" in text and "fixed draw" not in text


def test_tables_say_what_the_most_frequent_training_label_would_score(capsys: Any) -> None:
    made = fk.compare(own_task(), ["fedavg"], WORLD, rounds=1, seeds=1, eval_samples=30)
    data = own_task().data.tested_on(30)
    assert data.test is not None
    label = int(data.y.mode().values)
    told = f"label ({label}) would score {float((data.test[1] == label).double().mean()):.4f} on the same samples."
    assert told in said_by(made, capsys) and told in made.to_latex()


def test_a_mean_over_last_rounds_says_that_some_were_not_evaluated(capsys: Any) -> None:
    made = fk.compare(own_task(), ["fedavg"], WORLD, rounds=8, seeds=1, eval_every=3)
    assert "'last 2' is the mean accuracy over those of the last 2 rounds that were evaluated" in said_by(made, capsys)
    made = fk.compare(own_task(), ["fedavg"], WORLD, rounds=8, seeds=1)
    assert "'last 2' is the mean accuracy over the last 2 rounds." in said_by(made, capsys)


def test_the_footnote_says_how_many_clients_the_worst_tenth_is(capsys: Any) -> None:
    made = fk.compare(own_task(), ["fedavg", "gel"], WORLD, rounds=1, seeds=2, client_test=0.2)
    told = said_by(made, capsys)
    assert "the worst tenth (1 of 8 clients)" in told
    assert " worst tenth " in told.partition("■")[0]  # the column has room


@pytest.fixture(scope="module")
def by_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms with two seeds on a table of three sites, which the command tests on each of them."""
    folder = tmp_path_factory.mktemp("clients")
    rows = [f"{['Mary', 'North', 'South'][i % 3]},{i % 7},{i % 5},{'ill' if i % 7 > 3 else 'well'}" for i in range(120)]
    (folder / "t.csv").write_text("\n".join(["site,a,b,state", *rows]) + "\n")
    task = f"csv:file={folder / 't.csv'},client=site,target=state,test=0"
    words = ["run", task, "fedavg", "fedprox:mu=1", "--seeds", "2", "--rounds", "2", "--client-test", "0.25"]
    assert main([*words, "--out", str(folder / "runs")]) == 0
    return folder / "runs"


def test_every_client_is_listed_by_name_with_its_test_rows_and_the_mean_over_seeds(by_client: Path) -> None:
    made = fk.Comparison.read(by_client)
    clients = made.clients()
    assert {one["client"]: one["test_rows"] for one in clients} == {"Mary": 10, "North": 10, "South": 10}
    for group in made.groups:
        lasts = [run.history[-1]["client_accuracy"] for run in group.runs]
        assert np.mean([one["accuracy"][group.name] for one in clients]) == pytest.approx(np.mean(lasts), abs=1e-4)
    means = [sum(one["accuracy"].values()) for one in clients]
    assert means == sorted(means)


def test_the_command_prints_clients_in_every_shape(by_client: Path, capsys: Any) -> None:
    clients = fk.Comparison.read(by_client).clients()
    capsys.readouterr()
    said = {}
    for shape in ("--json", "--csv", "--markdown", "--latex", "--clients"):
        assert main(["compare", str(by_client), "--clients", shape]) == 0
        said[shape] = capsys.readouterr().out
    assert json.loads(said["--json"])["comparisons"][0]["clients"] == clients
    rows = list(csv.DictReader(io.StringIO(said["--csv"])))
    assert [(row["client"], float(row["fedavg"])) for row in rows] == [
        (one["client"], one["accuracy"]["fedavg"]) for one in clients
    ]
    lowest = clients[0]
    cells = [lowest["client"], "10", *(f"{value:.4f}" for value in lowest["accuracy"].values())]
    assert f"| {' | '.join(cells)} |" in said["--markdown"]
    assert f"{' & '.join(cells)} " in said["--latex"]
    assert " ".join(cells) in " ".join(said["--clients"].split())


def test_clients_are_not_listed_without_their_tests_or_on_data_that_changed(
    by_client: Path, tmp_path: Path, capsys: Any
) -> None:
    assert main(["run", "synthetic:users=5", "fedavg", "--rounds", "1", "--out", str(tmp_path / "r")]) == 0
    assert main(["compare", str(tmp_path / "r"), "--clients"]) == 2
    assert "run them with --client-test 0.2" in capsys.readouterr().err
    made = fk.compare(own_task(), ["fedavg"], WORLD, rounds=1, seeds=1, client_test=0.2)
    other = own_task(data=fk.tasks.synthetic(users=9).data)
    with pytest.raises(fk.InputError, match="The data have changed since these runs"):
        fk.Comparison([made.folders[0]], other).clients()


def test_tables_say_that_seeds_do_not_change_which_rows_are_held_out(by_client: Path, capsys: Any) -> None:
    made = fk.Comparison.read(by_client)
    told = "the same held-out samples; to draw others, give another seed of the task, such as csv:...,seed=1."
    for text in (said_by(made, capsys), made.to_latex(), " ".join(document(made.groups)["table"]["notes"])):
        assert told in text
    mine = fk.compare(own_task(), ["fedavg"], WORLD, rounds=1, seeds=2, client_test=0.2)
    assert "same held-out samples; to draw others, give another seed of held_out or from_csv." in said_by(mine, capsys)
    one_seed = fk.compare(own_task(), ["fedavg"], WORLD, rounds=1, seeds=1, client_test=0.2)
    own_test = fk.compare(own_task(), ["fedavg"], WORLD, rounds=1, seeds=2)
    assert "held-out" not in said_by(one_seed, capsys) + said_by(own_test, capsys)


def test_a_csv_task_with_a_test_share_says_that_it_was_drawn_and_one_with_a_test_file_does_not(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,a,ill\n" + "A,1,no\nA,2,yes\nB,3,no\nB,1,yes\nA,4,no\nB,2,yes\n" * 3)
    for test, drawn in (("0.3", True), (str(tmp_path / "t.csv"), None)):
        task = fk.tasks.get(f"csv:file={tmp_path / 't.csv'},client=site,target=ill,test={test}")
        assert fk.train(task, "fedavg", rounds=1).config["tested"].get("drawn") is drawn


def test_without_test_data_the_command_names_its_flag_and_the_table_has_no_test_set(
    tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "t.csv").write_text("site,a,ill\n" + "A,1,no\nA,2,yes\nB,3,no\nB,1,yes\n" * 3)
    task = f"csv:file={tmp_path / 't.csv'},client=site,target=ill,test=0"
    assert main(["run", task, "fedavg", "--rounds", "8", "--out", str(tmp_path / "r")]) == 0
    said = capsys.readouterr()
    assert "--client-test 0.2" in said.err and "test=0.2 of the task csv" in said.err
    out = " ".join(said.out.split())
    assert "Losses are those of training, since there are no test samples" in out
    assert "on the test set" not in out and "last 2" not in out


def test_a_table_of_a_task_without_accuracy_has_its_loss(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "t.csv").write_text("site,a,dose\n" + "A,1,0.5\nA,2,1.5\nB,3,2.5\nB,1,0.7\n" * 3)
    task = f"csv:file={tmp_path / 't.csv'},client=site,target=dose"
    assert main(["run", task, "fedavg", "--rounds", "2", "--seeds", "2", "--out", str(tmp_path / "r")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "test loss at the end" in out and "Losses are on the test set" in out and "ccurac" not in out


def test_an_arm_that_diverged_has_no_accuracy_on_clients() -> None:
    arms = {"good": "fedavg", "bad": "fedavg:lr=1e38"}
    made = fk.compare(own_task(), arms, WORLD, rounds=2, seeds=1, client_test=0.2)
    assert {one["accuracy"]["bad"] for one in made.clients()} == {None}
    assert all(one["accuracy"]["good"] is not None for one in made.clients())


def test_tables_for_papers_and_the_report_have_the_columns_about_clients(by_client: Path) -> None:
    made = fk.Comparison.read(by_client)
    lasts = [run.history[-1]["client_accuracy_worst"] for run in made.groups[0].runs]
    heads, _, first = made.to_markdown().splitlines()[:3]
    assert dict(zip(heads.split(" | "), first.split(" | "), strict=True))["worst tenth"] == f"{np.mean(lasts):.4f}"
    assert float(next(csv.DictReader(io.StringIO(made.to_csv())))["client_accuracy_worst"]) == np.mean(lasts)
    assert "clients & worst tenth" in made.to_latex() and "(1 of 3 clients)" in made.to_latex()
    assert re.search(r"textbf\{0\.\d{4} \$\\pm\$", made.to_latex())  # the accuracy, not another column
    assert "worst tenth" in document(made.groups)["table"]["heads"]


def test_a_table_says_where_ghbm_had_no_momentum_yet(capsys: pytest.CaptureFixture[str]) -> None:
    world = fk.World(cohort=2, budget=fk.FixedSteps(1))
    task = fk.tasks.synthetic(users=20)

    def said(text: str, rounds: int) -> str:
        fk.compare(task, ["fedavg", text], world, rounds=rounds, seeds=1).table()
        return " ".join(capsys.readouterr().out.split())

    assert "ghbm:tau=3 is FedAvg so far: GHBM's momentum begins after tau = 3 rounds." in said("ghbm:tau=3", 3)
    assert "so far" not in said("ghbm:tau=3", 4) and "so far" not in said("ghbm:tau=3,warmup=clamp", 3)
