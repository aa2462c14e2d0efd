import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedkeel as fk
from fedkeel import conformance
from fedkeel.conformance import quadratics, toy, toy_world
from fedkeel.wire import Part, measure, pack, unpack

names = st.text("abcxyz/._0", min_size=1, max_size=12)
kinds = st.sampled_from([torch.float32, torch.float64])
shapes = st.lists(st.integers(1, 40), min_size=1, max_size=2)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.dictionaries(names, st.tuples(shapes, kinds), max_size=5), st.sets(names, max_size=5))
def test_a_message_is_measured_without_being_made(vectors, scalars):
    tensors = {name: torch.zeros(*shape, dtype=dtype) for name, (shape, dtype) in vectors.items()}
    payload, overhead = measure(tensors, sorted(scalars))
    assert payload == sum(t.numel() * t.element_size() for t in tensors.values())
    assert payload + overhead == len(pack(tensors, dict.fromkeys(scalars, 1.0)))


def test_a_message_comes_back_bit_for_bit():
    vectors = {"x": torch.randn(5), "b": torch.randn(2, 3).double().T}
    got, scalars = unpack(pack(vectors, {"lr": 0.1, "round": 3}))
    assert scalars == {"lr": 0.1, "round": 3.0}
    for name, value in vectors.items():
        assert torch.equal(got[name], value) and got[name].dtype == value.dtype


def test_parts_add_up_in_order_whatever_is_missing():
    total = Part()
    for client in (0, 1, 2):
        part = Part(clients=[client])
        part.put("", "v", "weighted", torch.tensor([float(client)]))
        part.sums["", "n", "first"] = torch.tensor(client)
        part.count("bytes_up", 4)
        total.add(part)
    assert total.clients == [0, 1, 2]
    assert total.sums["", "v", "weighted"].item() == 3
    assert total.sums["", "n", "first"].item() == 0
    assert total.counts == {"bytes_up": 12}


class Confusing(nn.Module):
    """Has buffers named like our own parts of a message."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        for name in ("x", "update"):
            self.register_buffer(name, torch.zeros(2))

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("model", [Confusing, lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))])
def test_floating_buffers_are_counted_beside_the_model(model):
    task = replace(toy(), model=model)
    conformance.check_bytes("fedavg", task=task)
    run = fk.train(task, "fedavg", toy_world(), 1)
    floats = sum(b.numel() for b in run.state.buffers.values() if b.is_floating_point())
    assert floats
    assert run.history[-1]["bytes_up"] == run.history[-1]["bytes_down"] == 4 * 4 * (len(run.params) + floats)


def test_float64_costs_twice_the_bytes():
    rows = [fk.train(toy(), "fedavg", toy_world(), 1, dtype=d).history[-1] for d in (torch.float32, torch.float64)]
    assert rows[1]["bytes_up"] == 2 * rows[0]["bytes_up"]


def test_scalars_and_headers_are_overhead():
    plain, nova = (fk.train(toy(), name, toy_world(), 1).history[-1] for name in ("fedavg", "fednova"))
    assert plain["bytes_up"] == nova["bytes_up"]
    assert nova["overhead_bytes"] > plain["overhead_bytes"] > 0


class Means(fk.Rule):
    """Sees both means of an upload, and a scalar per client."""

    def __init__(self):
        self.seen = {}

    def finish(self, y, at):
        up = fk.Upload(end=y, scalars={"steps": at.steps}, derived={"twice": 2 * y})
        return up, {}

    def server_step(self, server, up, at):
        self.seen = {
            "mean": up.mean("end").item(), "weighted": up.weighted("end").item(), "twice": up.mean("twice").item(),
            "steps": up.values("steps").flatten().tolist(), "samples": up.samples.flatten().tolist(),
        }  # fmt: skip
        return server


@pytest.mark.parametrize("mode", conformance.MODES)
def test_a_rule_sees_means_over_who_reported_in_cohort_order(mode):
    rule = Means()
    world = fk.World("all", lambda t, i: (1, 3, 0, 2)[i])
    task = quadratics(a=[1, 2, 1, 1], b=[1, -1, 9, 2], n=[3, 1, 1, 4])
    fk.train(task, fk.Algorithm(client=fk.SGD(0.5), rules=[rule]), world, 1, engine=mode, dtype=torch.float64)
    ends = [0.5, -1.0, 1.5]
    assert rule.seen["mean"] == pytest.approx(sum(ends) / 3)
    assert rule.seen["weighted"] == pytest.approx((3 * 0.5 - 1 + 4 * 1.5) / 8)
    assert rule.seen["twice"] == pytest.approx(2 * sum(ends) / 3)
    assert rule.seen["steps"] == [1, 3, 2]
    assert rule.seen["samples"] == [3, 1, 4]


def test_an_infinite_loss_with_a_finite_update_leaves_the_history_valid_json(tmp_path):
    """log(0) of a sample without a gradient: the loss is infinite, its slope 0."""

    def loss(output, target):
        return output[:, 0] - output[:, 0] + torch.where(target > 0, torch.inf, output[:, 0])

    data = fk.FederatedData.from_arrays([[1.0], [2.0]], [0.0, 1.0], clients=[0, 0])
    task = fk.Task(lambda: nn.Linear(1, 1), loss, data)
    run = fk.train(task, "fedavg", rounds=1)
    assert (run.history[-1]["clients"], run.history[-1]["train_loss"]) == (1, None)
    file = run.save(tmp_path) / "history.jsonl"
    for line in file.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
