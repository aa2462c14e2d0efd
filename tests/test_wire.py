import json
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedkeel as fk
from fedkeel import conformance
from fedkeel.aggregate import Sums
from fedkeel.conformance import quadratics, toy, toy_world
from fedkeel.flat import FlatModel
from fedkeel.messages import (
    CODES,
    Broadcast,
    Facts,
    Flight,
    Flights,
    Memory,
    Plan,
    Update,
    Work,
    cost,
    download,
    flatten,
    header,
    measure,
)
from fedkeel.wire import MESSAGES, from_bytes, to_bytes

names = st.text("abcxyz/._0", min_size=1, max_size=12)
kinds = st.sampled_from([torch.float32, torch.float64])
shapes = st.lists(st.integers(1, 40), min_size=1, max_size=2)
few = settings(derandomize=True, max_examples=60, deadline=None)


@few
@given(st.dictionaries(names, st.tuples(shapes, kinds), max_size=5), st.sets(names, max_size=5))
def test_a_message_is_measured_without_being_made(vectors, scalars):
    tensors = {name: torch.zeros(*shape, dtype=dtype) for name, (shape, dtype) in vectors.items()}
    payload, overhead = measure(tensors, sorted(scalars))
    assert payload == sum(t.numel() * t.element_size() for t in tensors.values())
    made = {f"v/{name}": value for name, value in tensors.items()}
    made |= {f"s/{name}": torch.ones((), dtype=torch.float64) for name in scalars}
    assert payload + overhead == len(safetensors.torch.save(made))


@few
@given(st.dictionaries(names, st.tuples(shapes, kinds), min_size=1, max_size=5))
def test_our_header_is_the_one_the_library_writes(vectors):
    tensors = {name: torch.randn(*shape, dtype=dtype) for name, (shape, dtype) in vectors.items()}
    for metadata in (None, {"about": "us"}):
        head, order = header(tensors, metadata)
        body = b"".join(tensors[name].numpy().tobytes() for name in order)
        assert head + body == safetensors.torch.save(tensors, metadata)


def same(one, two):
    """Whether two messages, or parts of them, agree in kind, in every name and in every bit."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bits(one.numpy()) == bits(two.numpy())
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and bits(one) == bits(two)
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(value, two[name]) for name, value in one.items())
    return one == two


def bits(array):
    return np.ascontiguousarray(array).tobytes()


def ints(*values):
    return np.array(values, dtype=np.int64)


PLAN = Plan(0.1, 20, 2.5, "floor")
ODD = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45])
SHARED = torch.arange(6.0)
SLOTS = {"scaffold": {"c": SHARED, "twice": SHARED}, "fathom": {"tau": torch.tensor(3.5)}, "silent": {}}
COLUMN = torch.ones(2, 1)
BROADCAST = Broadcast(
    3, PLAN, Facts(4, 9, 50, 2, 17.25), ODD, {"0.running_mean": torch.randn(3), "0.num": torch.tensor(7)}, SLOTS,
    {"mime": {"c": torch.randn(6).double()}},
)  # fmt: skip
WORK = Work(3, ints(4, 40), ints(2, 1), ints(9, 9), ints(0, 2))
MEMORY = Memory(
    {"scaffold": {"ci": torch.randn(2, 6)}, "both": {"a": SHARED.view(2, 3), "b": SHARED.view(3, 2).T}}, ints(1, 0)
)
UPDATE = Update(
    3, ints(4, 40), ints(8), COLUMN, 2 * COLUMN, COLUMN.double(), COLUMN, torch.randn(2, 6),
    mean={"scaffold": {"dc": torch.randn(2, 6)}}, weighted={"mimelite": {"c": torch.randn(2, 6)}},
    derived={"feddyn": {"g": torch.randn(2, 6)}}, scalars={"client": {"lr": COLUMN}},
    memory={"scaffold": {"ci": torch.randn(2, 6)}}, buffers={"0.num": torch.tensor([[7], [8]])},
    counts={"gradients": 3, "samples": 2**40}, cover=torch.randn(2, 6) > 0, level=1,
)  # fmt: skip
NONE = ints()
EMPTY = torch.zeros(0, 1)
GIVEN = {
    "a plan": PLAN,
    "a plan that leaves all to the world": Plan(0.1),
    "facts": BROADCAST.facts,
    "a broadcast": BROADCAST,
    "a broadcast of the model alone": Broadcast(0, Plan(0.5), Facts(), torch.zeros(3)),
    "a broadcast to a sub-model": BROADCAST.cut(torch.tensor([5, 0, 2])),
    "work": WORK,
    "work without expectations": Work(0, ints(1), ints(3)),
    "work for nobody": Work(0, NONE, NONE, NONE),
    "some rows of work": WORK.rows(ints(1, 0)),
    "memory": MEMORY,
    "no memory": Memory({}, ints(0, 0)),
    "memory of nobody": Memory({"scaffold": {"ci": torch.zeros(0, 6)}}, NONE),
    "an update": UPDATE,
    "an update of nobody": Update(
        3, NONE, ints(4, 40), EMPTY, EMPTY, None, EMPTY, torch.zeros(0, 6), mean={"r": {"v": torch.zeros(0, 6)}}
    ),
    "nothing under way": Flights(),
    "clients under way": Flights(
        [Flight(0.1 + 0.2, 5, 3, 0, 4, -1, (1, 2, 3)), Flight(1e300, 7, 3, 2, 4, 9, (2**62, 0, 0))],
        {"3": BROADCAST},
        {"3/0": UPDATE, "3/1": UPDATE},
    ),
    "an answer to a survey": Update(
        0, ints(1), NONE, COLUMN[:1], COLUMN[:1], None, COLUMN[:1], weighted={"mime": {"c": ODD[None]}}
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_message_comes_back_bit_for_bit(name):
    message = GIVEN[name]
    data = to_bytes(message)
    assert isinstance(data, bytes)
    assert same(message, from_bytes(data))
    assert same(from_bytes(data), from_bytes(to_bytes(from_bytes(data))))


def test_every_kind_of_message_is_among_them():
    assert {type(message) for message in GIVEN.values()} == set(MESSAGES.values())


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2), (2, 0, 4)])
def test_tensors_of_any_type_and_shape_come_back(dtype, shape):
    value = (10 * torch.rand(shape)).to(dtype)
    got = from_bytes(to_bytes(Broadcast(0, Plan(0.1), Facts(), value))).x
    assert got.dtype == dtype and got.shape == value.shape and torch.equal(got, value)


class Brief(nn.Module):
    """A model in bfloat16, with a frozen layer and a buffer of it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 2)
        self.first.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([0.1, 0.2, 0.3]))
        self.to(torch.bfloat16)

    def forward(self, x):
        return self.last(self.first(x) * self.scale)


