import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.data.batches import Batch

few = settings(derandomize=True, max_examples=30, deadline=None)
slopes = st.lists(st.floats(-3, 3), min_size=1, max_size=12)


def rates(lr):
    return torch.tensor([[lr]], dtype=torch.float64)


def take(client, y, gradients, state, lr):
    """Steps of clients with these gradients, `[clients, 1]` each, wherever the clients are."""
    for k, g in enumerate(gradients):

        def objective(y, batch, g=g):
            return torch.tensor(g, dtype=y.dtype).view(y.shape), y.new_zeros(len(y), 1)

        client.step(objective, state, rates(lr), y, Batch(y, y, None, k))


def ours(client, gradients, lr, start=1.0):
    client = client.for_clients()
    y = torch.tensor([[start]], dtype=torch.float64)
    take(client, y, gradients, client.init(y, rates(lr)), lr)
    return y.item()


def theirs(kind, gradients, start=1.0, clip=None, **settings):
    p = torch.nn.Parameter(torch.tensor([start], dtype=torch.float64))
    optimizer = kind([p], **settings)
    for g in gradients:
        p.grad = torch.tensor([g], dtype=torch.float64)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_([p], clip)
        optimizer.step()
    return p.item()


@few
@given(slopes, st.floats(0, 0.99), st.booleans(), st.floats(0, 0.5))
def test_sgd_is_torchs(gradients, momentum, nesterov, decay):
    nesterov = nesterov and momentum > 0
    keys = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
    got, want = ours(fk.SGD(**keys), gradients, 0.1), theirs(torch.optim.SGD, gradients, lr=0.1, **keys)
    assert got == pytest.approx(want, abs=1e-12)


@few
@given(slopes, st.floats(0, 0.5))
def test_adam_on_clients_is_torchs(gradients, decay):
    got = ours(fk.Adam(weight_decay=decay), gradients, 0.1)
    assert got == pytest.approx(theirs(torch.optim.Adam, gradients, lr=0.1, weight_decay=decay), abs=1e-12)


@few
@given(slopes)
def test_adagrad_on_clients_is_torchs(gradients):
    assert ours(fk.Adagrad(), gradients, 0.1) == pytest.approx(
        theirs(torch.optim.Adagrad, gradients, lr=0.1), abs=1e-12
    )


@few
@given(slopes, st.floats(0.1, 2))
def test_clipping_is_by_the_global_norm_and_before_decay(gradients, clip):
    got = ours(fk.SGD(momentum=0.5, clip=clip, weight_decay=0.3), gradients, 0.1)
    want = theirs(torch.optim.SGD, gradients, clip=clip, lr=0.1, momentum=0.5, weight_decay=0.3)
    assert got == pytest.approx(want, abs=1e-5)  # torch adds 1e-6 to the norm


def test_each_client_is_clipped_by_its_own_norm():
    client = fk.SGD(clip=1.0)
    y = torch.zeros(2, 2)
    take(client, y, [[[3.0, 4.0], [0.3, 0.4]]], {}, 1.0)
    assert y.tolist() == [[pytest.approx(-0.6), pytest.approx(-0.8)], [pytest.approx(-0.3), pytest.approx(-0.4)]]


@pytest.mark.parametrize("kind", [fk.SGD, fk.Adam, fk.Adagrad, fk.Yogi])
def test_rows_are_independent_clients(kind):
    client = replace(kind(), **({"momentum": 0.9} if kind is fk.SGD else {})).for_clients()
    both, gradients = torch.tensor([[1.0], [2.0]], dtype=torch.float64), [[0.5, -2.0], [1.0, 0.3]]
    take(client, both, gradients, client.init(both, rates(0.1)), 0.1)
    for i in (0, 1):
        assert both[i].item() == pytest.approx(ours(client, [row[i] for row in gradients], 0.1, i + 1.0), abs=1e-15)


