"""A worker's replica takes short cuts; its numbers are those of the model it was copied from."""

import gc
import weakref
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import fedkeel as fk
from fedkeel.data.batches import Batch
from fedkeel.engine.gradients import Serial
from fedkeel.engine.gradients import lean as leanly
from fedkeel.engine.worker import Worker


class Twice(nn.Module):
    """One layer runs twice, one weight is used without its layer, and one layer only while weights are large."""

    def __init__(self):
        super().__init__()
        self.again, self.tied, self.idle = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.scores = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.tanh(self.again(torch.tanh(self.again(x))))
        x = linear(torch.tanh(self.tied(x)), self.tied.weight)
        return self.scores(self.idle(x) if self.scores.weight.abs().max() > 0.25 else x)


class Words(nn.Module):
    """Inputs of three dimensions, and an embedding that is also the weight of a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.mix, self.out = nn.Embedding(6, 8), nn.Linear(8, 8), nn.Linear(8, 6, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(torch.relu(self.mix(self.embedding(x)))).mean(1)


class Doing(nn.Module):
    """A layer with which a forward pass does this."""

    def __init__(self, do):
        super().__init__()
        self.layer, self.scores, self.do = nn.Linear(8, 8), nn.Linear(8, 3), do

    def forward(self, x):
        return self.scores(self.do(self.layer, x))


def change_in_place(layer, x):
    output = layer(x[:, None].expand(-1, 4, -1))
    output += 1
    return output.relu_().mean(1)


def freeze_on_the_way(layer, x):
    layer.requires_grad_(False)
    output = layer(x).tanh()
    layer.requires_grad_(True)
    return x + output


def mix_precisions(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x).float()


def add_the_slope(layer, x):
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        output = layer(x).tanh()
        (d,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    return output + d


def step_inside(layer, x):
    with torch.enable_grad():
        (d,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    return linear(x, layer.weight - 0.1 * d)


def follow_rows(layer, x):
    return torch.vmap(layer)(x)


class Branches(nn.Module):
    """What a ReLU changes in place is read again after it."""

    def __init__(self):
        super().__init__()
        self.conv, self.chain = nn.Conv2d(2, 3, 3), nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(2))

    def forward(self, x):
        h = self.conv(x)
        return self.chain(h).mean((2, 3)) + h.mean((2, 3))


def frozen():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False)
    return model


def computed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)), nn.Tanh(), nn.Linear(6, 3))


def images(*shape):
    return torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))


def pooled(**how):
    pool = nn.MaxPool2d(2, **how)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), pool, nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(3))


MODELS = {
    "plain": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), images(8)),
    "no bias": (lambda: nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)), images(8)),
    "used twice, tied and idle": (Twice, images(8)),
    "words": (Words, torch.randint(6, (5, 4), generator=torch.Generator().manual_seed(1))),
    "a frozen weight": (frozen, images(8)),
    "a computed weight": (computed, images(8)),
    **{
        do.__name__: (lambda do=do: Doing(do), images(8))
        for do in (change_in_place, freeze_on_the_way, mix_precisions, add_the_slope, step_inside, follow_rows)
    },
    "a ReLU in place": (Branches, images(2, 12, 12)),
    "pools": (pooled, images(2, 12, 12)),
    "padded pools": (lambda: pooled(padding=1), images(2, 12, 12)),
    "pools of ties": (pooled, images(2, 12, 12).sign()),
    "one sequence in another": (lambda: nn.Sequential(pooled(ceil_mode=True), nn.Linear(3, 3)), images(2, 11, 11)),
}


def trial(name):
    make, x = MODELS[name]

    def ready():
        model = make()
        with torch.no_grad():
            model(x)  # lazy layers
        return model

    y = torch.arange(5) % 3
    task = fk.Task(ready, fk.cross_entropy, fk.FederatedData.from_arrays(x, y, clients=[0] * 5))
    return task, task.adopt(0, torch.float32, "cpu"), Batch(x[None], y[None], None)


def worker_of(task, model):
    """As the engine makes it: lean, on a replica of its own."""
    return Worker(task, model, "serial", 0)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_plain_model(name):
    task, model, batch = trial(name)
    worker, plain = worker_of(task, model), Serial(task, model)
    for point in (model.flat.clone(), 0.5 * model.flat):  # the second meets what the first left behind
        start = worker.gradients.start(point, 1)
        model.flat.copy_(point)
        (g, loss), (want, value) = worker.gradients(start, batch), plain(model.flat[None], batch)
        assert torch.equal(loss, value)
        assert torch.equal(g, want) and want.abs().max() > 0
        kept, other = g.clone(), start + 0.1
        assert torch.equal(worker.gradients(other, batch)[0], plain(other, batch)[0])
        assert torch.equal(worker.model.grad[None], kept)


def test_a_pool_before_its_relu_gives_the_same_bits_and_is_not_put_elsewhere_in_the_chain():
    task, model, batch = trial("pools of ties")
    worker = worker_of(task, model)
    chain, x = worker.model.module, batch.x[0]
    assert [type(layer) for layer in chain] == [type(layer) for layer in model.module]
    assert torch.equal(chain[:2](x), model.module[:2](x))
    order = []
    for layer in (chain[1], chain[2]):
        layer.register_forward_hook(lambda layer, given, output: order.append(type(layer)))
    start = worker.gradients.start(model.flat, 1)
    g, _ = worker.gradients(start, batch)
    assert order == [nn.MaxPool2d, nn.ReLU, nn.MaxPool2d]  # the pool is one object at two places
    assert torch.equal(g, Serial(task, model)(model.flat[None], batch)[0])


def test_a_chain_that_somebody_watches_runs_in_its_own_order():
    task, model, batch = trial("pools")
    seen = []
    model.module[1].register_forward_hook(lambda layer, given, output: seen.append(output.shape))
    Serial(task, model)(model.flat[None], batch)
    worker = worker_of(task, model)
    worker.gradients(worker.gradients.start(model.flat, 1), batch)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        (nn.ReLU(), nn.MaxPool2d(2, dilation=2)),
        (nn.ReLU(), nn.MaxPool2d(2, return_indices=True)),
        (nn.Tanh(), nn.MaxPool2d(2)),
        (nn.ReLU(), nn.AvgPool2d(2)),
    ],
    ids=str,
)
def test_a_pool_stays_behind_where_somebody_could_tell(first, second):
    assert leanly._commute(nn.ReLU(), nn.MaxPool2d(2)) and not leanly._commute(first, second)


def test_a_layer_with_a_forward_of_its_own_keeps_it():
    task, model, batch = trial("pools of ties")
    changed = [layer for layer in model.module.modules() if type(layer) in (nn.Sequential, nn.Linear, nn.ReLU)]
    for layer in changed:
        layer.forward = MethodType(lambda self, x: 2 * type(self).forward(self, x), layer)
    worker, plain = worker_of(task, model), Serial(task, model)
    g, loss = worker.gradients(worker.gradients.start(model.flat, 1), batch)
    want, value = plain(model.flat[None], batch)
    assert len(changed) > 2 and torch.equal(loss, value) and torch.equal(g, want)


def test_what_a_closed_engine_held_goes_with_it():
    task, model, _ = trial("pools")
    engine = fk.Local("serial", workers=2).start(task, model, 0)
    held = [weakref.ref(worker.model.module[0].weight) for worker in engine.all]
    gc.collect()
    gc.disable()
    try:
        engine.close()
        del engine
        assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()
