"""Both halves of a Flower app in this process: a Grid that hands messages over at once, and loses or spoils some."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel.deploy import App
from fedkeel.engine.flower import nodes as nodes_module
from fedkeel.engine.flower.device import Device
from fedkeel.engine.flower.orders import pack, unpack
from fedkeel.messages import flatten

pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of what Flower needs
    pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning"),  # of FedHBM, here and there
]
TASK = "synthetic:users=3"


@dataclass
class Grid:
    """Nodes that answer when they are asked.

    spoil: changes the replies of a node to training messages, given how many it has had; None loses the reply.
    """

    device: Device
    configs: list[dict[str, Any]]
    spoil: Any = None
    waiting: list[Any] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)
    kill_after: int = 10**9
    run_config: dict[str, Any] = field(default_factory=dict)
    keys: str = "key"  # of the nodes; Flower's simulation makes new ones at each start

    def __post_init__(self) -> None:
        self.trained = [0] * len(self.configs)
        self.starts = [0] * len(self.configs)

    def get_nodes(self) -> list[Any]:
        keys = [f"{self.keys} {n}".encode() for n in range(len(self.configs))]
        return [
            SimpleNamespace(node_id=100 + n, public_key=key, last_activated_at=str(self.starts[n]))
            for n, key in enumerate(keys)
        ]

    def push_messages(self, messages: list[Any]) -> list[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            number = message.metadata.dst_node_id - 100
            context = SimpleNamespace(
                node_config=self.configs[number], node_id=100 + number, run_config=self.run_config
            )
            if message.metadata.message_type == "query":
                self.waiting.append(self._enroll(message, context))
                continue
            if sum(self.trained) >= self.kill_after:
                raise SystemExit("killed")
            self.orders.append(message)
            reply = self.device.answer(message, context)
            reply = reply if self.spoil is None else self.spoil(number, self.trained[number], message, reply)
            self.trained[number] += 1
            if reply is not None:
                self.waiting.append(reply)
        return [message.metadata.message_id for message in messages]

    def _enroll(self, message: Any, context: Any) -> Any:
        from flwr.app import Error, Message

        try:
            return self.device.enroll(message, context)
        except fk.InputError as error:
            return Message(Error(2, f"<class 'ClientAppException'>:<'Traceback\nMessage: {error}'>"), reply_to=message)

    def pull_messages(self, ids: list[str]) -> list[Any]:
        found = [reply for reply in self.waiting if reply.metadata.reply_to_message_id in ids]
        self.waiting = [reply for reply in self.waiting if reply.metadata.reply_to_message_id not in ids]
        return found


def deploy(
    out: Path, algorithm: Any, task: Any = None, spoil: Any = None, world: Any = None, grid: Any = None, **config: Any
) -> tuple[fk.Run, Grid]:
    """Train on three nodes, by the app's server and devices."""
    make = task or functools.partial(_named, TASK)
    own = algorithm if isinstance(algorithm, fk.Algorithm) else None
    app = App(make, own, world)
    given = {"algorithm": algorithm, "rounds": 3, "out": str(out), "nodes": 3, "cohort": "all", "eval-every": 1}
    configs = [{"partition-id": n, "memory": str(out.parent / f"memory-{n}")} for n in range(3)]
    grid = grid or Grid(Device(make, own, world), configs, spoil)
    app.serve(grid, SimpleNamespace(run_config=given | config))
    return fk.load(out, task=None if own is None and task is None else make(None)), grid


@pytest.fixture(autouse=True)
def _a_task_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name the run and the task of the process that makes them, which Flower's own programs set."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def _named(name: str, node: Any) -> fk.Task:
    return fk.tasks.get(name)


def difference(run: fk.Run, other: fk.Run) -> float:
    return float((run.params - other.params).abs().max())


ALGORITHMS = ["fedavg", "fedprox+gel", "scaffold", "fedhbm", "ghbm:tau=2", "mime", "deltasgd", "fathom", "fednova",
              "feddyn", "fedyogi:momentum=0.9", "fedavg+median"]  # fmt: skip


@pytest.mark.parametrize("text", ALGORITHMS)
def test_the_result_is_that_of_the_local_engine(text: str, tmp_path: Path) -> None:
    run, _ = deploy(tmp_path / "run", text)
    local = fk.train(fk.tasks.get(TASK), text, fk.World(cohort="all"), rounds=3, engine="serial")
    assert difference(run, local) == 0
    for name in ("gradients", "bytes_down", "bytes_up", "clients", "accuracy"):
        assert [row[name] for row in run.history] == [row[name] for row in local.history]


