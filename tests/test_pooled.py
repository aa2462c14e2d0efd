"""Convolution, pooling and ReLU in one pass of compiled C: torch's numbers where C has the layers, torch elsewhere."""

import gc
import os
import shutil
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedkeel as fk
from fedkeel.engine import kernels
from fedkeel.engine.gradients.lean import lean, release
from fedkeel.engine.kernels import native, pooled
from fedkeel.flat import FlatModel

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))), reason="no C compiler here"
)


def layers(*sizes, pool_first=False, between=(), **options):
    behind = [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]
    return [nn.Conv2d(*sizes, **options), *between, *behind]


def pair(*sizes, seed=0, **options):
    """(a chain by C, its block, the same chain in double precision by torch)."""
    torch.manual_seed(seed)
    by_c, exact = (nn.Sequential(*layers(*sizes, **options), nn.Flatten()) for _ in range(2))
    exact.load_state_dict(by_c.state_dict())
    (block,) = pooled.install(FlatModel(by_c))
    return by_c, block, exact.double()


def everything(chain, x):
    """Outputs and the gradients by x and all weights of a sum that has all of them."""
    x = x.detach().requires_grad_()
    y = chain(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *chain.parameters()])]


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def near(found, wanted, bound):
    return all((got - want).norm() <= bound * want.norm() + 1e-7 for got, want in zip(found, wanted, strict=True))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 37), st.integers(1, 5), st.integers(0, 2),
    st.tuples(st.integers(0, 9), st.integers(0, 9)), st.integers(1, 5), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_outputs_and_gradients_are_torchs(inside, outside, kernel, padding, more, samples, bias, pool_first, last):
    """Numbers are whole, so that sums are exact and equal numbers in a window are common: the first is taken."""
    padding = min(padding, kernel - 1)
    chain, block, exact = pair(inside, outside, kernel, padding=padding, bias=bias, pool_first=pool_first)
    draw = torch.Generator().manual_seed(samples)
    size = [max(1, kernel + 1 - 2 * padding) + length for length in more]
    x = torch.randint(-1, 2, (samples, inside, *size), generator=draw).float()
    with torch.no_grad():
        for mine, theirs in zip(chain.parameters(), exact.parameters(), strict=True):
            mine.copy_(torch.randint(-2, 3, mine.shape, generator=draw))
            theirs.copy_(mine)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    torch.use_deterministic_algorithms(True)  # memory that nothing is written to is NaN
    try:
        found = everything(chain, x)
    finally:
        torch.use_deterministic_algorithms(False)
    wanted = everything(exact, x.double())
    assert block.ran and torch.equal(found[0].double(), wanted[0])
    assert [got.shape for got in found] == [want.shape for want in wanted] and near(found, wanted, 1e-6)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((3, 64, 5), (64, 3, 32, 32)), ((1, 32, 5), (20, 1, 28, 28)), ((1, 10, 5), (64, 1, 28, 28)),
     ((10, 20, 5), (64, 10, 12, 12))],
    ids=["lenet", "gel_cnn", "deltasgd_cnn", "deltasgd_cnn, second"],
)  # fmt: skip
def test_the_error_of_the_papers_layers_against_float64_is_a_few_roundings(sizes, shape):
    chain, block, exact = pair(*sizes)
    x = images(*shape)
    assert near(everything(chain, x), everything(exact, x.double()), 1e-6) and block.ran


def test_narrower_vectors_give_the_same(monkeypatch):
    """As on machines without these instructions; what has others compiles for what it has."""
    chain, block, exact = pair(3, 20, 5, padding=1)
    x = images(3, 3, 11, 9)
    wanted = everything(exact, x.double())
    for narrow in ("-mno-avx512f", "-mno-avx"):
        try:
            native.build(native.written("products.c", "chain.c"), (narrow, "-Dreal=float"))
        except RuntimeError:
            pytest.skip("this compiler knows no such vectors")
        monkeypatch.setattr(pooled, "FLAGS", (*pooled.FLAGS, narrow))
        pooled.library.cache_clear()
        try:
            assert near(everything(chain, x), wanted, 1e-6)
        finally:
            pooled.library.cache_clear()
    assert block.ran


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_show(bad):
    chain, block, exact = pair(2, 5, 3)
    x = images(2, 2, 8, 8)
    x[1, 1, 4, 5] = bad
    got, want = chain(x), exact(x.double())
    assert not (got.isfinite() & ~want.isfinite()).any() and got[0].isfinite().all()
    with torch.no_grad():
        chain[0].bias[2] = bad
    assert not chain(images(2, 2, 8, 8)).view(2, 5, 9)[:, 2].isfinite().any() and block.ran


