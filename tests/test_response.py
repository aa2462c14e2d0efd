"""How far clients go for given gradients: FedNova's norms and GEL's coefficients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.conformance import toy, toy_world
from fedkeel.response import coefficients, lengths

few = settings(derandomize=True, max_examples=30, deadline=None)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


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
    # the walk's pull is +mu s on a gradient of +1, the mirror image of training on a gradient of -1
    norm = lengths(client, rules, column(steps), 0.1, 12).item()
    assert norm == pytest.approx(by_impulses(client, rules, steps, 12), rel=1e-10)


def test_clients_with_different_budgets_have_their_own_norms():
    client, rules = fk.SGD(0.1, momentum=0.9), [fk.Guess(3, "last")]
    together = lengths(client, rules, column(5, 1, 3), 0.1, None).flatten().tolist()
    alone = [lengths(client, rules, column(s), 0.1, None).item() for s in (5, 1, 3)]
    assert together == pytest.approx(alone, rel=1e-12)


@few
@given(st.floats(0, 0.95), st.sampled_from([0, 3]), st.floats(0, 0.5))
def test_the_norm_is_the_sum_of_the_coefficients(momentum, guesses, mu):
    client = fk.SGD(0.1, momentum=momentum)
    rules = [fk.Proximal(mu)] + ([fk.Guess(guesses, "last")] if guesses else [])
    steps = column(2, 6, 1)
    total = coefficients(client, rules, steps, 0.1, None).sum(1).tolist()
    assert total == pytest.approx(lengths(client, rules, steps, 0.1, None).flatten().tolist(), rel=1e-12)


def test_coefficients_are_zero_after_a_clients_last_step_and_stand_in_cohort_order():
    a = coefficients(fk.SGD(0.1, momentum=0.5), [], column(1, 3, 2), 0.1, None)
    want = [[1.0, 0.0, 0.0], [1.75, 1.5, 1.0], [1.5, 1.0, 0.0]]
    assert torch.allclose(a, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=0)


def test_each_client_has_its_own_expectation():
    client, rules, steps = fk.SGD(0.1, momentum=0.9), [fk.Guess()], column(2, 4)
    together = lengths(client, rules, steps, 0.1, column(9, 5)).flatten().tolist()
    alone = [lengths(client, rules, column(s), 0.1, e).item() for s, e in ((2, 9), (4, 5))]
    assert together == pytest.approx(alone, rel=1e-12)


class Counts(fk.Rule):
    """Reads what it remembers when a round starts, and leaves every step alone."""

    def remember(self, me):
        return {"visits": me.x.new_zeros(1)}

    def start(self, me):
        return {"visits": me.memory["visits"] + 1}

    def finish(self, y, end, me):
        return fk.Up(memory={"visits": me.notes["visits"]})


@pytest.mark.parametrize("mode", ["serial", "batched"])
def test_a_rule_that_leaves_the_steps_alone_needs_no_part_in_the_norm(mode):
    plain = fk.train(toy(), "fednova:momentum=0.9", toy_world(), 2, engine=mode)
    counted = fk.Algorithm(fk.SGD(momentum=0.9), [Counts()], weights="nova")
    assert torch.equal(fk.train(toy(), counted, toy_world(), 2, engine=mode).params, plain.params)
