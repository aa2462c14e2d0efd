"""Serial and batched gradients, and the rule that chooses between them."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.conformance import MODES, toy, toy_world
from fedkeel.data.batches import Batch
from fedkeel.engine.choose import (
    CLIENT_AXIS,
    LARGEST,
    LARGEST_CHAIN,
    MOST_OPERATIONS,
    choose,
    moves_global_generator,
    operations,
)
from fedkeel.engine.gradients import Lockstep, Serial, lockstep
from fedkeel.engine.gradients.serial import channels_last, layout


class Extrapolated(fk.Rule):
    """Asks for a second gradient while it still holds the first."""

    def objective(self, f, me, y, batch):
        g, value = f(y, batch)
        there, _ = f(me.x.expand_as(y).clone(), batch)
        return 2 * g - there, value


def task_of(model, x=None, y=None, **settings):
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)) if x is None else x
    y = torch.tensor([0, 1] * 6) if y is None else y
    clients = [0] * 6 + [1] * 3 + [2] * 3
    data = fk.FederatedData.from_arrays(x, y, clients=clients, test=(x, y))
    return fk.Task(model, fk.cross_entropy, data, **{"batch_size": 4, "lr": 0.5} | settings)


def chosen(model, mode="auto", **settings):
    task = task_of(model, **settings).cast(torch.float32, "cpu")
    return choose(mode, task, task.adopt(0, torch.float32, "cpu"))


def ends(task, algorithm="fedavg", **settings):
    world = fk.World("all", fk.FixedSteps(3))
    return [fk.train(task, algorithm, world, 2, engine=mode, **settings) for mode in MODES]


def test_a_second_gradient_leaves_the_first_alone():
    serial, batched = ends(task_of(lambda: nn.Linear(3, 2)), fk.Algorithm(rules=[Extrapolated()]), dtype=torch.float64)
    assert (serial.config["engine"], batched.config["engine"]) == MODES
    assert torch.allclose(serial.params, batched.params, rtol=0, atol=1e-12)
    plain = ends(task_of(lambda: nn.Linear(3, 2)), dtype=torch.float64)[0]
    assert not torch.allclose(serial.params, plain.params, atol=1e-3)


def test_extra_gradients_are_counted():
    plain, extra = (
        fk.train(toy(), fk.Algorithm(rules=rules), toy_world(), 2).history[-1] for rules in ([], [Extrapolated()])
    )
    assert extra["gradients"] == 2 * plain["gradients"]
    assert extra["samples"] == 2 * plain["samples"]


class FullStart(fk.Rule):
    """Corrects by the exact gradient at the received model."""

    def remember(self, me):
        return {"g": me.site.full_gradient(me.x.expand(len(me.site.clients), -1))}

    def gradient(self, g, y, me):
        return me.memory["g"].clone()

    def finish(self, y, end, me):
        return fk.Up(memory={"g": me.memory["g"]})


def test_the_full_gradient_is_the_mean_over_all_samples_in_both_modes():
    task = toy().cast(torch.float64, "cpu")
    world = fk.World("all", fk.FixedSteps(1))
    model = task.adopt(0, torch.float64, "cpu").module
    task.loss(model(task.data.x), task.data.y).mean().backward()
    central = torch.cat([(p - 0.05 * p.grad).detach().flatten() for p in model.parameters()])
    for mode in MODES:
        run = fk.train(task, fk.Algorithm(rules=[FullStart()]), world, 1, engine=mode, dtype=torch.float64)
        assert torch.allclose(run.params, central, rtol=0, atol=1e-13)


class Flattened(fk.Rule):
    """Every element moves by the mean: a gradient that is a view of one number."""

    def gradient(self, g, y, me):
        return g.mean(1, keepdim=True).expand_as(g)


class AskedAgain(fk.Rule):
    """Asks for the gradient at the client's own point, while that of the step is in the making."""

    def objective(self, f, me, y, batch):
        g, value = f(y, batch)
        f(y, batch)
        return g, value


