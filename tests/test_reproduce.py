"""The papers' tables: their files, the rule of the verdicts, and a small study from end to end."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from fedkeel import recipes
from fedkeel.cli import main
from fedkeel.errors import InputError
from fedkeel.files import read_json
from fedkeel.lab.reproduce import HEADINGS, estimate, index, page, picture, plan
from fedkeel.lab.reproduce.carry_out import Measured, Place, carry_out, read, wanted_run
from fedkeel.lab.reproduce.picture import curves
from fedkeel.lab.reproduce.progress import Progress
from fedkeel.lab.reproduce.record import Record, Wanted, commit
from fedkeel.lab.reproduce.verdict import counted, gain, judge, per_seed, verdict
from fedkeel.lab.stats import Arm, Gain
from fedkeel.lab.study import Study
from fedkeel.lab.sweep.grid import Choice, Grid
from fedkeel.run.history import History

ASKED = {
    "gel/table2", "gel/table3", "gel/fig7", "gel/fig8", "gel/fig10", "gel/fig11", "gel/table5", "gel/table6",
    "gel-adam/table2", "gel-adam/table4", "gel-adam/fig4", "gel-adam/fig5", "ghbm/fig1", "ghbm/fig5", "ghbm/table1",
    "ghbm/table3", "deltasgd/table1", "fathom/table1",
}  # fmt: skip
TINY: dict[str, Any] = {
    "title": "Tiny", "paper": "A paper, Table 0", "what": "Nothing much.",
    "panel": [{
        "name": "one", "task": "synthetic:users=20", "rounds": 4, "seeds": [3, 2], "cohort": 3, "budget": "2:4",
        "target": 0.99, "metric": "rounds", "paper": {"base": 20, "gel": "10+"}, "controls": ["long"],
        "arms": {"base": "fedavgcm", "gel": "fedavgcm+gel", "long": "fedavgcm:server_lr=match-gel"},
        "claims": [{"better": "gel", "than": "base", "control": "long"}],
    }],
}  # fmt: skip


def tiny(**changes: Any) -> plan.Plan:
    return plan.read("paper/table0", TINY | {"panel": [TINY["panel"][0] | changes]})


class Rows:
    """Counts the rows that runs give."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, wanted: Wanted, row: dict[str, Any]) -> None:
        self.count += 1


def run(made: plan.Plan, root: Path, watch: Any = None, records: Path | None = None) -> list[Measured]:
    return list(carry_out(made, Place(made, root, records), watch or Rows()))


def made_up(accuracies: dict[str, list[list[float]]], **changes: Any) -> Measured:
    """A panel whose arms have these accuracies: arm -> seed -> round."""
    panel = tiny(rounds=len(next(iter(accuracies.values()))[0]) - 1, seeds=[0, 3], **changes).panels[0]
    measured = Measured(panel)
    for name, seeds in accuracies.items():
        histories = [History({"round": t, "accuracy": a, "gradients": 5 * t, "bytes_down": t, "bytes_up": t}
                             for t, a in enumerate(curve)) for curve in seeds]  # fmt: skip
        arm = Arm(name, panel.target, histories, ["done"] * len(seeds), list(range(len(seeds))))
        measured.arms[name] = {panel.arms[name].run: arm}
    return measured


def reaching(*rounds: int, of: int = 40) -> list[list[float]]:
    """Curves that come to the target in these rounds."""
    return [[1.0 if t >= first else 0.1 for t in range(of + 1)] for first in rounds]


def test_every_table_that_was_asked_for_has_a_file_and_the_contents_name_every_file():
    assert set(plan.names()) >= ASKED
    items = [item for paper in plan.contents().values() for item in paper["items"]]
    assert {item["study"] for item in items if "study" in item} == set(plan.names())
    assert all(("why" in item) != ("study" in item) for item in items)


@pytest.mark.parametrize("name", sorted(ASKED))
def test_every_file_can_be_built(name: str):
    made = plan.load(name)  # names of arms, tasks, budgets and claims are checked here
    for panel in made.panels:
        assert panel.tuned_on is None or panel.tuned_on in [other.name for other in made.panels]
        sizes = {arm.grid.size for arm in panel.arms.values() if arm.tuned}
        assert len(sizes) <= 1, f"{panel.name}: every arm of a panel has as many points"
        for arm in panel.arms.values():
            panel.world(arm)
            for text in arm.texts():
                recipes.algorithm(text)


