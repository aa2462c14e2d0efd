"""Max-pooling by compiled C: torch's own numbers, for what it was written for, and the old way for the rest."""

import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedkeel as fk
from fedkeel.engine import native, pooling
from fedkeel.flat import FlatModel

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))), reason="no C compiler here"
)


@pytest.fixture
def small(monkeypatch):
    """C also where it would not pay."""
    monkeypatch.setattr(pooling, "SMALLEST", 0)


def images(*shape):
    """With many equal numbers, and some that are none, or as large as can be."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    flat = drawn.view(-1)
    flat[::97], flat[1::89], flat[2::83], flat[3::79] = torch.nan, torch.inf, -torch.inf, -0.0
    return drawn.contiguous(memory_format=torch.channels_last)


def there_and_back(layer, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    return y.detach(), x.grad


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def check(x):
    layer = nn.MaxPool2d(2)
    compiled = pooling.Compiled(layer)
    torch.use_deterministic_algorithms(True)  # what is not written to is NaN
    try:
        found = there_and_back(layer, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert compiled.ran and all(map(same, found, there_and_back(nn.MaxPool2d(2), x)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 9), st.integers(2, 9))
def test_outputs_and_derivatives_are_torchs_bit_for_bit(samples, channels, height, width):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "SMALLEST", 0)
        check(images(samples, 16 * channels, height, width))


@pytest.mark.parametrize("narrow", ["-mno-avx512f", "-mno-avx"])
def test_narrower_vectors_give_the_same(small, monkeypatch, narrow):
    try:
        native.build(native.written("products.c", "pooling.c"), (*native.EXACT, narrow))
    except RuntimeError:
        pytest.skip("this compiler knows no such vectors")
    monkeypatch.setattr(pooling, "EXACT", (*native.EXACT, narrow))
    pooling.library.cache_clear()
    try:
        check(images(3, 32, 7, 8))
    finally:
        pooling.library.cache_clear()


def test_what_it_was_not_written_for_goes_the_way_it_went(small):
    layer, plain = nn.MaxPool2d(2), nn.MaxPool2d(2)
    compiled, x = pooling.Compiled(layer), torch.randn(2, 16, 6, 6)
    last = x.contiguous(memory_format=torch.channels_last)
    for other in (x, x[0], last.double(), last[:, :15]):
        assert torch.equal(layer(other), plain(other))
    with torch.no_grad():
        assert torch.equal(layer(last), plain(last))
    with pytest.raises(RuntimeError):
        layer(last[:, :, :1])
    assert not compiled.ran
    layer(last)
    assert compiled.ran


def test_few_elements_are_left_to_torch():
    layer = nn.MaxPool2d(2)
    compiled = pooling.Compiled(layer)
    layer(images(1, 16, 4, 4))
    assert not compiled.ran
    layer(images(8, 64, 8, 8))
    assert compiled.ran


LAYERS = [
    (nn.MaxPool2d(2), True), (nn.MaxPool2d((2, 2), (2, 2)), True), (nn.MaxPool2d(3), False),
    (nn.MaxPool2d(2, stride=1), False), (nn.MaxPool2d((2, 1)), False), (nn.MaxPool2d(2, padding=1), False),
    (nn.MaxPool2d(2, dilation=2), False), (nn.MaxPool2d(2, ceil_mode=True), False),
    (nn.MaxPool2d(2, return_indices=True), False), (nn.AvgPool2d(2), False),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "taken"), LAYERS)
def test_which_layers_it_was_written_for(layer, taken):
    model = FlatModel(nn.Sequential(layer, nn.Flatten(), nn.Linear(1, 1)), torch.float32)
    assert bool(pooling.Compiled.all_of(model)) == taken


def test_second_derivatives_are_torchs(small):
    found = []
    for by_c in (True, False):
        layer = nn.MaxPool2d(2)
        compiled = pooling.Compiled(layer) if by_c else None
        x = torch.randn(2, 16, 5, 4, generator=torch.Generator().manual_seed(0))
        x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
        (slope,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x)[0])
        assert compiled is None or compiled.ran
    assert torch.equal(*found)


def test_a_run_is_the_same_bit_for_bit():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, 20, 20, generator=draw), torch.randint(5, (60,), generator=draw)
    data = fk.FederatedData.from_arrays(x, y, clients=[0] * 10 + [1] * 20 + [2] * 30, test=(x, y))

    def make():
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1296, 5))

    task = fk.Task(make, fk.cross_entropy, data, batch_size=10, lr=0.1)
    by_c, plain = (fk.train(task, "fedavg", rounds=3, engine=fk.Local("serial", compile=c)) for c in (None, False))
    assert "MaxPool2d compiled in" in by_c.config["engine_reason"] and by_c.config["compile"]
    assert torch.equal(by_c.params, plain.params) and by_c.history[-1]["loss"] == plain.history[-1]["loss"]