def test_an_evaluation_and_unknown_inputs_stay_torchs():
    chain, block, exact = pair(2, 5, 3)
    plain, x = nn.Sequential(*layers(2, 5, 3), nn.Flatten()), images(5, 2, 8, 8)
    plain.load_state_dict(chain.state_dict())
    with torch.no_grad():
        assert torch.equal(chain(x), plain(x))
    assert torch.equal(chain.double()(x.double()), exact(x.double()))
    chain.float()
    with pytest.raises(RuntimeError):
        chain(images(2, 3, 8, 8))
    with pytest.raises(RuntimeError):
        chain(images(2, 2, 3, 8))  # nothing is left to pool
    assert not block.ran
    chain(x)
    assert block.ran


def test_a_frozen_bias_changes_nothing_for_the_rest():
    found = []
    chain, block, exact = pair(2, 5, 3)
    for each in (chain, exact):
        each[0].bias.requires_grad_(False)
        x = images(4, 2, 9, 9).to(each[0].weight)
        found.append(torch.autograd.grad(each(x).square().sum(), [each[0].weight]))
    assert near(*found, 1e-6) and block.ran


def test_second_derivatives_are_torchs():
    found = []
    chain, block, exact = pair(2, 5, 3)
    for each in (chain, exact):
        x = images(5, 2, 10, 10).to(each[0].weight).requires_grad_()
        asked = [x, *each.parameters()]
        slopes = torch.autograd.grad(each(x).square().sum(), asked, create_graph=True)
        found.append(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), asked))
    assert block.ran and near(*found, 1e-5)


def test_dropout_of_channels_comes_behind_and_gives_the_same():
    """The masks are counted, so both have the same; half of the channels have no gradient at all."""
    found = []
    for by_c in (True, False):
        torch.manual_seed(0)
        model = FlatModel(nn.Sequential(*layers(10, 20, 5, between=[nn.Dropout2d(0.5)]), nn.Flatten()))
        lean(model)
        made = pooled.install(model) if by_c else []
        found.append(everything(model.module, images(6, 10, 12, 12)))
        assert [block.ran for block in made] == [True] * by_c
    assert near(*found, 1e-6)
    assert torch.equal(found[0][0] == 0, found[1][0] == 0)


class Halved(nn.Conv2d):
    def forward(self, input):
        return super().forward(input) / 2


CHAINS = {
    "a ReLU first": (layers(1, 8, 3), 1),
    "pooling first": (layers(1, 8, 3, pool_first=True), 1),
    "two of them": ([*layers(1, 8, 3), *layers(8, 4, 3)], 2),
    "dropout of channels": (layers(1, 8, 3, between=[nn.Dropout2d()]), 1),
    "no dropout": (layers(1, 8, 3, between=[nn.Identity()]), 1),
    "dropout of single numbers": (layers(1, 8, 3, between=[nn.Dropout()]), 0),
    "normalisation between": (layers(1, 8, 3, between=[nn.BatchNorm2d(8)]), 0),
    "rows too long": (layers(32, 8, 3), 0),
    "a stride": (layers(1, 8, 3, stride=2), 0),
    "groups": (layers(2, 8, 3, groups=2), 0),
    "another padding": (layers(1, 8, 3, padding="same"), 0),
    "no square": (layers(1, 8, (3, 5)), 0),
    "of another class": ([Halved(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2)], 0),
    "other pooling": ([nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(3)], 0),
    "overlapping": ([nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2, stride=1)], 0),
    "ceil": ([nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)], 0),
    "indices": ([nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2, return_indices=True)], 0),
    "the mean": ([nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AvgPool2d(2)], 0),
    "no pooling": ([nn.Conv2d(1, 8, 3), nn.ReLU()], 0),
    "twice the same": ([nn.Conv2d(1, 8, 3), nn.ReLU(), nn.ReLU()], 0),
}


@pytest.mark.parametrize(("chain", "count"), CHAINS.values(), ids=CHAINS)
def test_which_layers_it_takes(chain, count):
    assert len(pooled.install(FlatModel(nn.Sequential(*chain)))) == count
    assert not pooled.install(FlatModel(nn.Sequential(*chain), torch.float64))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_hook_that_comes_later_takes_the_block_back(at):
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(*layers(1, 8, 3), nn.Flatten()))
    (block,) = pooled.install(model)
    plain, x = nn.Sequential(*layers(1, 8, 3), nn.Flatten()), images(3, 1, 9, 9)
    plain.load_state_dict(model.module.state_dict())
    for chain in (model.module, plain):
        chain[at].register_forward_hook(lambda layer, given, output: output / 2)
    assert torch.equal(model.module(x), plain(x)) and not block.ran


def model_of(name):
    return {"lenet": fk.models.lenet, "deltasgd_cnn": fk.models.deltasgd_cnn}[name]