def test_tuning_looks_at_test_data_in_no_file():
    for name in plan.names():
        assert not any(panel.by.startswith("test") for panel in plan.load(name).panels)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"arms": {"base": "fedavg"}}, "Unknown arm"),
        ({"metric": "speed"}, "metric"),
        ({"task": "nowhere"}, "Unknown task"),
        ({"target": None}, "target"),
        ({"colour": "red"}, "Unknown key of a panel"),
        ({"heading": "somewhere"}, "heading"),
        ({"heading": "near"}, "differs"),
        ({"heading": "not run"}, "why"),
        ({"why": "too long"}, "why"),
        ({"by": "luck"}, "by"),
        ({"claims": [{"no_worse": "gel", "than": "base"}]}, "margin"),
        ({"arms": {"base": "fedavg", "gel": {"run": "gel", "grid": {"lr": [1, 2]}}, "long": "sgd"}}, "tuning_seed"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(change: dict[str, Any], error: str):
    with pytest.raises(InputError, match=error):
        tiny(**change)


def test_a_panel_like_another_takes_over_all_but_what_is_its_own():
    first = TINY["panel"][0] | {"heading": "near", "differs": "it is tiny"}
    made = plan.read("x/y", TINY | {"panel": [first, {"name": "two", "like": "one", "rounds": 9}]})
    assert (made.panels[1].rounds, made.panels[1].heading, made.panels[1].differs) == (9, "paper", None)
    assert made.panels[1].arms == made.panels[0].arms
    with pytest.raises(InputError, match="Unknown panel before this one"):
        plan.read("x/y", TINY | {"panel": [{"name": "two", "like": "one"}]})


@pytest.mark.parametrize(
    ("gel", "expected"),
    [
        ((18, 20, 22), "reproduced"),  # half the rounds, as in the paper
        ((30, 32, 33), "direction only"),  # faster for sure, but by less than half of what the paper says
        ((5, 20, 38), "direction only"),  # faster in the mean, seeds do not agree
        ((40, 40, 40), "not reproduced"),
        ((41, 41, 41), "not reproduced"),  # never there
    ],
)
def test_each_verdict_can_come_out(gel: tuple[int, ...], expected: str):
    measured = made_up({"base": reaching(36, 38, 40), "gel": reaching(*gel), "long": reaching(10, 10, 10)})
    (judged,) = judge(measured)
    assert judged.verdict == expected
    assert judged.paper == pytest.approx(1.0)
    assert judged.over_control is not None and judged.over_control[0] is not None
    assert judged.over_control[0] < 0  # the control is ahead, and that is told


def test_no_worse_is_judged_by_its_margin():
    claims = [{"no_worse": "gel", "than": "base", "margin": 0.1}]
    near = made_up(
        {"base": reaching(20, 20, 20), "gel": reaching(21, 21, 21), "long": reaching(1, 1, 1)}, claims=claims
    )
    far = made_up({"base": reaching(20, 20, 20), "gel": reaching(30, 30, 30), "long": reaching(1, 1, 1)}, claims=claims)
    assert [judge(one)[0].verdict for one in (near, far)] == ["reproduced", "not reproduced"]


def test_a_seed_that_diverges_is_never_a_reproduction_and_never_cheap():
    measured = made_up({"base": reaching(36, 38, 40), "gel": reaching(18, 20, 22), "long": reaching(1, 1, 1)})
    runs = next(iter(measured.arms["gel"].values()))
    runs.statuses[0] = "diverged"
    assert judge(measured)[0].verdict == "not reproduced"
    runs.histories[0] = History(runs.histories[0][:4])
    assert per_seed(measured, "gel", "rounds")[0] == 40  # all rounds, not the three it had


def test_missing_the_target_more_cheaply_is_no_reproduction():
    never = {"base": reaching(99, 99, 99), "gel": reaching(99, 99, 99), "long": reaching(1, 1, 1)}
    measured = made_up(never, metric="gradients")
    for history in next(iter(measured.arms["base"].values())).histories:
        for row in history:
            row["gradients"] *= 2  # its whole run costs twice as much
    (judged,) = judge(measured)
    assert judged.gain[1] > 0 and judged.verdict == "undecided"  # neither got there
    assert judged.note == "gel missed the target 3 times, base 3 times" and judged.over_control is not None
    (judged,) = judge(made_up(never | {"base": reaching(1, 99, 99)}, metric="gradients"))
    assert judged.verdict == "not reproduced" and judged.note == "gel missed the target 3 times, base 2 times"
    (judged,) = judge(made_up(never | {"long": reaching(99, 99, 99)}, metric="gradients"))
    assert judged.over_control is None and counted([judged.verdict]) == "0 of 1 claims hold, 1 undecided"


def test_accuracies_are_compared_in_points_and_costs_as_ratios():
    assert gain("accuracy", {0: 71.0, 1: 72.0}, {0: 70.0, 1: 70.0}) == Gain(1.5, *(1.5 + h for h in (-6.353, 6.353)))
    rounds = gain("rounds", {0: 100.0, 1: 100.0, 7: 3.0}, {0: 148.0, 1: 152.0})
    assert rounds is not None and rounds.value == 0.5  # over the seeds that both have
    assert gain("rounds", {0: 1.0}, {1: 1.0}) is None


def test_the_rule_needs_half_of_the_papers_gain_and_an_interval_above_zero():
    assert verdict(Gain(0.2, 0.1, 0.3), 0.4) == "reproduced"
    assert verdict(Gain(0.19, 0.1, 0.3), 0.4) == "direction only"
    assert verdict(Gain(0.3, 0.0, 0.6), 0.4) == "direction only"
    assert verdict(Gain(0.0, -0.1, 0.1), None) == "not reproduced"
    assert verdict(Gain(0.3, 0.2, 0.4), 0.4, edge=True) == "direction only"
    assert counted(["reproduced", "not reproduced"]) == "1 of 2 claims hold"


def test_one_seed_gives_a_number_and_no_verdict():
    measured = made_up({"base": reaching(36), "gel": reaching(18), "long": reaching(10)})
    (judged,) = judge(measured)
    assert judged.verdict is None and judged.gain == [1.0]
    assert "one seed, no verdict" in page.page(tiny(), [measured])


def test_on_a_stand_in_nothing_is_called_reproduced():
    arms = {"base": reaching(36, 38, 40), "gel": reaching(18, 20, 22), "long": reaching(10, 10, 10)}
    measured = made_up(arms, heading="stand-in", differs="tiny")
    assert judge(measured)[0].verdict == "seen"
    text = page.page(tiny(), [measured])
    assert "says nothing about the paper's claims" in text and "| reproduced |" not in text


def test_an_arm_at_the_edge_of_its_grid_cannot_be_beaten_for_sure():
    arms = {"base": reaching(36, 38, 40), "gel": reaching(18, 20, 22), "long": reaching(10, 10, 10)}
    measured = made_up(arms)
    grid = Grid("fedavgcm", {"lr": [0.1, 0.2]})
    flat = [History({"round": t, "validation_accuracy": a} for t in range(5)) for a in (0.2, 0.9)]
    tried = [Arm(str(i), None, [history], ["done"]) for i, history in enumerate(flat)]
    measured.choices["base"] = Choice.of(grid, list(grid.cells()), tried, "validation_accuracy")
    (judged,) = judge(measured)
    assert judged.verdict == "direction only" and "base is on the edge of its grid (lr)" in judged.note


def test_the_page_shows_savings_and_courses():
    measured = made_up({"base": reaching(20, 20, 20), "gel": reaching(10, 10, 10), "long": reaching(5, 5, 5)},
                       shows=["gradients"])  # fmt: skip
    text = page.page(tiny(), [measured])
    assert "| gel | base | +1.00 points | +50.0 % | +50.0 % |" in text
    assert "| gradients, base | 0 | 20 | 50 | 100 | 150 | 200 |" in text


def test_savings_are_against_the_arm_that_a_claim_names_and_over_the_seeds_in_which_it_reached_the_target():
    arms = {"base": reaching(10, 10, 10), "gel": reaching(20, 20, 20), "long": reaching(40, 40, 99)}
    text = page.page(tiny(), [made_up(arms, claims=[{"better": "gel", "than": "long"}])])
    assert "| gel | long | +1.00 points (2 of 3 seeds) | - | - |" in text
    assert "| long | base | -89.00 points |" in text  # no claim is about it: against the first arm


def test_a_gain_is_bounded_where_one_arm_missed_the_target_and_unknown_where_both_did():
    for gel, base, text in (((20, 20, 99), (30, 30, 30), "at most "), ((20, 20, 20), (30, 30, 99), "at least ")):
        (judged,) = judge(made_up({"base": reaching(*base), "gel": reaching(*gel), "long": reaching(1, 1, 1)}))
        assert page.gain_text(judged.gain, "rounds", judged.bound).startswith(text)
    (judged,) = judge(made_up({"base": reaching(30, 30, 99), "gel": reaching(20, 99, 20), "long": reaching(1, 1, 1)}))
    assert page.gain_text(judged.gain, "rounds", judged.bound) == "-"


def test_no_worse_is_undecided_where_all_rounds_are_within_the_margin():
    claims = [{"no_worse": "gel", "than": "base", "margin": 0.1}]
    for base, expected in ((38, "undecided"), (30, "not reproduced")):  # of 40 rounds
        arms = {"base": reaching(base, base, base), "gel": reaching(base, base, 99), "long": reaching(1, 1, 1)}
        (judged,) = judge(made_up(arms, claims=claims, controls=[]))
        assert judged.verdict == expected


def test_seeds_that_are_still_to_come_are_said_beside_a_verdict():
    arms = {"base": reaching(30, 30, 30), "gel": reaching(20, 20), "long": reaching(1, 1, 1)}
    (judged,) = judge(made_up(arms))
    assert judged.verdict is not None and judged.note == "2 of 3 seeds so far"


def test_the_commit_of_a_record_is_marked_where_the_package_differs_and_nowhere_else(tmp_path: Path):
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *words], check=True)

    package, page = tmp_path / "src", tmp_path / "docs.md"
    package.mkdir()
    (package / "code.py").write_text("")
    git("init", "--quiet")
    assert commit(package) == "unknown"  # nothing is committed yet
    git("add", ".")
    git("commit", "--quiet", "--message=one")
    page.write_text("a result\n")
    commit.cache_clear()
    clean = commit(package)
    assert len(clean) >= 7 and "dirty" not in clean
    (package / "more.py").write_text("")
    commit.cache_clear()
    assert commit(package) == f"{clean}-dirty"
    commit.cache_clear()


