"""Simulated time where people look: tables, speed-ups, the page, the command."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.lab.compare import equal_rounds, mean_curve, summary
from fedkeel.lab.report import fleets, verdict
from fedkeel.lab.report.page import document
from fedkeel.lab.report.runs import Ran, arms
from fedkeel.lab.report.terminal import table
from fedkeel.lab.stats import Arm, Gain, at_time
from fedkeel.run.history import History


def climb(rounds: int, at: int, seconds: float) -> History:
    """Accuracy in a straight line to 1 in round `at`; every round takes `seconds`, and loses one of five clients."""
    return History(
        {
            "round": t, "accuracy": min(1.0, t / at), "loss": 1.0, "gradients": 10 * t, "bytes_down": 300 * t,
            "bytes_up": 100 * t, "wall_seconds": 0.5 * t, "clients": 3, "dropped": 0, "sim_seconds": seconds * t,
            "late": 1, "lost": 1,
        }
        for t in range(rounds + 1)
    )  # fmt: skip


def arm(name: str, *histories: History) -> Arm:
    return Arm(name, 0.5, list(histories), ["done"] * len(histories), range(len(histories)))


SLOW, QUICK = arm("sync", climb(20, 10, 8.0), climb(20, 10, 8.0)), arm("async", climb(40, 40, 1.0), climb(40, 40, 1.0))


def test_a_speed_up_is_in_simulated_seconds_where_both_arms_have_them() -> None:
    assert QUICK.speedup(SLOW) == Gain(1.0, 1.0, 1.0)  # 20 rounds of a second against 5 of eight
    untimed = Arm(
        "a", 0.5, [History({k: v for k, v in r.items() if k != "sim_seconds"} for r in climb(20, 10, 8.0))], ["done"]
    )
    assert QUICK.speedup(untimed) == Gain(5 / 20 - 1)  # in rounds, over the seed they share


def test_a_value_at_a_time_is_the_last_evaluation_before_it() -> None:
    history = climb(10, 10, 2.0)
    history[3]["accuracy"] = None
    assert at_time(history, "accuracy", 7.9) == 0.2
    assert at_time(history, "accuracy", 8.0) == 0.4
    assert at_time(history, "accuracy", -1.0) is None
    assert equal_rounds(QUICK, SLOW) == [1.0 - 0.5] * 2  # at 40 s, when the first one ends
    assert mean_curve(QUICK.histories)[10] == (10.0, 0.25)
    assert mean_curve(SLOW.histories)[10] == (80.0, 1.0)


def test_the_summary_has_seconds_to_the_target() -> None:
    said = summary([SLOW, QUICK], 0.5)
    assert [one["sim_seconds_to_target"] for one in said["arms"]] == [[40.0, 40.0], [20.0, 20.0]]


@pytest.mark.parametrize("width", [80, 110])
def test_the_table_has_seconds_and_says_that_they_are_simulated(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    table([SLOW, QUICK], 0.5, 40, console, sim_seconds=40.0)
    text = console.export_text()
    assert "seconds" in text
    assert "20.0" in text
    assert "+100.0%" in text
    assert "Seconds are simulated" in " ".join(text.split())
    assert "after 40 simulated s" in " ".join(text.split())
    assert "20 % and 20 % in sync, 20 % and 20 % in async" in " ".join(text.split())
    assert all(len(line.rstrip()) <= width for line in text.splitlines() if "■" in line)


# The page


def ran(name: str, history: History, **config: Any) -> Ran:
    world = {"cohort": 2, "budget": "3", "fleet": "phones"}
    known = {"task": "no-such-task", "algorithm": name, "world": world, "rounds": len(history) - 1, "seed": 0,
             "target": 0.5, "rerunnable": True, "dtype": "float32"}  # fmt: skip
    return Ran(Path("runs", name, "seed-0"), known | config, {}, history, config.pop("status", "done"))


def test_the_verdict_is_by_the_clock() -> None:
    groups = arms(
        [ran("sync", climb(20, 10, 8.0), sim_seconds=40.0), ran("async", climb(40, 40, 1.0), sim_seconds=40.0)]
    )
    c = verdict.compare(groups)
    assert c.first == "sim_seconds"
    assert c.best().name == "async"  # type: ignore[union-attr]
    assert verdict.comparable(groups)
    said = verdict.in_words(c)
    assert "20.0 simulated seconds" in " ".join(said["points"])
    assert any(point.startswith("After 40 simulated seconds") for point in said["points"])
    assert "to 0.5: simulated seconds" in verdict.table(c)["heads"]
    assert verdict.versus(c)[0]["cost"] == "simulated seconds"


def test_runs_of_different_simulated_length_are_not_comparable() -> None:
    groups = arms([ran("a", climb(5, 5, 1.0), sim_seconds=5.0), ran("b", climb(5, 5, 1.0), sim_seconds=9.0)])
    assert not verdict.comparable(groups)
    assert "5 simulated seconds and 9 simulated seconds" in " ".join(verdict.standing(groups)["points"])


def test_before_the_end_the_headline_counts_rounds_against_no_time() -> None:
    groups = arms([ran("a", climb(5, 5, 1.0), sim_seconds=5.0)])
    headline = document(groups, replays=False, waiting=[("b", 0)])["verdict"]["headline"]
    assert headline.startswith("So far, at round 5, a has a test accuracy of ")


def test_the_live_page_has_late_and_lost_clients_and_how_far_the_clock_is() -> None:
    groups = arms([ran("a", climb(9, 9, 1.0), sim_seconds=12.0)])
    made = document(groups, replays=False)
    (line,) = made["runs"]
    assert (line["late"], line["lost"]) == (10, 10)
    assert (line["sim_seconds"], line["limit"], line["done"]) == (9.0, 12.0, 0.75)
    assert made["arms"][0]["curves"]["accuracy"]["sim_seconds"][:3] == [0, 1, 2]
    script = (Path(verdict.__file__).with_name("page.js")).read_text()
    assert "run.late" in script
    assert "run.lost" in script


# The command


def test_a_comparison_by_the_clock_runs_is_repeated_and_is_reported(tmp_path: Path, capsys: Any) -> None:
    words = ["--fleet", "phones", "--deadline", "p80", "--sim-seconds", "12", "--eval-every", "2s", "--target", "0.3"]
    arms_ = ["fedavgcm", "gel", "fedbuff:buffer=4,inflight=8", "fedbuff:buffer=4,inflight=8+gel"]
    out, again = tmp_path / "out", tmp_path / "again"
    assert main(["run", "synthetic:users=60", *arms_, *words, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "Seconds are simulated" in " ".join(said.out.split())
    assert said.err.count("The deadline of seed 0 is") == 1
    assert main(["run", "--config", str(out / "config.json"), "--out", str(again), "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    for one in known["runs"]:
        folder = out / one["algorithm"].replace(":", "_").replace(",", "_") / "seed-0"
        first = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        assert [r | {"wall_seconds": 0} for r in first] == [r | {"wall_seconds": 0} for r in one["history"]]
        assert first[-2]["sim_seconds"] < 12 <= first[-1]["sim_seconds"]
    config = json.loads((out / "gel" / "seed-0" / "config.json").read_text())
    assert config["world"] | {"fleet": "phones", "deadline": "p80", "late": "partial", "invite": 1.0} == config["world"]
    assert main(["report", str(out)]) == 0
    assert main(["compare", str(out)]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--deadline", "3"], "give a fleet"),
        (["--sim-seconds", "3"], "only devices take time"),
        (["--fleet", "phones", "--deadline", "soon"], "percentile"),
        (["--fleet", "phones", "--deadline", "0.000001"], "No client can do a single step"),
        (["--fleet", "nowhere.csv"], "cannot be read"),
        (["--fleet", "phones", "--eval-every", "often"], "eval-every"),
    ],
)
def test_bad_flags_are_one_line(words: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    try:
        code = main(["run", "synthetic", "fedavg", *words, "--out", str(out)])
    except SystemExit as left:  # of the parser
        code = int(left.code or 0)
    assert code == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1
    assert not out.exists()


def test_a_fleet_is_shown(tmp_path: Path, capsys: Any) -> None:
    assert main(["world", "show"]) == 0
    assert "hospitals" in capsys.readouterr().out
    assert main(["world", "show", "phones:seconds=0.5"]) == 0
    said = capsys.readouterr().out
    assert "as given" in said
    assert "Bonawitz" in said
    assert main(["world", "show", "phones", "--task", "synthetic:users=40", "--deadline", "p50"]) == 0
    said = capsys.readouterr().out
    assert "50.0% of the clients do all of their steps" in said
    assert "slowest" in said
    assert len(said.split("The 10 clients that are cut most, the slowest first: ")[1].split(", ")) == 10
    file = tmp_path / "devices.csv"
    file.write_text("share,seconds,down,up,latency\n1,0.1,8,4,0.5\n1,0.3,8,4,0.5\n")
    assert main(["world", "show", str(file), "--task", "synthetic:users=40"]) == 0
    assert "0.3" in capsys.readouterr().out
    assert main(["world", "show", "phones", "--deadline", "3"]) == 2
    assert main(["world", "show", "phones", "--seed", "-1"]) == 2


def test_only_clients_that_are_cut_are_named_by_their_own_ids() -> None:
    sites = [f"site {k}" for k in range(12)]
    data = fk.FederatedData.from_arrays(torch.zeros(120, 2), [0, 1] * 60, np.repeat(sites, 10))
    task = fk.Task(lambda: torch.nn.Linear(2, 2), fk.cross_entropy, data, batch_size=5)
    console = Console(width=200, record=True, file=io.StringIO())
    fleets.rounds(fk.World(fleet="hospitals", deadline="p80", budget=fk.FixedSteps(20)), task, 0, console)
    said = console.export_text()
    assert "75.0% of the clients do all of their steps" in said
    named = said.split("The clients that are cut, the slowest first: ")[1].partition(".")[0].split(", ")
    assert len(named) == 3 and set(named) < set(sites)


def test_the_table_tells_whom_a_deadline_cuts_and_the_seconds_of_runs_that_reach_no_target(capsys: Any) -> None:
    world = fk.World(fleet="phones", deadline="p50", cohort=8)
    made = fk.compare(fk.tasks.synthetic(users=40), ["fedavg", "gel"], world, rounds=2, seeds=2, target=1.0)
    made.table()
    said = " ".join(capsys.readouterr().out.split())
    cut = "simulated seconds keeps 50 % of all clients from doing all steps of FedAvg's round (devices of seed 0)"
    assert cut in said
    ends = [run.history[-1]["sim_seconds"] for run in made.groups[0].runs]
    assert "seconds in all" in said and f" {sum(ends) / 2:,.1f} " in said
    assert "those of the whole run" in said