def test_each_device_receives_the_part_of_the_model_that_it_trains(tmp_path: Path) -> None:
    world = fk.World(cohort=[[0, 1, 2]])
    run, grid = deploy(tmp_path / "run", "heterofl", functools.partial(_named, "blobs-wide"), world=world)
    local = fk.train(fk.tasks.get("blobs-wide"), "heterofl", world, rounds=3, engine="serial")
    assert difference(run, local) == 0
    assert run.history[-1]["bytes_down"] == local.history[-1]["bytes_down"]
    assert len({len(unpack(order.content["broadcast"]).x) for order in grid.orders}) > 1


def changed(reply: Any, **fields: Any) -> Any:
    update = replace(unpack(reply.content["update"]), **fields)
    reply.content["update"] = pack(update)
    return reply


def spoiled(how: str, number: int, turn: int, message: Any, reply: Any) -> Any:
    """Node 1 misbehaves in round 2."""
    if number != 1 or turn != 1:
        return reply
    update = unpack(reply.content["update"])
    if how == "nan":
        return changed(reply, delta=update.delta * torch.nan)
    if how == "shape":
        return changed(reply, delta=update.delta[:, :1])
    if how == "negative":
        return changed(reply, samples=-update.samples)
    if how == "old":
        return changed(reply, version=update.version - 1)
    if how == "garbage":
        reply.content["update"]["message"].data = b"\x00" * 100
        return reply
    if how == "nothing":
        del reply.content["update"]
        return reply
    assert how == "error"
    from flwr.app import Error, Message

    return Message(Error(2, "it raised"), reply_to=message)


@pytest.mark.parametrize("how", ["nan", "shape", "negative", "old", "garbage", "nothing", "error"])
def test_a_bad_reply_leaves_both_sides_as_if_the_node_had_not_been_asked(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fedkeel")
    run, _ = deploy(tmp_path / "run", "scaffold", spoil=functools.partial(spoiled, how))
    schedule = fk.World(cohort=[[0, 1, 2], [0, 2], [0, 1, 2]])
    local = fk.train(fk.tasks.get(TASK), "scaffold", schedule, rounds=3, engine="serial")
    assert difference(run, local) == 0
    assert [row.get("lost", 0) for row in run.history] == [0, 0, 1, 0]
    assert any("client 1, node 101: no usable update" in line for line in caplog.messages)


def test_a_server_that_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    configs = [{"partition-id": n, "memory": str(tmp_path / f"memory-{n}")} for n in range(3)]
    make = functools.partial(_named, TASK)
    killed = Grid(Device(make), configs, kill_after=7)  # in round 3, when one node has trained already
    with pytest.raises(SystemExit, match="killed"):
        deploy(tmp_path / "run", "scaffold", grid=killed, rounds=4)
    run, grid = deploy(tmp_path / "run", "scaffold", rounds=4)
    local = fk.train(fk.tasks.get(TASK), "scaffold", fk.World(cohort="all"), rounds=4, engine="serial")
    assert difference(run, local) == 0
    assert sum(grid.trained) == 6 and len(run.history) == 5


def test_a_node_that_does_not_answer_is_late_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "LOOK", 0.0)
    silent = lambda number, turn, message, reply: None if number == 1 else reply  # noqa: E731
    run, grid = deploy(tmp_path / "run", "fedavg", spoil=silent, **{"time-limit": 100.0, "grace": -98.0})
    assert grid.trained == [3, 1, 3]
    assert [row.get("late", 0) for row in run.history] == [0, 1, 0, 0]
    assert [row["clients"] for row in run.history] == [0, 2, 2, 2]


def test_a_node_that_starts_again_without_an_answer_is_lost_and_then_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "LOOK", 0.0)
    monkeypatch.setattr(nodes_module, "RESTARTED", 0.2)
    grids: list[Grid] = []

    def restart(number: int, turn: int, message: Any, reply: Any) -> Any:
        if number != 1 or turn != 1:
            return reply
        grids[0].starts[1] = 1
        return None

    make = functools.partial(_named, TASK)
    configs = [{"partition-id": n, "memory": str(tmp_path / f"memory-{n}")} for n in range(3)]
    grids.append(Grid(Device(make), configs, restart))
    run, _ = deploy(tmp_path / "run", "scaffold", grid=grids[0])
    schedule = fk.World(cohort=[[0, 1, 2], [0, 2], [0, 1, 2]])
    assert difference(run, fk.train(fk.tasks.get(TASK), "scaffold", schedule, rounds=3, engine="serial")) == 0