def test_the_committed_pages_are_what_the_records_and_files_give(tmp_path: Path):
    committed = Path(__file__).parent.parent / "docs" / "results"
    shutil.copytree(committed, tmp_path / "results")
    index.write_index(tmp_path / "results")
    for file in sorted(committed.rglob("*.md")):
        written = (tmp_path / "results" / file.relative_to(committed)).read_text()
        assert written == file.read_text(), f"{file.name}: fedkeel reproduce --index --out docs/results writes it anew"


def test_curves_are_drawn_once_an_arm_has_some():
    arms = {"base": reaching(36, 38, 40), "gel": reaching(18, 20, 22), "long": reaching(10, 10, 10)}
    drawn = curves(made_up(arms))
    assert drawn is not None and drawn.count("<polyline") == 4  # and the target
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert curves(Measured(tiny().panels[0])) is None


def test_curves_of_a_study_with_a_clock_are_drawn_over_simulated_seconds():
    panel = tiny(fleet="phones", sim_seconds=100, seeds=[0, 2], metric="last").panels[0]
    measured = Measured(panel)
    paces = {3: [0.1, 0.3, 0.5], 7: [0.2, 0.4, 0.6]}  # rounds between evaluations, which share none but round 0
    histories = []
    for pace, curve in paces.items():
        rows = [{"round": pace * k, "accuracy": value, "sim_seconds": 50.0 * k} for k, value in enumerate(curve)]
        histories.append(History(rows))
    measured.arms["base"] = {panel.arms["base"].run: Arm("base", None, histories, ["done"] * 2, [0, 1])}
    drawn = curves(measured)
    assert drawn is not None and ">simulated seconds<" in drawn and ">100<" in drawn
    points = drawn.partition('fill="none" points="')[2].partition('"')[0].split()
    heights = [float(point.partition(",")[2]) for point in points]
    assert len(points) == 51 and len(set(heights[:25])) == 1 and heights[24] > heights[25] > heights[50]
    assert "by simulated seconds, mean over seeds" in page.page(tiny(), [measured])


