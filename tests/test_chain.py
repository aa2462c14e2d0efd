"""Gradients written out in C: the same numbers as torch's, for any chain."""

import dataclasses
import math
import os
import shutil
import stat
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedkeel as fk
from fedkeel.engine import kernels
from fedkeel.engine.gradients.lockstep import plain_gradients
from fedkeel.engine.kernels import chain, native
from fedkeel.errors import ClientError, InputError

compiler = pytest.mark.skipif(
    not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))), reason="no C compiler here"
)
BETWEEN = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Flatten)


COMPILED = fk.Local("batched", compile=True)


def task_of(make, width=6, classes=4, dtype=torch.float64, loss=fk.cross_entropy, shape=()):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, *shape, width, generator=draw), torch.randint(classes, (60,), generator=draw)
    data = fk.FederatedData.from_arrays(x, y, clients=[0] * 2 + [1] * 18 + [2] * 40)
    return fk.Task(make, loss, data, batch_size=5, lr=0.1).cast(dtype, "cpu")


def points_of(task, model, clients, batch):
    draw = torch.Generator().manual_seed(1)
    y = model.flat + 0.1 * torch.randn(clients, model.size, generator=draw).to(model.flat)
    index = torch.randint(len(task.data.x), (clients, batch), generator=draw)
    return y, task.data.x[index], task.data.y[index]


@compiler
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.lists(st.sampled_from(BETWEEN), max_size=2)), max_size=3),
    st.lists(st.sampled_from(BETWEEN), max_size=2),
    st.lists(st.sampled_from(BETWEEN), max_size=2),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 11),
    st.sampled_from((torch.float32, torch.float64)),
)
def test_any_chain_has_the_gradients_that_torch_gives_it(inner, before, after, bias, clients, batch, dtype):
    def make():
        layers, width = [kind() for kind in before], 6
        for out, own, between in inner:
            layers += [nn.Linear(width, out, bias=own), *(kind() for kind in between)]
            width = out
        return nn.Sequential(*layers, nn.Linear(width, 4, bias=bias), *(kind() for kind in after))

    task = task_of(make, dtype=dtype)
    model = task.adopt(0, dtype, "cpu")
    found, want = chain.gradients(task, model), plain_gradients(task, model)
    y, x, target = points_of(task, model, clients, batch)
    share = torch.rand(clients, batch, generator=torch.Generator().manual_seed(2)).to(dtype)
    share[0, 0] = 0  # padding
    for shares in (None, share):
        got, expected = found(y, x, target, shares), want(y, x, target, shares)
        for one, other in zip(got, expected, strict=True):
            assert one.shape == other.shape and one.dtype == dtype
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5 if dtype == torch.float32 else 1e-13)


@compiler
@pytest.mark.parametrize("middle", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(("width", "hidden", "batch"), [(6, 5, 5), (60, 32, 5), (784, 200, 13)])
def test_the_error_of_a_chain_against_float64_is_a_few_roundings(middle, dtype, bound, width, hidden, batch):
    def of(dtype):
        task = task_of(lambda: nn.Sequential(nn.Linear(width, hidden), middle(), nn.Linear(hidden, 4)), width)
        task = task.cast(dtype, "cpu")
        return task, task.adopt(0, dtype, "cpu")

    (task, model), (exact, other) = of(dtype), of(torch.float64)
    y, x, target = points_of(task, model, 3, batch)
    found = chain.gradients(task, model)(y, x, target, None)
    assert batch * model.size <= chain.LARGEST  # C, not torch
    for got, want in zip(found, plain_gradients(exact, other)(y.double(), x.double(), target, None), strict=True):
        assert ((got - want).norm(dim=1) <= bound * want.norm(dim=1)).all()


@compiler
@pytest.mark.parametrize("middle", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_what_diverges_shows_on_its_own_client_alone(middle, value):
    task = task_of(lambda: nn.Sequential(nn.Linear(6, 5), middle(), nn.Linear(5, 4)))
    model = task.adopt(0, torch.float64, "cpu")
    y, x, target = points_of(task, model, 3, 5)
    found = chain.gradients(task, model)
    clean = found(y, x, target, None)
    x[1, 2, 0] = value
    (g, loss), (want, expected) = found(y, x, target, None), plain_gradients(task, model)(y, x, target, None)
    assert torch.allclose(g, want, equal_nan=True) and torch.allclose(loss, expected, equal_nan=True)
    assert torch.equal(g[::2], clean[0][::2]) and torch.equal(loss[::2], clean[1][::2])


@compiler
@pytest.mark.parametrize("label", [-1, 4, 2**40])
def test_a_label_without_a_score_is_refused(label):
    task = task_of(lambda: nn.Linear(6, 4))
    model = task.adopt(0, torch.float64, "cpu")
    y, x, target = points_of(task, model, 3, 5)
    target[2, 4] = label
    with pytest.raises(IndexError, match="none of the 4 classes"):
        chain.gradients(task, model)(y, x, target, None)


def test_what_is_no_chain_from_numbers_to_classes_is_left_to_torch():
    def of(make=lambda: nn.Linear(6, 4), **settings):
        task = task_of(make, **settings)
        return chain.fits(task, task.adopt(0, torch.float64, "cpu"))

    assert of()
    assert not of(loss=nn.CrossEntropyLoss(torch.ones(4).double(), reduction="none"))
    assert not of(lambda: nn.Sequential(nn.Linear(6, 4), nn.GELU()))
    assert not of(lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 4)))
    # A layer for each of several rows: the last of them is flattened, so its outputs look like anybody's.
    assert not of(lambda: nn.Sequential(nn.Linear(6, 2), nn.Flatten()), shape=(2,))