def test_a_deadline_cuts_steps_and_gel_guesses_the_rest(tmp_path: Path) -> None:
    run, _ = deploy(tmp_path / "run", "fedprox+gel", budget="9", **{"expected-steps": 12, "time-limit": 1e-6})
    assert run.history[-1]["gradients"] == 3 * 3  # one step in each of three rounds, by three clients
    one = fk.World(cohort="all", budget=fk.FixedSteps(1), expected_steps=12)
    local = fk.train(fk.tasks.get(TASK), "fedprox+gel", one, rounds=3, engine="serial")
    assert difference(run, local) == 0


def own_data(node: Any) -> fk.Task:
    """Nodes with 20, 30 and 40 samples of their own; the server has two that do not matter, and a test set."""
    generator = torch.Generator().manual_seed(5)
    x, truth = torch.randn(120, 4, generator=generator), torch.tensor([1.0, -2.0, 0.5, 0.0])
    y, begins = (x @ truth > 0).long(), [0, 20, 50, 90]
    test = (x[90:], y[90:])
    if node is None:
        data = fk.FederatedData.from_arrays(torch.zeros(2, 4), [0, 1], clients=[0, 0], test=test)
    else:
        own = slice(begins[node["partition-id"]], begins[node["partition-id"] + 1])
        data = fk.FederatedData.from_arrays(x[own], y[own], clients=[0] * (own.stop - own.start))
    return fk.Task(model=_linear, loss=fk.cross_entropy, data=data, batch_size=5)


def _linear() -> torch.nn.Module:
    return torch.nn.Linear(4, 2)


def simulated_data() -> fk.Task:
    parts = [own_data({"partition-id": n}).data for n in range(3)]
    ids = [n for n, part in enumerate(parts) for _ in range(len(part.x))]
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    data = fk.FederatedData.from_arrays(x, y, clients=ids, test=own_data(None).data.test)
    return fk.Task(model=_linear, loss=fk.cross_entropy, data=data, batch_size=5)


@pytest.mark.parametrize("text", ["scaffold", "fedhbm"])
def test_devices_with_data_of_their_own_train_as_if_the_server_had_them(text: str, tmp_path: Path) -> None:
    run, _ = deploy(tmp_path / "run", text, own_data, rounds=2)
    local = fk.train(simulated_data(), text, fk.World(cohort="all"), rounds=2, engine="serial")
    assert difference(run, local) == 0
    fleet = (tmp_path / "run.fleet.json").read_text()
    assert '"samples": [\n    20,\n    30,\n    40\n  ]' in fleet


def test_nodes_with_data_of_their_own_are_numbered_by_their_partition_in_whatever_order_they_report(
    tmp_path: Path,
) -> None:
    configs = [{"partition-id": n, "memory": str(tmp_path / f"memory-{n}")} for n in (2, 0, 1)]
    run, _ = deploy(tmp_path / "run", "scaffold", own_data, grid=Grid(Device(own_data), configs), rounds=2)
    local = fk.train(simulated_data(), "scaffold", fk.World(cohort="all"), rounds=2, engine="serial")
    assert difference(run, local) == 0


def test_a_node_keeps_its_number_when_the_server_starts_again(tmp_path: Path) -> None:
    configs = [{"partition-id": n, "memory": str(tmp_path / f"memory-{n}")} for n in range(3)]
    killed = Grid(Device(own_data), configs, kill_after=6)
    with pytest.raises(SystemExit, match="killed"):
        deploy(tmp_path / "run", "scaffold", own_data, grid=killed, rounds=3)
    again = Grid(Device(own_data), configs)
    again.get_nodes = lambda: list(reversed(Grid.get_nodes(again)))  # they report in another order
    run, _ = deploy(tmp_path / "run", "scaffold", own_data, grid=again, rounds=3)
    local = fk.train(simulated_data(), "scaffold", fk.World(cohort="all"), rounds=3, engine="serial")
    assert difference(run, local) == 0


@pytest.fixture
def in_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Flower's simulation, whose Grid has a class of its own."""
    monkeypatch.setattr("fedkeel.deploy.app.is_simulated", lambda grid: True)


