"""Convolutions by compiled C: the numbers of torch's own, for what it was written for, and the old way for the rest."""

import os
import shutil
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fedkeel as fk
from fedkeel.data.batches import Batch
from fedkeel.engine import kernels
from fedkeel.engine.gradients import Serial
from fedkeel.engine.kernels import convolution, native
from fedkeel.engine.probe import probe
from fedkeel.errors import InputError
from fedkeel.flat import FlatModel

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))), reason="no C compiler here"
)


COMPILED = fk.Local("serial", compile=True)


def pair(*sizes, **options):
    """(the layer by C, the same in double precision by torch)."""
    torch.manual_seed(0)
    layer, exact = nn.Conv2d(*sizes, **options), nn.Conv2d(*sizes, **options).double()
    exact.load_state_dict(layer.state_dict())
    convolution.Compiled(layer)
    return layer, exact


def everything(layer, x):
    """Outputs and the gradients by x and all weights of a sum that has all of them."""
    x = x.detach().requires_grad_()
    y = layer(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])]


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def ran(layer):
    return layer.forward.__self__.ran


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5)), st.sampled_from([3, 5]), st.integers(0, 5),
    st.tuples(st.integers(1, 17), st.integers(1, 17)), st.integers(1, 9), st.booleans(), st.booleans(),
)  # fmt: skip
def test_outputs_and_gradients_are_torchs(channels, kernel, padding, size, samples, bias, last):
    size = [max(length, kernel - 2 * padding) for length in size]
    layer, exact = pair(*(16 * c for c in channels), kernel, padding=padding, bias=bias)
    x = images(samples, 16 * channels[0], *size)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    torch.use_deterministic_algorithms(True)  # what is not written to is NaN
    try:
        with mock.patch.object(convolution, "saves", return_value=True):  # also where it would not pay
            found = everything(layer, x)
    finally:
        torch.use_deterministic_algorithms(False)
    for got, want in zip(found, everything(exact, x.double()), strict=True):
        assert got.shape == want.shape
        assert (got - want).norm() <= 5e-6 * want.norm() + 1e-6
    assert ran(layer)


@pytest.mark.parametrize(
    ("sizes", "options", "shape"),
    [
        ((32, 64, 3), {}, (20, 32, 26, 26)),
        ((64, 64, 5), {}, (64, 64, 14, 14)),
        ((16, 16, 3), {"padding": 1}, (16, 16, 32, 32)),
        ((32, 64, 5), {}, (20, 32, 12, 12)),
        ((256, 256, 3), {"padding": 1}, (16, 256, 8, 8)),
    ],
    ids=["W2", "W3", "W5", "W6", "widest"],
)
def test_the_error_of_the_workloads_layers_against_float64_is_a_few_roundings(sizes, options, shape):
    layer, exact = pair(*sizes, **options)
    x = images(*shape)
    # Outputs and the gradients by inputs and weights; those by the bias are sums, and as exact as torch's.
    found, wanted, bounds = everything(layer, x), everything(exact, x.double()), (2e-6, 2e-6, 2e-6, 5e-6)
    for got, want, bound in zip(found, wanted, bounds, strict=True):
        assert (got - want).norm() <= bound * want.norm()
    assert ran(layer)


def test_narrower_vectors_give_the_same(monkeypatch):
    """As on machines without these instructions; what has others compiles for what it has."""
    x = images(3, 32, 11, 9)
    layer, exact = pair(32, 48, 3, padding=1)
    wanted, text = everything(exact, x.double()), native.written("products.c", "convolution.c")
    for narrow in ("-mno-avx512f", "-mno-avx"):
        try:
            native.build(text, (*native.EXACT, narrow, "-DKERNEL=3"))
        except RuntimeError:
            pytest.skip("this compiler knows no such vectors")
        monkeypatch.setattr(convolution, "EXACT", (*native.EXACT, narrow))
        convolution.library.cache_clear()
        try:
            for got, want in zip(everything(layer, x), wanted, strict=True):
                assert (got - want).norm() <= 5e-6 * want.norm()
        finally:
            convolution.library.cache_clear()
    assert ran(layer)


