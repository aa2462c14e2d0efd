"""What travels is enough: clients that get nothing but bytes, updates that nobody has summed, and a median of them."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk
from fedkeel import conformance
from fedkeel.aggregate import Weights
from fedkeel.conformance import MODES, quadratics, toy, toy_exits, toy_world
from fedkeel.local import train_clients
from fedkeel.messages import Broadcast, Memory, Update, Work
from fedkeel.recipes import RECIPES
from fedkeel.run.training import prepare
from fedkeel.survey import survey_clients
from fedkeel.wire import from_bytes, to_bytes

ROUNDS, SEED = 3, 5


def normed() -> nn.Module:
    """A model with buffers, one of them integer, and with dropout."""
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3))


def toy_buffers() -> fk.Task:
    return replace(toy(), model=normed)


TASKS = {"toy": toy, "exits": toy_exits, "buffers": toy_buffers}
TASK_OF = {"scalefl": "exits"}  # the others train on `toy`, whose model also has representations for moon
DO = {do.__name__: do for do in (train_clients, survey_clients)}


def work_on_bytes(pipe: Connection) -> None:
    """Another process: builds its own task, algorithm and worker from words, and then knows only what messages say."""
    torch.set_num_threads(1)
    while about := json.loads(pipe.recv_bytes()):
        job = prepare(TASKS[about["task"]](), fk.algorithm(about["text"]), toy_world(), ROUNDS, SEED, None)
        job = job.cast(torch.float32, "cpu")
        model = job.task.adopt(SEED, torch.float32, "cpu")
        local = fk.Local(about["mode"], workers=1, compile=False)
        engine = local.start(job.task, model, SEED, job.algorithm.capacity)
        pipe.send_bytes(b"ready")
        while name := pipe.recv_bytes():
            broadcast, work, memory = (from_bytes(pipe.recv_bytes()) for _ in range(3))
            worker = engine.all[0] if work.levels is None else engine.all[0].level(work.levels[0])
            pipe.send_bytes(to_bytes(DO[name.decode()](job.algorithm, worker, broadcast, work, memory)))
        engine.close()


@pytest.fixture(scope="module")
def process() -> Iterator[Connection]:
    """One process that works on bytes, for all tests of this file."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=work_on_bytes, args=(theirs,), daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parents[1]), *sys.path])  # where the child finds this file
        child.start()
    theirs.close()
    yield ours
    ours.send_bytes(b"null")
    child.join(60)
    assert child.exitcode == 0


class ElsewhereEngine:
    """The local engine, but what a group of clients does is done in the other process."""

    def __init__(self, engine: Any, pipe: Connection) -> None:
        self.engine, self.pipe, self.asked = engine, pipe, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run(self, do: Any, *given: Any) -> Any:
        return self.engine.run(partial(self.ask, do.func.__name__), *given)

    def ask(self, name: str, worker: Any, broadcast: Broadcast, work: Work, memory: Memory) -> Update:
        self.asked.append(name)
        for data in (name.encode(), to_bytes(broadcast), to_bytes(work), to_bytes(memory)):
            self.pipe.send_bytes(data)
        update = from_bytes(self.pipe.recv_bytes())
        assert isinstance(update, Update)
        return update


@dataclass(frozen=True)
class Elsewhere(fk.Local):
    """An engine whose clients are in another process."""

    pipe: Connection | None = None
    task: str = "toy"
    text: str = "fedavg"

    def start(self, *given: Any) -> Any:
        assert self.pipe is not None
        self.pipe.send_bytes(json.dumps({"task": self.task, "text": self.text, "mode": self.mode}).encode())
        assert self.pipe.recv_bytes() == b"ready"
        started.append(ElsewhereEngine(super().start(*given), self.pipe))
        return started[-1]


started: list[ElsewhereEngine] = []


def check_the_same(one: fk.Run, two: fk.Run) -> None:
    """The same bits: model, server state, clients' memories and every number of the history but the seconds."""
    conformance._same_run(one, two, "on two engines")
    assert torch.equal(one.params, two.params)
    assert one.history[-1]["round"] == ROUNDS


quietly = pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning")  # small cohorts: it is known


def check_elsewhere(process: Connection, task: str, text: str, mode: str) -> list[str]:
    """Train here and with clients in the other process; gives what it was asked for."""
    engines = fk.Local(mode, workers=1, compile=False), Elsewhere(mode, 1, None, False, None, process, task, text)
    runs = []
    try:
        for engine in engines:
            runs.append(fk.train(TASKS[task](), text, toy_world(), ROUNDS, SEED, engine=engine))
            assert runs[-1].config["engine"] == mode
    finally:
        process.send_bytes(b"")  # the other process may forget this run
    check_the_same(*runs)
    assert not torch.equal(runs[0].params, runs[0].state.x0)
    return started.pop().asked


@quietly
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RECIPES)
def test_clients_that_get_and_return_nothing_but_bytes_give_the_same_bits(
    process: Connection, name: str, mode: str
) -> None:
    asked = check_elsewhere(process, TASK_OF.get(name, "toy"), name, mode)
    assert set(asked) == {"train_clients"} | ({"survey_clients"} if name in ("mime", "mimemom") else set())