@pytest.mark.parametrize(("name", "shape"), [("lenet", (3, 32, 32)), ("deltasgd_cnn", (1, 28, 28))])
@pytest.mark.parametrize("algorithm", ["fedavg:momentum=0.9", "deltasgd"])
def test_a_run_by_c_learns_the_same(name, shape, algorithm, monkeypatch):
    seen, honest = [], pooled.Block.__call__
    monkeypatch.setattr(pooled.Block, "__call__", lambda block, x: (honest(block, x), seen.append(block.ran))[0])
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn((60, *shape), generator=draw), torch.randint(10, (60,), generator=draw)
    data = fk.FederatedData.from_arrays(x, y, clients=[client for client in range(6) for _ in range(10)], test=(x, y))
    task = fk.Task(model_of(name), fk.cross_entropy, data, batch_size=5, lr=0.02, budget=fk.FixedSteps(3))
    runs = [fk.train(task, algorithm, rounds=2, engine="serial", compile=compile) for compile in (False, True)]
    assert any(seen)
    moved = (runs[0].params - runs[1].params).norm()
    assert 0 < moved <= 1e-4 * runs[0].params.norm()


class ByLayer(nn.Module):
    """Calls the layers of a chain, and not the chain."""

    def __init__(self):
        super().__init__()
        self.features, self.last = nn.Sequential(*layers(1, 8, 3)), nn.Linear(8 * 13 * 13, 10)

    def forward(self, x):
        for layer in self.features:
            x = layer(x)
        return self.last(x.flatten(1))


class ByName(nn.Module):
    """Gives its convolution the input by name."""

    def __init__(self):
        super().__init__()
        self.convolution, self.last = nn.Conv2d(16, 16, 3), nn.Linear(16 * 26 * 26, 10)

    def forward(self, x):
        return self.last(self.convolution(input=x).flatten(1))


def deep_and_small():
    """Both kernels know this convolution; the one that takes it leaves images of this size to torch."""
    return nn.Sequential(*layers(16, 32, 3), nn.Flatten(), nn.Linear(32 * 2 * 2, 10))


@pytest.mark.parametrize(
    ("make", "shape"), [(ByLayer, (1, 28, 28)), (ByName, (16, 28, 28)), (deep_and_small, (16, 7, 7))]
)
def test_compile_is_refused_where_no_layer_would_run_by_c(make, shape):
    x, y = torch.randn((12, *shape)), torch.zeros(12, dtype=torch.int64)
    task = fk.Task(make, fk.cross_entropy, fk.FederatedData(x, y, [0, 6, 12]), batch_size=4)
    with pytest.raises(fk.errors.InputError, match="no C kernel for this model"):
        fk.train(task, "fedavg", rounds=1, engine="serial", compile=True)


def test_a_rule_that_reads_representations_runs_by_c(monkeypatch):
    shapes, honest = [], pooled.Block.__call__
    monkeypatch.setattr(pooled.Block, "__call__", lambda block, x: (shapes.append(len(x)), honest(block, x))[1])
    x, y = torch.randn(20, 1, 28, 28), torch.arange(20) % 10
    task = fk.Task(fk.models.deltasgd_cnn, fk.cross_entropy, fk.FederatedData(x, y, [0, 10, 20]), batch_size=3)
    runs = [fk.train(task, "moon", rounds=2, engine="serial", compile=compile) for compile in (False, True)]
    assert 3 in shapes  # training batches, which the comparison before the run does not have
    assert 0 < (runs[0].params - runs[1].params).norm() <= 1e-4 * runs[0].params.norm()


def test_a_forward_of_the_users_own_stays():
    chain = nn.Sequential(*layers(1, 8, 3))
    plain = chain.forward
    chain.forward = lambda input: 2 * plain(input)
    assert pooled.install(FlatModel(nn.Sequential(chain, nn.Flatten()))) == []


def test_a_released_replica_is_freed_at_once():
    model = FlatModel(nn.Sequential(*layers(1, 8, 3), nn.Flatten()))
    gc.disable()
    try:
        lean(model)
        assert pooled.install(model)
        convolution = weakref.ref(model.module[0])
        release(model)
        del model
        assert convolution() is None
    finally:
        gc.enable()


def test_a_task_of_such_a_model_has_kernels():
    x = torch.randn(12, 1, 28, 28)
    data = fk.FederatedData(x, torch.zeros(12, dtype=torch.int64), [0, 6, 12])
    task = fk.Task(fk.models.deltasgd_cnn, fk.cross_entropy, data).cast(torch.float32, "cpu")
    model = task.adopt(0, torch.float32, "cpu")
    assert kernels.available(task, model, "serial") and not kernels.available(task, model, "batched")
    assert kernels.compiled(task, model, "serial") is not None
