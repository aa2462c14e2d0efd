"""The papers' tables: their files, the rule of the verdicts, and a small study from end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedkeel import recipes
from fedkeel.cli import main
from fedkeel.errors import InputError
from fedkeel.lab.reproduce import SCALES, page, plan
from fedkeel.lab.reproduce.carry_out import Measured, carry_out
from fedkeel.lab.reproduce.verdict import gain, judge, overall, verdict
from fedkeel.lab.stats import Arm, Gain
from fedkeel.lab.study import Study
from fedkeel.run.history import History

ASKED = {
    "gel/table2", "gel/table3", "gel/fig8", "gel/fig9", "gel/fig10", "gel/fig11", "gel/table5", "gel/table6",
    "gel-adam/table2", "gel-adam/table4", "gel-adam/fig4", "ghbm/fig1", "ghbm/fig5", "ghbm/table1", "ghbm/table3",
    "deltasgd/table1", "fathom/table1", "fathom/fig3",
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
    return plan.read("paper/table0", "small", TINY | {"panel": [TINY["panel"][0] | changes]})


class Quiet:
    """Counts the rounds that were really run."""

    def __init__(self) -> None:
        self.rows = 0

    def row(self, algorithm: str, seed: int, row: dict[str, Any]) -> None:
        self.rows += 1

    def began(self, config: dict[str, Any]) -> None: ...

    @contextmanager
    def __call__(self, study: Study) -> Iterator[Quiet]:
        yield self


def made_up(accuracies: dict[str, list[list[float]]], **changes: Any) -> Measured:
    """A panel whose arms have these accuracies: arm -> seed -> round."""
    panel = tiny(rounds=len(next(iter(accuracies.values()))[0]) - 1, seeds=[0, 3], **changes).panels[0]
    measured = Measured(panel)
    for name, seeds in accuracies.items():
        histories = [History({"round": t, "accuracy": a, "gradients": 5 * t, "wall_seconds": 0.0}
                             for t, a in enumerate(curve)) for curve in seeds]  # fmt: skip
        measured.arms[name] = {panel.arms[name].run: Arm(name, panel.target, histories, ["done"] * len(seeds))}
    return measured


def reaching(*rounds: int, of: int = 40) -> list[list[float]]:
    """Curves that come to the target in these rounds."""
    return [[1.0 if t >= first else 0.1 for t in range(of + 1)] for first in rounds]


def test_every_table_that_was_asked_for_has_a_file_and_the_contents_name_every_file():
    assert set(plan.names()) >= ASKED
    items = [item for paper in plan.contents().values() for item in paper["items"]]
    assert {item["study"] for item in items if "study" in item} == set(plan.names())
    assert all(("why" in item) != ("study" in item) for item in items)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", sorted(ASKED))
def test_every_file_can_be_built_at_both_scales(name: str, scale: str):
    made = plan.load(name, scale)  # names of arms, tasks, budgets and claims are checked here
    for panel in made.panels:
        assert len(panel.seeds) >= 3
        assert panel.tuned_on is None or panel.tuned_on in [other.name for other in made.panels]
        for arm in panel.arms.values():
            panel.world(arm)
            for text in arm.cells():
                recipes.algorithm(text)


@pytest.mark.parametrize("name", sorted(ASKED))
def test_a_stand_in_is_named_wherever_the_small_scale_takes_another_task(name: str):
    for small, full in zip(plan.load(name, "small").panels, plan.load(name, "paper").panels, strict=True):
        assert small.skip or small.task == full.task or small.stand_in


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"arms": {"base": "fedavg"}}, "Unknown arm"),
        ({"metric": "speed"}, "metric"),
        ({"task": "nowhere"}, "Unknown task"),
        ({"seeds": [0, 1]}, "at least two"),
        ({"target": None}, "target"),
        ({"colour": "red"}, "Unknown key of a panel"),
        ({"claims": [{"no_worse": "gel", "than": "base"}]}, "margin"),
        ({"arms": {"base": "fedavg", "gel": {"run": "gel:lr={lr}"}, "long": "sgd"}}, "no grid"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(change: dict[str, Any], told: str):
    with pytest.raises(InputError, match=told):
        tiny(**change)


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
    assert page._arm(measured, "gel")["values"][0] == 40  # all rounds, not the three it had


def test_missing_the_target_more_cheaply_is_no_reproduction():
    never = {"base": reaching(99, 99, 99), "gel": reaching(99, 99, 99), "long": reaching(1, 1, 1)}
    measured = made_up(never, metric="gradients")
    for history in next(iter(measured.arms["base"].values())).histories:
        for row in history:
            row["gradients"] *= 2  # its whole run costs twice as much
    (judged,) = judge(measured)
    assert judged.gain[1] > 0 and judged.verdict == "not reproduced"


def test_accuracies_are_compared_in_points_and_costs_as_ratios():
    assert gain("accuracy", [71.0, 72.0], [70.0, 70.0]).value == 1.5
    assert gain("rounds", [100.0, 100.0], [148.0, 152.0]).value == 0.5
    assert gain("lr", [2.0, 2.0], [1.0, 1.0]).value == 1.0


def test_the_rule_needs_half_of_the_papers_gain_and_an_interval_above_zero():
    assert verdict(Gain(0.2, 0.1, 0.3), 0.4) == "reproduced"
    assert verdict(Gain(0.19, 0.1, 0.3), 0.4) == "direction only"
    assert verdict(Gain(0.3, 0.0, 0.6), 0.4) == "direction only"
    assert verdict(Gain(0.0, -0.1, 0.1), None) == "not reproduced"
    assert overall(["reproduced", "not reproduced"]).startswith("not reproduced (2 claims")


def test_a_study_runs_is_only_read_the_second_time_and_writes_its_page(tmp_path: Path):
    made, first, second = tiny(), Quiet(), Quiet()
    told = page.result(made, carry_out(made, tmp_path / "runs", first))
    assert first.rows == 3 * 2 * 5
    again = page.result(made, carry_out(made, tmp_path / "runs", second))
    assert second.rows == 3 * 2  # the last row of each run
    assert again["panels"] == told["panels"]
    file = page.write(told, tmp_path / "out")
    text = file.read_text()
    assert "**control**: long" in text and "| 20 |" in text and "10+ ↓" in text
    assert "not reproduced" in told["verdict"]  # nobody is at 99 % after four rounds
    assert json.loads(file.with_suffix(".json").read_text())["verdict"] == told["verdict"]


def test_a_stopped_study_goes_on_to_the_same_figures(tmp_path: Path):
    made = tiny()

    class Stops(Quiet):
        def row(self, algorithm: str, seed: int, row: dict[str, Any]) -> None:
            super().row(algorithm, seed, row)
            if self.rows == 13:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(made, tmp_path / "cut", Stops())
    told = page.result(made, carry_out(made, tmp_path / "cut", Quiet()))
    whole = page.result(made, carry_out(made, tmp_path / "whole", Quiet()))
    assert told["panels"] == whole["panels"]


def test_runs_of_other_settings_are_not_taken_for_this_studys(tmp_path: Path):
    carry_out(tiny(), tmp_path, Quiet())
    (measured,) = carry_out(tiny(rounds=5), tmp_path, Quiet())
    assert measured.why_not is not None and "another rounds" in measured.why_not


def test_the_best_of_a_grid_is_chosen_on_the_tuning_seed_and_the_mean_is_over_all(tmp_path: Path):
    grid = {"run": "fedavg:lr={lr}", "grid": {"lr": [0.1, 1e-6]}}
    arms = {"best": grid, "mean": grid | {"take": "mean"}}
    made = tiny(arms=arms, controls=[], paper={}, claims=[], metric="last", tuning_seed=9)
    (measured,) = carry_out(made, tmp_path, Quiet())
    assert list(measured.arms["best"]) == ["fedavg:lr=0.1"]
    assert len(measured.arms["mean"]) == 2
    told = page.result(made, [measured])
    assert told["panels"][0]["cells"].keys() == {"mean"}


def test_what_is_left_out_and_what_is_not_here_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "nothing"))
    left_out, absent = tiny(skip="too large"), tiny(task="femnist")
    verdicts = [page.result(made, carry_out(made, tmp_path, Quiet()))["verdict"] for made in (left_out, absent)]
    assert verdicts[0] == "not run (one: too large)"
    assert verdicts[1].startswith("could not run here (one: The data set 'femnist' is not here")


def test_the_index_answers_for_every_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["reproduce", "--index", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert capsys.readouterr().out == text
    for paper in plan.contents().values():
        assert paper["title"] in text
    assert "not run (`fedkeel reproduce gel/table2`)" in text and "not covered: a drawing" in text


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]):
    assert main(["reproduce", "--list"]) == 0
    assert "gel-adam/table4" in capsys.readouterr().out
    assert main(["reproduce", "gel/table22"]) == 2
    assert "Did you mean 'gel/table2'?" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
