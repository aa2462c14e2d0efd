"""FATHOM: spec section 13, worked example E11, invariant 13."""

from __future__ import annotations

import math

import pytest
import torch

import fedkeel as fk

E11 = {"a": [[1.0, 4.0], [3.0, 1.0]], "b": [[1.0, 0.0], [-1.0, 2.0]], "n": [30, 10], "x0": [2.0, -1.0]}
TEXT = "fathom:lr=0.2,epochs=1,batch_size=10"
STILL = ",gamma_lr=0,gamma_epochs=0,gamma_batch=0"


def close(values, expected, tolerance=1e-9):
    values, expected = (torch.as_tensor(v, dtype=torch.float64) for v in (values, expected))
    assert torch.allclose(values, expected, rtol=0, atol=tolerance), (values, expected)


def tuned(run):
    slots = run.state.rules["fathom"]
    return [slots[name].item() for name in ("epochs", "lr", "batch", "phi", "h")]


def test_three_rounds_of_e11(bowls, play, mode):
    task = bowls(**E11)
    one, trace = play(task, TEXT, fk.Epochs(1), mode, rounds=1)
    assert [len(trace.rates[1, client]) for client in (0, 1)] == [3, 1]
    close(one.params, [1.184, -0.106])
    close(tuned(one), [1.0073710099, 0.2, 9.2919211194, 0.7343976721, 0.0])
    two, trace = play(task, TEXT, fk.Epochs(1), mode, rounds=2)
    assert [len(trace.rates[2, client]) for client in (0, 1)] == [4, 2]
    close(two.params, [0.6438848, 0.1629128])
    close(tuned(two), [1.0249948662, 0.2018740813, 8.5760790203, 0.8016850739, 0.9326776491])
    three, _ = play(task, TEXT, fk.Epochs(1), mode, rounds=3)
    close(three.params, [0.4555428417, 0.2076093678])
    close(tuned(three), [1.0432192110, 0.2037309717, 7.8797937207, 0.8467509245, 0.9156214289])


def test_the_history_shows_what_each_round_used(bowls, play, mode):
    run, _ = play(bowls(**E11), TEXT, fk.Epochs(1), mode, rounds=3)
    rows = run.history[1:]
    close([row["lr"] for row in rows], [0.2, 0.2, 0.2018740813])
    close([row["epochs"] for row in rows], [1, 1.0073710099, 1.0249948662])
    assert [row["batch_size"] for row in rows] == [10, 9, 9]
    close([row["phi"] for row in rows], [0.7343976721, 0.8016850739, 0.8467509245])
    assert all(-1 <= row[name] <= 1 for row in rows for name in ("phi", "h"))
    assert [row["gradients"] for row in rows] == [4, 10, 16]
    assert rows[0]["samples"] == 40 and rows[1]["samples"] == 40 + 6 * 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_all_gammas_zero_it_is_fedavg_bit_for_bit(small, mode, dtype):
    world = fk.World(cohort=3, budget=fk.Epochs(1))
    plain = fk.train(small, "fedavg:lr=0.1", world, 5, batch_size=7, engine=mode, dtype=dtype)
    still = fk.train(small, f"fathom:batch_size=7{STILL}", world, 5, engine=mode, dtype=dtype)
    assert torch.equal(plain.params, still.params)
    assert plain.history[-1]["samples"] == still.history[-1]["samples"]


def test_gammas_zero_on_e11(bowls, play, mode):
    run, _ = play(bowls(**E11), TEXT + STILL, fk.Epochs(1), mode, rounds=2)
    close(run.params, [0.789056, 0.078164])


def test_one_step_has_phi_one_and_round_one_keeps_the_rate(small, mode):
    world = fk.World(cohort=3, budget=fk.FixedSteps(1))
    run = fk.train(small, "fathom:gamma_lr=1", world, 2, engine=mode, dtype=torch.float64)
    close(run.history[1]["phi"], 1.0, 1e-12)
    assert run.history[1]["h"] == 0 and run.history[2]["lr"] == run.history[1]["lr"] == 0.1


def test_phi_and_h_ignore_the_scale_of_the_loss(bowls, play, mode):
    large = {**E11, "a": [[8 * v for v in row] for row in E11["a"]]}
    plain, _ = play(bowls(**E11), TEXT, fk.Epochs(1), mode, rounds=3)
    scaled, _ = play(bowls(**large), TEXT.replace("0.2", "0.025"), fk.Epochs(1), mode, rounds=3)
    for name in ("phi", "h"):
        close([row[name] for row in plain.history[1:]], [row[name] for row in scaled.history[1:]], 1e-12)