def test_a_gradient_that_is_a_view_of_one_number_moves_every_element_in_both_modes():
    algorithm = fk.Algorithm(client=fk.SGD(0.1, momentum=0.9), rules=[Flattened()])
    serial, batched = (fk.train(toy(), algorithm, toy_world(), 3, engine=mode).params for mode in MODES)
    assert torch.allclose(serial, batched, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_asking_for_a_gradient_at_the_clients_own_point_loses_nothing(mode):
    rules = [[fk.Proximal(0.5)], [fk.Proximal(0.5), AskedAgain()]]
    plain, asked = (fk.train(toy(), fk.Algorithm(rules=r), toy_world(), 3, engine=mode).params for r in rules)
    assert torch.equal(plain, asked)


def test_gradients_are_finite_differences_of_the_loss():
    task = toy().cast(torch.float64, "cpu")
    model = task.adopt(0, torch.float64, "cpu")
    y = model.flat.clone()[None]
    batch = Batch(task.data.x[None, :5], task.data.y[None, :5], None)
    got = {
        mode: kind(task, model)(y.clone(), batch)[0][0] for mode, kind in (("serial", Serial), ("batched", Lockstep))
    }
    for i in range(0, model.size, 7):
        losses = []
        for step in (1e-6, -1e-6):
            moved = y.clone()
            moved[0, i] += step
            losses.append(Serial(task, model)(moved, batch)[1].item())
        for g in got.values():
            assert g[i].item() == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-8)


class Centred(nn.Module):
    """Couples the samples of a batch, so padding would change it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x - x.mean(0))


class Careless(nn.Module):
    """Draws in its forward pass, by hand."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


def padded_embedding():
    return nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten(), nn.Linear(6, 2))


def test_a_forward_that_couples_samples_runs_serially():
    mode, reason = chosen(Centred)
    assert mode == "serial"
    assert "other gradients" in reason
    assert torch.equal(*(run.params for run in ends(task_of(Centred))))


def test_a_layer_that_vmap_gets_wrong_for_later_clients_runs_serially():
    # torch zeroes an embedding's padding row for the first client of a vmap only
    x = torch.tensor([[0, 1], [2, 3], [0, 4]] * 4)
    assert chosen(padded_embedding, x=x)[0] == "serial"
    serial, batched = ends(task_of(padded_embedding, x=x))
    assert torch.equal(serial.params, batched.params)
    assert serial.params[:3].tolist() == [0, 0, 0]


def test_a_model_made_in_evaluation_mode_is_judged_as_it_trains():
    assert chosen(lambda: Careless().eval())[0] == "serial"
    assert fk.train(task_of(lambda: Careless().eval()), "fedavg", rounds=1).status == "done"


@pytest.mark.parametrize(
    ("model", "mode", "word"),
    [
        (lambda: nn.Linear(3, 2), "batched", "8 parameters"),
        (lambda: nn.Sequential(nn.Linear(3, 9000), nn.Linear(9000, 2)), "batched", f"<= {LARGEST_CHAIN:,}"),
        (lambda: nn.Sequential(nn.Linear(3, 20_000), nn.Linear(20_000, 2)), "serial", f"> {LARGEST_CHAIN:,}"),
        (lambda: nn.Sequential(nn.Linear(3, 9000), nn.GELU(), nn.Linear(9000, 2)), "serial", f"> {LARGEST:,}"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.PReLU()), "serial", "PReLU has no client-axis form"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1)), "serial", "CountedDropout"),
        (lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), "serial", "BatchNorm1d"),
        (Careless, "serial", "vmap"),
    ],
)
def test_auto_chooses_by_the_model_and_says_why(model, mode, word):
    got, reason = chosen(model)
    assert got == mode
    assert word in reason


def test_auto_takes_a_model_that_uses_its_few_parameters_often_one_client_at_a_time():
    def make():
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))

    def at(side):
        samples = torch.randn(12, 1, side, side, generator=torch.Generator().manual_seed(0))
        task = task_of(make, x=samples)
        model = task.cast(torch.float32, "cpu").adopt(0, torch.float32, "cpu")
        return chosen(make, x=samples), operations(task, model)

    products = 6 * (2 * 9 * 14**2 + 4)  # of a sample: a forward pass and twice as much back, two operations each
    (mode, _), needed = at(16)
    assert mode == "batched" and needed == products * 4  # clients hold 4 samples each on average, as many as a batch
    (mode, reason), needed = at(200)
    assert mode == "serial" and f"{needed:,} operations in a client's step > {MOST_OPERATIONS:,}" in reason


