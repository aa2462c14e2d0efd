"""The report: what it says, that names stay text, and that a real browser draws it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.lab.compare import top_share
from fedkeel.lab.report import replay, verdict
from fedkeel.lab.report.page import POINTS, as_html, curve, document, read
from fedkeel.lab.report.runs import Group, Ran, Reader, arms, labels
from fedkeel.lab.report.terminal import ranks, table
from fedkeel.lab.stats import Arm, Gain, difference
from fedkeel.run.history import History

EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def ran(name: str, seed: int, accuracies: list[Any], status: str = "done", **config: Any) -> Ran:
    """A run made by hand: one row per accuracy, 10 gradients and 1 MB each way per round."""
    rows = [
        {"round": t, "accuracy": a, "loss": None, "gradients": 10 * t, "bytes_down": t * 10**6, "bytes_up": t * 10**6}
        for t, a in enumerate(accuracies)
    ]
    world = {"cohort": 2, "budget": "3", "expected_steps": None, "sampler": "uniform"}
    known = {"task": "no-such-task", "algorithm": name, "world": world, "rounds": len(rows) - 1, "seed": seed,
             "target": 0.8, "rerunnable": True, "dtype": "float32"}  # fmt: skip
    return Ran(Path("runs", name, f"seed-{seed}"), known | config, {"python": "3"}, History(rows), status)


def words(*runs: Ran) -> dict[str, Any]:
    return verdict.in_words(verdict.compare(arms(runs)))


def test_the_faster_arm_is_named_with_its_price() -> None:
    slow = [ran("slow", s, [0, 0.1, 0.2, 0.3, 0.8 + s / 1000, 0.8 + s / 1000]) for s in range(3)]
    fast = [ran("fast", s, [0, 0.5, 0.8, 0.9, 0.9, 0.9 + s / 500]) for s in range(3)]
    said = words(*slow, *fast)
    assert said["headline"] == "Use fast."
    assert "fast took 2.0 rounds, 20 gradients and 4 MB (means over 3 seeds)" in said["points"][0]
    assert "saves 2.0 rounds" in said["points"][1]  # in all seeds: no interval is known


def test_arms_whose_interval_includes_0_cannot_be_told_apart() -> None:
    one = [ran("one", s, [0, a], target=None) for s, a in enumerate((0.5, 0.6, 0.7))]
    two = [ran("two", s, [0, a], target=None) for s, a in enumerate((0.6, 0.5, 0.71))]
    assert words(*one, *two)["headline"] == "two ends best, but its lead over one is not clear."
    (line,) = verdict.versus(verdict.compare(arms([*one, *two])))
    assert line["end_said"] == "not clear"


def test_one_seed_gives_no_interval_and_says_so() -> None:
    said = words(ran("one", 0, [0, 0.85]), ran("two", 0, [0, 0.5]))
    assert "one seed" in said["headline"]
    assert any("--seeds 5" in point for point in said["points"])
    assert difference({0: 1.0}, {0: 2.0}) == Gain(-1.0)


def test_a_seed_that_missed_the_target_never_counts_as_if_it_had_not() -> None:
    base = [ran("base", s, [0, 0.1, 0.2, 0.3, 0.4 + s / 100]) for s in range(2)]
    good = [ran("good", s, [0, 0.8, 0.9, 0.9, 0.9 + s / 100]) for s in range(2)]
    c = verdict.compare(arms([*base, *good]))
    cells = verdict.table(c)["rows"]
    assert cells[0][0] == "–"  # no mean of rounds that were never enough
    assert cells[1][3] == "> +300.0%"  # at least: four rounds were not enough for what took one
    assert any("base did not reach 0.8 in 2 of 2 seeds" in line for line in verdict.in_words(c)["warnings"])
    assert c.saved(c.arms[0], c.arms[1]) is None


def test_a_target_nobody_reached_leaves_whole_runs_to_compare() -> None:
    runs = [ran(name, s, [0, 0.1, a + s / 100]) for name, a in (("base", 0.3), ("good", 0.5)) for s in range(2)]
    c = verdict.compare(arms(runs))
    assert verdict.table(c)["heads"][0] == "whole run: rounds"
    assert verdict.table(c)["rows"][0][:2] == ["2.0", "20"]
    said = verdict.in_words(c)
    assert said["headline"] == "Use good."
    assert said["points"][0].startswith(
        "No run reached 0.8, so whole runs are compared. The whole run of good took 2.0"
    )
    assert said["warnings"] == []


def test_a_diverged_arm_is_not_recommended_however_well_it_stood() -> None:
    bad = [ran("bad", s, [0, 0.99], "diverged" if s else "done", target=None) for s in range(2)]
    good = [ran("good", s, [0, 0.5 + s / 10], target=None) for s in range(2)]
    said = words(*bad, *good)
    assert said["headline"] == "Use good."
    assert "bad diverged in 1 of 2 seeds." in said["warnings"]


@pytest.mark.parametrize("target", [None, 0.8])
def test_arms_that_share_no_seed_cannot_be_told_apart(target: float | None) -> None:
    one = [ran("one", s, [0, 0.5, 0.8 + s / 1000], target=target) for s in range(3)]
    two = [ran("two", s, [0, 0.9, 0.9 + s / 1000], target=target) for s in range(3, 6)]
    said = words(*one, *two)
    assert "its lead over one is not clear" in said["headline"]
    assert said["points"][-1].startswith("No other arm shares a seed with two, so there is no interval.")
    later = [ran("two", s, [0, 0.9, 0.9], target=target) for s in range(2, 5)]
    assert "The arms share one seed" in words(*one, *later)["points"][-1]
    both = [ran("both", s, [0, 0.1, 0.8 - s / 1000], target=target) for s in range(2, 6)]
    assert "0 to 3 paired seeds" in words(*one, *two, *both)["points"][-1]


def test_the_best_end_is_a_reason_only_where_seeds_are_shared() -> None:
    hasty = [ran("hasty", s, [0, 0.8, 0.8, 0.8 + s / 1000]) for s in range(3)]
    later = [[0, 0.1, 0.8, 0.95 + s / 1000] for s in range(3)]
    assert "later for the best" in words(*hasty, *(ran("later", s, later[s]) for s in range(3)))["headline"]
    apart = words(*hasty, *(ran("later", s + 3, later[s]) for s in range(3)))["headline"]
    assert apart == "hasty takes the fewest rounds to 0.8, but its lead over later is not clear."


@pytest.mark.parametrize("accuracies", [[0, 0.8, 0.9], [0, 0.1, 0.2]])
def test_the_page_and_the_terminal_say_the_same_speedup_of_an_arm_that_diverged(accuracies: list[float]) -> None:
    base = [ran("base", s, [0, 0.1, 0.8]) for s in range(2)]
    bad = [ran("bad", s, accuracies, "diverged") for s in range(2)]
    c = verdict.compare(arms([*base, *bad]))
    one, two = (Arm("", 0.8, [r.history for r in runs], [r.status for r in runs]) for runs in (base, bad))
    assert c.arms[1].speedup(c.arms[0]) == two.speedup(one)
    assert (two.speedup(one).value == 1) is (0.8 in accuracies)


def test_an_arm_with_fewer_gradients_is_named_beside_the_one_with_fewer_rounds() -> None:
    frugal = [ran("frugal", s, [0, 0.1, 0.8, 0.9]) for s in range(2)]
    hasty = [ran("hasty", s, [0, 0.8, 0.9, 0.9]) for s in range(2)]
    for run in hasty:
        for row in run.history:
            row["gradients"] *= 3
    said = words(*frugal, *hasty)
    assert said["headline"] == "Use hasty for the fewest rounds to 0.8, frugal for the fewest gradients."


def test_of_losses_the_smaller_is_better() -> None:
    def lossy(name: str, seed: int, loss: float) -> Ran:
        run = ran(name, seed, [None, None])
        for row in run.history:
            row["loss"] = loss + seed
        return run

    said = words(*(lossy("high", s, 2.0) for s in range(2)), *(lossy("low", s, 1.0) for s in range(2)))
    assert said["headline"] == "Use low."
    assert "1.0000 better than high" in said["points"][1]


def test_runs_with_rounds_left_are_not_counted() -> None:
    said = words(ran("one", 0, [0, 0.9]), ran("one", 1, [0, 0.1], "stopped"))
    assert "one: 1 run has not ended; the table leaves out such runs." in said["warnings"]


@pytest.mark.parametrize("seeds", [1, 3])
def test_there_is_no_verdict_before_all_arms_have_ended(seeds: int) -> None:
    """fedavg has ended; gel, which wins in the end, is at round 2 of 4."""
    ended = [ran("fedavg", s, [0, 0.5, 0.55, 0.6, 0.81 + s / 1000]) for s in range(seeds)]
    behind = [ran("gel", s, [0, 0.3, 0.4], "stopped", rounds=4) for s in range(seeds)]
    made = document(arms([*ended, *behind]), replays=False)
    said = made["verdict"]
    assert said["headline"] == "So far, at round 2 of 4: fedavg 0.5500, gel 0.4000 (test accuracy)."
    assert f"{seeds} of {2 * seeds} runs have ended. The verdict follows when all of them have." in said["points"]
    assert made["versus"] == []
    assert not any(word in line for line in [said["headline"], *said["points"]] for word in ("Use", "best", "better"))
    after = [ran("gel", s, [0, 0.3, 0.4, 0.9, 0.95 + s / 500]) for s in range(seeds)]
    final = document(arms([*ended, *after]), replays=False)
    assert "gel" in final["verdict"]["headline"] and "So far" not in final["verdict"]["headline"]
    assert final["versus"]


def test_there_is_no_verdict_before_every_planned_arm_has_started(tmp_path: Path) -> None:
    out = tmp_path / "d"
    words = ["fedavg", "gel", "scaffold", "--rounds", "2", "--cohort", "2", "--seeds", "2", "--out", str(out)]
    assert main(["run", "synthetic:users=8", *words]) == 0
    assert not read([out])["verdict"]["headline"].startswith("So far")
    shutil.rmtree(out / "scaffold")
    made = read([out])
    said = made["verdict"]
    assert made["waiting"] == 2  # so the live page does not say that all runs have ended
    assert said["headline"].startswith("So far, at round 2 of 2: fedavg 0.")
    assert "scaffold has not started." in said["points"]
    assert "4 of 6 runs have ended. The verdict follows when all of them have." in said["points"]


def test_runs_of_other_lengths_are_compared_only_where_both_have_been() -> None:
    short = [ran("short", s, [0, 0.5, 0.6]) for s in range(2)]
    long = [ran("long", s, [0, 0.4, 0.5, 0.9]) for s in range(2)]
    said = document(arms([*short, *long]), replays=False)["verdict"]
    assert said["headline"] == "So far, at round 2 of 3: short 0.6000, long 0.5000 (test accuracy)."
    assert any("planned with 2 and 3 rounds" in point for point in said["points"])


def test_the_headline_does_not_lump_arms_that_the_table_tells_apart() -> None:
    """The lead of `best` is noise; `good` is above `poor` in every seed by the same amount."""
    ends = {"poor": (0.50, 0.60, 0.70), "good": (0.51, 0.61, 0.71), "best": (0.70, 0.60, 0.72)}
    runs = [ran(name, s, [0, a], target=None) for name, values in ends.items() for s, a in enumerate(values)]
    said = words(*runs)
    assert said["headline"] == "best ends best, but its lead over poor and good is not clear."
    assert "Among the other arms, good clearly ends better than poor." in said["points"]


def test_columns_that_do_not_change_are_values_and_not_charts() -> None:
    """Row 0 is before the first round; a single diagnosed round is one value."""
    runs = [ran(name, s, [0, 0.1, 0.2, 0.3]) for name in ("a", "b") for s in range(2)]
    for run in runs:
        for t, row in enumerate(run.history):
            row |= {"clients": 20 if t else 0, "moving": t, "tau": 3 if run.config["algorithm"] == "a" else 4}
        run.history[2]["drift"] = 1.5 + run.config["seed"]
    made = document(arms(runs), replays=False)
    assert made["columns"]["more"] == ["moving"]
    assert made["constant"] == {"tau": [3, 4]}
    assert made["same"] == {"clients": 20, "drift": 2}
    for run in runs[2:]:
        del run.history[2]["drift"]
    assert document(arms(runs), replays=False)["constant"]["drift"] == [2, None]


def test_step_sizes_are_drawn_together_or_not_at_all() -> None:
    run = ran("a", 0, [0, 0.1, 0.2])
    for row in run.history:
        row |= {"lr_min": 1, "lr_median": 2, "lr_max": 3}
    assert document([Group("a", [run])], replays=False)["columns"]["spread"] == []
    run.history[2]["lr_max"] = 4
    assert document([Group("a", [run])], replays=False)["columns"]["spread"] == ["lr_min", "lr_median", "lr_max"]


def test_labels_leave_out_what_all_arms_share() -> None:
    names = ["fedavg:lr=0.1", "fedprox:mu=1,lr=0.1"]
    made = document(arms([ran(name, 0, [0, 1]) for name in names]), replays=False)
    assert [arm["name"] for arm in made["arms"]] == ["fedavg", "fedprox:mu=1"]
    assert [arm["algorithm"] for arm in made["configuration"]["arms"]] == names
    assert labels(["fedavg:lr=0.1"]) == ["fedavg:lr=0.1"]  # nothing to share it with
    assert labels(["gel:lr=0.1", "gel:lr=0.2"]) == ["gel:lr=0.1", "gel:lr=0.2"]
    assert labels([EVIL, "a:lr=1"]) == [EVIL, "a:lr=1"]


def test_an_old_history_with_an_empty_clock_is_reported() -> None:
    run = ran("a", 0, [0, 0.5])
    for row in run.history:
        row |= {"sim_seconds": None, "late": None}
    made = document([Group("a", [run])], replays=False)
    assert "sim_seconds" not in json.dumps(made) and "seconds" not in made["arms"][0]["curves"]["accuracy"]


def test_equal_settings_make_an_arm_and_others_are_told_apart() -> None:
    same = arms([ran("a", 0, [0, 1]), ran("a", 1, [0, 1])])
    assert [(group.name, len(group.runs)) for group in same] == [("a", 2)]
    other = {"cohort": 5, "budget": "3", "expected_steps": None, "sampler": "uniform"}
    apart = arms([ran("a", 0, [0, 1]), ran("a", 1, [0, 1], world=other)])
    assert len(apart) == 2
    warnings = document(apart, replays=False)["verdict"]["warnings"]
    assert any(line.startswith("The arms differ in more than the algorithm: cohort is 2 in") for line in warnings)


def test_runs_tested_on_other_samples_are_no_repetitions() -> None:
    apart = arms([ran("a", 0, [0, 1], eval_samples=5), ran("a", 1, [0, 1], eval_samples=None)])
    assert len(apart) == 2
    assert any("eval_samples is 5 in" in line for line in document(apart, replays=False)["verdict"]["warnings"])
    often = arms([ran("a", 0, [0, 1], eval_every=1), ran("b", 0, [0, 1], eval_every=2)])
    warnings = document(often, replays=False)["verdict"]["warnings"]
    assert "The arms differ in more than the algorithm: eval_every is 1 in a, 2 in b." in warnings


def test_curves_are_thin_and_keep_their_ends() -> None:
    long = History({"round": t, "accuracy": t / 10**4, "gradients": t} for t in range(10**4))
    made = curve([long, long], "accuracy")
    assert made is not None
    assert len(made["mean"]) == POINTS
    assert (made["round"][0], made["round"][-1], made["low"][-1]) == (0, 9999, 0.9999)


def test_a_mean_is_taken_only_where_every_seed_has_a_number() -> None:
    one = History([{"round": 0, "h": float("nan")}, {"round": 1, "h": 2}, {"round": 2, "h": None}])
    two = History([{"round": 0, "h": 1}, {"round": 1, "h": 4}, {"round": 2, "h": 3}])
    made = curve([one, two], "h")
    assert made is not None
    assert (made["round"], made["mean"], made["low"], made["high"]) == ([1], [3], [2], [4])


def test_every_numeric_column_is_somewhere_on_the_page() -> None:
    run = ran("a", 0, [0, 0.5, 0.6])
    for t, row in enumerate(run.history):
        row |= {"lr": t, "lr_median": t, "accuracy_exit1": t, "drift_mean": t, "clients": 20, "word": "no"}
    made = document([Group("a", [run])], replays=False)
    assert made["same"] == {"clients": 20}
    kinds = made["columns"]
    assert kinds["tuned"] == ["lr"]
    assert kinds["spread"] == ["lr_median"]
    assert kinds["scores"] == ["accuracy", "accuracy_exit1"]
    assert kinds["more"] == ["drift_mean"]


def test_names_stay_text_and_numbers_stay_json() -> None:
    run = ran(EVIL, 0, [0, float("nan"), 0.5], task=EVIL)
    run.history[-1]["note"] = EVIL
    page = as_html(document([Group(EVIL, [run])]))
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 2
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert "NaN" not in data[1]
    assert json.loads(data[1])["arms"][0]["name"] == EVIL


def test_the_page_fetches_nothing() -> None:
    page = as_html(document([Group("a", [ran("a", 0, [0, 0.5])])]))
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "default-src 'none'" in page
    assert "connect-src" not in page


def test_a_task_that_cannot_be_made_again_says_why() -> None:
    panels = replay.panels([Group("a", [ran("a", 0, [0, 0.5])])])
    assert panels["labels"]["why"].startswith("The task could not be made again: Unknown task 'no-such-task'.")


def test_replayed_steps_are_those_the_run_did(tmp_path: Path) -> None:
    fk.train(fk.tasks.synthetic(users=30), "fedavg", fk.World(cohort=4), rounds=6, seed=3, checkpoint=tmp_path)
    (group,) = Reader().read([tmp_path])
    panels = replay.panels([group])
    steps = sum(int(n) * k for n, k in zip(panels["budgets"]["names"], panels["budgets"]["counts"], strict=True))
    assert steps == group.runs[0].history[-1]["gradients"]
    taken = panels["participation"]
    assert sum(int(n) * k for n, k in zip(taken["names"], taken["counts"], strict=True)) == 6 * 4
    assert sum(taken["counts"]) == 30


def test_client_accuracies_add_up_to_the_accuracy_on_all_of_their_data(tmp_path: Path) -> None:
    run = fk.train(task := fk.tasks.synthetic(users=12), "fedavg", rounds=3, checkpoint=tmp_path)
    (group,) = Reader().read([tmp_path])
    each = replay.client_accuracies(group.runs[0], task)
    sizes = np.diff(task.data.offsets)
    assert sizes.max() < replay.PAGE.samples // 12  # nobody's data are cut
    whole = task.accuracy(run.model()(task.data.x.float()), task.data.y.long())
    assert whole == pytest.approx(float((each * sizes).sum() / sizes.sum()))
    panel = replay.accuracies([group], task)["arms"][0]
    assert panel["worst"] == pytest.approx(float(each.min()))  # a tenth of 12 clients is one


def hospitals(rows: int = 300) -> fk.Task:
    """Texts as clients and as labels, as from_csv gives them."""
    x, y = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0)), np.arange(rows) % 3 // 2
    sites = np.array(["Mary", "North", "South"])[np.minimum(2, np.arange(rows) // 40)]
    data = fk.FederatedData.from_arrays(x, y, sites)
    data.class_names = ["healthy", "ill"]
    return fk.Task(lambda: torch.nn.Linear(3, 2), fk.cross_entropy, data, name="hospitals", batch_size=8, lr=0.1)


def test_clients_are_listed_by_name_with_their_test_rows_and_the_mean_over_seeds_of_every_arm() -> None:
    made = fk.compare(task := hospitals(), ["fedavg", "gel:steps=2"], fk.World(cohort=3, budget=fk.FixedSteps(2)),
                      rounds=3, seeds=2, client_test=0.2)  # fmt: skip
    panel = document(made.groups, task=task)["clients"]["accuracies"]
    assert {row["name"]: row["samples"] for row in panel["table"]} == {"Mary": 8, "North": 8, "South": 44}
    assert panel["tenth"] == 1 and [arm["seeds"] for arm in panel["arms"]] == [2, 2]
    means = [np.mean(row["values"]) for row in panel["table"]]
    assert means == sorted(means)
    for place, group in enumerate(made.groups):
        lasts = [run.history[-1]["client_accuracy"] for run in group.runs]
        assert np.mean([row["values"][place] for row in panel["table"]]) == pytest.approx(np.mean(lasts), abs=1e-4)


def test_the_table_of_clients_has_a_limited_length(tmp_path: Path) -> None:
    fk.train(task := fk.tasks.synthetic(users=replay.LISTED + 9), "fedavg", rounds=1, checkpoint=tmp_path)
    panel = replay.accuracies(Reader().read([tmp_path]), task)
    assert len(panel["table"]) == replay.LISTED < panel["clients"]
    assert panel["table"][0]["values"] == [panel["arms"][0]["sorted"][0]]


def test_labels_and_clients_are_shown_by_their_names() -> None:
    panel = replay.labels(hospitals())
    assert panel["rows"] == ["healthy", "ill"]
    assert panel["columns"] == ["Mary", "North", "South"]


def test_an_arm_that_is_no_better_than_the_most_frequent_label_is_warned_of() -> None:
    tested = {"samples": 9, "base_label": "ill", "base_rate": 0.64}
    said = words(ran("good", 0, [0, 0.7], tested=tested), ran("poor", 0, [0, 0.6], tested=tested))
    (warning,) = [line for line in said["warnings"] if "no better" in line]
    always = "always predicting the most frequent training label (ill): 0.6400."
    assert warning == f"poor ends at 0.6000, no better than {always}"


def test_bounds_of_speed_ups_are_explained_where_there_are_some() -> None:
    base, late = [ran("base", s, [0, 0.9, 0.9]) for s in (0, 1)], [ran("late", s, [0, 0.1, 0.8 * s]) for s in (0, 1)]
    notes = " ".join(verdict.table(verdict.compare(arms([*base, *late])))["notes"])
    assert "'<' before a speed-up is an upper bound, because seeds of that algorithm missed the target." in notes
    assert "'>' marks means in which seeds" in notes and "lower bound" not in notes
    notes = " ".join(verdict.table(verdict.compare(arms([*late, *base])))["notes"])
    assert "'>' before a speed-up is a lower bound, because seeds of late missed the target." in notes
    assert "'<'" not in notes
    assert "'" not in " ".join(verdict.table(verdict.compare(arms(base)))["notes"])


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [("fedavg:level=b", "of which levels train parts"), ("feddyn:evaluate=cohort", "cohort's models")],
)
def test_a_saved_model_that_is_not_the_tested_one_is_not_tried_on_clients(
    algorithm: str, why: str, tmp_path: Path
) -> None:
    fk.train(task := fk.tasks.synthetic(users=12), algorithm, rounds=1, checkpoint=tmp_path / "a")
    fk.train(task, "feddyn", rounds=1, checkpoint=tmp_path / "b")
    other, usual = replay.accuracies(Reader().read([tmp_path / "a", tmp_path / "b"]), task)["arms"]
    assert list(other) == ["why"] and why in other["why"]
    assert len(usual["sorted"]) == 12


def test_many_clients_and_labels_are_drawn_in_groups() -> None:
    panel = replay.labels(fk.tasks.synthetic(users=150))
    assert len(panel["columns"]) == 100
    assert panel["columns"][0] == "0–1"
    assert np.allclose(np.array(panel["cells"]).sum(0), 1, atol=0.01)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison with every kind of column."""
    out = tmp_path_factory.mktemp("compared") / "d"
    words = ["fedavg", "gel", "fathom", "deltasgd", "--rounds", "8", "--cohort", "4", "--seeds", "2", "--target", "0.3"]
    assert main(["run", "synthetic:users=40", *words, "--out", str(out)]) == 0
    return out