@pytest.mark.parametrize("frozen", [["weight"], ["bias"], ["weight", "bias"], ["x"], ["x", "weight"], ["x", "bias"]])
def test_what_is_frozen_changes_nothing_for_the_rest(frozen):
    layer, exact = pair(16, 32, 3)
    found = []
    for each in (layer, exact):
        x = images(4, 16, 10, 10).to(each.weight)
        parts = {"x": x, **dict(each.named_parameters())}
        asked = [part.requires_grad_() for name, part in parts.items() if name not in frozen]
        for name in frozen:
            parts[name].requires_grad_(False)
        y = each(x)
        found.append(torch.autograd.grad((y * y).sum(), asked))
    assert ran(layer)
    assert all((got - want).norm() <= 5e-6 * want.norm() for got, want in zip(*found, strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_shows(bad):
    layer, exact = pair(16, 16, 3, padding=1)
    x = images(2, 16, 8, 8)
    x[1, 3, 4, 5] = bad
    got, want = layer(x), exact(x.double())
    assert not (got.isfinite() & ~want.isfinite()).any() and got[0].isfinite().all()
    for want, got in zip(everything(exact, x.double())[1:], everything(layer, x)[1:], strict=True):
        assert not (got.isfinite() & ~want.isfinite()).any()
    with torch.no_grad():
        layer.weight[2, 3, 1, 1] = bad
    assert not layer(images(2, 16, 8, 8))[:, 2].isfinite().any()


def test_an_evaluation_goes_the_way_it_went():
    layer, _ = pair(16, 16, 3)
    plain, x = nn.Conv2d(16, 16, 3), images(5, 16, 8, 8)
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert torch.equal(layer(x), plain(x)) and not ran(layer)


@pytest.mark.parametrize("options", [{}, {"bias": False, "padding": 1}])
def test_second_derivatives_are_torchs(options):
    layer, exact = pair(16, 16, 3, **options)
    found = []
    for each in (layer, exact):
        x = images(5, 16, 10, 10).to(each.weight).requires_grad_()
        asked = [x, *each.parameters()]
        slopes = torch.autograd.grad(each(x).square().sum(), asked, create_graph=True)
        found.append(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), asked))
    assert ran(layer)
    assert all((got - want).norm() <= 1e-5 * want.norm() for got, want in zip(*found, strict=True))


def test_what_it_was_not_written_for_goes_the_way_it_went():
    layer, exact = pair(16, 16, 3)
    plain = nn.Conv2d(16, 16, 3)
    plain.load_state_dict(layer.state_dict())
    for x in (images(16, 8, 8), images(2, 16, 3, 3), images(2, 16, 4, 3)):  # one image; tiles that save too little
        assert torch.equal(layer(x), plain(x))
    layer.double()
    assert torch.equal(layer(images(2, 16, 8, 8).double()), exact(images(2, 16, 8, 8).double()))
    layer.float()
    with pytest.raises(RuntimeError):
        layer(images(2, 8, 8, 8))
    with pytest.raises(RuntimeError):
        layer(images(2, 16, 2, 8))
    with torch.autograd.forward_ad.dual_level():  # where inputs may carry a derivative
        layer(images(2, 16, 8, 8))
    with FakeTensorMode(allow_non_fake_inputs=True) as faking:
        layer(faking.from_tensor(images(2, 16, 8, 8)))
    assert torch.equal(layer(torch._neg_view(images(2, 16, 8, 8))), plain(-images(2, 16, 8, 8)))
    layer.stride = (2, 2)
    assert layer(images(2, 16, 8, 8)).shape[-1] == 3
    layer.stride = (1, 1)
    assert not ran(layer)
    layer(images(2, 16, 8, 8))
    assert ran(layer)