def test_a_study_is_only_read_the_second_time_and_writes_its_page(tmp_path: Path):
    made, first, second = tiny(), Rows(), Rows()
    found = run(made, tmp_path / "runs", first, tmp_path / "out")
    assert first.count == 3 * 2 * 5
    again = run(made, tmp_path / "elsewhere", second, tmp_path / "out")
    assert second.count == 0
    assert page.page(made, again) == page.page(made, found)
    assert [one.arms for one in read(made, Place(made, tmp_path, tmp_path / "out"))] == [one.arms for one in found]
    text = index.write_page(made, found, tmp_path / "out").read_text()
    assert (tmp_path / "out/paper/table0/one.svg").exists() and "](table0/one.svg)" in text
    assert "**control**: long" in text and "| 20 |" in text and "| 10+ |" in text
    assert "0 of 1 claims hold" in text  # no arm is at 99 % after four rounds
    assert "fedkeel run synthetic:users=20 fedavgcm --cohort 3 --budget 2:4 --rounds 4 --target 0.99 --seed 3" in text


def test_the_command_on_the_page_repeats_the_line(tmp_path: Path):
    made = tiny(seeds=[3, 1])
    (measured,) = run(made, tmp_path / "runs")
    words = page.command(made.panels[0], "fedavgcm+gel").split(" ")[1:]
    assert main([*words, "--out", str(tmp_path / "d")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "d" / "history.jsonl").read_text().splitlines()]
    assert [row["accuracy"] for row in measured.histories("gel")[0]] == pytest.approx(
        [r["accuracy"] for r in rows], abs=1e-6
    )


