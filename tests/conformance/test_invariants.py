"""The invariants of the specification, section 18: numbers 1 to 9 and 16."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.conformance import MODES, choices, quadratics, toy, toy_world, witnessed
from fedkeel.data.batches import Batch
from fedkeel.messages import Facts
from fedkeel.response import lengths
from fedkeel.rule import End, Me

few = settings(derandomize=True, max_examples=40, deadline=None)
momenta = st.floats(0.0, 0.99)
counts = st.integers(1, 20)


def run_steps(client, gradients, lr=0.1):
    """A client's walk through recorded gradients: `go(y) -> End`, as a rule that wraps the walk gets it."""

    def go(y):
        rate = torch.full_like(y, lr)
        state, g = client.init(y, rate), torch.zeros_like(y)
        for k, slope in enumerate(gradients):
            recorded = torch.full_like(y, slope), torch.zeros_like(y)
            g, _ = client.step(lambda *_, found=recorded: found, state, rate, y, Batch(y, y, None, k))
        return End(client, state, rate, len(gradients) * rate, torch.zeros_like(y), g)

    return go


def end_of(walk, real=0, rule=None):
    """Where a walk of so many real steps ends, with what the rule does around it."""
    y = torch.zeros(1, 1, dtype=torch.float64)
    one = torch.ones_like(y)
    me = Me(y[0].clone(), Facts(), real * one, one, one, one, site=None)
    walk(y) if rule is None else rule.walk(walk, me, y)
    return y


@few
@given(st.floats(0.01, 0.99), st.booleans(), counts, st.integers(0, 30))
def test_1_the_closed_form_is_as_many_zero_gradient_steps(momentum, nesterov, real, guesses):
    client = fk.SGD(0.1, momentum=momentum, nesterov=nesterov)
    slopes = [math.sin(k + 1) for k in range(real)]
    by_hand = end_of(run_steps(client, slopes + [0.0] * guesses))
    guessed = end_of(run_steps(client, slopes), real, fk.Guess(guesses))
    assert guessed.item() == pytest.approx(by_hand.item(), rel=1e-12, abs=1e-12)


def coefficients(momentum, real, guesses):
    """Lemma 1: a_k = (1 - alpha^(q + tau - k)) / (1 - alpha)."""
    return [(1 - momentum ** (guesses + real - k)) / (1 - momentum) for k in range(real)]


@few
@given(st.floats(0.0, 0.99), counts, st.integers(0, 30))
def test_2_lemma_1_gives_the_point_and_the_norm(momentum, real, guesses):
    client, slopes = fk.SGD(0.1, momentum=momentum), [math.cos(k) for k in range(real)]
    rules = [fk.Guess(guesses)] if momentum else []
    y = end_of(run_steps(client, slopes), real, *rules)
    a = coefficients(momentum, real, guesses if momentum else 0)
    assert y.item() == pytest.approx(-0.1 * sum(ak * g for ak, g in zip(a, slopes, strict=True)), rel=1e-12, abs=1e-12)
    q = guesses if momentum else 0
    closed = (real - momentum ** (q + 1) * (1 - momentum**real) / (1 - momentum)) / (1 - momentum)
    shadow = lengths(client, rules, torch.tensor([[float(real)]]), 0.1, None).item()
    assert sum(a) == pytest.approx(closed, rel=1e-11)
    assert shadow == pytest.approx(sum(a), rel=1e-11)


