"""SPS: spec section 11, worked example E10, invariant 11."""

from __future__ import annotations

import pytest
import torch

import fedkeel as fk


def close(values, expected, tolerance=1e-9):
    values, expected = (torch.as_tensor(v, dtype=torch.float64) for v in (values, expected))
    assert torch.allclose(values, expected, rtol=0, atol=tolerance), (values, expected)


def test_on_a_line_one_step_reaches_the_minimiser_as_in_e10(bowls, play, mode):
    task = bowls([[3.0], [1.0]], [[-1.0], [4.0]], [1, 1], [2.0])
    _, trace = play(task, "sps", 1, mode)
    close(trace.rates[1, 0], [0.333333333251], 1e-12)
    close(trace.points[1, 0][0], [-1.0], 1e-8)
    close(trace.points[1, 1][0], [4.0], 1e-8)  # each client its own step size: here 1


def test_the_smooth_variant_starts_from_one_and_grows_slowly(bowls, play, mode):
    _, trace = play(bowls([[3.0]], [[-1.0]], [1], [2.0]), "sps:smooth=true,c=0.2", 1, mode)
    close(trace.rates[1, 0], [0.8333333328], 1e-10)
    _, flat = play(bowls([[0.01]], [[-1.0]], [1], [2.0]), "sps:smooth=true", 3, mode)  # Polyak's step would be 100
    close(flat.rates[1, 0], [2 ** (k / 500) for k in (1, 2, 3)])
    _, lower = play(bowls([[0.01]], [[-1.0]], [1], [2.0]), "sps:smooth=true,lr=0.5", 1, mode)
    close(lower.rates[1, 0], [0.5 * 2 ** (1 / 500)])


def test_a_cap_holds(bowls, play, mode):
    _, trace = play(bowls([[3.0]], [[-1.0]], [1], [2.0]), "sps:max=0.25", 2, mode)
    close(trace.rates[1, 0], [0.25, 0.25])


def test_no_gradient_means_no_step_even_far_from_fstar(bowls, play, mode):
    run, trace = play(bowls([[3.0]], [[2.0]], [1], [2.0]), "sps:fstar=-5", 3, mode)
    close(trace.rates[1, 0], [0.0, 0.0, 0.0])
    assert (run.params.item(), run.history[-1]["skipped"]) == (2.0, 0)


def test_a_loss_below_fstar_means_no_step(bowls, play, mode):
    _, trace = play(bowls([[3.0]], [[-1.0]], [1], [2.0]), "sps:fstar=20", 2, mode)
    close(trace.rates[1, 0], [0.0, 0.0])


def test_the_smooth_variant_recovers_from_a_step_of_zero(bowls, play):
    # two kinds of samples: at the point 2 one has no gradient, the other has
    task = bowls([[1.0]], [[2.0]], [2], [2.0])
    task.data.x[1, 1] = -1.0
    world = fk.World(cohort="all", budget=fk.FixedSteps(4))
    _, trace = play(task, "sps:smooth=true,fstar=-1", batch_size=1, world=world, seed=3)
    rates = trace.rates[1, 0]
    assert rates[0] == 0.0 or rates[1] == 0.0
    assert max(rates[1:]) > 0


@pytest.mark.parametrize(("key", "pull"), [("+fedprox:mu=2", 2.0), (":weight_decay=2", 2.0)])
def test_the_loss_includes_the_penalty(bowls, play, mode, key, pull):
    base, own = key.partition(":")[::2] if key.startswith(":") else (key, "")
    text = f"sps:c=2{',' + own if own else ''}{base}"
    _, trace = play(bowls([[3.0]], [[-1.0]], [1], [2.0]), text, 2, mode)
    centre = 2.0 if "fedprox" in text else 0.0
    y = 2.0
    for rate, point in zip(trace.rates[1, 0], trace.points[1, 0], strict=True):
        f, g = 1.5 * (y + 1) ** 2 + pull / 2 * (y - centre) ** 2, 3 * (y + 1) + pull * (y - centre)
        close(rate, f / (2 * g * g + 1e-8))
        y -= rate * g
        close(point, [y])


def test_a_non_finite_loss_is_skipped_and_counted(bowls, play, mode):
    task = bowls([[1.0]], [[0.0]], [3], [100.0])
    task.data.x[2, 0] = 1e308
    world = fk.World(cohort="all", budget=fk.FixedSteps(3))
    run, trace = play(task, "sps:c=2", mode=mode, batch_size=1, world=world)
    assert (run.history[-1]["skipped"], run.history[-1]["dropped"]) == (1, 0)
    assert trace.rates[1, 0].count(0.0) == 1


def test_it_costs_one_gradient_a_step(bowls, play, mode):
    run, _ = play(bowls([[3.0]], [[-1.0]], [4], [2.0]), "sps:c=2", 5, mode)
    assert (run.history[-1]["gradients"], run.history[-1]["samples"]) == (5, 20)


def test_serial_and_batched_agree(small):
    world = fk.World(cohort=4, budget=fk.UniformSteps(1, 6))
    for text in (
        "sps",
        "sps:smooth=true,max=0.9",
        "sps+moon",
        "sps+fedprox:mu=0.1",
        "sps:momentum=0.5+gel",
        "sps+ghbm",
    ):
        one, many = (
            fk.train(small, text, world, 3, engine=fk.Local(m, chunk=3), dtype=torch.float64)
            for m in ("serial", "batched")
        )
        assert many.config["engine"] == "batched"
        close(one.params, many.params, 1e-9)


def test_names_and_defaults():
    known = fk.algorithm("sps")
    assert known.client == fk.SPS(c=0.5, fstar=0.0, max=None, smooth=False).for_clients()
    assert known.weights == fk.Uniform()
    assert fk.algorithm("fedprox:client=sps").client == known.client


class Crooked(fk.Rule):
    """Turns the gradient and belongs to no loss."""

    def gradient(self, g, y, me):
        return g + 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: fk.algorithm("sps:lr=0.1"), "SPS finds its own"),
        (lambda: fk.algorithm("sps:clip=1"), "use max"),
        (lambda: fk.algorithm("sps:c=0"), "'c' parameter of SPS"),
        (lambda: fk.algorithm("sps:max=0"), "'max' parameter of SPS"),
        (lambda: fk.algorithm("sps:decay=step"), "find their own rate"),
        (lambda: fk.algorithm("sps+fathom"), "find by themselves"),
        (lambda: fk.algorithm("sps:weights=nova"), "SPS does not give"),
        (lambda: fk.algorithm("sps+scaffold"), "scaffold changes the gradient"),
        (lambda: fk.Algorithm(fk.SPS(), [Crooked()]), "belongs to no loss"),
    ],
)
def test_nonsense_is_refused_with_a_reason(make, why):
    with pytest.raises(fk.InputError, match=why):
        make()