def test_a_record_is_small_whole_and_of_its_own_run(tmp_path: Path):
    made = tiny()
    run(made, tmp_path / "runs", records=tmp_path)
    panel = made.panels[0]
    wanted = wanted_run(panel, panel.arms["gel"], "fedavgcm+gel", 3)
    file = Place(made, tmp_path, tmp_path).record_of(wanted)
    assert file == tmp_path / "paper/table0/runs/one/fedavgcm+gel/seed-3.json" and file.stat().st_size < 3000
    record = Record.read(file, wanted)
    assert (
        record is not None and record.status == "done" and [row["round"] for row in record.history] == [0, 1, 2, 3, 4]
    )
    other = wanted_run(tiny(rounds=5).panels[0], panel.arms["gel"], "fedavgcm+gel", 3)
    with pytest.raises(InputError, match="belongs to another run: its rounds is 4, not 5"):
        Record.read(file, other)
    file.write_text(file.read_text().replace("done", "lost"))
    with pytest.raises(InputError, match="checksum"):
        Record.read(file, wanted)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_panel_whose_runs_were_compiled_has_compile_in_its_commands(tmp_path: Path, compiled: bool):
    made = tiny()
    place = Place(made, tmp_path / "runs", tmp_path, compile=compiled)
    list(carry_out(made, place, Rows()))
    measured = list(carry_out(made, Place(made, tmp_path / "runs", tmp_path), Rows()))  # read, not run again
    assert {record.compiled for one in measured for record in one.records} == {compiled}
    commands = [line for line in page.page(made, measured).splitlines() if line.startswith("fedkeel run")]
    assert commands and all(line.endswith(" --compile") == compiled for line in commands)


def test_a_stopped_study_goes_on_to_the_same_figures(tmp_path: Path):
    made = tiny()

    class Stops(Rows):
        def __call__(self, wanted: Wanted, row: dict[str, Any]) -> None:
            super().__call__(wanted, row)
            if self.count == 13:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "cut", Stops())
    part = list(read(made, Place(made, tmp_path / "cut")))
    assert sum(len(one.records) for one in part) == 2  # those that had ended
    assert "not run yet" in page.page(made, part)
    whole = page.page(made, run(made, tmp_path / "whole"))
    assert [_without_time(page.page(made, run(made, tmp_path / "cut")))] == [_without_time(whole)]


def _without_time(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "hours in all" not in line)