def test_a_model_of_bfloat16_is_cast_to_the_runs_dtype_before_it_travels():
    model = FlatModel(Brief())
    got = from_bytes(to_bytes(Broadcast(0, Plan(0.1), Facts(), model.flat, model.buffers())))
    assert got.x.dtype == got.buffers["scale"].dtype == torch.float32
    assert torch.equal(got.x, model.flat) and torch.equal(got.x, got.x.bfloat16().float())
    x = torch.randn(6, 2, dtype=torch.bfloat16)
    data = fk.FederatedData.from_arrays(x, [0, 1] * 3, clients=[0, 0, 0, 1, 1, 1], test=(x, [0, 1] * 3))
    run = fk.train(fk.Task(Brief, fk.cross_entropy, data, lr=0.1), "fedavg", rounds=2)
    assert {value.dtype for value in run.model().state_dict().values()} == {torch.float32}
    assert torch.isfinite(run.params).all()


def test_bfloat16_in_a_message_is_sent_as_it_is():
    value = torch.tensor([[1.5, -0.0], [torch.inf, 1e-40]], dtype=torch.bfloat16)
    for sent in (value, value.T, value[:, 1:], value[:0], value[0, 0]):
        data = to_bytes(Broadcast(0, Plan(0.1), Facts(), sent))
        got = from_bytes(data).x
        assert got.dtype == torch.bfloat16 and got.shape == sent.shape
        assert torch.equal(got, sent) and payload(data) == 2 * sent.numel()


def test_what_comes_back_is_nobody_elses():
    data = to_bytes(BROADCAST)
    got = from_bytes(data)
    got.slots["scaffold"]["c"].add_(1)
    got.x.zero_()
    assert torch.equal(got.slots["scaffold"]["twice"], SHARED)
    assert SHARED.tolist() == [0, 1, 2, 3, 4, 5]
    assert same(from_bytes(data), BROADCAST)


def test_arrays_are_arrays_of_int64_that_may_be_written_to():
    got = from_bytes(to_bytes(WORK))
    assert (type(got.clients), got.clients.dtype) == (np.ndarray, np.int64)
    got.steps[0] = 5
    assert got.steps.tolist() == [5, 1]