def own_forward(layer):
    layer.forward = partial(nn.functional.linear, weight=layer.weight, bias=layer.bias)
    return layer


def hooked(layer):
    layer.register_forward_hook(lambda layer, given, output: output.clamp(max=0.5))
    return layer


def hooked_before(layer):
    layer.register_forward_pre_hook(lambda layer, given: (given[0] / 2,))
    return layer


CHANGED = {
    "hook": hooked,
    "pre-hook": hooked_before,
    "forward of its own": own_forward,
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "weight_norm of old": pytest.param(
        nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
    ),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_layer_that_somebody_changed_makes_no_chain(change):
    task = task_of(lambda: nn.Sequential(change(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 4)))
    assert not chain.fits(task, task.adopt(0, torch.float64, "cpu"))
    with pytest.raises(InputError, match="no C kernel for this model where clients run"):
        fk.train(task, "fedavg", rounds=1, dtype="float64", engine=COMPILED)


@compiler
def test_images_that_are_flattened_are_plain_numbers():
    task = task_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), shape=(2,))
    model = task.adopt(0, torch.float64, "cpu")
    y, x, target = points_of(task, model, 3, 5)
    found, want = chain.gradients(task, model)(y, x, target, None), plain_gradients(task, model)(y, x, target, None)
    assert torch.allclose(found[0], want[0]) and torch.allclose(found[1], want[1])


@compiler
def test_the_loss_of_large_scores_is_as_exact_as_that_of_small_ones():
    task = task_of(lambda: nn.Linear(6, 4), dtype=torch.float32)
    model = task.adopt(0, torch.float32, "cpu")
    y, x, target = points_of(task, model, 1, 5)
    for bias in (1e3, 1e6, 3e7):
        y[:, :-4], y[:, -4:] = 0, bias
        assert chain.gradients(task, model)(y, x, target, None)[1].item() == pytest.approx(math.log(4), rel=1e-6)


@compiler
def test_what_c_does_not_look_at_is_torchs_to_do_or_to_refuse():
    task = task_of(lambda: nn.Linear(6, 4, bias=False))
    model = task.adopt(0, torch.float64, "cpu")
    found, want = chain.gradients(task, model), plain_gradients(task, model)
    y, x, target = points_of(task, model, 3, 5)
    share = torch.full((3, 5), 0.2).double()
    assert torch.equal(found(y[:1], x, target, None)[0], want(y[:1], x, target, None)[0])  # one model for all of them
    changed = [
        (y.float(), x, target, None), (y, x.float(), target, None), (y, x.half(), target, None),
        (y, x[..., :5], target, None), (y[:, :-1], x, target, None), (y, x, target.double(), None),
        (y, x[:, :4], target, None), (y, x, target, share[:, :4]),
    ]  # fmt: skip
    for other in changed:
        with pytest.raises((RuntimeError, IndexError)):
            found(*other)


@compiler
def test_inputs_that_an_augmentation_makes_double_are_refused_as_without():
    task = dataclasses.replace(
        task_of(lambda: nn.Linear(6, 4), dtype=torch.float32), augment=lambda x, generators: x.double()
    )
    for compile in (False, True):
        with pytest.raises(ClientError, match="dtype"):
            fk.train(task, "fedavg", rounds=1, engine=fk.Local("batched", compile=compile))


