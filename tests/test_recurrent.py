"""LSTM layers by compiled C: the numbers of torch's own, for what it was written for, and the old way for the rest."""

import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedkeel as fk
from fedkeel.engine import native, recurrent
from fedkeel.engine.compiled import translate_layers
from fedkeel.errors import EngineWarning

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))), reason="no C compiler here"
)


def pair(*sizes, **options):
    """(the layer by C, the same in double precision by torch)."""
    torch.manual_seed(0)
    layer, exact = nn.LSTM(*sizes, **options), nn.LSTM(*sizes, **options).double()
    exact.load_state_dict(layer.state_dict())
    recurrent.Compiled(layer)
    return layer, exact


def everything(layer, x, seed=0):
    """Outputs, last states and the gradients by x and all weights of a sum that has all of them."""
    x = x.detach().requires_grad_()
    outputs, (h, c) = layer(x)
    draw = torch.Generator().manual_seed(seed)
    parts = (outputs, h, c)
    total = sum((part * torch.randn(part.shape, generator=draw).to(part)).sum() for part in parts)
    return [*parts, *torch.autograd.grad(total, [x, *layer.parameters()])]


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*(st.integers(1, 40) for _ in range(2)), st.integers(1, 3)), st.integers(1, 12), st.integers(1, 70),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_outputs_states_and_gradients_are_torchs(sizes, steps, samples, bias, batch_first):
    layer, exact = pair(*sizes, bias=bias, batch_first=batch_first)
    shape = (samples, steps, sizes[0]) if batch_first else (steps, samples, sizes[0])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for got, want in zip(everything(layer, x), everything(exact, x.double()), strict=True):
        assert got.shape == want.shape
        assert (got - want).norm() <= 3e-5 * want.norm() + 1e-6  # 1 - tanh^2 of large numbers has few digits


def test_the_sizes_of_the_workload_are_torchs_too():
    layer, exact = pair(8, 100, 2, batch_first=True)
    x = torch.randn(20, 80, 8, generator=torch.Generator().manual_seed(1))
    for got, want in zip(everything(layer, x), everything(exact, x.double()), strict=True):
        assert (got - want).norm() <= 3e-6 * want.norm()


def test_only_the_last_output_or_the_last_cell_may_be_asked_for():
    layer, exact = pair(3, 5, batch_first=True)
    x = torch.randn(4, 6, 3)
    for choose in (lambda found: found[0][:, -1], lambda found: found[1][1]):
        got, want = (
            torch.autograd.grad(choose(each(x.to(each.weight_hh_l0))).sum(), list(each.parameters()))
            for each in (layer, exact)
        )
        assert all(torch.allclose(a, b.float(), atol=1e-6) for a, b in zip(got, want, strict=True))


def test_large_inputs_saturate_and_what_is_no_number_stays_none():
    layer, exact = pair(2, 7)
    x = torch.tensor([[[1e4, -1e4], [60.0, -60.0], [1e-6, 1e-7]]])
    assert torch.allclose(layer(x)[0], exact(x.double())[0].float(), rtol=1e-6, atol=1e-9)
    for bad in (torch.nan, torch.inf):
        outputs = layer(torch.tensor([[[bad, 1.0], [1.0, 1.0]]]))[0]
        want = exact(torch.tensor([[[bad, 1.0], [1.0, 1.0]]]).double())[0]
        assert torch.equal(outputs.isnan(), want.isnan()) and not outputs[0, 1].isnan().any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_weight_that_is_no_number_shows_from_the_first_step(bad):
    layer, exact = pair(2, 7)
    with torch.no_grad():
        for each in (layer, exact):
            each.weight_hh_l0[3, 2] = bad
    x = torch.randn(4, 2, 2)
    assert torch.equal(layer(x)[0].isnan(), exact(x.double())[0].isnan())


def test_an_evaluation_goes_the_way_it_went():
    layer, _ = pair(3, 4)
    plain, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert torch.equal(layer(x)[0], plain(x)[0]) and not layer.forward.__self__.ran


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("part", ["outputs", "cells"])
def test_second_derivatives_are_torchs(part, bias):
    layer, exact = pair(3, 4, bias=bias)
    x, found = torch.randn(5, 2, 3, dtype=torch.float64), []
    for each in (layer, exact):
        given_ = x.to(each.weight_ih_l0.dtype).requires_grad_()
        outputs, (_, cells) = each(given_)
        asked = [given_, *each.parameters()]
        end = (outputs if part == "outputs" else cells).square().sum()
        slopes = torch.autograd.grad(end, asked, create_graph=True)
        found.append(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), asked))
    assert layer.forward.__self__.ran
    assert all(torch.allclose(got.double(), want, rtol=1e-4, atol=1e-5) for got, want in zip(*found, strict=True))