def test_a_relu_at_its_edge_stays_shut():
    """Without a bias, a window of zeros gives zero: a rounding error in its place would open the ReLU behind it."""
    x = torch.zeros(2, 16, 14, 14)
    x[:, :, 4, 4] = images(2, 16)
    layer, plain = (nn.Conv2d(16, 16, 3) for _ in range(2))
    nn.init.zeros_(layer.bias)
    plain.load_state_dict(layer.state_dict())
    convolution.Compiled(layer)
    for each in (layer, plain):
        each(x).relu().sum().backward()
    assert torch.allclose(layer.bias.grad, plain.bias.grad) and not ran(layer)
    with torch.no_grad():
        layer.bias.add_(0.1)
    layer(x)
    assert ran(layer)


def test_a_bias_may_change_between_there_and_back():
    layer, _ = pair(16, 16, 3)
    y = layer(images(2, 16, 8, 8))
    with torch.no_grad():
        layer.bias.add_(1)
    y.sum().backward()
    assert ran(layer) and layer.bias.grad.tolist() == [72.0] * 16


LAYERS = [
    (nn.Conv2d(16, 32, 3), True), (nn.Conv2d(16, 32, (5, 5), padding=2, bias=False), True),
    (nn.Conv2d(16, 32, 7), False), (nn.Conv2d(16, 32, (3, 5)), False), (nn.Conv2d(3, 32, 3), False),
    (nn.Conv2d(16, 20, 3), False), (nn.Conv2d(16, 32, 3, stride=2), False), (nn.Conv2d(16, 32, 3, dilation=2), False),
    (nn.Conv2d(32, 32, 3, groups=2), False), (nn.Conv2d(16, 32, 3, padding=(0, 1)), False),
    (nn.Conv2d(16, 32, 3, padding="same"), False), (nn.Conv2d(16, 32, 3, padding=1, padding_mode="reflect"), False),
    (nn.Conv2d(16, 32, 3, padding=6), False), (nn.Conv2d(512, 256, 3), False), (nn.Conv1d(16, 32, 3), False),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "taken"), LAYERS)
def test_which_layers_it_was_written_for(layer, taken):
    assert bool(convolution.install(FlatModel(nn.Sequential(layer), torch.float32))) == taken
    assert not convolution.install(FlatModel(nn.Sequential(layer), torch.float64))


def own_forward(layer):
    layer.forward = partial(nn.functional.conv2d, weight=layer.weight, bias=layer.bias, padding=layer.padding)
    return layer


def own_conv_forward(layer):
    layer._conv_forward = lambda x, weight, bias: nn.functional.conv2d(x, weight, bias, padding=layer.padding)
    return layer


def hooked(layer):
    layer.register_forward_hook(lambda layer, given, output: output / 2)
    return layer


def hooked_before(layer):
    layer.register_forward_pre_hook(lambda layer, given: (given[0] / 2,))
    return layer


def hooked_behind(layer):
    layer.register_full_backward_hook(lambda layer, by_input, by_output: (by_input[0] / 2,))
    return layer


class Scaled(nn.Module):
    def forward(self, weight):
        return weight / 2


def parametrized(layer):
    nn.utils.parametrize.register_parametrization(layer, "weight", Scaled())
    return layer


class Halved(nn.Conv2d):
    def forward(self, input):
        return super().forward(input) / 2


def of_a_class_of_its_own(layer):
    return Halved(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding)


