"""Where clients run: in lockstep, probed, on a device; and what an evaluation looks at."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedkeel as fk
from fedkeel.conformance import toy, toy_world
from fedkeel.data.batches import Batch
from fedkeel.engine.gradients import Serial
from fedkeel.engine.gradients.lockstep import chain, plain_gradients
from fedkeel.engine.probe import probe
from fedkeel.engine.threads import Threads
from fedkeel.errors import InputError
from fedkeel.lab.study import Study, carry_out
from fedkeel.run.checkpoint import read_json


def small(model=lambda: nn.Linear(5, 3), loss=fk.cross_entropy, shape=(5,), **settings):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 5, generator=draw).view(120, *shape), torch.randint(3, (120,), generator=draw)
    clients = [0] * 2 + [1] * 18 + [2] * 40 + [3] * 60  # the first has fewer samples than a batch
    data = fk.FederatedData.from_arrays(x, y, clients=clients, test=(x, y))
    return fk.Task(model, loss, data, **{"batch_size": 6, "lr": 0.1} | settings)


CHAINS = {
    "linear": lambda: nn.Linear(5, 3),
    "no bias": lambda: nn.Linear(5, 3, bias=False),
    "relu": lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)),
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)),
    "sigmoid": lambda: nn.Sequential(nn.Linear(5, 4, bias=False), nn.Sequential(nn.Sigmoid(), nn.Linear(4, 3))),
}  # fmt: skip
LOSSES = {
    "ours": fk.cross_entropy,
    "torch's": nn.CrossEntropyLoss(reduction="none"),
    "another": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("shared", [False, True], ids=["full batches", "padded"])
def test_the_derivative_written_out_is_the_one_autograd_finds(make, loss, shared):
    task = small(make, loss).cast(torch.float64, "cpu")
    model = task.adopt(0, torch.float64, "cpu")
    assert chain(model.module) is not None
    draw = torch.Generator().manual_seed(1)
    y = model.flat + torch.randn(4, model.size, generator=draw, dtype=torch.float64)
    index = torch.randint(120, (4, 6), generator=draw)
    x, target = task.data.x[index], task.data.y[index]
    share = torch.rand(4, 6, generator=draw, dtype=torch.float64) if shared else None
    g, losses = plain_gradients(task, model)(y, x, target, share)
    for client in range(4):
        leaf = y[client].clone().requires_grad_()
        output = torch.func.functional_call(model.module, model.views(leaf), (x[client],))
        each = task.loss(output, target[client])
        total = each.mean() if share is None else (each * share[client]).sum()
        (want,) = torch.autograd.grad(total, leaf)
        assert torch.allclose(g[client], want, rtol=1e-12, atol=1e-13)
        assert torch.allclose(losses[client, 0], total, rtol=1e-12)


@pytest.mark.parametrize(("layer", "width"), [(partial(nn.MaxPool2d, 2), 27), (nn.ReLU, 108)])
def test_the_backward_pass_of_a_layer_meets_its_own_layout_and_gives_the_same_gradient(layer, width):
    def make():
        return nn.Sequential(nn.Conv2d(2, 3, 3), layer(), nn.Flatten(), nn.Linear(width, 3))

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 2, 8, 8, generator=draw), torch.randint(3, (4,), generator=draw)
    task = fk.Task(make, fk.cross_entropy, fk.FederatedData.from_arrays(x, y, clients=[0] * 4))
    model = task.adopt(0, torch.float32, "cpu")
    (worker,) = fk.Local("serial", workers=1, compile=False).start(task, model, 0).all
    arrived = []

    def look(layer, given, output):
        if output.requires_grad:
            output.register_hook(lambda d: arrived.append(d.is_contiguous(memory_format=torch.channels_last)))

    worker.model.module[1].register_forward_hook(look)
    start = worker.gradients.start(model.flat, 1)
    g, _ = worker.gradients(start, Batch(x[None], y[None], None))
    (want,) = Serial(task, model)(model.flat[None], Batch(x[None], y[None], None))[0]
    assert arrived == [True] and torch.equal(g[0], want)
    assert not model.module[1]._forward_hooks  # the user's own model is left alone


def test_a_pool_that_also_says_where_its_largest_were_runs():
    class Where(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.scores = nn.MaxPool2d(2, return_indices=True), nn.Linear(8, 3)

        def forward(self, x):
            pooled, _ = self.pool(x)
            return self.scores(pooled.flatten(1))

    data = fk.FederatedData.from_arrays(torch.randn(6, 2, 4, 4), [0, 1, 2] * 2, [0] * 6)
    task = fk.Task(Where, fk.cross_entropy, data)
    assert fk.train(task, "fedavg", rounds=1, engine="serial").history[-1]["train_loss"] > 0


def test_layers_without_a_written_derivative_are_left_to_vmap():
    assert chain(nn.Sequential(nn.Linear(5, 3), nn.GELU())) is None
    task = small(lambda: nn.Sequential(nn.Linear(5, 3), nn.GELU()))
    serial, batched = (fk.train(task, "fedavg", rounds=2, engine=mode) for mode in ("serial", "batched"))
    assert batched.config["engine"] == "batched"
    assert torch.allclose(serial.params, batched.params, atol=1e-5)


def test_a_layer_that_somebody_watches_is_run_as_it_is():
    def watched():
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
        model[1].register_forward_hook(lambda layer, given, output: output.clamp(max=0.5))
        return model

    assert chain(watched()) is None
    serial, batched = (fk.train(small(watched), "fedavg", rounds=2, engine=mode) for mode in ("serial", "batched"))
    assert torch.allclose(serial.params, batched.params, atol=1e-5)


def test_a_loss_that_ignores_a_class_is_not_taken_for_plain_cross_entropy():
    task = small(loss=nn.CrossEntropyLoss(reduction="none", ignore_index=0))
    serial, batched = (fk.train(task, "fedavg", rounds=3, engine=mode) for mode in ("serial", "batched"))
    assert torch.allclose(serial.params, batched.params, atol=1e-5)


def test_layers_that_share_their_weights_still_run_in_lockstep():
    class Tied(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(5, 5, bias=False), nn.Tanh(), nn.Linear(5, 5, bias=False), nn.Linear(5, 3))
            self[2].weight = self[0].weight

    def tied():
        return nn.Sequential(*Tied())

    assert chain(tied()) is None
    serial, batched = (fk.train(small(tied), "fedavg", rounds=2, engine=mode) for mode in ("serial", "batched"))
    assert batched.config["engine"] == "batched"
    assert torch.allclose(serial.params, batched.params, atol=1e-5)


def test_models_drawn_on_clients_do_not_depend_on_the_workers():
    world = fk.World("all", fk.FixedSteps(2))
    runs = [
        fk.train(toy(clients=12), "fedhbm:first=random,beta=0.1", world, 3, engine=fk.Local("serial", workers=w)).params
        for w in (1, 6, 6)
    ]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_a_probe_chooses_by_what_it_measures(monkeypatch):
    task = small().cast(torch.float32, "cpu")
    model = task.adopt(0, torch.float32, "cpu")
    before = model.flat.clone()
    for seconds, chosen in (([1.0, 2.0], "batched"), ([1.0, 9.0], "serial")):  # of one client, of eight together
        answers = iter(seconds)
        monkeypatch.setattr("fedkeel.engine.probe._seconds", lambda call, task, answers=answers: next(answers))
        mode, reason = probe(task, model, workers=1)
        assert (mode, reason.startswith("probed: ")) == (chosen, True)
    assert torch.equal(model.flat, before)


def test_a_probe_measures_for_real_and_leaves_models_without_a_client_axis_alone():
    task = small().cast(torch.float32, "cpu")
    assert "ms batched" in probe(task, task.adopt(0, torch.float32, "cpu"), 2)[1]
    task = small(lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))).cast(torch.float32, "cpu")
    assert probe(task, task.adopt(0, torch.float32, "cpu"), 2) == ("serial", "BatchNorm1d has no client-axis form")


def test_a_study_probes_once_and_writes_down_what_it_chose(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("fedkeel.engine.threads.probe", lambda *a: asked.append(a) or ("serial", "probed: by hand"))
    study, seen = Study("synthetic:users=25", ["fedavg", "gel"], rounds=1, seeds=[0, 1], engine="probe"), []
    carry_out(study, tmp_path, lambda *row: None, seen.append)
    assert len(asked) == 1
    assert {(config["engine"], config["engine_reason"]) for config in seen} == {("serial", "probed: by hand")}
    assert Study.from_config(read_json(tmp_path / "config.json")).engine == "serial"


def test_evaluation_on_a_fixed_draw_of_the_test_samples():
    seen = []
    task = small(metric=lambda output, target: seen.append(target.clone()) or 0.5)
    for seed, algorithm in ((0, "fedavg"), (1, "gel:steps=2")):
        run = fk.train(task, algorithm, rounds=1, seed=seed, eval_samples=20)
        assert run.config["eval_samples"] == 20
    assert all(torch.equal(targets, seen[0]) and len(targets) == 20 for targets in seen)
    with pytest.raises(InputError, match="eval_samples"):
        fk.train(task, "fedavg", rounds=1, eval_samples=0)


def test_a_resumed_run_evaluates_on_the_same_draw(tmp_path):
    settings = {"rounds": 4, "eval_samples": 30}
    whole = fk.train(fk.tasks.get("synthetic:users=25"), "fedavg", **settings)
    fk.train(fk.tasks.get("synthetic:users=25"), "fedavg", **settings, checkpoint=tmp_path, stop_after=2)
    assert [row["accuracy"] for row in fk.resume(tmp_path).history] == [row["accuracy"] for row in whole.history]


class Waits(TorchDispatchMode):
    """Counts the moments at which a device would have to be waited for: a tensor's value becomes a Python number."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("algorithm", ["fedavgcm", "gel:steps=2", "scaffold:momentum=0", "ghbm", "fedprox"])
def test_a_round_in_lockstep_waits_no_longer_for_more_clients_or_steps(algorithm):
    def waits(cohort, steps):
        with Waits() as mode:
            world = fk.World(cohort, fk.FixedSteps(steps))
            fk.train(toy(clients=12), algorithm, world, rounds=2, eval_every=10, engine=fk.Local("batched", workers=1))
        return mode.count

    assert waits(3, 2) == waits(12, 2) == waits(3, 9)


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(InputError, match="device"):
        fk.train(toy(), "fedavg", toy_world(), 1, device="cuda:99")
    with pytest.raises(InputError, match="device"):
        Study("synthetic", ["fedavg"], device="nowhere")


def test_engines_are_given_by_name_or_as_a_local():
    with pytest.raises(InputError, match="probe"):
        fk.Local("fastest")
    with pytest.raises(InputError, match="engine"):
        fk.train(toy(), "fedavg", toy_world(), 1, engine=Threads)