def test_equation_12_as_printed(bowls, play, mode):
    run, _ = play(bowls(**E11), TEXT + ",eq12=paper", fk.Epochs(1), mode, rounds=1)
    lowest, start, lr = [], torch.tensor(E11["x0"], dtype=torch.float64), 0.2
    for a, b, steps in zip(E11["a"], E11["b"], (3, 1), strict=True):
        a, b = (torch.tensor(v, dtype=torch.float64) for v in (a, b))
        y, before, found = start, [], []
        for k in range(steps + 1):  # the last gradient is the extra one
            g = a * (y - b)
            found += [float(torch.cosine_similarity(sum(before), g, 0))] if k else []
            before.append(g)
            y = y - lr * g
        lowest.append(min(found))
    phi = lr * (0.75 * lowest[0] + 0.25 * lowest[1])
    close(run.history[1]["phi"], phi)
    close(tuned(run), [math.exp(0.01 * phi), 0.2, 10 * math.exp(-0.1 * phi), phi, 0.0])
    close(run.params, [1.184, -0.106])  # the model moves as with the other reading
    assert run.history[1]["gradients"] == 4 + 2


@pytest.mark.parametrize("part", ["", "+moon", "+fednova:momentum=0.9+gel"])
def test_equation_12_as_printed_agrees_between_modes_and_resumes(small, tmp_path, part):
    world, text = fk.World(cohort=4, budget=fk.UniformSteps(1, 6)), "fathom:eq12=paper,batch_size=6" + part
    one, many = (fk.train(small, text, world, 4, engine=m, dtype=torch.float64) for m in ("serial", "batched"))
    assert many.config["engine"] == "batched"
    close(one.params, many.params, 1e-10)
    close(one.history[-1]["phi"], many.history[-1]["phi"], 1e-10)
    fk.train(small, text, world, 4, engine="serial", dtype=torch.float64, checkpoint=tmp_path, stop_after=2)
    assert torch.equal(fk.resume(tmp_path, task=small).params, one.params)


def test_values_stay_within_their_bounds_and_do_not_wind_up(bowls, play):
    fast = ",gamma_lr=1,gamma_epochs=1,gamma_batch=1,lr_max=0.21,epochs_max=1.1,batch_min=6"
    run, _ = play(bowls(**E11), TEXT + fast, fk.Epochs(1), rounds=4)
    assert tuned(run)[:3] == [1.1, 0.21, 6.0]


def test_the_smoothing_is_of_the_rounds_before(bowls, play):
    runs = [play(bowls(**E11), f"{TEXT},smoothing={a}", fk.Epochs(1), rounds=3)[0] for a in (0.0, 0.9)]
    assert runs[0].history[2]["h"] == pytest.approx(runs[1].history[2]["h"])  # one round: only the length differs
    assert runs[0].history[3]["h"] != pytest.approx(runs[1].history[3]["h"], abs=1e-6)


def test_steps_may_be_rounded_down(bowls, play):
    _, up = play(bowls(**E11), "fathom:lr=0.2,batch_size=16", fk.Epochs(1))
    _, down = play(bowls(**E11), "fathom:lr=0.2,batch_size=16,steps=floor", fk.Epochs(1))
    assert [len(up.rates[1, c]) for c in (0, 1)] == [2, 1]
    assert [len(down.rates[1, c]) for c in (0, 1)] == [1, 1]  # at least one


def test_a_client_smaller_than_the_batch_does_one_step_while_the_batch_would_hold_its_epochs(bowls, play):
    _, trace = play(bowls(**E11), "fathom:lr=0.2,batch_size=20,epochs=2", fk.Epochs(1))
    assert [len(trace.rates[1, c]) for c in (0, 1)] == [3, 1]


def test_a_budget_in_steps_caps_what_is_asked(bowls, play, mode):
    _, trace = play(bowls(**E11), TEXT, 2, mode)
    assert [len(trace.rates[1, c]) for c in (0, 1)] == [2, 1]


def test_phi_is_weighted_as_the_updates_are(bowls, play):
    by_samples, _ = play(bowls(**E11), TEXT, fk.Epochs(1))
    uniform, _ = play(bowls(**E11), TEXT + ",weights=uniform", fk.Epochs(1))
    close(by_samples.history[1]["phi"], 0.75 * 0.6458635628 + 0.25)
    close(uniform.history[1]["phi"], (0.6458635628 + 1) / 2)


