"""The `plan` hook: schedules by round, and what a plan may ask of clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.explain import explain


def test_step_decay_divides_by_ten_after_half_and_after_three_quarters(small, mode):
    run = fk.train(small, "fedavg:lr=0.4,decay=step", rounds=8, engine=mode)
    assert [row["lr"] for row in run.history[1:]] == pytest.approx([0.4] * 4 + [0.04] * 2 + [0.004] * 2)


def test_exponential_and_cosine_decay_follow_their_formulas(small, mode):
    run = fk.train(small, "fedavg:lr=0.4,decay=0.5", rounds=4, engine=mode)
    assert [row["lr"] for row in run.history[1:]] == pytest.approx([0.4, 0.2, 0.1, 0.05])
    run = fk.train(small, "fedavg:lr=0.4,decay=cosine", rounds=4, engine=mode)
    half = 2**-0.5
    assert [row["lr"] for row in run.history[1:]] == pytest.approx([0.4, 0.2 * (1 + half), 0.2, 0.2 * (1 - half)])


def test_a_decay_of_one_changes_no_bit_and_a_fast_one_ends_above_zero(small):
    plain, one = (fk.train(small, text, rounds=3) for text in ("fedavg", "fedavg:decay=1"))
    assert torch.equal(plain.params, one.params)
    assert fk.Schedule(1e-30).factor(round=100, rounds=100) > 0


@pytest.mark.parametrize(("decay", "means"), [
    ("0.999", "lr of round t = lr * 0.999^(t - 1)"), ("cosine", "(1 + cos(pi (t - 1) / R)) / 2"),
    ("step", "lr / 10 when t > R / 2, lr / 100 when t > 3 R / 4"),
])  # fmt: skip
def test_explain_says_what_a_decay_means(decay, means):
    assert means in explain(f"fedavg:decay={decay}")


def test_the_planned_rate_is_the_one_used(bowls, play, mode):
    task = bowls([[1.0]], [[0.0]], [1], [1.0])
    run, trace = play(task, "fedavg:lr=0.4,decay=step", 1, mode, rounds=4)
    assert [trace.rates[t, 0][0] for t in (1, 2, 3, 4)] == pytest.approx([0.4, 0.4, 0.04, 0.004])
    assert run.params.item() == pytest.approx(0.6 * 0.6 * 0.96 * 0.996)


def test_a_schedule_of_ones_changes_no_bit(small, mode):
    plain = fk.train(small, "fedavg", rounds=3, engine=mode)
    ones = fk.Algorithm(rules=[fk.Schedule(lambda round, rounds: 1.0)])
    assert torch.equal(plain.params, fk.train(small, ones, rounds=3, engine=mode).params)


def test_any_function_of_the_round_is_a_schedule(small, tmp_path):
    warm = fk.Algorithm(fk.SGD(0.1, momentum=0.9), [fk.Schedule(lambda t, rounds: min(1, t / 3)), fk.Guess(2)])
    run = fk.train(small, warm, rounds=5, checkpoint=tmp_path, stop_after=2)
    assert (run.config["rerunnable"], "user-defined" in run.config["why_not"]) == (False, True)
    done = fk.resume(tmp_path, task=small, algorithm=warm)
    assert [row["lr"] for row in done.history[1:]] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("decay", ["step", "cosine", "0.7"])
def test_a_named_schedule_is_rebuilt_from_the_configuration(small, tmp_path, decay):
    whole = fk.train(small, f"fedavg:decay={decay}", rounds=6)
    fk.train(small, f"fedavg:decay={decay}", rounds=6, checkpoint=tmp_path, stop_after=2)
    assert torch.equal(whole.params, fk.resume(tmp_path, task=small).params)


def test_a_bad_factor_names_the_round(small):
    bad = fk.Algorithm(rules=[fk.Schedule(lambda t, rounds: 1.0 if t < 2 else -1.0)])
    with pytest.raises(fk.InputError, match="factor in round 2"):
        fk.train(small, bad, rounds=3)


def test_an_unknown_schedule_is_refused():
    for bad in ("linear", "1.01", "0", "-0.5", "true"):
        with pytest.raises(fk.InputError, match="'decay' parameter of Schedule must be step, cosine, a number in"):
            fk.algorithm(f"fedavg:decay={bad}")


def test_nova_weighs_with_the_planned_rate(small, mode):
    # with a proximal term A_i depends on the rate; a constant schedule must give what the constant rate gives
    world = fk.World(cohort=3, budget=fk.UniformSteps(1, 5))
    halved = fk.algorithm("fednova:lr=0.2+fedprox:mu=3")
    halved = replace(halved, rules=[*halved.rules, fk.Schedule(lambda t, rounds: 0.5)])
    plain = fk.train(small, "fednova:lr=0.1+fedprox:mu=3", world, 3, engine=mode)
    assert torch.equal(plain.params, fk.train(small, halved, world, 3, engine=mode).params)


class FiveSteps(fk.Plan):
    """A plan that asks everybody for five steps, however many samples they hold."""

    def steps(self, samples):
        return np.full(len(samples), 5)


class Asks(fk.Rule):
    """Asks everybody for five steps on batches of two."""

    def plan(self, plan, server, facts):
        return FiveSteps(plan.lr, batch_size=2)


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        (fk.Epochs(3), [5] * 6),
        (fk.FixedSteps(3), [3] * 6),
        (fk.FixedSteps(9), [5] * 6),
        (lambda t, client: client, [1, 2, 3, 4, 5]),
    ],
)
def test_what_a_plan_asks_replaces_epochs_and_is_capped_by_steps(small, play, mode, budget, steps):
    world = fk.World(cohort="all", budget=budget)
    run = fk.train(small, fk.Algorithm(rules=[Asks()]), world, 1, engine=mode)
    assert run.history[-1]["gradients"] == sum(steps)
    assert run.history[-1]["samples"] == 2 * sum(steps)
    assert (run.history[-1]["clients"], run.history[-1]["batch_size"]) == (len(steps), 2)


def test_runs_without_a_plan_have_no_such_columns(small):
    assert not {"lr", "epochs", "batch_size"} & fk.train(small, "fedavg", rounds=1).history[-1].keys()


def test_a_look_at_another_point_leaves_the_gradient_of_the_step_alone(small, mode):
    class Look(fk.Rule):
        def objective(self, f, me, y, batch):
            g, value = f(y, batch)
            f(torch.zeros_like(y), batch)
            return g, value

    plain, looked = (fk.train(small, fk.Algorithm(rules=r), rounds=2, engine=mode) for r in ([], [Look()]))
    assert torch.equal(plain.params, looked.params)
    assert looked.history[-1]["gradients"] == 2 * plain.history[-1]["gradients"]


def test_asking_for_gradients_keeps_a_rule_in_its_own_slot(small, mode):
    class Asking(fk.Rule):
        def remember(self, me):
            return {"mine": torch.ones_like(me.x)}

        def objective(self, f, me, y, batch):
            g, value = f(y, batch)
            if batch.step % 2 == 0:
                f(y.clone(), batch)  # runs MOON's loss term
                assert "mine" in me.memory
            return g, value

        def finish(self, y, end, me):
            return fk.Up(memory=dict(me.memory))

    world = fk.World(cohort="all", budget=fk.FixedSteps(2))
    both = fk.Algorithm(rules=[fk.Contrastive(2.0), Asking()])
    alone = fk.Algorithm(rules=[fk.Contrastive(2.0)])
    one, other = (fk.train(small, a, world, 2, engine=mode).params for a in (both, alone))
    assert torch.equal(one, other)