@pytest.mark.usefixtures("in_simulation")
def test_simulated_nodes_are_known_by_their_partition_also_after_a_restart(tmp_path: Path) -> None:
    configs = [{"partition-id": n, "num-partitions": 3} for n in (2, 0, 1)]
    config = {"out": str(tmp_path / "run")}
    killed = Grid(Device(own_data), configs, kill_after=7, run_config=config)
    with pytest.raises(SystemExit, match="killed"):
        deploy(tmp_path / "run", "scaffold", own_data, grid=killed, rounds=4, nodes=1)  # all take part, not only one
    again = Grid(Device(own_data), configs[::-1], run_config=config, keys="another key")
    run, _ = deploy(tmp_path / "run", "scaffold", own_data, grid=again, rounds=4, nodes=1)
    local = fk.train(simulated_data(), "scaffold", fk.World(cohort="all"), rounds=4, engine="serial")
    assert difference(run, local) == 0 and sum(again.trained) == 6
    kept = sorted(file.name for file in (tmp_path / "run.memory").glob("*/*"))
    assert kept == ["client-0", "client-1", "client-2"]


@pytest.mark.usefixtures("in_simulation")
def test_more_simulated_nodes_than_clients_end_the_run_with_one_line(tmp_path: Path) -> None:
    grid = Grid(Device(functools.partial(_named, TASK)), [{"partition-id": n} for n in range(4)])
    said = "A simulated node does not take part: The task has clients 0..2; partition-id is 3."
    with pytest.raises(fk.InputError, match=said):
        deploy(tmp_path / "run", "fedavg", grid=grid)
    assert (tmp_path / "run.log").read_text().splitlines()[-1].endswith(said)


def _brief() -> torch.nn.Module:
    return torch.nn.Linear(4, 2).bfloat16()


def test_a_model_of_bfloat16_trains_in_the_dtype_of_the_run(tmp_path: Path) -> None:
    make = lambda node: replace(own_data(node), model=_brief)  # noqa: E731
    run, grid = deploy(tmp_path / "run", "scaffold", make, rounds=2)
    local = fk.train(replace(simulated_data(), model=_brief), "scaffold", fk.World(cohort="all"), rounds=2)
    assert difference(run, local) <= 1e-6
    assert {unpack(order.content["broadcast"]).x.dtype for order in grid.orders} == {torch.float32}


class Shrink(fk.Rule):
    """A rule of the user's own, which no text names."""

    def gradient(self, g: torch.Tensor, y: torch.Tensor, me: Any) -> torch.Tensor:
        return g + 0.1 * y


def test_a_rule_of_the_users_own_runs_unchanged(tmp_path: Path) -> None:
    algorithm = fk.Algorithm(client=fk.SGD(0.05), rules=[Shrink()])
    world = fk.World(cohort="all")
    run, _ = deploy(tmp_path / "run", algorithm, world=world)
    local = fk.train(fk.tasks.get(TASK), algorithm, world, rounds=3, engine="serial")
    assert difference(run, local) == 0


def test_what_is_on_the_wire_is_what_is_counted(tmp_path: Path) -> None:
    run, grid = deploy(tmp_path / "run", "scaffold")
    vectors = 0
    for order in grid.orders:
        broadcast = unpack(order.content["broadcast"])
        sent = [broadcast.x, *flatten(broadcast.slots).values(), *broadcast.buffers.values()]
        vectors += sum(one.numel() * one.element_size() for one in sent)
    assert vectors == run.history[-1]["bytes_down"]


def test_what_has_no_meaning_on_devices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fk.InputError, match="buffered"):
        deploy(tmp_path / "run", "fedbuff")
    killed = Grid(Device(functools.partial(_named, TASK)), [{"partition-id": 0}] * 3, kill_after=0)
    with pytest.raises(SystemExit, match="killed"):
        deploy(tmp_path / "killed", "scaffold", grid=killed, nodes=1)
    with pytest.raises(fk.InputError, match="on the devices"):
        fk.resume(tmp_path / "killed", engine="serial")
    with pytest.raises(fk.InputError, match="fedkeel deploy"):
        fk.resume(tmp_path / "killed")
    with pytest.raises(fk.InputError, match="fedkeel deploy"):
        fk.train(fk.tasks.get(TASK), "fedavg", rounds=1, engine="flower")