def test_the_reason_is_in_the_configuration():
    config = fk.train(task_of(lambda: nn.Linear(3, 2)), "fedavg", rounds=1).config
    assert (config["engine"], "client-axis form" in config["engine_reason"]) == ("batched", True)


def test_what_was_asked_for_is_done_where_possible():
    assert chosen(lambda: nn.Linear(3, 2), "serial") == ("serial", "as asked")
    assert chosen(lambda: nn.Linear(3, 2), "batched") == ("batched", "as asked")
    mode, reason = chosen(lambda: nn.Sequential(nn.Linear(3, 2), nn.PReLU()), "batched")
    assert mode == "serial"
    assert reason.startswith("batched was asked for, but")


LAYERS = {
    nn.Linear: (lambda: nn.Linear(8, 8), (8,)), nn.Bilinear: None, nn.Embedding: None,
    nn.Flatten: (nn.Flatten, (2, 4)), nn.Unflatten: (lambda: nn.Unflatten(1, (2, 4)), (8,)),
    nn.Identity: (nn.Identity, (8,)), nn.LayerNorm: (lambda: nn.LayerNorm(8), (8,)),
    nn.GroupNorm: (lambda: nn.GroupNorm(2, 4), (4, 2)), nn.Conv1d: (lambda: nn.Conv1d(2, 3, 3), (2, 8)),
    nn.Conv2d: (lambda: nn.Conv2d(2, 3, 3), (2, 5, 5)), nn.AvgPool1d: (lambda: nn.AvgPool1d(2), (2, 8)),
    nn.AvgPool2d: (lambda: nn.AvgPool2d(2), (2, 4, 4)), nn.MaxPool1d: (lambda: nn.MaxPool1d(2), (2, 8)),
    nn.MaxPool2d: (lambda: nn.MaxPool2d(2), (2, 4, 4)),
    nn.AdaptiveAvgPool1d: (lambda: nn.AdaptiveAvgPool1d(2), (2, 8)),
    nn.AdaptiveAvgPool2d: (lambda: nn.AdaptiveAvgPool2d(2), (2, 4, 4)),
    nn.ReLU: (nn.ReLU, (8,)), nn.ReLU6: (nn.ReLU6, (8,)), nn.LeakyReLU: (nn.LeakyReLU, (8,)), nn.ELU: (nn.ELU, (8,)),
    nn.GELU: (nn.GELU, (8,)), nn.SiLU: (nn.SiLU, (8,)), nn.Tanh: (nn.Tanh, (8,)), nn.Sigmoid: (nn.Sigmoid, (8,)),
    nn.Softplus: (nn.Softplus, (8,)), nn.Softmax: (lambda: nn.Softmax(1), (8,)),
    nn.LogSoftmax: (lambda: nn.LogSoftmax(1), (8,)), nn.Hardtanh: (nn.Hardtanh, (8,)),
}  # fmt: skip
ELSEWHERE = {nn.Bilinear, nn.Embedding}  # two inputs; integer inputs (see the embedding tests)


def test_every_layer_with_a_client_axis_form_is_tried_here():
    assert set(LAYERS) == set(CLIENT_AXIS)
    assert {layer for layer, how in LAYERS.items() if how is None} == ELSEWHERE


