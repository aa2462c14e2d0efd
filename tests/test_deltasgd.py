"""DeltaSGD: spec section 10, worked example E9, invariant 10."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk

GROWN = [0.2097617696, 0.2204875482, 0.2317861458, 0.2436649440]


def close(values, expected, tolerance=1e-9):
    assert torch.allclose(
        torch.as_tensor(values, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=tolerance,
    ), (values, expected)


def test_each_client_finds_the_step_sizes_of_e9_in_lockstep_with_others(bowls, play, mode):
    task = bowls([[4.0], [0.5]], [[0.0], [0.0]], [1, 1], [1.0])
    _, trace = play(task, "deltasgd:eps=0", lambda t, client: (4, 5)[client], mode)
    close(trace.rates[1, 0], GROWN)
    close([p.item() for p in trace.points[1, 0]], [0.1609529215, 0.0190004613, 0.0013842865, 0.0000350781])
    close(trace.rates[1, 1], [*GROWN, 0.2561525792])


def test_the_curvature_bounds_the_step_as_in_e9(bowls, play, mode):
    line, bowl = bowls([[4.0]], [[0.0]], [1], [1.0]), bowls([[1.0, 10.0]], [[0.0, 0.0]], [1], [1.0, 1.0])
    _, trace = play(line, "deltasgd:eps=0,gamma=1", 3, mode)
    close(trace.rates[1, 0], [0.2097617696, 0.125, 0.125])
    close([p.item() for p in trace.points[1, 0]], [0.1609529215, 0.0804764607, 0.0402382304])
    _, literal = play(line, "deltasgd:eps=0,gamma=1,first_step=eta0", 3, mode)
    close(literal.rates[1, 0], [0.2, 0.125, 0.125])
    _, two = play(bowl, "deltasgd:eps=0", 5, mode)
    close(two.rates[1, 0], [0.2097617696, 0.1004937317, 0.1002562362, 0.1051383316, 0.1105138215])
    assert all(rate >= 2 / (2 * 10) for rate in two.rates[1, 0])  # gamma / (2 L_max)


def test_only_the_first_step_knows_the_order_of_the_first_step(bowls, play):
    flat = bowls([[0.5]], [[0.0]], [1], [1.0])
    grown, literal = (play(flat, f"deltasgd:eps=0,theta=3,first_step={how}", 3)[1] for how in ("grown", "eta0"))
    first = 0.2 * math.sqrt(1 + 0.1 * 3)
    close(grown.rates[1, 0], [first, second := first * math.sqrt(1 + 0.1 * first / 0.2),
                              second * math.sqrt(1 + 0.1 * second / first)])  # fmt: skip
    close(literal.rates[1, 0], [0.2, first, first * math.sqrt(1 + 0.1 * first / 0.2)])


def test_every_round_starts_anew(bowls, play, mode):
    _, trace = play(bowls([[4.0]], [[0.0]], [1], [1.0]), "deltasgd:eps=0", 3, mode, rounds=2)
    assert trace.rates[1, 0][-1] > 0.23
    close(trace.rates[2, 0], GROWN[:3])


def test_without_a_gradient_the_step_size_grows(bowls, play, mode):
    _, trace = play(bowls([[4.0]], [[1.0]], [1], [1.0]), "deltasgd:gamma=1", 4, mode)
    close(trace.rates[1, 0], GROWN)
    close(trace.points[1, 0][-1], [1.0])


@pytest.mark.parametrize(("key", "steps"), [("", 2 * (3 + 5) - 2), (",batch_mode=consecutive", 3 + 5)])
def test_a_client_computes_two_gradients_a_step_but_one_at_the_first(bowls, play, mode, key, steps):
    task = bowls([[4.0], [1.0]], [[0.0], [1.0]], [7, 7], [1.0])
    run, _ = play(task, f"deltasgd:lr=0.1{key}", lambda t, client: (3, 5)[client], mode)
    assert run.history[-1]["gradients"] == steps
    assert run.history[-1]["samples"] == 7 * steps


def test_consecutive_batches_compare_with_the_last_gradient(bowls, play, mode):
    # on equal samples the stored gradient is the one a second pass would give
    task = bowls([[4.0, 1.0]], [[0.0, 1.0]], [6], [1.0, 3.0])
    runs = [play(task, f"deltasgd:gamma=1,batch_mode={how}", 4, mode)[1] for how in ("same", "consecutive")]
    close(runs[0].rates[1, 0], runs[1].rates[1, 0], 1e-12)


def test_consecutive_batches_differ_when_batches_do(small, play):
    same, other = (play(small, f"deltasgd:batch_mode={how}", 4)[0].params for how in ("same", "consecutive"))
    assert not torch.equal(same, other)


def test_new_masks_are_those_of_dropout_alone(small, play):
    def rates(model, how):
        task = fk.Task(model, fk.cross_entropy, small.data, batch_size=4)
        return play(task, f"deltasgd:gamma=0.5,batch_mode={how}", 4, "serial")[1].rates[1, 0]

    def dropping():
        return nn.Sequential(nn.Dropout(0.5), small.model())

    close(rates(small.model, "same"), rates(small.model, "new_masks"), 0)
    same, new = rates(dropping, "same"), rates(dropping, "new_masks")
    assert same[0] == new[0]
    assert all(a > b for a, b in zip(same[1:], new[1:], strict=True))  # what differs looks like curvature
    close(new, rates(dropping, "new_masks"), 0)


def test_a_common_offset_of_the_loss_changes_nothing(small, play, mode):
    def rates(plus):
        task = fk.Task(small.model, lambda out, y: fk.cross_entropy(out, y) + plus, small.data, batch_size=4)
        return play(task, "deltasgd:lr=5,gamma=0.5", 4, mode)[1].rates

    plain, offset = rates(0.0), rates(7.0)
    for key, values in plain.items():
        close(offset[key], values, 1e-8)  # seven digits of the loss are the offset's
        assert values[1] < values[0]  # the curvature decided, not the growth


def test_the_ratio_is_inverse_to_the_loss(bowls, play):
    # with the first move matched (eta * s constant), every later step is the curvature's and scales as 1/s
    for s in (1.0, 4.0):
        task = bowls([[4.0 * s, 2.0 * s]], [[0.0, 0.0]], [1], [1.0, 1.0])
        _, trace = play(task, f"deltasgd:eps=0,gamma=1,lr={0.4 / s}", 5)
        rates = [rate * s for rate in trace.rates[1, 0]]
        if s == 1.0:
            expected = rates
    close(rates, expected, 1e-12)
    assert rates[1] < rates[0]


def test_growth_is_bounded_step_by_step(small, play, mode):
    _, trace = play(small, "deltasgd:delta=0.3", 6, mode, rounds=2)
    for rates in trace.rates.values():
        eta, theta = 0.2, 1.0
        for new in rates:
            assert new <= eta * math.sqrt(1 + 0.3 * theta) + 2e-8
            eta, theta = new, new / eta


@pytest.mark.parametrize("text", ["deltasgd:gamma=1,eps=0,weight_decay=1", "deltasgd:gamma=1,eps=0+fedprox:mu=1"])
def test_weight_decay_and_the_proximal_term_are_in_both_gradients(bowls, play, mode, text):
    _, trace = play(bowls([[4.0]], [[0.0]], [1], [1.0]), text, 3, mode)
    close(trace.rates[1, 0], [0.2097617696, 1 / (2 * 5), 1 / (2 * 5)])


def test_both_gradients_are_clipped(bowls, play, mode):
    _, trace = play(bowls([[4.0]], [[0.0]], [1], [1.0]), "deltasgd:gamma=1,eps=0,clip=0.1", 4, mode)
    close(trace.rates[1, 0], GROWN)  # two clipped gradients on a line are equal: no curvature to see


def test_a_step_that_is_not_finite_is_skipped_and_counted(bowls, play, mode):
    task = bowls([[1.0, 1.0]], [[0.0, 0.0]], [4], [100.0, 100.0])
    task.data.x[2, 0] = 1e308  # this sample's gradient overflows
    world = fk.World(cohort="all", budget=fk.FixedSteps(8))
    run, trace = play(task, "deltasgd:eps=0", mode=mode, batch_size=1, world=world)
    rates, row = trace.rates[1, 0], run.history[-1]
    skipped = [k for k, rate in enumerate(rates) if rate == 0]
    assert (len(skipped), row["skipped"], row["dropped"], row["clients"]) == (2, 2, 0, 1)
    for k in skipped:
        before = trace.points[1, 0][k - 1] if k else torch.full((2,), 100.0, dtype=torch.float64)
        assert torch.equal(trace.points[1, 0][k], before)
    close(row["lr_median"], sum(rates) / 8)
    real = [rate for rate in rates if rate]
    assert all(b <= a * 1.06 for a, b in pairwise(real))  # growth went on from the kept step size


def test_the_second_gradient_sees_the_same_dropout_mask(play):
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.drop = nn.Parameter(torch.ones(50)), nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x * self.w).sum(1)

    data = fk.FederatedData.from_arrays(np.ones((4, 50)), np.zeros(4), clients=[0] * 4)
    task = fk.Task(Linear, lambda output, target: output, data, batch_size=2)
    _, trace = play(task, "deltasgd:gamma=0.01", 4)
    close(trace.rates[1, 0], GROWN)  # linear: equal masks give equal gradients, so nothing looks curved


def test_the_second_gradient_leaves_batch_statistics_alone(play):
    random = np.random.default_rng(0)
    data = fk.FederatedData.from_arrays(random.normal(size=(8, 3)), [0, 1] * 4, clients=[0] * 8)
    task = fk.Task(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), fk.cross_entropy, data, batch_size=4)
    run, _ = play(task, "deltasgd", 5)
    assert run.history[-1]["gradients"] == 9
    assert run.state.buffers["0.num_batches_tracked"] == 5


def test_serial_and_batched_agree(small):
    world = fk.World(cohort=4, budget=fk.UniformSteps(1, 6))
    parts = (
        "",
        "+fedprox:mu=0.3",
        "+moon",
        "+ghbm",
        "+fedhbm",
        "+localghbm",
        "+scaffold",
        "+feddyn:alpha=0.1",
        "+mimemom",
    )
    for text in ("deltasgd:momentum=0.9+gel", *(f"deltasgd{part}" for part in parts)):
        one, many = (
            fk.train(small, text, world, 4, engine=fk.Local(m, chunk=3), dtype=torch.float64)
            for m in ("serial", "batched")
        )
        assert (one.config["engine"], many.config["engine"]) == ("serial", "batched")
        close(one.params, many.params, 1e-11)
        assert one.history[-1]["gradients"] == many.history[-1]["gradients"]
        close(one.history[-1]["lr_max"], many.history[-1]["lr_max"], 1e-11)


@pytest.mark.parametrize("nesterov", ["", ",nesterov=true"])
def test_a_guess_coasts_as_real_steps_without_gradient_would(bowls, play, mode, nesterov):
    task = bowls([[4.0, 1.0], [0.5, 2.0]], [[0.0, 1.0], [0.0, 0.0]], [1, 1], [1.0, 3.0])
    text = f"deltasgd:momentum=0.9{nesterov}"
    _, trace = play(task, text, 4, mode)
    assert len(set(trace.rates[1, 0])) == 4  # the step size changes, and must not matter to the guess
    ends = []
    for client in (0, 1):
        y, v = trace.points[1, client][-1].clone(), trace.state[1, client]["v"].clone()
        for _ in range(5):  # the same optimizer on a gradient of zero
            v = 0.9 * v
            y = y + (0.9 * v if nesterov else v)
        ends.append(y)
    guessed, _ = play(task, f"{text}+gel:steps=5", 4, mode)
    close(guessed.params, (ends[0] + ends[1]) / 2, 1e-12)
    assert guessed.history[-1]["gradients"] == 2 * 7


@pytest.mark.parametrize("part", ["fedhbm:beta=0.5,first=shared", "scaffold:control=gradient_mean"])
def test_a_look_at_the_last_point_leaves_what_rules_noted_alone(small, play, mode, part):
    # with delta = 0 and a bound that never binds DeltaSGD is SGD, although it computes the second gradients
    world = fk.World(cohort="all", budget=fk.UniformSteps(2, 5))
    plain, _ = play(small, f"sgd:lr=0.2,weights=uniform+{part}", mode=mode, rounds=3, world=world)
    tuned, _ = play(small, f"deltasgd:delta=0,eps=0,gamma=1e9+{part}", mode=mode, rounds=3, world=world)
    assert tuned.history[-1]["gradients"] > plain.history[-1]["gradients"]
    close(tuned.params, plain.params, 1e-12)


def test_the_history_shows_the_step_sizes(bowls, play, mode):
    task = bowls([[4.0], [4.0], [0.5]], [[0.0]] * 3, [1, 1, 1], [1.0])
    run, trace = play(task, "deltasgd:gamma=1", 3, mode)
    means = [sum(trace.rates[1, client]) / 3 for client in range(3)]
    row = run.history[-1]
    close([row["lr_min"], row["lr_median"], row["lr_max"]], [means[0], means[1], means[2]])
    assert row["skipped"] == 0
    assert "lr_min" not in play(task, "fedavg", 3, mode)[0].history[-1]


def test_what_is_told_costs_no_payload(bowls, play):
    task = bowls([[4.0], [4.0]], [[0.0]] * 2, [1, 1], [1.0])
    plain, tuned = (play(task, text, 3)[0].history[-1] for text in ("fedavg", "deltasgd"))
    assert plain["bytes_up"] == tuned["bytes_up"]
    assert tuned["overhead_bytes"] > plain["overhead_bytes"]


def test_names_and_defaults():
    known = fk.algorithm("deltasgd")
    assert known.client == fk.DeltaSGD(0.2, delta=0.1, gamma=2, theta=1, eps=1e-8)
    assert known.weights == fk.Uniform()
    assert fk.algorithm("fedavg:client=deltasgd").client == known.client
    assert fk.algorithm("fedavg:client=deltasgd").weights == fk.Samples()
    assert fk.algorithm("deltasgd+fedprox").weights == fk.Uniform()
    assert fk.algorithm("deltasgd+gel").client.momentum == 0.9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("deltasgd+fednova:weights=nova", "DeltaSGD does not give"),
        ("deltasgd:momentum=0+gel", "need momentum"),
        ("deltasgd+gel:proxy=last", "choose each step size by a new gradient"),
        ("deltasgd+sps", "two client optimizers"),
        ("deltasgd:client=adam", "two client optimizers"),
        ("deltasgd+fathom", "find by themselves"),
        ("deltasgd:decay=step", "find their own rate"),
        ("deltasgd+fedcm", "divides by the clients' rate"),
        ("deltasgd+fedadc", "divides by the clients' rate"),
        ("deltasgd:momentum=0.9+scaffold", "momentum stretches"),
        ("deltasgd:gamma=0", "'gamma' parameter of DeltaSGD"),
        ("deltasgd:first_step=half", "'first_step' parameter of DeltaSGD"),
        ("deltasgd:batch_mode=none", "'batch_mode' parameter of DeltaSGD"),
        ("deltasgd:delta=-1", "'delta' parameter of DeltaSGD"),
    ],
)
def test_nonsense_is_refused_with_a_reason(text, why):
    with pytest.raises(fk.InputError, match=why):
        fk.algorithm(text)


def test_the_server_has_no_use_for_it():
    with pytest.raises(fk.InputError, match="the server has none"):
        fk.Algorithm(server=fk.DeltaSGD())


def test_the_control_arm_of_gel_needs_known_steps(small):
    with pytest.raises(fk.InputError, match="choose their own"):
        fk.train(small, "deltasgd:momentum=0.9,server_lr=match-gel", rounds=1)