def test_what_it_was_not_written_for_goes_the_way_it_went():
    layer, exact = pair(3, 4)
    compiled, x = layer.forward.__self__, torch.randn(5, 2, 3)
    state = (torch.randn(1, 2, 4), torch.randn(1, 2, 4))
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3])
    for given_, named in (((x, state), {}), ((x,), {"hx": state}), ((x[:, 0],), {}), ((packed,), {})):
        plain = nn.LSTM(3, 4)
        plain.load_state_dict(layer.state_dict())
        got, want = layer(*given_, **named), plain(*given_, **named)
        assert all(torch.equal(a, b) for a, b in zip(got[1], want[1], strict=True))
    layer.double()
    assert torch.equal(layer(x.double())[0], exact(x.double())[0])
    with pytest.raises(RuntimeError):
        layer(torch.randn(5, 2, 9).double())
    assert not compiled.ran
    layer.float()
    layer(x)
    assert compiled.ran


class Reader(nn.Module):
    """Scores of the last step, from an LSTM over tokens."""

    def __init__(self, lstm=None):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(9, 3), nn.LSTM(3, 5, batch_first=True) if lstm is None else lstm
        self.scores = nn.Linear(5, 9)

    def forward(self, x):
        found = self.lstm(self.embedding(x))
        return self.scores((found if isinstance(found, torch.Tensor) else found[0])[:, -1])


class FromState(Reader):
    """The same, from a first state that it names."""

    def forward(self, x):
        zeros = self.scores.weight.new_zeros(1, len(x), 5)
        return self.scores(self.lstm(self.embedding(x), (zeros, zeros))[0][:, -1])


def reading(make):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randint(9, (60, 7), generator=draw), torch.randint(9, (60,), generator=draw)
    data = fk.FederatedData.from_arrays(x, y, clients=[0] * 10 + [1] * 20 + [2] * 30)
    return fk.Task(make, fk.cross_entropy, data, batch_size=5, lr=0.1)


class Normal(Reader):
    """The same with a layer that refuses a single sample."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Sequential(nn.BatchNorm1d(5), self.scores)


KINDS = [Reader, Normal, lambda: Reader(fk.models.LSTM(3, 5)), lambda: Reader(nn.LSTM(3, 5))]


@pytest.mark.parametrize("make", KINDS)
def test_a_compiled_run_learns_what_another_does(make):
    def play(**options):
        return fk.train(reading(make), "fedavg", rounds=3, engine=fk.Local("serial", **options))

    run, plain = play(), play(compile=False)
    assert "LSTM compiled in" in run.config["engine_reason"]
    assert torch.allclose(run.params, plain.params, atol=1e-5) and not torch.equal(run.params, plain.params)
    assert run.config["compile"] and not plain.config["compile"] and "compiled" not in plain.config["engine_reason"]
    assert torch.equal(run.params, play(compile=True, workers=3).params)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Embedding(9, 9), nn.AvgPool2d((7, 1)), nn.Flatten()),
            "no layer that C",
        ),
        (lambda: Reader(nn.LSTM(3, 5, 2, batch_first=True, dropout=0.1)), "no layer that C"),
        (FromState, "in a way, or at a size, that C is not used for"),
    ],
)
def test_a_model_without_a_layer_for_it_says_so(make, message):
    with pytest.warns(EngineWarning, match=message):
        run = fk.train(reading(make), "fedavg", rounds=1, engine=fk.Local("serial", compile=True))
    assert "not compiled: " in run.config["engine_reason"]


def test_gradients_that_differ_are_refused(monkeypatch):
    forward = recurrent.Compiled.forward
    monkeypatch.setattr(recurrent.Compiled, "forward", lambda self, x: (forward(self, x)[0] * 1.1, None))
    task = reading(Reader)
    assert translate_layers(task, task.adopt(0, torch.float32, "cpu")) == (
        False, "compiled gradients differ from the others",
    )  # fmt: skip


def test_without_a_compiler_it_says_so(monkeypatch):
    native._build.cache_clear(), recurrent.library.cache_clear()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.warns(EngineWarning, match=r"no effect: no C compiler found \(cc, gcc or clang\)\.$"):
        run = fk.train(reading(Reader), "fedavg", rounds=1, engine=fk.Local("serial", compile=True))
    as_ever = fk.train(reading(Reader), "fedavg", rounds=1, engine="serial")  # without a word of warning
    assert torch.equal(run.params, as_ever.params) and not run.config["compile"] and not as_ever.config["compile"]
    assert as_ever.config["engine_reason"].endswith("not compiled: no C compiler found (cc, gcc or clang)")