def test_the_command_writes_one_file(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(compared)]) == 0
    assert capsys.readouterr().out == f"written to {compared / 'report.html'}\n"
    made = read([compared])
    assert [arm["name"] for arm in made["arms"]] == ["fedavg", "gel", "fathom", "deltasgd"]
    assert made["columns"]["tuned"] == ["lr", "epochs", "batch_size", "h", "phi"]
    assert made["columns"]["spread"] == ["lr_min", "lr_median", "lr_max"]
    assert "clients" in made["same"]
    assert not any("why" in panel for panel in made["clients"].values())
    one = compared / "gel" / "seed-1"
    assert main(["report", str(one), "--out", str(tmp_path / "one.html")]) == 0
    assert "nothing to compare it with" in (tmp_path / "one.html").read_text()


def test_bad_folders_are_one_line_and_exit_code_2(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    assert main(["run", "synthetic:users=20", "fedavg", "--rounds", "1", "--cohort", "2", "--out", str(other)]) == 0
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    for words, said in (
        ([str(tmp_path / "none")], "is not the directory of a run"),
        ([str(tmp_path / "empty")], "no run with a history"),
        ([str(compared), str(other)], "different tasks"),
        ([str(compared), "--out", str(tmp_path)], "is a directory"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert said in error and len(error.splitlines()) == 1


def test_a_browser_draws_it_switches_axes_and_hides_an_arm(compared: Path, tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By

    assert main(["report", str(compared), "--out", str(tmp_path / "r.html")]) == 0
    browser.get((tmp_path / "r.html").as_uri())

    def curve_of(arm: int) -> str | None:
        found = browser.find_elements(By.CSS_SELECTOR, f"#curves path.curve[style*='--arm-{arm})']")
        return found[0].get_attribute("d") if found else None

    def axis() -> str:
        return str(browser.execute_script("return document.querySelector('#curves svg').getAttribute('aria-label')"))

    assert browser.find_element(By.ID, "headline").text
    assert axis() == "test accuracy against rounds"
    before = curve_of(2)  # fathom, whose rounds are unequally long
    browser.find_element(By.ID, "choose-gradients").click()
    assert axis() == "test accuracy against gradients"
    assert curve_of(2) not in (None, before)
    browser.find_element(By.ID, "arm-2").click()
    assert curve_of(2) is None
    assert curve_of(1) is not None
    browser.find_element(By.ID, "arm-2").click()
    assert curve_of(2) is not None
    chart = browser.find_element(By.CSS_SELECTOR, "#curves svg")
    from selenium.webdriver import ActionChains

    ActionChains(browser).move_to_element(chart).perform()
    tip = browser.find_element(By.CSS_SELECTOR, "#curves .tip").text
    assert "gradients" in tip and "deltasgd" in tip
    assert [h.text for h in browser.find_elements(By.TAG_NAME, "h2")] == [
        "Curves", "Comparison", "Tuned while running", "Step sizes", "Clients", "More columns",
        "Configuration and environment",
    ]  # fmt: skip
    assert browser.get_log("browser") == []


def test_a_browser_saves_charts_as_svg_and_tables_as_csv(compared: Path, tmp_path: Path, browser: Any) -> None:
    assert main(["report", str(compared), "--out", str(tmp_path / "r.html")]) == 0
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    browser.get((tmp_path / "r.html").as_uri())

    def saved(button: str, name: str) -> str:
        browser.execute_script("document.getElementById(arguments[0]).click()", button)
        end = time.monotonic() + 30
        while not (tmp_path / name).exists() and time.monotonic() < end:
            time.sleep(0.05)
        return (tmp_path / name).read_text(encoding="utf-8")

    browser.find_element("id", "arm-2").click()
    text = saved("save-svg-0", "test-accuracy-against-rounds.svg")
    root = ElementTree.fromstring(text)
    words = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    names = browser.execute_script("return doc.arms.map(arm => arm.name)")
    assert names[0] in words and names[1] in words and names[2] not in words  # the hidden arm is not drawn
    assert "rounds" in words and "var(" not in text and "class=" not in text and "rgb(0, 114, 178)" in text
    rows = list(csv.reader(saved("save-csv-0", "table-1.csv").splitlines()))
    heads = browser.execute_script("return doc.table.heads")
    assert rows[0] == ["algorithm", *heads] and [row[0] for row in rows[1:]] == names
    cells = browser.execute_script("return doc.table.rows[1]")
    assert rows[2][1:] == [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in cells]
    buttons = browser.execute_script("return [...document.querySelectorAll('.save button')].map(b => b.id)")
    assert len(set(buttons)) == len(buttons) > 5
    assert browser.get_log("browser") == []


def test_a_browser_shows_an_evil_name_as_text(tmp_path: Path, browser: Any) -> None:
    runs = [ran(EVIL, seed, [0, 0.5, None, 0.7], task=EVIL) for seed in range(2)]
    (tmp_path / "r.html").write_text(as_html(document(arms(runs))), encoding="utf-8")
    browser.get((tmp_path / "r.html").as_uri())
    assert EVIL in browser.find_element("id", "page").text
    assert browser.find_elements("tag name", "img") == []
    assert browser.get_log("browser") == []


def test_a_phone_does_not_scroll_sideways(compared: Path, tmp_path: Path, browser: Any) -> None:
    assert main(["report", str(compared), "--out", str(tmp_path / "r.html")]) == 0
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((tmp_path / "r.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    tops = (
        "return [...document.querySelectorAll('.group')].map(g => new Set([...g.children].map(b => b.offsetTop)).size)"
    )
    assert set(browser.execute_script(tops)) == {1}  # the buttons of a group are in one line
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_one_task_ranks_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither one comparison nor two of the same task say how often an algorithm is best."""
    for seed in ("0", "1"):
        words = ["run", "synthetic:users=6", "fedavg", "gel", "--rounds", "1", "--cohort", "2", "--seed", seed]
        assert main([*words, "--out", str(tmp_path / seed)]) == 0
    capsys.readouterr()
    for names in (["0"], ["0", "1"]):
        places = [str(tmp_path / name) for name in names]
        assert main(["compare", *places]) == 0
        out = capsys.readouterr().out
        assert "best" not in out and "100%" not in out
        assert ("no ranks across tasks" in out) == (len(names) > 1)
        assert main(["compare", *places, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["top_share"] == {}


def test_an_algorithm_of_one_task_has_no_share() -> None:
    console = Console(file=io.StringIO(), width=100)
    ranks(top_share([{"a": 0.9, "b": 0.8}, {"a": 0.5}]), console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert next(line.split() for line in lines if line.startswith("a ")) == ["a", "2", "100%", "100%"]
    assert next(line.split() for line in lines if line.startswith("b ")) == ["b", "1", "-", "-"]


@pytest.mark.parametrize("rounds", [2, 40])
def test_a_mean_over_the_last_rounds_is_shown_only_where_there_are_several(rounds: int) -> None:
    history = History({"round": t, "accuracy": 0.5, "gradients": t, "bytes_down": t, "bytes_up": t}
                      for t in range(rounds + 1))  # fmt: skip
    console = Console(file=io.StringIO(), width=150)
    table([Arm("fedprox+gel", None, [history], ["done"])], None, rounds, console)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("last 10" in out) == (rounds == 40)
    assert "last 1 " not in out
