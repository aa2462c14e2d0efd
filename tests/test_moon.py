"""MOON: spec section 12, worked example E14, invariant 12."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

import fedkeel as fk
from fedkeel import models
from fedkeel.conformance import toy
from fedkeel.rules.contrastive import contrast
from fedkeel.tasks.words import next_word_loss

WORLD = fk.World(cohort=[[0, 1, 3], [1, 3, 5], [0, 1, 2]], budget=fk.FixedSteps(3))


def close(values, expected, tolerance=1e-9):
    values, expected = (torch.as_tensor(v, dtype=torch.float64) for v in (values, expected))
    assert torch.allclose(values, expected, rtol=0, atol=tolerance), (values, expected)


def test_the_contrast_of_e14():
    z, toward, away = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2.0], [2.0, 1.0], [-1.0, 1.0]))
    close(cosine_similarity(z, toward, dim=0), 0.8)
    close(contrast(z, toward, away, 0.5), 0.3220943922)


def test_e14_in_training(mode):
    """The representation is the parameter itself, and the loss walks it through the points of E14."""

    class Point(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.tensor([2.0, 1.0], dtype=torch.float64))

        def represent(self, x):
            return self.z + 0 * x

        def classify(self, z):
            return z

        def forward(self, x):
            return self.classify(self.represent(x))

    class Walk(fk.Rule):
        """Puts the point where the example wants it; moves the server's model nowhere."""

        def step(self, go, me, y, batch):
            found = go(y, batch)
            y.copy_(torch.tensor([[-1.0, 1.0]] if me.facts.round == 1 else [[1.0, 2.0]]).to(y))
            return found

        def serve(self, server, up, view):
            return server, torch.zeros_like(up.delta)

    data = fk.FederatedData.from_arrays(torch.zeros(2, 2), torch.zeros(2), clients=[0, 0])
    task = fk.Task(Point, lambda output, target: 0 * output.sum(1), data)
    parts = [fk.Contrastive(mu=1.0, temperature=0.5), Walk()]
    world = fk.World(cohort="all", budget=lambda t, client: t)  # round 1 ends at (-1, 1); round 2 looks from (1, 2)
    run = fk.train(task, fk.Algorithm(fk.SGD(0.1), parts), world, 2, engine=mode, dtype=torch.float64)
    assert run.config["engine"] == mode
    close(run.history[1]["train_loss"], math.log(2))
    first = contrast(*(torch.tensor(v, dtype=torch.float64) for v in ([2.0, 1.0], [2.0, 1.0], [-1.0, 1.0])), 0.5)
    close(2 * run.history[2]["train_loss"] - first.item(), 0.3220943922)


def test_at_the_first_participation_the_term_has_no_gradient(small, mode):
    once = fk.World(cohort=[[0, 1], [2, 3], [4, 5]], budget=fk.FixedSteps(4))
    plain, moon = (fk.train(small, text, once, 3, engine=mode) for text in ("fedavg", "moon:mu=5"))
    assert torch.equal(plain.params, moon.params)
    close([b["train_loss"] - a["train_loss"] for a, b in zip(plain.history[1:], moon.history[1:], strict=True)],
          [5 * math.log(2)] * 3, 1e-5)  # fmt: skip


def test_later_it_has_one(small, mode):
    plain, moon = (fk.train(small, text, WORLD, 3, engine=mode) for text in ("fedavg", "moon:mu=5"))
    assert not torch.allclose(plain.params, moon.params)


def test_without_weight_it_is_fedavg_bit_for_bit(small, mode):
    plain, moon = (fk.train(small, text, WORLD, 4, engine=mode) for text in ("fedavg", "moon:mu=0"))
    assert torch.equal(plain.params, moon.params)


def test_three_rounds_equal_the_papers_loss_by_hand(small, mode):
    task = fk.Task(small.model, small.loss, small.data, batch_size=None, lr=0.1)
    run = fk.train(task, "moon:mu=2,temperature=0.7", WORLD, 3, engine=mode, dtype=torch.float64)
    assert run.config["engine"] == mode

    net = task.adopt(0, torch.float64, "cpu").module
    names = [name for name, _ in net.named_parameters()]
    x = {name: p.detach().clone() for name, p in net.named_parameters()}
    offsets, data, previous = small.data.offsets, small.data.cast(torch.float64, "cpu"), {}

    def represent(p, inputs):
        return torch.tanh(inputs @ p["body.weight"].T + p["body.bias"])

    for cohort in WORLD.cohort:
        total, held = {name: torch.zeros_like(x[name]) for name in names}, 0
        for client in cohort:
            rows = slice(offsets[client], offsets[client + 1])
            inputs, labels, old = data.x[rows], data.y[rows], previous.get(client, x)
            y = {name: x[name].clone().requires_grad_() for name in names}
            for _ in range(3):
                z = represent(y, inputs)
                near = torch.exp(cosine_similarity(z, represent(x, inputs)) / 0.7)
                far = torch.exp(cosine_similarity(z, represent(old, inputs)) / 0.7)
                loss = cross_entropy(z @ y["last.weight"].T + y["last.bias"], labels)
                loss = loss + 2 * -(near / (near + far)).log().mean()
                slopes = torch.autograd.grad(loss, list(y.values()))
                y = {n: (p - 0.1 * g).detach().requires_grad_() for (n, p), g in zip(y.items(), slopes, strict=True)}
            previous[client] = {name: p.detach() for name, p in y.items()}
            held += len(labels)
            for name in names:
                total[name] += len(labels) * (previous[client][name] - x[name])
        x = {name: x[name] + total[name] / held for name in names}
    close(run.params, torch.cat([x[name].flatten() for name in names]), 1e-10)