def test_2_lemma_1_holds_for_a_recorded_run():
    algorithm, witness = witnessed("gel:lr=0.1,momentum=0.8")
    task = quadratics(a=[1, 3], b=[1, -1], x0=2)
    world = fk.World([[1]], fk.FixedSteps(4), expected_steps=9)
    x = fk.train(task, algorithm, world, 1, dtype=torch.float64).params.item()
    slopes = [witness.gradients[1, 1, k].item() for k in range(4)]
    point = 2 - 0.1 * sum(a * g for a, g in zip(coefficients(0.8, 4, 5), slopes, strict=True))
    assert x == pytest.approx(point, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", ["gel:steps=0", "gel:steps=0%"])
def test_3_no_guess_changes_no_bit(part, mode):
    runs = [fk.train(toy(), a, toy_world(), 4, engine=mode).params for a in (f"fedavgcm+{part}", "fedavgcm")]
    assert torch.equal(*runs)


class Ends(fk.Rule):
    """Writes down where each client ends."""

    def __init__(self):
        self.points = {}

    def finish(self, y, end, me):
        self.points |= {int(client): row.item() for client, row in zip(me.site.clients, y, strict=True)}
        return fk.Up()


def test_3_a_client_with_nothing_left_to_guess_keeps_its_bits_beside_guessing_neighbours():
    task = quadratics(a=[1, 3], b=[1, -1], x0=2)
    world = fk.World("all", lambda t, i: (9, 4)[i], expected_steps=9)
    guessed, plain = Ends(), Ends()
    for rules in ([fk.Guess(), guessed], [plain]):
        algorithm = fk.Algorithm(client=fk.SGD(0.1, momentum=0.9), rules=rules)
        fk.train(task, algorithm, world, 1, engine="batched", dtype=torch.float64)
    assert guessed.points[0] == plain.points[0]
    assert guessed.points[1] != plain.points[1]


def test_4_infinitely_many_guesses_have_the_limit_coefficient():
    client = fk.SGD(0.1, momentum=0.9)
    assert client.coast(torch.tensor([math.inf])).item() == 0.9 / (1 - 0.9)
    task, world = quadratics(a=[1, 3], b=[1, -1], x0=2), fk.World("all", fk.FixedSteps(3))
    ends = [fk.train(task, f"gel:lr=0.1,steps={q}", world, 1, dtype=torch.float64).params for q in ("inf", 400)]
    assert torch.allclose(*ends, rtol=0, atol=1e-12)
    assert not torch.allclose(
        ends[0], fk.train(task, "gel:lr=0.1,steps=50", world, 1, dtype=torch.float64).params, atol=1e-6
    )


@few
@given(st.floats(0.01, 0.99), counts, st.integers(0, 20), st.integers(0, 19))
def test_5_the_coefficients_are_the_first_of_a_longer_real_run(momentum, real, guesses, which):
    which %= real
    client = fk.SGD(1.0, momentum=momentum)
    one = [float(k == which) for k in range(real)]
    y = end_of(run_steps(client, one, lr=1.0), real, fk.Guess(guesses))
    longer = end_of(run_steps(client, one + [0.0] * guesses, lr=1.0))
    assert y.item() == pytest.approx(longer.item(), rel=1e-11)


def torch_adam(start, gradient, real, guesses, lr=0.1):
    p = torch.nn.Parameter(torch.tensor([start], dtype=torch.float64))
    optimizer = torch.optim.Adam([p], lr=lr)
    for k in range(real + guesses):
        if k < real:
            p.grad = gradient(p.detach()).clone()
        optimizer.step()
    return p.item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("guesses", [0, 1, 7])
def test_6_guesses_of_adam_are_torch_steps_with_an_unchanged_gradient(guesses, mode):
    task, world = quadratics(a=[1.0], b=[1.0], x0=2.0), fk.World("all", fk.FixedSteps(3))
    text = f"gel:client=adam,lr=0.1,steps={guesses}"
    got = fk.train(task, text, world, 1, dtype=torch.float64, engine=mode).params.item()
    assert got == pytest.approx(torch_adam(2.0, lambda p: p - 1, 3, guesses), abs=1e-12)


def test_6_infinitely_many_guesses_with_adam_are_refused():
    for proxy in ("last", "zero"):
        with pytest.raises(fk.InputError, match="Infinitely many guesses"):
            fk.algorithm(f"gel:client=adam,steps=inf,proxy={proxy}")


@few
@given(st.integers(1, 8), st.floats(0.0, 0.9), st.integers(0, 3))
def test_7_fednova_with_equal_norms_is_fedavg(steps, momentum, seed):
    world = fk.World("all", fk.FixedSteps(steps))
    task = quadratics(a=[1, 3, 2], b=[1, -1, 4], n=[3, 1, 5], x0=seed)
    names = (f"{name}:lr=0.05,momentum={momentum}" for name in ("fednova", "fedavg"))
    assert torch.allclose(*(fk.train(task, n, world, 2, dtype=torch.float64).params for n in names), atol=1e-12, rtol=0)


def test_8_a_plain_server_at_rate_one_is_averaging():
    algorithm = fk.Algorithm(client=fk.SGD(0.1), server=fk.SGD(1.0))
    task, world = quadratics(a=[1, 3], b=[1, -1], n=[3, 1], x0=2), fk.World("all", fk.FixedSteps(1))
    x = fk.train(task, algorithm, world, 1, dtype=torch.float64).params.item()
    assert x == pytest.approx(0.75 * (2 - 0.1 * 1) + 0.25 * (2 - 0.1 * 9), abs=1e-14)


@few
@given(st.floats(0, 10), st.floats(0, 0.999), st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_8_yogis_second_moment_is_never_negative(start, beta2, slopes):
    yogi = fk.Yogi(0.1, beta2=beta2, v_init=start).for_server()
    v = torch.tensor([start], dtype=torch.float64)
    for g in slopes:
        yogi.second_moment(v, torch.tensor([g * g], dtype=torch.float64))
        assert v.item() >= 0


def test_9_the_first_step_has_no_proximal_part():
    world = fk.World(cohort=4, budget=fk.FixedSteps(1))
    runs = [fk.train(toy(), a, world, 3).params for a in ("fedprox:mu=5", "fedavg")]
    assert torch.equal(*runs)
    longer = [fk.train(toy(), a, toy_world(), 3).params for a in ("fedprox:mu=5", "fedavg")]
    assert not torch.equal(*longer)


def test_9_the_proximal_part_enters_the_momentum():
    task, world = quadratics(a=[1.0], b=[1.0], x0=2.0), fk.World("all", fk.FixedSteps(3))
    x, v, mu = 2.0, 0.0, 0.5
    for _ in range(3):
        v = 0.9 * v - 0.1 * ((x - 1) + mu * (x - 2))
        x += v
    run = fk.train(task, "fedprox:mu=0.5,lr=0.1,momentum=0.9", world, 1, dtype=torch.float64)
    assert run.params.item() == pytest.approx(x, abs=1e-14)


@pytest.mark.parametrize("base", ["fedavgcm", "fednova", "fedyogi"])
def test_16_guesses_change_no_random_choice(base):
    assert choices(base, seed=3) == choices(f"{base}+gel", seed=3)
