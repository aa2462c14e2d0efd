"""A real deployment on this machine: SuperLink, SuperNodes, TLS and node keys, and what dies on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from fedkeel.cli import main

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
from fedkeel.deploy.keys import make_certificates, make_node_key
from fedkeel.deploy.local import Deployment, log_of, train_on
from fedkeel.deploy.processes import descendants, last_line
from fedkeel.deploy.project import write_project

pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning"),
]
TASK = "synthetic:users=3"

# The app of `fedkeel deploy init`, with a node that can be told to send NaN or to be slow.
TROUBLE = """

def slow(output, target):
    time.sleep(0.4)
    return fk.cross_entropy(output, target)


def trouble(message, context, call_next):
    bad = context.node_config["partition-id"] == 1 and message.metadata.message_type == "train"
    if bad and context.run_config["trouble"] == "slow":
        own.loss = slow
    reply = call_next(message, context)
    if bad and context.run_config["trouble"] == "nan":
        update = unpack(reply.content["update"])
        reply.content["update"] = pack(replace(update, delta=update.delta * float("nan")))
    return reply


client = app.client(mods=[trouble])
"""
APP = (
    f'''import time
from dataclasses import replace

import fedkeel as fk
from fedkeel.deploy import App
from fedkeel.engine.flower.orders import pack, unpack


def own():
    return fk.tasks.get("{TASK}")


def task(node):
    made = own()
    return Slow.of(made) if node is not None and getattr(own, "loss", None) else made


class Slow:
    @staticmethod
    def of(made):
        slowed = replace(made, loss=own.loss)
        object.__setattr__(slowed, "spec", made.spec)  # the same task, on a slow device
        return slowed


app = App(task)
server = app.server()
'''
    + TROUBLE
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment") / "app"
    write_project(folder, TASK, "fedavg")
    project = folder / "pyproject.toml"
    project.write_text(project.read_text() + 'trouble = ""\n')
    (folder / "app.py").write_text(APP)
    return folder


@pytest.fixture(scope="module")
def secure(app: Path) -> Iterator[Deployment]:
    """Three nodes with TLS and keys, for one run after another."""
    with Deployment(app.parent / "secure", nodes=3, tls=True) as deployment:
        yield deployment


def train(
    deployment: Deployment, app: Path, algorithm: str, rounds: int = 2, row: Any = None, **config: Any
) -> tuple[fk.Run, Path]:
    out = app.parent / f"run-{len(list(app.parent.iterdir()))}"
    given = {"algorithm": algorithm, "rounds": rounds, "nodes": deployment.nodes} | config
    status = train_on(deployment, app, out, given, row or (lambda row: None))
    assert status == "done", last_line(log_of(out))
    return fk.load(out), out


def simulated(algorithm: str, rounds: int = 2, cohort: Any = "all") -> fk.Run:
    world = fk.World(cohort=cohort)
    return fk.train(fk.tasks.get(TASK), algorithm, world, rounds=rounds, engine="serial")


def difference(run: fk.Run, other: fk.Run) -> float:
    return float((run.params - other.params).abs().max())


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_two_nodes_train_two_rounds(app: Path) -> None:
    with Deployment(app.parent / "small", nodes=2) as deployment:
        run, _ = train(deployment, app, "fedavg", cohort="all")
        with pytest.raises(fk.FedkeelError, match="process"), Deployment(app.parent / "small", nodes=2):
            pass  # a second supervisor of the same folder
        assert deployment.link.is_alive() and (app.parent / "small" / "superlink.db").exists()
        pids = [process.running.pid for process in deployment.all if process.running is not None]
        family = set(pids).union(*map(descendants, pids))
    assert difference(run, simulated("fedavg", cohort=[[0, 1]])) <= 1e-6
    assert len(family) >= 3 and not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)


def test_a_training_survives_its_nodes_its_superlink_and_its_server(app: Path) -> None:
    """The model is that of a simulation in which exactly those clients reported."""
    killed: list[str] = []

    def kill(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            node = deployment.all[2]
            while not any(b"flwr-clientapp" in command(pid) for pid in descendants(node.running.pid)):
                time.sleep(0.1)  # until it trains
            family = descendants(node.running.pid)
            node.kill()
            for pid in family:
                os.kill(pid, signal.SIGKILL)
            killed.append("node")
        if row["round"] == 4:
            deployment.link.kill()
            killed.append("superlink")
        if row["round"] == 6:
            holder = json.loads((app.parent / "killed" / ".fedkeel.json").read_text())
            os.kill(holder["pid"], signal.SIGKILL)
            killed.append("server")

    out = app.parent / "killed"
    with Deployment(app.parent / "fragile", nodes=3, tls=True) as deployment:
        given = {"algorithm": "scaffold", "rounds": 8, "nodes": 2}
        assert train_on(deployment, app, out, given, kill) == "done"
    assert killed == ["node", "superlink", "server"]
    run = fk.load(out)
    counted = re.findall(r"round (\d+): the updates of clients \[([\d, ]+)\] count", log_of(out).read_text())
    cohorts = {int(number): [int(client) for client in clients.split(",")] for number, clients in counted}
    schedule = [cohorts[number] for number in range(1, 9)]
    assert [0, 2] in schedule and [row["clients"] for row in run.history[1:]] == list(map(len, schedule))
    assert difference(run, simulated("scaffold", 8, schedule)) <= 1e-6


ALGORITHMS = ["fedavg", "fedprox+gel", "scaffold", "fedhbm", "ghbm:tau=1", "mime", "deltasgd", "fathom"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_three_nodes_with_tls_and_keys_give_the_result_of_the_local_engine(
    secure: Deployment, app: Path, algorithm: str
) -> None:
    run, _ = train(secure, app, algorithm)
    local = simulated(algorithm)
    assert difference(run, local) <= 1e-6
    assert [row["bytes_up"] for row in run.history] == [row["bytes_up"] for row in local.history]


def test_hospitals_with_files_of_their_own_train_the_model_of_the_pooled_file(tmp_path: Path) -> None:
    lines = [f"{site},{n * 7 % 11},{'abc'[n % (2 + (site == 'C'))]},{n % 3 > 0}" for n in range(15) for site in "CAB"]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,ward,ill", *lines]) + "\n")
    spec = f"csv:file={tmp_path}/patients.csv,client=hospital,target=ill"
    local = fk.train(fk.tasks.get(spec), "scaffold", fk.World(cohort="all"), rounds=2, engine="serial")
    folder = tmp_path / "hospitals"
    assert main(["deploy", "init", str(folder), spec, "scaffold"]) == 0
    (tmp_path / "patients.csv").unlink()
    assert main(["deploy", "local", str(folder), "--set", "rounds=2"]) == 0, last_line(log_of(folder / "run"))
    made: dict[str, Any] = {"__file__": str(folder / "app.py")}
    exec((folder / "app.py").read_text().split("app = ")[0], made)
    run = fk.load(folder / "run", task=made["task"](None))
    assert difference(run, local) == 0
    assert [row["accuracy"] for row in run.history] == [row["accuracy"] for row in local.history]
    assert json.loads((folder / "run" / "config.json").read_text())["task"] == "hospitals"


LARGE = """import torch