def test_modes_agree_with_batches_of_unequal_size(small):
    world = fk.World(cohort=4, budget=fk.UniformSteps(1, 5))
    for text in ("moon:mu=3", "moon:mu=3+gel", "moon+fedprox:mu=0.1", "deltasgd+moon:mu=3", "moon+fedyogi"):
        one, many = (
            fk.train(small, text, world, 5, batch_size=7, engine=fk.Local(m, chunk=3), dtype=torch.float64)
            for m in ("serial", "batched")
        )
        assert many.config["engine"] == "batched"
        close(one.params, many.params, 1e-10)


def test_resuming_remembers_the_previous_models(small, tmp_path):
    whole = fk.train(small, "moon:mu=3", WORLD, 6)
    fk.train(small, "moon:mu=3", WORLD, 6, checkpoint=tmp_path, stop_after=3)
    assert torch.equal(whole.params, fk.resume(tmp_path, task=small).params)


def test_only_the_update_travels(small):
    plain, moon = (fk.train(small, text, WORLD, 2).history[-1] for text in ("fedavg", "moon"))
    assert (plain["bytes_up"], plain["bytes_down"]) == (moon["bytes_up"], moon["bytes_down"])
    assert plain["gradients"] == moon["gradients"]


def test_the_representations_of_frozen_models_have_no_dropout_and_move_no_statistics():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop, self.last = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)

        def represent(self, x):
            return self.drop(self.norm(x))

        def classify(self, z):
            return self.last(z)

        def forward(self, x):
            return self.classify(self.represent(x))

    random = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=random)
    data = fk.FederatedData.from_arrays(x, [0, 1, 2] * 4, clients=[0] * 12)
    task = fk.Task(Noisy, fk.cross_entropy, data, batch_size=4, lr=0.1)
    run = fk.train(task, "moon", fk.World(cohort="all", budget=fk.FixedSteps(5)), 1)
    assert run.state.buffers["norm.num_batches_tracked"] == 5
    plain = fk.train(task, "fedavg", fk.World(cohort="all", budget=fk.FixedSteps(5)), 1)
    assert torch.equal(plain.params, run.params)  # received and previous model agree, whatever noise z has


def test_a_model_without_a_representation_is_refused():
    with pytest.raises(fk.InputError, match="Linear has no represent and no classify"):
        fk.train(fk.tasks.synthetic(), "moon", rounds=1)


def test_a_model_that_is_not_made_of_its_halves_is_refused(small):
    class Odd(small.model):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(fk.InputError, match="is not classify"):
        fk.train(fk.Task(Odd, fk.cross_entropy, small.data), "moon", rounds=1)


def test_names_and_defaults():
    known = fk.algorithm("moon")
    assert (known.rules, known.weights) == ((fk.Contrastive(1.0, 0.5),), fk.Samples())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("moon:mu=-1", "'mu' parameter of Contrastive"),
        ("moon:temperature=0", "'temperature' parameter of Contrastive"),
        ("moon+fednova", "contrastive does not give"),
    ],
)
def test_nonsense_is_refused_with_a_reason(text, why):
    with pytest.raises(fk.InputError, match=why):
        fk.algorithm(text)


def test_a_chain_of_layers_is_cut_before_its_last_one(mode):
    deep = toy()  # nn.Sequential, its last layer linear
    alone = replace(deep, model=lambda: nn.Linear(4, 3))  # says nothing about representations
    shallow = replace(deep, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))  # its z would be the input
    for task in (alone, shallow):
        with pytest.raises(fk.InputError, match="represent"):
            fk.train(task, "moon", rounds=1)
    runs = [fk.train(deep, text, fk.World(cohort="all"), rounds=3, engine=mode).params for text in ("moon", "fedavg")]
    assert not torch.allclose(*runs)
    once = [fk.train(deep, text, fk.World(cohort="all"), rounds=1, engine=mode).params for text in ("moon", "fedavg")]
    assert torch.equal(*once)  # the first participation has nothing to stay away from


CUT = {
    "resnet8": (partial(models.resnet8, norm="batch"), (3, 8, 8), 10),
    "resnet20": (models.resnet20, (3, 8, 8), 10),
    "shakespeare_lstm": (partial(models.shakespeare_lstm, symbols=12, hidden=6), (7,), 12),
    "stackoverflow_lstm": (partial(models.stackoverflow_lstm, symbols=12), (4,), 12),
}


@pytest.mark.parametrize("name", CUT)
def test_resnets_and_lstms_train_with_moon(name):
    make, shape, classes = CUT[name]
    torch.manual_seed(0)
    places = (22, *shape) if name == "stackoverflow_lstm" else (22,)
    x = torch.randn(22, *shape) if len(shape) > 1 else torch.randint(1, classes, (22, *shape))
    y = torch.randint(1, classes, places)
    loss = next_word_loss if name == "stackoverflow_lstm" else fk.cross_entropy
    data = fk.FederatedData.from_arrays(x, y, clients=[i % 3 for i in range(22)], test=(x, y))
    task, world = fk.Task(make, loss, data, batch_size=3), fk.World(cohort="all", budget=fk.UniformSteps(1, 2))
    runs = [
        fk.train(task, f"{text}:lr=0.05", world, 2, engine=mode, dtype=torch.float64)
        for text, mode in (("moon", "serial"), ("moon", "batched"), ("fedavg", "serial"))
    ]
    assert [run.config["engine"] for run in runs] == ["serial", "batched", "serial"]
    moved = [run.params - run.state.x0 for run in runs]
    assert (moved[1] - moved[0]).norm() <= 1e-9 * moved[0].norm()
    assert (moved[2] - moved[0]).norm() > 1e-6 * moved[0].norm()