def test_what_a_killed_study_was_writing_is_removed(tmp_path: Path):
    made = tiny(seeds=[3, 1])
    place = tmp_path / "paper/table0"
    for file in (place / "one/fedavgcm/.seed-3.settings.json.7", place / "records/one/fedavgcm/.seed-3.json.8"):
        file.parent.mkdir(parents=True)
        file.write_text("{")
    run(made, tmp_path)
    assert [file for file in tmp_path.rglob(".*") if file.name != ".fedkeel.json"] == []


def test_runs_of_other_settings_are_not_taken_for_this_studys(tmp_path: Path):
    run(tiny(), tmp_path)
    with pytest.raises(InputError, match="belongs to another run: its rounds is 4, not 5"):
        run(tiny(rounds=5), tmp_path)


def test_the_best_of_a_grid_is_chosen_on_validation_data_and_reported_runs_train_on_all(tmp_path: Path):
    grid = {"run": "fedavg", "grid": {"lr": [0.1, 0.01, 1e-6]}}
    arms = {"best": grid, "mean": grid | {"take": "mean"}}
    made = tiny(arms=arms, controls=[], paper={}, claims=[], metric="last", tuning_seed=9, tuning_rounds=2)
    (measured,) = run(made, tmp_path)
    (best,) = measured.arms["best"]
    assert measured.choices["best"].best is not None and measured.choices["best"].best.arm.name == best
    assert len(measured.arms["mean"]) == 3
    tuning = [
        json.loads(f.read_text())["settings"] for f in (tmp_path / "paper/table0/records/one/tuning").rglob("*.json")
    ]
    assert {(one["validation"], one["rounds"], tuple(one["seeds"])) for one in tuning} == {(0.1, 2, (9,))}
    reported = json.loads((tmp_path / f"paper/table0/records/one/{best.replace(':', '_')}/seed-3.json").read_text())
    assert reported["settings"]["validation"] == 0
    text = page.page(made, [measured])
    assert (
        "Tuned on seed 9, 2 rounds, evaluated every 1, by validation accuracy" in text and "every combination" in text
    )


def test_a_winner_at_the_edge_extends_the_grid_at_most_three_times(tmp_path: Path):
    arms = {"best": {"run": "fedavg", "grid": {"lr": [1e-6, 1e-5]}}}  # larger is always better here
    made = tiny(
        arms=arms, controls=[], paper={}, claims=[], metric="last", tuning_seed=9, seeds=[3, 1], by="train_loss"
    )
    (measured,) = run(made, tmp_path)
    assert measured.choices["best"].grid.values["lr"] == [1e-6, 1e-5, 1e-4, 1e-3, 0.01]
    assert measured.edges == {"best": ["lr"]}
    assert "on the edge of the grid in lr" in page.page(made, [measured])


def test_a_tuned_study_that_is_done_has_nothing_left_and_needs_no_data(tmp_path: Path, monkeypatch: Any):
    arms = {"best": {"run": "fedavg", "grid": {"lr": [1e-6, 0.1, 0.01]}}}  # the first cell is not the best
    made = tiny(arms=arms, controls=[], paper={}, claims=[], metric="last", tuning_seed=9, seeds=[3, 1])
    run(made, tmp_path)
    monkeypatch.setattr(Study, "made_task", lambda self: pytest.fail("the data were read"))
    (left,) = estimate.left(made, Place(made, tmp_path))
    assert left.runs == [] and left.known == 1


def test_rates_of_another_panel_are_taken_over(tmp_path: Path):
    arms = {"best": {"run": "fedavg", "grid": {"lr": [0.1, 1e-6]}}}
    one = TINY["panel"][0] | {
        "arms": arms,
        "controls": [],
        "paper": {},
        "claims": [],
        "metric": "last",
        "tuning_seed": 9,
    }
    made = plan.read("x/y", TINY | {"panel": [one, {"name": "two", "like": "one", "tuned_on": "one"}]})
    first, second = run(made, tmp_path)
    assert list(second.arms["best"]) == list(first.arms["best"]) and second.choices == first.choices
    assert [panel.name for panel in plan.chosen(made, ["two"]).panels] == ["one", "two"]