import fedkeel as fk
from fedkeel.deploy import App


def make_model():
    return torch.nn.Linear(1000, 5000)


def task(node):
    x, y = torch.ones(4, 1000), torch.tensor([0, 1, 2, 3])
    data = fk.FederatedData.from_arrays(x, y, clients=[0] * 4, test=(x, y))
    return fk.Task(model=make_model, loss=fk.cross_entropy, data=data, batch_size=None, lr=0.1)


app = App(task)
server = app.server()
client = app.client()
"""


def test_a_model_of_20_megabytes_crosses_in_chunks(secure: Deployment, app: Path) -> None:
    """All nodes hold the same samples, so that the mean of their updates is that of one client."""
    folder, out, made = app.parent / "large", app.parent / "run-large", {}
    write_project(folder, TASK, "fedavg")
    (folder / "app.py").write_text(LARGE)
    given = {"rounds": 1, "nodes": 3, "budget": "2"}
    assert train_on(secure, folder, out, given, lambda row: None) == "done", last_line(log_of(out))
    exec(LARGE.split("app = ")[0], made)
    task = made["task"](None)
    run = fk.load(out, task=task)
    local = fk.train(task, "fedavg", fk.World(cohort="all", budget=fk.FixedSteps(2)), rounds=1, engine="serial")
    assert difference(run, local) <= 1e-6
    assert run.history[-1]["bytes_down"] == 3 * 4 * len(run.params) > 60e6


def test_private_files_are_readable_by_their_owner_alone(secure: Deployment) -> None:
    private = ["ca.key", "server.key", "node-0", "superlink.db"]
    modes = {name: oct((secure.folder / name).stat().st_mode & 0o777) for name in private}
    assert modes == dict.fromkeys(private, "0o600")
    assert oct(secure.folder.stat().st_mode & 0o777) == "0o700"


@pytest.mark.parametrize(("who", "said"), [("a key that is not registered", "2004"), ("no key", "2001"),
                                           ("another CA", "CERTIFICATE_VERIFY_FAILED")])  # fmt: skip
def test_a_stranger_is_refused(secure: Deployment, who: str, said: str) -> None:
    make_node_key(secure.folder / "stranger")
    make_certificates(secure.folder / "other")
    key = {"a key that is not registered": "stranger", "no key": ""}.get(who, "node-0")
    node = secure.node(7, key, "other/ca.crt" if who == "another CA" else "ca.crt")
    node.log.unlink(missing_ok=True)
    node.start()
    try:
        end = time.monotonic() + 90
        while said not in node.log.read_text() and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        node.stop()
    assert said in node.log.read_text()


def test_a_node_that_sends_nan_is_left_out_and_named(secure: Deployment, app: Path) -> None:
    run, out = train(secure, app, "scaffold", trouble="nan")
    assert difference(run, simulated("scaffold", cohort=[[0, 2]])) <= 1e-6
    assert [row.get("lost", 0) for row in run.history] == [0, 1, 1]
    assert log_of(out).read_text().count("no usable update: delta has NaN or infinite values") == 2


def test_a_slow_node_guesses_what_it_has_no_time_for(secure: Deployment, app: Path) -> None:
    more = {"trouble": "slow", "budget": "20", "expected-steps": 20, "time-limit": 3}
    run, _ = train(secure, app, "fedprox+gel", **more)
    assert [row["clients"] for row in run.history] == [0, 3, 3]
    steps = run.history[-1]["gradients"]
    assert 2 * (20 + 20 + 1) <= steps < 2 * 3 * 20
