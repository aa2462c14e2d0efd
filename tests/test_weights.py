import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.conformance import quadratics
from fedkeel.weights import WEIGHTS, lengths

few = settings(derandomize=True, max_examples=30, deadline=None)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def applied(weights, samples, norms, steps, updates):
    each = weights.each(samples, norms)
    return ((each * updates).sum() * weights.scale(samples, norms, steps)).item()


def test_each_weighting_is_its_formula():
    n, a, tau, d = column(3, 1), column(2.9, 9.0), column(2, 4), column(1.0, -2.0)
    assert applied(fk.Samples(), n, a, tau, d) == pytest.approx(0.75 - 0.5)
    assert applied(fk.Uniform(), n, a, tau, d) == pytest.approx(-0.5)
    direction = 0.75 / 2.9 - 0.25 * 2 / 9.0
    assert applied(fk.Nova(), n, a, tau, d) == pytest.approx((0.75 * 2.9 + 0.25 * 9.0) * direction)
    assert applied(fk.Nova("steps"), n, a, tau, d) == pytest.approx(2.5 * direction)


def test_only_known_words_are_taken():
    with pytest.raises(fk.InputError, match="'tau_eff' parameter of Nova must be 'norm' or 'steps'"):
        fk.Nova("epochs")
    assert set(WEIGHTS) == {"samples", "uniform", "nova"}


def by_impulses(client, rules, steps, expected):
    """sum_k a_k from real training: f(x) = -x has gradient -1 everywhere, so the update over the rate is the norm."""

    class Slope(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.p = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return -self.p * x[:, 0]

    data = fk.FederatedData.from_arrays([[1.0]], [0.0], clients=[0])
    task = fk.Task(Slope, lambda o, t: o, data, lr=0.1)
    algorithm = fk.Algorithm(client=client, rules=rules)
    world = fk.World("all", fk.FixedSteps(steps), expected)
    return fk.train(task, algorithm, world, 1, dtype=torch.float64).params.item() / 0.1


@few
@given(
    st.floats(0.1, 0.95),
    st.booleans(),
    st.integers(1, 8),
    st.sampled_from([None, "remaining", 3, "50%", "inf"]),
    st.sampled_from(["zero", "last"]),
    st.floats(0, 0.5),
)
def test_the_norm_is_what_training_does_with_unit_gradients(momentum, nesterov, steps, guess, proxy, mu):
    if guess == "inf" and proxy == "last":
        return  # refused
    client = fk.SGD(0.1, momentum=momentum, nesterov=nesterov)
    rules = [fk.Proximal(mu)] + ([fk.Guess(guess, proxy)] if guess is not None else [])
    # the shadow's pull is +mu s on a gradient of +1, the mirror image of training on a gradient of -1
    norm = lengths(client, rules, column(steps), 0.1, 12).item()
    assert norm == pytest.approx(by_impulses(client, rules, steps, 12), rel=1e-10)


def test_clients_with_different_budgets_have_their_own_norms():
    client, rules = fk.SGD(0.1, momentum=0.9), [fk.Guess(3, "last")]
    together = lengths(client, rules, column(5, 1, 3), 0.1, None).flatten().tolist()
    alone = [lengths(client, rules, column(s), 0.1, None).item() for s in (5, 1, 3)]
    assert together == pytest.approx(alone, rel=1e-12)


def test_nova_works_with_guesses_on_the_last_gradient():
    task = quadratics(a=[1, 3], b=[1, -1], n=[3, 1], x0=2)
    world = fk.World("all", lambda t, i: (2, 4)[i])
    run = fk.train(task, "fednova:lr=0.1+gel:steps=3,proxy=last", world, 1, dtype=torch.float64)
    assert run.history[-1]["clients"] == 2


@pytest.mark.parametrize("client", ["adam", "adagrad"])
def test_nova_is_refused_where_there_is_no_linear_shadow(client):
    with pytest.raises(fk.InputError, match="use weights=samples or weights=uniform"):
        fk.algorithm(f"fednova:client={client}")


def test_nova_is_refused_with_a_rule_that_bends_the_update():
    class SignSGD(fk.Rule):
        def gradient(self, g, y, at):
            return g.sign()

    with pytest.raises(fk.InputError, match="signsgd"):
        fk.Algorithm(rules=[SignSGD()], weights="nova")