def test_resuming_changes_no_bit(small, mode, tmp_path):
    world, text = fk.World(cohort=3, budget=fk.Epochs(1)), "fathom:gamma_lr=0.3,gamma_epochs=0.2,batch_size=6"
    whole = fk.train(small, text, world, 6, engine=mode)
    fk.train(small, text, world, 6, engine=mode, checkpoint=tmp_path, stop_after=3)
    resumed = fk.resume(tmp_path, task=small)
    assert torch.equal(whole.params, resumed.params)
    for name, value in whole.state.rules["fathom"].items():
        assert torch.equal(value, resumed.state.rules["fathom"][name]), name
    without = [{k: v for k, v in row.items() if k != "wall_seconds"} for row in whole.history]
    assert without == [{k: v for k, v in row.items() if k != "wall_seconds"} for row in resumed.history]
    assert len({row["lr"] for row in whole.history[1:]}) > 2


def test_modes_agree_and_it_composes(small):
    world = fk.World(cohort=4, budget=fk.UniformSteps(1, 6))
    parts = ("", "+gel", "+ghbm", "+fedcm", "+scaffold", "+fedyogi", "+fedprox:mu=0.1", "+moon", "+fednova")
    for text in ("fathom:client=adam,lr=0.01", *(f"fathom{part}" for part in parts)):
        one, many = (
            fk.train(small, text, world, 4, engine=fk.Local(m, chunk=3), dtype=torch.float64)
            for m in ("serial", "batched")
        )
        assert many.config["engine"] == "batched"
        close(one.params, many.params, 1e-10)
        close(one.history[-1]["phi"], many.history[-1]["phi"], 1e-10)


def test_it_watches_and_does_not_touch_what_others_do(small, mode):
    world = fk.World(cohort=[[1, 2, 3], [3, 4, 5]], budget=fk.UniformSteps(1, 6))
    others = "fedprox:mu=0.3+fedyogi+gel"
    plain, still = (
        fk.train(small, f"{text}+{others}", world, 4, batch_size=5, engine=mode)
        for text in ("sgd:lr=0.1", f"fathom:batch_size=5,epochs=9{STILL}")  # nine epochs exceed every budget here
    )
    assert torch.equal(plain.params, still.params)


def test_a_round_that_nobody_survives_leaves_the_tuner_alone(bowls, play):
    task = bowls([[1e200]], [[0.0]], [4], [1e200])
    run, _ = play(task, "fathom:lr=0.1", fk.Epochs(1))
    assert run.status == "diverged"
    assert tuned(run) == [1.0, 0.1, 20.0, 0.0, 0.0]


def test_names_and_defaults():
    known = fk.algorithm("fathom")
    assert known.rules == (fk.Fathom(1, 20, 0.01, 0.01, 0.1, 0.5),)
    assert (known.client.lr, known.weights) == (0.1, fk.Samples())
    assert math.isclose(fk.algorithm("fathom:lr=0.3").client.lr, 0.3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fathom:epochs=11", r"'epochs' parameter of Fathom must be in \[epochs_min, epochs_max\]"),
        ("fathom:batch_size=0.5", "'batch_size' parameter of Fathom"),
        ("fathom:lr_min=0", "'lr_min' parameter of Fathom"),
        ("fathom:lr_max=1e-9", "'lr_max' parameter of Fathom"),
        ("fathom:steps=round", "'steps' parameter of Fathom"),
        ("fathom:eq12=both", "'eq12' parameter of Fathom must be 'code' or 'paper'"),
        ("fathom:smoothing=1", "'smoothing' parameter of Fathom"),
        ("fathom:gamma_lr=-1", "'gamma_lr' parameter of Fathom"),
        ("fathom:decay=step", "each set the rate of a round"),
        ("fathom:client=deltasgd", "DeltaSGD clients find by themselves"),
    ],
)
def test_nonsense_is_refused_with_a_reason(text, why):
    with pytest.raises(fk.InputError, match=why):
        fk.algorithm(text)


def test_a_rate_outside_its_bounds_is_refused(small):
    with pytest.raises(fk.InputError, match="'lr' parameter of Fathom"):
        fk.train(small, "fathom:lr=0.9", rounds=1)