@compiler
def test_large_products_are_left_to_torch(monkeypatch):
    task = task_of(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
    model = task.adopt(0, torch.float64, "cpu")
    y, x, target = points_of(task, model, 3, 5)
    found, want = chain.gradients(task, model), plain_gradients(task, model)(y, x, target, None)
    wrong = torch.full_like(target, 4)  # C and torch refuse it in their own words
    monkeypatch.setattr(chain, "LARGEST", 5 * model.size)
    with pytest.raises(IndexError, match="none of the 4 classes"):
        found(y, x, wrong, None)
    monkeypatch.setattr(chain, "LARGEST", 5 * model.size - 1)
    with pytest.raises(RuntimeError, match="out of bounds"):
        found(y, x, wrong, None)
    assert torch.equal(found(y, x, target, None)[0], want[0])


@compiler
def test_one_chain_is_compiled_once():
    before = native._build.cache_info().misses
    for seed in (0, 1):
        task = task_of(lambda: nn.Linear(6, 4), dtype=torch.float32)
        run = fk.train(task, "fedavg", rounds=1, seed=seed, engine=COMPILED)
        assert "; a chain of layers compiled in " in run.config["engine_reason"]
    assert native._build.cache_info().misses <= before + 1


def test_without_a_compiler_it_stops_with_one_line(monkeypatch):
    native._build.cache_clear()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    task = task_of(lambda: nn.Linear(6, 4), dtype=torch.float32)
    with pytest.raises(InputError, match=r"^compile=True needs a C compiler: no C compiler found .*\.$") as raised:
        fk.train(task, "fedavg", rounds=2, engine=COMPILED)
    assert "\n" not in str(raised.value)


def wrapped(tmp_path, script):
    file = tmp_path / "compiler"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_a_compiler_that_fails_says_why(monkeypatch, tmp_path):
    native._build.cache_clear()
    monkeypatch.setenv("CC", wrapped(tmp_path, "echo 'out of order' >&2; exit 1"))
    task = task_of(lambda: nn.Linear(6, 4), dtype=torch.float32)
    with pytest.raises(InputError, match=r"needs a C compiler: .*compiler' failed: out of order\. "):
        fk.train(task, "fedavg", rounds=1, engine=COMPILED)


@compiler
def test_a_compiler_that_does_not_know_the_machine_is_asked_without(monkeypatch, tmp_path):
    known = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")))
    native._build.cache_clear()
    monkeypatch.setenv("CC", wrapped(tmp_path, f'case "$*" in *=native*) exit 1;; esac; exec {known} "$@"'))
    task = task_of(lambda: nn.Linear(6, 4), dtype=torch.float32)
    run = fk.train(task, "fedavg", rounds=1, engine=COMPILED)
    native._build.cache_clear()
    assert "; a chain of layers compiled in " in run.config["engine_reason"]


@compiler
@pytest.mark.parametrize(("wrong", "taken"), [(0, True), (1, True), (3000, False)])
def test_gradients_may_differ_where_a_relu_flips_and_nowhere_else(wrong, taken, monkeypatch):
    """A unit on the other side of its edge is one of many; a whole layer is another gradient."""
    honest = chain.gradients

    def altered(task, model):
        def gradients(*given):
            g, loss = honest(task, model)(*given)
            g[:, : 6 * 3000].view(len(g), 3000, 6)[:, :wrong] = 0
            return g, loss

        return gradients

    monkeypatch.setattr(chain, "gradients", altered)
    task = task_of(lambda: nn.Sequential(nn.Linear(6, 3000), nn.ReLU(), nn.Linear(3000, 4)))
    model = task.adopt(0, torch.float64, "cpu")
    if taken:
        assert kernels.compiled(task, model, "batched").plain is not None
    else:
        with pytest.raises(InputError, match=r"^The compiled gradients of this model differ from torch's; .*\.$"):
            kernels.compiled(task, model, "batched")


def test_gradients_are_compared_parameter_by_parameter_and_only_where_they_are_numbers():
    loss, want = torch.ones(2, 1), torch.cat([1e-3 * torch.ones(2, 6), torch.ones(2, 600)], 1)

    def same(change, among=want):
        return kernels._agree((change(among.clone()), loss), (among, loss), [6, 600])

    assert same(lambda g: g) and same(lambda g: g.index_fill(1, torch.tensor([50]), 0.9))
    assert not same(lambda g: g * torch.cat([-torch.ones(6), torch.ones(600)]))  # a small parameter, turned round
    assert not same(lambda g: 0 * g, 1e30 * want) and not same(lambda g: g.nan_to_num(), want / 0)
    assert same(lambda g: g, want * torch.nan)