CHANGED = {
    "hook": hooked,
    "pre-hook": hooked_before,
    "backward hook": hooked_behind,
    "forward": own_forward,
    "_conv_forward": own_conv_forward,
    "parametrization": parametrized,
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "weight_norm of old": pytest.param(
        nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
    ),
    "spectral_norm of old": pytest.param(
        nn.utils.spectral_norm, marks=pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
    ),
    "class": of_a_class_of_its_own,
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_layer_that_somebody_changed_stays_torchs(change):
    """Beside one that is C's: the outputs and gradients of the changed layer are those it has without, bit by bit."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(change(nn.Conv2d(16, 16, 3, padding=1)), nn.Conv2d(16, 16, 3, padding=1))

    plain, by_c = (FlatModel(make(), torch.float32) for _ in range(2))
    (made,) = convolution.install(by_c)
    assert made.layer is by_c.module[1]
    x = images(4, 16, 10, 10)
    found = [everything(model.module[0], x) for model in (by_c, plain)]
    assert all(map(torch.equal, *found)) and not made.ran
    by_c.module(x)
    assert made.ran


@pytest.mark.parametrize("change", [hooked, hooked_before, nn.utils.parametrizations.weight_norm, own_conv_forward])
def test_a_model_whose_only_layer_is_changed_has_no_kernel_and_no_hint(change):
    task = seeing(lambda: change(nn.Conv2d(16, 16, 3, padding=1)))
    run = fk.train(task, "fedavg", rounds=1, engine="serial")
    assert kernels.HINT not in run.config["engine_reason"]
    with pytest.raises(InputError, match="no C kernel for this model where clients run serial"):
        fk.train(task, "fedavg", rounds=1, engine=COMPILED)


def test_a_hook_that_comes_later_takes_the_layer_back():
    layer, _ = pair(16, 16, 3)
    plain, x = nn.Conv2d(16, 16, 3), images(5, 16, 8, 8)
    plain.load_state_dict(layer.state_dict())
    hooked(layer)
    assert torch.equal(layer(x), plain(x) / 2) and not ran(layer)


def seeing(middle):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, 10, 10, generator=draw), torch.randint(5, (60,), generator=draw)
    data = fk.FederatedData.from_arrays(x, y, clients=[0] * 10 + [1] * 20 + [2] * 30, test=(x, y))

    def make():
        end = (nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5))
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), middle(), *end)

    return fk.Task(make, fk.cross_entropy, data, batch_size=5, lr=0.1)


class Twice(nn.Module):
    """One layer runs twice, and what it returns is changed in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        y = self.layer(x)
        y += x
        return self.layer(y.relu_())


class Frozen(nn.Sequential):
    """The first of two layers does not learn."""

    def __init__(self):
        super().__init__(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(32, 16, 5, padding=2))
        self[0].requires_grad_(False)


def normed():
    return nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 16, 3, padding=1))


@pytest.mark.parametrize(
    "middle",
    [Twice, Frozen, lambda: nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), normed())],
    ids=["twice", "frozen", "normed"],
)
def test_layers_that_are_used_in_other_ways_give_the_same_gradients(middle):
    task = seeing(middle)
    model = task.adopt(0, torch.float32, "cpu")
    assert kernels.compiled(task, model, "serial")  # which compares them
    compiled = model.replica()
    layers = convolution.install(compiled)
    batch = Batch(task.data.x[None, :9], task.data.y[None, :9], None)
    for at in (model.flat, 0.5 * model.flat):  # where the model is, and elsewhere
        found = []
        for each in (compiled, model.replica()):
            serial = Serial(task, each)
            serial.start(model.flat, 1)
            found.append(serial(each.flat[None] if at is model.flat else at[None], batch)[0].clone())
        assert (found[0] - found[1]).norm() <= 1e-4 * found[1].norm() and not torch.equal(*found)
    assert all(layer.ran for layer in layers)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "deltasgd"])
def test_a_compiled_run_learns_what_another_does(algorithm):
    def play(**options):
        task = seeing(lambda: nn.Conv2d(16, 16, 3, padding=1))
        return fk.train(task, algorithm, rounds=3, engine=fk.Local("serial", **options))

    run, plain = play(compile=True), play()
    assert "; convolutions compiled in" in run.config["engine_reason"] and run.config["compile"] is True
    assert plain.config["engine_reason"].endswith(kernels.HINT) and plain.config["compile"] is False
    assert torch.allclose(run.params, plain.params, atol=1e-4) and not torch.equal(run.params, plain.params)
    assert torch.equal(run.params, play(compile=True, workers=3).params)


