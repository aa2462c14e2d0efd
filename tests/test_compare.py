"""What a comparison says: properties that hold for any histories, and seeds that did not get there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.cli import main
from fedkeel.lab.compare import beyond, cost_to_quality, equal_rounds, summary, top_share
from fedkeel.lab.stats import Arm, Gain, last_n, speedup, t975
from fedkeel.run.history import History

pairs = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=2, max_size=8)
few = settings(max_examples=40, deadline=None)  # each example is two bootstraps


def climb(rounds: int, at: int, share: float = 1.0) -> History:
    """Accuracy in a straight line to 1 in round `at`, then flat; costs in proportion to the round."""
    return History(
        {
            "round": t, "accuracy": min(1.0, t / at) * share, "loss": 1.0, "gradients": 10 * t, "bytes_down": 300 * t,
            "bytes_up": 100 * t, "wall_seconds": 0.5 * t, "clients": 4, "dropped": 0,
        }
        for t in range(rounds + 1)
    )  # fmt: skip


def arm(*histories: History, target: float | None = 0.5, status: str = "done") -> Arm:
    return Arm("a", target, list(histories), [status] * len(histories))


def test_numbers_need_nothing_that_draws() -> None:
    words = "import sys; sys.modules['rich'] = None; import fedkeel.lab.compare, fedkeel.lab.study"
    subprocess.run([sys.executable, "-c", words], check=True)


def test_the_quantiles_of_students_t_are_those_of_the_tables() -> None:
    printed = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
               2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
               2.042)  # fmt: skip
    assert tuple(t975(freedom) for freedom in range(1, 31)) == printed
    assert (t975(40), t975(60), t975(120), t975(10**4)) == (2.021, 2.0, 1.98, 1.96)


@few
@given(pairs)
def test_swapping_the_arms_turns_the_speedup_round(rounds: list[tuple[int, int]]) -> None:
    base, other = zip(*rounds, strict=True)
    one, two = speedup(base, other), speedup(other, base)
    assert one.value is not None and two.value is not None and one.low is not None and two.high is not None
    assert 1 + one.value == pytest.approx(1 / (1 + two.value))
    assert np.sign(round(one.value, 12)) == -np.sign(round(two.value, 12))
    assert 1 + one.low == pytest.approx(1 / (1 + two.high), rel=0.02)  # quantiles between two draws are interpolated


@few
@given(st.lists(st.integers(1, 500), min_size=2, max_size=8))
def test_an_arm_is_not_faster_than_itself(rounds: list[int]) -> None:
    assert speedup(rounds, rounds) == Gain(0.0, 0.0, 0.0)


@few
@given(pairs)
def test_the_interval_holds_its_value_is_repeatable_and_stays_within_the_seeds(rounds: list[tuple[int, int]]) -> None:
    base, other = zip(*rounds, strict=True)
    gain = speedup(base, other)
    assert gain == speedup(base, other)
    assert gain.value is not None and gain.low is not None and gain.high is not None
    ratios = [b / a - 1 for b, a in rounds]
    assert min(ratios) - 1e-9 <= gain.low <= gain.value + 1e-9
    assert gain.value - 1e-9 <= gain.high <= max(ratios) + 1e-9


def test_more_seeds_of_the_same_kind_make_the_interval_narrower() -> None:
    base, other = [100, 130, 90, 120, 110], [80, 90, 85, 70, 100]
    widths = [gain.high - gain.low for n in (1, 4, 16) if (gain := speedup(base * n, other * n)).low is not None]  # type: ignore[operator]
    assert widths[0] > 1.5 * widths[1] > 2 * widths[2]


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        difficulty = random.normal(100, 10, 8)  # what paired seeds share
        gain = speedup(difficulty + random.normal(30, 8, 8), difficulty + random.normal(0, 8, 8))
        assert gain.low is not None and gain.high is not None
        covered += gain.low <= 0.3 <= gain.high
    assert 0.90 <= covered / 300 <= 0.99


def test_a_seed_that_did_not_arrive_leaves_a_bound_and_never_a_number() -> None:
    quick, slow, never = climb(100, 40), climb(100, 100), climb(100, 400)
    assert arm(quick, quick).speedup(arm(slow, never)) == Gain(more_than=(50 + 100) / 2 / 20 - 1)
    assert arm(quick, never).speedup(arm(slow, slow)) == Gain(less_than=50 / 60 - 1)
    assert arm(quick, never).speedup(arm(never, quick)) == Gain()
    assert arm(quick, quick).speedup(arm(never, never)) == Gain(more_than=4.0)


def test_a_diverged_seed_bounds_nothing() -> None:
    broke = climb(5, 100)
    assert arm(broke, status="diverged").speedup(arm(climb(100, 40))) == Gain()
    assert equal_rounds(arm(broke, status="diverged"), arm(climb(100, 40))) is None
    assert cost_to_quality(arm(broke, status="diverged"), arm(climb(100, 40)), 10) is None


def test_a_target_the_untrained_model_meets_has_no_speedup() -> None:
    assert speedup([0, 0], [0, 0]) == Gain()


def test_the_last_rounds_are_counted_in_rounds_and_gaps_are_left_out() -> None:
    history = History({"round": t, "accuracy": t / 10 if t % 2 == 0 else None} for t in range(11))
    assert last_n(history, 4) == pytest.approx((0.8 + 1.0) / 2)
    assert last_n(History([{"round": 0, "accuracy": None}]), 4) is None


def test_beyond_is_taken_where_the_baseline_arrives() -> None:
    assert beyond(climb(100, 50), climb(100, 100), 0.4) == pytest.approx(0.8 - 0.4)
    assert beyond(climb(100, 50), climb(100, 400), 0.4) is None
    assert beyond(climb(30, 50), climb(100, 100), 0.4) is None  # ended before round 40


@few
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5))
def test_differences_at_equal_rounds_are_antisymmetric(values: list[tuple[float, float]]) -> None:
    one, two = (arm(*(climb(10, 10, pair[side]) for pair in values)) for side in (0, 1))
    forth, back = equal_rounds(one, two), equal_rounds(two, one)
    assert forth is not None and back is not None
    assert forth == [-d for d in back]


def test_the_cost_of_the_baselines_quality_follows_the_papers_procedure() -> None:
    base, faster = arm(climb(100, 100, 0.8)), arm(climb(100, 50, 0.8))
    told: Any = cost_to_quality(faster, base, 1)
    assert told["quality"] == pytest.approx(0.8)
    assert told["rounds"] == [50] and told["reached"] == 1
    assert (told["bytes"], told["gradients"], told["wall_seconds"]) == (20000, 500, 25)
    assert told["bytes_reduction"] == told["gradients_reduction"] == 0.5
    itself: Any = cost_to_quality(base, base, 20)  # its mean over 20 rounds is met before the end: r is T all the same
    assert itself["bytes"] == 40000 and itself["bytes_reduction"] == 0
    never: Any = cost_to_quality(arm(climb(100, 100, 0.5)), base, 1)
    assert never["rounds"] == [None] and never["reached"] == 0 and never["bytes_reduction"] == 0


def test_equals_share_a_place_and_a_diverged_arm_has_none() -> None:
    share = top_share([{"a": 0.9, "b": 0.9, "c": 0.8}, {"a": None, "b": 0.5, "d": 0.4}, {"a": None}])
    assert share["a"] == {"tasks": 3, "top1": 1 / 3, "top2": 1 / 3}
    assert share["b"] == {"tasks": 2, "top1": 1.0, "top2": 1.0}
    assert share["c"]["top2"] == 0.0  # two are better
    assert share["d"]["top2"] == 1.0


def test_a_summary_is_json_with_the_old_keys_and_the_new() -> None:
    told = summary([arm(climb(100, 100), climb(100, 90)), arm(climb(100, 50), climb(100, 400))], 0.5)
    assert json.loads(json.dumps(told)) == told
    base, other = told["arms"]
    assert base["rounds_to_target"] == [50, 45] and other["rounds_to_target"] == [25, None]
    assert other["speedup"] is None and other["speedup_95"] is None
    assert other["speedup_less_than"] == pytest.approx(47.5 / 62.5 - 1)
    assert other["bytes_to_target"] == [10000, None]
    assert other["beyond_target"] == [pytest.approx(0.5), pytest.approx(45 / 400 - 0.5)]


def test_finished_comparisons_are_told_again_with_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        words = ["run", f"synthetic:users={6 if name == 'one' else 8}", "fedavg", "gel", "--rounds", "4", "--cohort"]
        assert main([*words, "3", "--seeds", "2", "--target", "0.05", "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    places = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["compare", *places]) == 0
    out = capsys.readouterr().out
    assert "synthetic:users=6" in out and "best two" in out and "100%" in out
    assert max(map(len, (line for line in out.splitlines() if "■" in line))) <= 110
    assert main(["compare", *places, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["comparisons"][0]["arms"] == json.loads((tmp_path / "one" / "summary.json").read_text())["arms"]
    assert told["top_share"]["gel"]["tasks"] == 2


def test_a_comparison_that_has_not_ended_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "synthetic:users=5", "fedavg", "gel", "--rounds", "1", "--out", str(tmp_path / "d")]) == 0
    (tmp_path / "d" / "gel" / "seed-0" / "outcome.json").unlink()
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "d")]) == 2
    assert "has not ended; continue with: fedkeel resume" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "nowhere")]) == 2


def test_where_all_seeds_give_the_same_no_interval_is_printed() -> None:
    seeds = [History([{"round": 1, "accuracy": 0.75}])] * 3
    assert Arm("fedavg", None, seeds, ["done"] * 3).final_text() == "0.7500"
    assert str(speedup([10, 10, 10], [8, 8, 8])) == "+25.0%"