@quietly
@pytest.mark.parametrize(
    "text", ["scaffold", "fedprox+fednova:momentum=0.9+gel", "ghbm:tau=2,client=deltasgd", "feddyn:decay=step"]
)
def test_buffers_dropout_and_combinations_travel_too(process: Connection, text: str) -> None:
    check_elsewhere(process, "buffers", text, "serial")


class UnfoldedEngine:
    """The local engine, but no worker sums anything: all updates travel, and the server folds them."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.parts = engine, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run(self, do: Any, broadcast: Broadcast, work: Work, weights: Weights | None = None) -> Iterator[Any]:
        self.parts = list(self.engine.run(do, broadcast, work, None))  # all of them are here before one is folded
        assert self.parts and all(isinstance(part, Update) for part in self.parts)
        return iter(self.parts)


@dataclass(frozen=True)
class Unfolded(fk.Local):
    """An engine whose workers sum nothing."""

    def start(self, *given: Any) -> Any:
        return UnfoldedEngine(super().start(*given))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("task", "mode", "chunk"),
    [("toy", "serial", 1), ("toy", "batched", 2), ("toy", "batched", None), ("buffers", "serial", 1)],
)
@pytest.mark.parametrize(
    "text", ["fedavgm", "scaffold", "fednova:momentum=0.9+gel", "mimelitemom", "mimemom", "feddyn"]
)
def test_folding_on_the_server_gives_the_bits_of_folding_on_workers(
    text: str, task: str, mode: str, chunk: int | None, workers: int
) -> None:
    engines = (kind(mode, workers, chunk, compile=False) for kind in (fk.Local, Unfolded))
    check_the_same(*(fk.train(TASKS[task](), text, toy_world(), ROUNDS, SEED, engine=engine) for engine in engines))


@dataclass(frozen=True)
class Median(Weights):
    """The median of every coordinate; what rules send up is averaged plainly."""

    stacks: ClassVar[bool] = True

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        return samples.new_ones(()) / len(samples)

    def combine(self, updates: Any) -> Tensor:
        rows = [update.delta for update in updates]
        return torch.cat(rows).median(0).values


class Shouts(fk.Rule):
    """One client's update is huge, but finite."""

    keeps_linear: ClassVar[bool] = True

    def __init__(self, client: int) -> None:
        self.client = client

    def walk(self, go: Any, me: Any, y: Tensor) -> Any:
        end = go(y)
        for row, client in enumerate(me.site.clients):
            if client == self.client:
                y[row] = 1e30
        return end


@pytest.mark.parametrize("mode", MODES)
def test_a_median_ignores_a_client_with_a_huge_update_and_a_mean_does_not(mode: str) -> None:
    # The last client's optimum is the largest already, so that shouting does not move the median by a bit.
    task, world = quadratics([1.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0]), fk.World("all", fk.FixedSteps(2))

    def run(weights: Any, *rules: fk.Rule) -> fk.Run:
        algorithm = fk.Algorithm(client=fk.SGD(0.1), rules=rules, weights=weights)
        return fk.train(task, algorithm, world, ROUNDS, engine=mode, dtype=torch.float64)

    honest, shouted = run(Median()), run(Median(), Shouts(4))
    assert torch.equal(honest.params, shouted.params)
    assert [(row["clients"], row["dropped"]) for row in shouted.history[1:]] == [(5, 0)] * ROUNDS
    assert honest.params.item() == pytest.approx(2 * (1 - 0.9 ** (2 * ROUNDS)))  # as if client 2 were alone
    with pytest.warns(fk.StabilityWarning, match="client 4 in round 1"):
        assert run("samples", Shouts(4)).params.item() > 1e28


def alike() -> fk.Task:
    """`toy` with clients that hold the same kind of data, of whom the median is close to the mean."""
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 100)
    x = random.normal(size=(100, 4)) + 3 * np.eye(4)[y]
    return replace(toy(), data=fk.FederatedData.from_arrays(x, y, clients=np.repeat(np.arange(5), 20), test=(x, y)))


@pytest.mark.parametrize("mode", MODES)
def test_a_median_learns_a_network_although_one_client_shouts(mode: str) -> None:
    world = fk.World("all", fk.FixedSteps(3))
    algorithm = fk.Algorithm(client=fk.SGD(0.3), rules=[Shouts(2)], weights=Median())
    run = fk.train(alike(), algorithm, world, 20, engine=mode)
    assert run.status == "done"
    assert run.params.abs().max() < 10
    assert run.history[-1]["loss"] < 0.5 * run.history[0]["loss"]
    with pytest.warns(fk.StabilityWarning, match="client 2 in round 1"):
        mean = fk.train(alike(), replace(algorithm, weights="uniform"), world, 1, engine=mode)
    assert mean.params.abs().max() > 1e28


@pytest.mark.parametrize("rules", [[], [fk.Scaffold()], [fk.Mime(0.0)]])
@pytest.mark.parametrize("mode", MODES)
def test_a_median_keeps_the_promises_of_every_other_algorithm(mode: str, rules: list[fk.Rule]) -> None:
    algorithm = fk.Algorithm(rules=rules, weights=Median())
    conformance.check_workers(algorithm, mode)
    conformance.check_resume(algorithm, mode)
    conformance.check_bytes(algorithm, mode)