@pytest.mark.parametrize("layer", [layer for layer in CLIENT_AXIS if layer not in ELSEWHERE])
def test_a_layer_has_the_same_gradients_in_both_modes(layer):
    make, shape = LAYERS[layer]
    random = torch.Generator().manual_seed(1)
    x = torch.randn(6, *shape, generator=random, dtype=torch.float64)
    wide = make().double()(x).flatten(1).shape[1]

    def model():
        before = nn.Linear(shape[-1], shape[-1])  # so that gradients flow through the layer
        return nn.Sequential(before, make(), nn.Flatten(), nn.Linear(wide, 2))

    data = fk.FederatedData.from_arrays(x, [0, 1] * 3, clients=[0, 0, 0, 1, 1, 2])
    task = fk.Task(model, fk.cross_entropy, data, batch_size=None).cast(torch.float64, "cpu")
    flat = task.adopt(0, torch.float64, "cpu")
    assert choose("batched", task, flat) == ("batched", "as asked")
    y = torch.stack([flat.flat, 1.5 * flat.flat])
    batch = Batch(x.view(2, 3, *shape), data.y.view(2, 3), None)
    g, loss = Lockstep(task, flat)(y, batch)
    for i in (0, 1):
        oracle, value = Serial(task, flat)(y[i : i + 1].clone(), Batch(batch.x[i : i + 1], batch.y[i : i + 1], None))
        assert torch.allclose(g[i], oracle[0], rtol=1e-10, atol=1e-12)
        assert torch.allclose(loss[i], value[0], rtol=1e-10)


def test_a_model_that_draws_globally_is_noticed():
    task = task_of(Careless).cast(torch.float32, "cpu")
    assert moves_global_generator(task, task.adopt(0, torch.float32, "cpu"))
    task = task_of(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))).cast(torch.float32, "cpu")
    assert not moves_global_generator(task, task.adopt(0, torch.float32, "cpu"))


def test_a_model_that_draws_globally_runs_on_one_worker_under_its_own_seed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    runs = [fk.train(task_of(Careless), "fedavg", rounds=3, engine=fk.Local("serial", workers=w)) for w in (1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert "one worker" in runs[1].config["engine_reason"]
    assert torch.equal(runs[0].params, runs[1].params)
    assert not torch.equal(runs[0].params, fk.train(task_of(Careless), "fedavg", rounds=3, seed=1).params)


def two_axes(bias):
    """A layer over the last of two axes, as in mixers and attention: nothing but clients may be taken for clients."""
    return lambda: nn.Sequential(nn.Linear(3, 3, bias=bias), nn.Tanh(), nn.Flatten(1, 2), nn.Linear(12, 2, bias=bias))


@pytest.mark.parametrize("bias", [True, False])
def test_axes_between_batch_and_features_stay_the_samples_own(bias):
    x = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(2))
    assert chosen(two_axes(bias), x=x)[0] == "batched"
    task = task_of(two_axes(bias), x=x, batch_size=3)  # as many samples as clients
    serial, batched = ends(task, dtype=torch.float64)
    assert torch.allclose(serial.params, batched.params, rtol=0, atol=1e-12)


def test_a_forward_that_is_right_only_while_clients_agree_runs_serially(monkeypatch):
    class FirstClientsModel(lockstep.Chain):
        def forward(self, vectors, x):
            return super().forward(vectors[:1].expand_as(vectors), x)

    monkeypatch.setattr(lockstep, "Chain", FirstClientsModel)
    assert chosen(lambda: nn.Linear(3, 2), "batched")[0] == "serial"


STRIDED = """
import torch
from torch import nn
import fedkeel as fk

def net():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 1, stride=2), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))

x, y = torch.randn(200, 1, 8, 8), torch.arange(200) % 10
data = fk.FederatedData.from_arrays(x, y, clients=[i % 10 for i in range(200)], test=(x, y))
task = fk.Task(net, fk.cross_entropy, data, batch_size=10)
fk.train(task, "fedavg:lr=0.05", fk.World(5, fk.FixedSteps(10)), rounds=40, engine=fk.Local("serial", workers=1))
"""


def test_a_narrow_convolution_of_1x1_with_a_stride_does_not_damage_memory():
    # torch 2.13 writes beyond its memory in the backward pass of such a layer, if images have their channels last
    done = subprocess.run([sys.executable, "-c", STRIDED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-300:]


def test_images_have_their_channels_last_unless_torch_fails_with_it():
    for channels, stride, last in ((4, 2, False), (4, 1, True), (8, 2, True)):
        module = nn.Sequential(nn.Conv2d(1, channels, 3), nn.Conv2d(channels, 8, 1, stride=stride))
        assert (layout(module) is channels_last) == last