@few
@given(st.integers(1, 6), st.integers(0, 6))
def test_guessing_step_by_step_is_so_many_more_steps(real, guesses):
    client = fk.Adam().for_clients()
    gradients = [math.sin(k + 1) for k in range(real)]
    y = torch.tensor([[1.0]], dtype=torch.float64)
    state = client.init(y, rates(0.1))
    take(client, y, gradients, state, 0.1)
    last, counts = torch.tensor([[gradients[-1]]], dtype=torch.float64), torch.tensor([[float(guesses)]])
    client.guess(y, last, state, rates(0.1), counts)
    assert y.item() == pytest.approx(ours(client, gradients + [gradients[-1]] * guesses, 0.1), abs=1e-12)


def test_decay_and_clipping_do_not_run_during_guesses():
    client = fk.Adam(weight_decay=5.0, clip=1e-3).for_clients()
    plain = fk.Adam().for_clients()
    ends = []
    for optimizer in (client, plain):
        y = torch.tensor([[1.0]], dtype=torch.float64)
        state = {"m": torch.ones_like(y), "v": torch.ones_like(y), "j": torch.ones_like(y)}
        optimizer.guess(y, torch.ones_like(y), state, rates(0.1), torch.tensor([[3.0]]))
        ends.append(y.item())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", [fk.SGD, fk.Adam, fk.Adagrad, fk.Yogi])
def test_the_servers_step_is_the_clients_step_along_a_given_gradient(kind):
    optimizer = replace(kind(), weight_decay=0.3, clip=1.0, **({"momentum": 0.9} if kind is fk.SGD else {}))
    optimizer = replace(optimizer.for_clients(), **({} if kind is fk.SGD else {"bias_correction": False}))
    gradients, lr = [0.5, -2.0, 3.0], torch.tensor(0.1, dtype=torch.float64)
    x = torch.ones(1, dtype=torch.float64)
    state = optimizer.init(x, lr)
    for g in gradients:
        optimizer.apply(x, torch.tensor([g], dtype=torch.float64), state, lr)
    assert x.item() == ours(optimizer, gradients, 0.1)


BAD = [
    (fk.SGD, {"lr": 0}), (fk.SGD, {"lr": -1}), (fk.SGD, {"lr": "fast"}), (fk.SGD, {"lr": math.inf}),
    (fk.SGD, {"momentum": 1}), (fk.SGD, {"momentum": -0.1}), (fk.SGD, {"momentum": None}),
    (fk.SGD, {"nesterov": True}), (fk.SGD, {"nesterov": 5, "momentum": 0.9}),
    (fk.SGD, {"weight_decay": -1}), (fk.SGD, {"clip": 0}), (fk.SGD, {"lr": True}),
    (fk.Adam, {"beta1": 1}), (fk.Adam, {"beta2": 1.0}), (fk.Adam, {"eps": 0}), (fk.Adam, {"v_init": -1}),
    (fk.Adam, {"bias_correction": "maybe"}), (fk.Yogi, {"beta1": "x"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "keys"), BAD)
def test_a_value_out_of_range_is_refused_by_name(kind, keys):
    with pytest.raises(fk.InputError) as caught:
        kind(**keys)
    message = str(caught.value)
    assert f"parameter of {kind.__name__} must be" in message
    assert any(f"'{name}'" in message for name in keys)


@pytest.mark.parametrize("kind", [fk.SGD, fk.Adam, fk.Adagrad, fk.Yogi])
def test_every_default_is_filled_in_for_its_place(kind):
    for filled in (kind().for_clients(), kind().for_server()):
        missing = {f.name for f in fields(filled) if getattr(filled, f.name) is None}
        assert missing <= {"lr", "clip"}
    assert kind().for_server().lr == (1.0 if kind is fk.SGD else 0.01)


def test_what_the_user_gave_is_never_overwritten_by_a_default():
    assert fk.Yogi(0.5, beta1=0.0, v_init=0.0).for_server().v_init == 0.0
    assert fk.Adam(eps=0.1).for_server().v_init == pytest.approx(0.01)
    assert fk.Adam(bias_correction=False).for_clients().bias_correction is False


def test_adagrad_takes_its_siblings_beta2_without_effect():
    assert fk.Adagrad(0.1, beta2=0.99) == fk.Adagrad(0.1, beta2=0.0)
    assert fk.algorithm("fedadagrad:beta2=0.9").server == fk.algorithm("fedadagrad").server