@pytest.mark.parametrize("middle", [nn.Identity, lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 16, 3))])
def test_a_model_without_a_layer_for_it_or_with_one_at_a_size_that_does_not_pay_is_refused(middle):
    task = seeing(middle)
    assert kernels.HINT not in fk.train(task, "fedavg", rounds=1, engine="serial").config["engine_reason"]
    with pytest.raises(InputError, match=r"^compile=True has no C kernel for this model where clients run serial;"):
        fk.train(task, "fedavg", rounds=1, engine=COMPILED)


def test_gradients_that_differ_are_refused(monkeypatch):
    train = convolution.Compiled.train
    monkeypatch.setattr(convolution.Compiled, "train", lambda self, x: train(self, x) * 1.1)
    with pytest.raises(InputError, match=r"^The compiled gradients of this model differ from torch's; .*\.$"):
        fk.train(seeing(lambda: nn.Conv2d(16, 16, 3, padding=1)), "fedavg", rounds=1, engine=COMPILED)


@pytest.mark.parametrize("compile", [True, False])
def test_a_resumed_run_goes_on_by_what_it_began_with(compile, tmp_path):
    task, settings = seeing(lambda: nn.Conv2d(16, 16, 3, padding=1)), {"engine": fk.Local("serial", compile=compile)}
    whole = fk.train(task, "scaffold", rounds=4, **settings)
    fk.train(task, "scaffold", rounds=4, **settings, checkpoint=tmp_path, stop_after=2)
    resumed = fk.resume(tmp_path, task=task)
    assert torch.equal(resumed.params, whole.params) and resumed.config["compile"] is compile


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != ".fedkeel.json"}


def test_a_run_that_is_resumed_without_a_compiler_stops_and_leaves_its_directory_as_it_was(monkeypatch, tmp_path):
    task = seeing(lambda: nn.Conv2d(16, 16, 3, padding=1))
    fk.train(task, "fedavg", rounds=2, engine=COMPILED, checkpoint=tmp_path, stop_after=1)
    before = contents(tmp_path)
    convolution.library.cache_clear()
    with monkeypatch.context() as without:
        without.setenv("CC", "no-such-compiler")
        with pytest.raises(InputError, match=r"needs a C compiler: .*'no-such-compiler' does not run\. "):
            fk.resume(tmp_path, task=task)
    assert before == contents(tmp_path)
    assert fk.resume(tmp_path, task=task).status == "done"


def test_gradients_are_compared_on_few_samples_however_large_a_batch_may_be():
    task, seen = seeing(lambda: nn.Conv2d(16, 16, 3, padding=1)), []

    def loss(output, target):
        seen.append(len(target))
        return fk.cross_entropy(output, target)

    many = fk.FederatedData(task.data.x.repeat(10, 1, 1, 1), task.data.y.repeat(10), [0, 300, 600])
    whole = fk.Task(task.model, loss, many, batch_size=10**6).cast(torch.float32, "cpu")
    assert kernels.compiled(whole, whole.adopt(0, torch.float32, "cpu"), "serial") and max(seen) == 256


def test_a_probe_tries_what_would_run_and_leaves_the_model_as_it_was(monkeypatch):
    task = seeing(lambda: nn.Conv2d(16, 16, 3, padding=1)).cast(torch.float32, "cpu")
    model, layers, install = task.adopt(0, torch.float32, "cpu"), [], convolution.install
    alone = kernels.compiled(task, model, "serial")
    monkeypatch.setattr(convolution, "install", lambda replica: layers.extend(install(replica)) or layers)
    assert "ms serially" in probe(task, model, 1, alone)[1]
    assert [layer.ran for layer in layers] == [True]
    assert not any("forward" in vars(layer) for layer in model.module.modules())