def test_missing_data_stop_a_study_before_anything_is_run(tmp_path: Path, monkeypatch: Any, capsys: Any):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "nothing"))
    assert main(["reproduce", "gel/table2", "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "fedkeel data get mnist" in error and not (tmp_path / "runs").exists()
    panels = ["--panel", "Synthetic, untuned", "--panel", "MNIST writers, untuned"]
    assert main(["reproduce", "gel/table2", *panels, "--dry-run", "--json"]) == 0  # the other panels are estimated
    first, second = json.loads(capsys.readouterr().out)["panels"]
    assert first["hours"] > 0 and (second["to run"], second["hours"]) == (15, None)
    assert main(["reproduce", "gel/table2", *panels[2:], "--dry-run"]) == 0  # without an estimate there are no hours
    said = capsys.readouterr().out
    assert "Not estimated" in said and "hours on this machine" not in said


def test_what_is_marked_as_not_run_is_run_only_by_name():
    made = plan.read("x/y", TINY | {"panel": [TINY["panel"][0] | {"heading": "not run", "why": "no time", "hours": 3}]})
    with pytest.raises(InputError, match="choose one with --panel"):
        plan.chosen(made, None)
    assert [panel.name for panel in plan.chosen(made, ["one"]).panels] == ["one"]
    assert plan.chosen(made, ["one"], seeds=1).panels[0].seeds == [3]
    with pytest.raises(InputError, match="Unknown panel"):
        plan.chosen(made, ["three"])
    text = page.page(made, [Measured(made.panels[0])])
    assert "Not run: no time. About 3 hours on two cores." in text
    for name, arm in made.panels[0].arms.items():
        assert f"| {name} | `{arm.run}` |  | {made.panels[0].paper.get(name, '')} |" in text


def test_some_arms_of_a_panel_run_alone_and_the_others_follow(tmp_path: Path):
    made = tiny(seeds=[3, 1])
    some = plan.chosen(made, None, arms=["base", "gel"])
    [panel] = some.panels
    assert list(panel.arms) == ["base", "gel"] and panel.controls == [] and panel.claims[0].control is None
    assert list(plan.chosen(made, None, arms=["long"]).panels[0].paper) == []
    with pytest.raises(InputError, match="Unknown arm of paper/table0 'GEL'"):
        plan.chosen(made, None, arms=["GEL"])
    [measured] = run(some, tmp_path)
    assert list(measured.arms) == ["base", "gel"]
    rows = Rows()
    run(made, tmp_path, rows)
    assert rows.count == panel.rounds + 1  # those of the arm that was left


def test_a_dry_run_counts_what_is_left_and_writes_nothing(tmp_path: Path):
    made = tiny(seeds=[3, 1])
    place = Place(made, tmp_path)
    (left,) = estimate.left(made, place)
    assert (
        (len(left.runs), left.known) == (3, 0) and left.seconds > 0 and left.steps > 0 and not list(tmp_path.iterdir())
    )
    run(made, tmp_path)
    (left,) = estimate.left(made, place)
    assert (len(left.runs), left.known, left.seconds) == (0, 3, 0)


def test_every_arm_has_its_own_costs_and_asynchronous_ones_their_own_rounds(tmp_path: Path):
    arms = {"short": {"run": "fedavg", "budget": "2"}, "long": {"run": "fedavg", "budget": "20"}, "async": "fedbuff"}
    made = tiny(arms=arms, controls=[], paper={}, claims=[], fleet="phones", sim_seconds=200.0, eval_every="20s",
                target=None, metric="last", heading="ours", seeds=[3, 1])  # fmt: skip
    (left,) = estimate.left(made, Place(made, tmp_path))
    assert left.costs["long"].steps == 10 * left.costs["short"].steps
    (measured,) = run(made, tmp_path)
    for wanted in left.runs:
        (history,) = measured.histories(wanted.arm)
        rounds = history[-1]["round"]
        assert rounds / 2 < left.rounds_of(wanted) < 2 * rounds


def test_the_time_left_is_that_of_runs_that_are_not_known(tmp_path: Path):
    made = tiny(seeds=[3, 2])
    run(tiny(seeds=[3, 1]), tmp_path)
    place = Place(made, tmp_path)
    text = io.StringIO()
    with Progress(estimate.left(made, place), Console(file=text, width=200)) as progress:
        total = progress.total
        list(carry_out(made, place, progress.row))
    assert progress.total == total and progress.done == pytest.approx(total)
    assert len(text.getvalue().splitlines()) == 3 and "0:00:00 left" in text.getvalue().splitlines()[-1]


def test_the_last_rounds_of_a_curve_are_drawn_as_means(tmp_path: Path):
    (measured,) = run(tiny(rounds=4, eval_every=2, eval_last=2, target=None, metric="last", paper={}), tmp_path)
    (history,) = measured.histories("gel")[:1]
    assert [row["round"] for row in history if row["accuracy"] is not None] == [0, 2, 3, 4]
    assert [round for round, _ in picture._mean(measured, "gel")] == [0, 2, 4]
    shared = [one[-2]["accuracy"] + one[-1]["accuracy"] for one in measured.histories("gel")]
    assert picture._mean(measured, "gel")[-1][1] == pytest.approx(sum(shared) / len(shared) / 2)


def test_processes_give_the_records_that_this_one_gives(tmp_path: Path):
    arms = {"tuned": {"run": "fedavg", "grid": {"lr": [0.1, 1.0, 10.0]}}, "plain": "gel"}
    made = tiny(arms=arms, controls=[], paper={}, claims=[], metric="last", tuning_seed=9)
    records = {}
    for jobs in (1, 2):
        place = Place(made, tmp_path / str(jobs))
        left = estimate.left(made, place, jobs=jobs)
        assert left[0].seconds == pytest.approx(sum(map(left[0].seconds_of, left[0].runs)) / jobs)
        with Progress(left, Console(file=io.StringIO())) as progress:
            list(carry_out(made, place, progress.row, jobs=jobs))
        assert len(progress.ended) == 7 and progress.done == pytest.approx(progress.total)
        files = {file.relative_to(place.records): read_json(file) for file in place.records.rglob("*.json")}
        records[jobs] = {name: document | {"wall_seconds": 0, "commit": ""} for name, document in files.items()}
    assert len(records[1]) == 7 and records[1] == records[2]


def test_a_panel_can_have_devices_and_end_by_the_clock(tmp_path: Path):
    made = tiny(fleet="phones", sim_seconds=60.0, eval_every="20s", target=None, metric="last", paper={},
                heading="ours", shows=["sim_seconds"])  # fmt: skip
    (left,) = estimate.left(made, Place(made, tmp_path))
    assert left.seconds > 0 and left.rounds_of(left.runs[0]) > 1
    (measured,) = run(made, tmp_path)
    assert all(history[-1]["sim_seconds"] >= 60 for history in measured.histories("gel"))
    text = page.page(made, [measured])
    assert "60 simulated seconds" in text and "--fleet phones" in text and "| sim_seconds, gel |" in text


def test_the_command_runs_a_panel_from_end_to_end(tmp_path: Path, monkeypatch: Any, capsys: Any):
    monkeypatch.setattr(plan, "load", lambda name: tiny())
    words = [
        "reproduce",
        "paper/table0",
        "--runs",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "out"),
        "--seeds",
        "1",
    ]
    assert main([*words, "--dry-run"]) == 0
    assert "Nothing was run" in capsys.readouterr().out and not (tmp_path / "runs").exists()
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "one seed, no verdict" in shown.out and "0:00:00 left of the study" in shown.err
    assert (tmp_path / "out/paper/table0.md").read_text().startswith("# Tiny")
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["panels"][0]["values"].keys() == {"base", "gel", "long"}


def test_the_index_separates_the_headings(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["reproduce", "--index", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert capsys.readouterr().out == text
    for title in HEADINGS.values():
        assert f"## {title}" in text
    assert "| GHBM and FedHBM | - | - | - | 20 |" in text  # without records
    not_run = text.split("## Not run")[1]  # whatever its heading is to be
    table2 = "[GEL, Figure 3, Figure 5, Table II, Figure 6, Figure 9](gel/table2.md)"
    assert f"{table2} | Synthetic, tuned | planned, at the paper's setting |" in not_run
    assert "(the idea of guessing): a drawing" in text


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]):
    assert main(["reproduce", "--list"]) == 0
    assert "gel-adam/table4" in capsys.readouterr().out
    assert main(["reproduce", "gel/table22"]) == 2
    assert "Did you mean 'gel/table2'?" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