@pytest.mark.parametrize("view", [lambda a: a[::2], lambda a: a[::-1], lambda a: np.broadcast_to(a[:1], 3)])
def test_an_array_may_be_any_view_of_another(view):
    clients = view(np.arange(6))
    work = Work(0, clients, clients, expected=clients)
    assert same(from_bytes(to_bytes(work)), work)


def test_a_tensor_that_needs_a_gradient_or_is_a_view_of_a_larger_one_is_sent_as_its_numbers():
    large = torch.randn(1000, 3)
    for value in (large[5].requires_grad_(), nn.Parameter(large[6])):
        data = to_bytes(Broadcast(0, Plan(0.1), Facts(), value))
        assert len(data) < 2000
        assert torch.equal(from_bytes(data).x, value.detach())


def test_a_message_of_an_unknown_kind_is_refused():
    data = safetensors.torch.save({}, {"fedkeel": json.dumps({"message": "Popen", "fields": {"args": "ls"}})})
    with pytest.raises(KeyError, match="Popen"):
        from_bytes(data)


def test_bytes_that_were_cut_off_are_refused():
    data = to_bytes(UPDATE)
    for end in (0, 7, len(data) // 2, len(data) - 1):
        with pytest.raises(safetensors.SafetensorError):
            from_bytes(data[:end])


def payload(data):
    """The bytes of a message beside its header."""
    return len(data) - 8 - int.from_bytes(data[:8], "little")


def test_what_a_client_receives_costs_the_payload_of_the_serialized_broadcast():
    vectors = replace(BROADCAST, slots={"scaffold": SLOTS["scaffold"]}, answers={}, buffers={"m": torch.randn(3)})
    assert download(vectors)[0] == payload(to_bytes(vectors))
    scalars = replace(vectors, slots=SLOTS)
    assert download(scalars)[0] == download(vectors)[0]
    assert download(scalars)[1] > download(vectors)[1]  # a scalar is overhead, with its name


def test_what_clients_send_costs_the_payload_of_the_serialized_update_but_what_is_not_sent():
    counted = cost(BROADCAST, UPDATE)
    assert counted["bytes_down"] == 3 * download(BROADCAST)[0]  # the dropped client received it too
    alone = replace(UPDATE, dropped=NONE)
    numbers = [alone.samples, alone.steps, alone.norms, alone.losses, *flatten(alone.scalars).values()]
    kept = [*flatten(alone.derived).values(), *flatten(alone.memory).values(), alone.cover, *alone.buffers.values()]
    beside = sum(t.nbytes for t in (*numbers, *kept)) + alone.clients.nbytes
    assert cost(BROADCAST, alone)["bytes_up"] == payload(to_bytes(alone)) - beside
    assert counted["bytes_up"] == cost(BROADCAST, alone)["bytes_up"] // 2 * 3


def test_a_survey_costs_its_answers_and_no_model():
    answer = GIVEN["an answer to a survey"]
    counted = cost(BROADCAST, answer)
    assert (counted["bytes_down"], counted["bytes_up"]) == (0, ODD.nbytes)
    assert counted["overhead_bytes"] > 0


def test_parts_add_up_in_cohort_order_whatever_is_missing():
    total = Sums()
    for client in (0, 1, 2):
        part = Sums(clients=[client], samples=[torch.tensor([[float(client)]])], counts={"bytes_up": 4})
        part.put(("", "v", "weighted"), torch.tensor([float(client)]))
        part.put(("", "n", "first"), torch.tensor(client))
        if client == 1:
            part.put(("rule", "late", "mean"), torch.tensor([5.0]))
            part.dropped.append(9)
        total.add(part)
    assert (total.clients, total.dropped) == ([0, 1, 2], [9])
    assert torch.cat(total.samples).flatten().tolist() == [0, 1, 2]
    assert total.sums["", "v", "weighted"].item() == 3
    assert total.sums["", "n", "first"].item() == 0
    assert total.sums["rule", "late", "mean"].item() == 5
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
    """Sees both means of what clients send up, and a scalar per client."""

    def __init__(self):
        self.seen = {}

    def finish(self, y, end, me):
        sent = {"end": y}
        return fk.Up(sent, sent, derived={"twice": 2 * y}, scalars={"steps": me.steps, "samples": me.samples})

    def serve(self, server, up, view):
        self.seen = {
            "mean": up.mean("end").item(), "weighted": up.weighted("end").item(), "twice": up.mean("twice").item(),
            "steps": up.values("steps").flatten().tolist(), "samples": up.values("samples").flatten().tolist(),
        }  # fmt: skip
        return server, up.delta


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
