"""A share of every client's data for validation, and rounds that are evaluated at the end."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.conformance import toy, toy_world
from fedkeel.data.partition import dirichlet_repeated
from fedkeel.lab.report import replay
from fedkeel.lab.report.runs import Reader
from fedkeel.run.facts import base_rate


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0.01, 0.9), st.integers(0, 3))
def test_every_client_gives_the_floor_of_its_share_and_keeps_at_least_one_sample(sizes, share, seed):
    owners, x = np.repeat(np.arange(len(sizes)), sizes), torch.arange(float(sum(sizes)))[:, None]
    data = fk.FederatedData.from_arrays(x, np.zeros(sum(sizes), dtype=np.int64), owners)
    given_up = [min(int(share * size + 1e-9), size - 1) for size in sizes]
    if not sum(given_up):
        with pytest.raises(fk.InputError, match="keeps no sample"):
            data.held_out(share, seed)
        return
    split = data.held_out(share, seed)
    assert split.sizes(np.arange(len(sizes))).tolist() == [n - few for n, few in zip(sizes, given_up, strict=True)]
    together = sorted(split.x.flatten().tolist() + split.validation[0].flatten().tolist())
    assert together == x.flatten().tolist()
    assert torch.equal(split.x, data.held_out(share, seed).x)


def test_no_copy_of_a_held_out_sample_is_trained_on():
    y = np.repeat(np.arange(4), 100)
    deal = partial(dirichlet_repeated, clients=8, alpha=0.5, samples=60)
    data = fk.FederatedData.from_arrays(torch.arange(400.0)[:, None], y, deal)
    assert len(data.x.unique()) < len(data.x)  # some clients hold the same sample
    tested = data.held_out(0.2, part="client_test")
    assert np.diff(tested.client_test_offsets).tolist() == [12] * 8
    both = tested.held_out(0.1)
    for part in (both.client_test, both.validation):
        assert not set(part[0].flatten().tolist()) & set(both.x.flatten().tolist())
    assert both.sizes(range(8)).min() > 0 and both.sources.tolist() == both.x.flatten().tolist()


def test_a_client_that_holds_only_copies_of_held_out_samples_is_named():
    data = fk.FederatedData.from_arrays(
        torch.zeros(2, 1), [0, 1], clients=[np.array([0, 1]), np.array([0]), np.array([1])]
    )
    with pytest.raises(fk.InputError, match=r"client [12] has nothing left to train on"):
        data.held_out(0.5)


def test_validation_samples_are_not_trained_on_and_do_not_depend_on_the_runs_seed():
    task = toy()
    split = task.held_out(0.3)
    by_hand = fk.train(split, "scaffold", toy_world(), 4, seed=3)
    run = fk.train(task, "scaffold", toy_world(), 4, seed=3, validation=0.3)
    assert torch.equal(run.params, by_hand.params)
    assert run.config["validation"] == 0.3
    other = fk.train(task, "scaffold", toy_world(), 4, seed=4, validation=0.3)
    assert torch.equal(other.params, fk.train(split, "scaffold", toy_world(), 4, seed=4).params)
    last = run.history[-1]
    output = run.model()(split.data.validation[0].float())
    right = (output.argmax(1) == split.data.validation[1]).double().mean()
    assert last["validation_accuracy"] == pytest.approx(float(right))
    assert last["validation_loss"] > 0 and last["loss"] is not None


def test_without_a_share_nothing_changes_and_no_column_appears():
    plain, zero = (fk.train(toy(), "fedavg", toy_world(), 2, **more) for more in ({}, {"validation": 0.0}))
    assert torch.equal(plain.params, zero.params)
    assert "validation_loss" not in zero.history[-1]


def test_a_run_with_validation_resumes_bit_for_bit(tmp_path):
    whole = fk.train(toy(), "fedavg", toy_world(), 6, validation=0.25, eval_every=2)
    fk.train(toy(), "fedavg", toy_world(), 6, validation=0.25, eval_every=2, stop_after=3, checkpoint=tmp_path)
    resumed = fk.resume(tmp_path, toy())
    assert torch.equal(resumed.params, whole.params)
    assert [row["validation_loss"] for row in resumed.history] == [row["validation_loss"] for row in whole.history]


def test_every_one_of_the_last_rounds_is_evaluated():
    history = fk.train(toy(), "fedavg", toy_world(), 9, eval_every=4, eval_last=3).history
    assert [row["round"] for row in history if row["loss"] is not None] == [0, 4, 7, 8, 9]


@pytest.mark.parametrize(("name", "value"), [("validation", 0.95), ("validation", -0.1), ("eval_last", 0)])
def test_shares_and_counts_out_of_range_are_refused(name, value):
    with pytest.raises(fk.InputError, match=f"'{name}' parameter of train"):
        fk.train(toy(), "fedavg", toy_world(), 1, **{name: value})


def test_client_test_samples_are_split_off_before_validation_and_seen_by_neither():
    task = toy()
    run = fk.train(task, "scaffold", toy_world(), 4, seed=3, validation=0.2, client_test=0.3)
    split = task.held_out(0.3, "client_test")
    both = split.held_out(0.2)
    assert torch.equal(run.params, fk.train(both, "scaffold", toy_world(), 4, seed=3).params)
    kept = torch.cat([both.data.x, both.data.validation[0], both.data.client_test[0]]).sort(0).values
    assert torch.equal(kept, task.data.x.sort(0).values)
    counts = np.diff(split.data.client_test_offsets)
    sizes = np.diff(task.data.offsets)
    assert counts.tolist() == np.minimum(np.floor(0.3 * sizes + 1e-9), sizes - 1).astype(int).tolist()


def test_the_history_has_mean_worst_tenth_and_spread_of_the_clients_accuracies():
    task = toy()
    run = fk.train(task, "fedavg", toy_world(), 4, client_test=0.4, eval_every=2)
    data = task.held_out(0.4, "client_test").data
    x, y = data.client_test
    right = (run.model()(x.float()).argmax(1) == y).double().numpy()
    spans = zip(data.client_test_offsets[:-1], data.client_test_offsets[1:], strict=True)
    each = np.sort([right[a:b].mean() for a, b in spans if b > a])
    last = run.history[-1]
    assert last["client_accuracy"] == pytest.approx(each.mean())
    assert last["client_accuracy_worst"] == pytest.approx(each[: max(1, len(each) // 10)].mean())
    assert last["client_accuracy_spread"] == pytest.approx(each.std())
    assert run.history[1]["client_accuracy"] is None and run.history[0]["client_accuracy"] is not None
    assert "client_accuracy" not in fk.train(task, "fedavg", toy_world(), 1).history[-1]


def test_client_test_samples_are_the_test_set_where_there_is_no_other():
    data = toy().data
    alone = fk.FederatedData(data.x, data.y, data.offsets)
    task = fk.Task(toy().model, fk.cross_entropy, alone, client_test=0.4)
    run = fk.train(task, "fedavg", toy_world(), 2)
    x, y = task.held_out(0.4, "client_test").data.client_test
    assert run.history[-1]["accuracy"] == pytest.approx(float((run.model()(x.float()).argmax(1) == y).double().mean()))


def test_a_run_with_client_tests_resumes_bit_for_bit_and_its_report_shows_clients_by_them(tmp_path):
    task = fk.tasks.get("digits:clients=12")
    more = {"client_test": 0.3, "validation": 0.1}
    whole = fk.train(task, "fedavg", rounds=4, checkpoint=tmp_path / "whole", **more)
    fk.train(task, "fedavg", rounds=4, stop_after=2, checkpoint=tmp_path / "cut", **more)
    assert torch.equal(fk.resume(tmp_path / "cut").params, whole.params)
    (group,) = Reader().read([tmp_path / "whole"])
    panel = replay.accuracies([group], task)
    assert panel["held_out"] and panel["arms"][0]["mean"] == pytest.approx(whole.history[-1]["client_accuracy"])
    assert panel["arms"][0]["spread"] == pytest.approx(whole.history[-1]["client_accuracy_spread"])
    assert panel["arms"][0]["worst"] == pytest.approx(whole.history[-1]["client_accuracy_worst"])


def test_the_command_has_the_flag(tmp_path):
    assert main(["run", "digits", "fedavg", "--rounds", "1", "--client-test", "0.2", "--out", str(tmp_path / "r")]) == 0
    assert fk.load(tmp_path / "r").history[-1]["client_accuracy_worst"] is not None


def test_the_table_of_a_comparison_shows_clients_and_the_worst_tenth(tmp_path, capsys):
    words = ["run", "digits", "fedavg", "fedprox", "--rounds", "2", "--out", str(tmp_path / "r")]
    assert main([*words, "--client-test", "0.3"]) == 0
    out = capsys.readouterr().out
    assert "worst tenth" in out and f"{fk.load(tmp_path / 'r/fedavg/seed-0').history[-1]['client_accuracy']:.4f}" in out


def test_a_server_whose_clients_keep_their_samples_knows_no_most_frequent_label():
    task = toy()
    assert 0 < base_rate(task)["base_rate"] <= 1
    assert base_rate(task.of_sizes([30, 20])) == {}
