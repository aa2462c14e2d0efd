"""Clients in actors of Ray: the local engine's bits, also where workers die, machines go and the driver is killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedkeel as fk
from fedkeel import conformance
from fedkeel.engine import actors
from fedkeel.engine.ray import Cluster
from fedkeel.rule import Me
from fedkeel.toys import toy, toy_exits, toy_world

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own files and sockets
]
ROUNDS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One Ray for the tests of this file; their runs find this process connected to it."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    started = Cluster("local", 2, 200 * 2**20)
    yield started.ray
    started.close()


def both(text: Any, task: fk.Task | None = None, workers: int = 2, **more: Any) -> tuple[fk.Run, fk.Run]:
    """The same run on the local engine and on Ray."""
    task, known = task or toy(), {"rounds": ROUNDS} | more
    world, mode = known.pop("world", toy_world()), known.pop("mode", "serial")
    places = fk.Local(mode, chunk=2), fk.Ray(workers=workers, mode=mode, chunk=2)
    here, there = (fk.train(task, text, world, engine=place, **known) for place in places)
    return here, there


def check_same(here: fk.Run, there: fk.Run) -> None:
    """Model, server state, memories, and every number of the history but the seconds."""
    conformance._same_run(here, there, "on Ray")
    assert torch.equal(here.params, there.params)
    assert here.history[-1]["round"] == there.history[-1]["round"]
    assert not torch.equal(here.params, here.state.x0)


CASES = {
    "stateless": "fedprox+gel",
    "stateful": "scaffold",
    "tuned": "fathom",
    "robust": "fedavg+median",
    "survey": "mime",
    "asynchronous": "scaffold:client=sgd+buffered:buffer=2,inflight=5",
}


@pytest.mark.parametrize("mode", ["serial", "batched"])
@pytest.mark.parametrize("kind", CASES)
def test_two_workers_give_the_bits_of_the_local_engine(cluster: Any, kind: str, mode: str) -> None:
    here, there = both(CASES[kind], mode=mode)
    check_same(here, there)
    assert there.config["engine"] == f"ray:workers=2,mode={mode}"


def test_one_worker_and_sub_models_give_the_same_bits(cluster: Any) -> None:
    check_same(*both("scalefl", toy_exits(), workers=1))


def test_a_diagnosis_travels_too(cluster: Any) -> None:
    check_same(*both("fedhbm", diagnose=2))


def test_a_hundred_thousand_clients_give_the_bits_of_the_local_engine(cluster: Any) -> None:
    x = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(0))
    data = fk.FederatedData(x, (x.sum(1) > 0).long(), range(100_001))
    task = fk.Task(lambda: torch.nn.Linear(3, 2), fk.cross_entropy, data, batch_size=1)
    check_same(*both("scaffold", task, world=fk.World(20, fk.FixedSteps(2)), rounds=2))


@dataclass(frozen=True, repr=False)
class Trouble(fk.Rule):
    """In round 2, client 5 meets with this; `once` is a file that says that it has happened."""

    kind: str
    once: str = ""

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        if me.facts.round == 2 and 5 in me.site.clients and me.site.batch.step == 1 and not self._happened():
            if self.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == "memory":
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
                torch.ones(2**28)
            raise RuntimeError("out of luck")
        return g

    def _happened(self) -> bool:
        if not self.once:
            return False
        there = os.path.exists(self.once)
        Path(self.once).touch()
        return there


def meeting(kind: str, once: Path | str = "") -> fk.Algorithm:
    return fk.Algorithm(fk.SGD(0.1), [fk.Scaffold(), Trouble(kind, str(once))], weights="uniform")


EVERYBODY = fk.World("all", fk.FixedSteps(3))


def test_a_worker_killed_mid_round_changes_no_bit(cluster: Any, tmp_path: Path) -> None:
    happened = tmp_path / "happened"
    there = fk.train(toy(), meeting("killed", happened), EVERYBODY, ROUNDS, engine=fk.Ray(workers=2, mode="serial"))
    assert happened.exists()
    check_same(fk.train(toy(), meeting("killed", happened), EVERYBODY, ROUNDS, engine="serial"), there)


def test_a_client_that_no_worker_survives_is_named(cluster: Any) -> None:
    with pytest.raises(fk.ClientError, match=r"Round 2, client 5, one of the steps 1 to 3: 3 workers died on it"):
        fk.train(toy(), meeting("killed"), EVERYBODY, ROUNDS, engine=fk.Ray(workers=2, mode="serial"))


@pytest.mark.parametrize(("kind", "says"), [("raises", "RuntimeError: out of luck"), ("memory", "allocate memory")])
def test_a_client_that_raises_or_runs_out_of_memory_is_named_with_its_step(cluster: Any, kind: str, says: str) -> None:
    with pytest.raises(fk.ClientError, match=rf"Round 2, client 5, step 2: .*{says}"):
        fk.train(toy(), meeting(kind), EVERYBODY, ROUNDS, engine=fk.Ray(workers=1, mode="serial"))


def test_what_was_started_is_gone_after_a_failure(cluster: Any) -> None:
    with pytest.raises(fk.ClientError):
        fk.train(toy(), meeting("raises"), EVERYBODY, ROUNDS, engine=fk.Ray(workers=1, mode="serial"))
    with pytest.raises(fk.ClientError, match="division by zero"):
        fk.train(toy(), "fedavg", rounds=1, engine=fk.Ray(workers=1), started=lambda config: 1 / 0)
    wait_until(lambda: cluster.available_resources().get("CPU") == 2)


def wait_until(true: Any, seconds: float = 60) -> None:
    """Wait for something that must become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


KILLED = """
import os, signal, sys
import fedkeel as fk
from fedkeel.toys import toy, toy_world
def die(row):
    if row["round"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
engine = fk.Ray(workers=1, mode="serial")
fk.train(toy(), "scaffold", toy_world(), 6, engine=engine, checkpoint=sys.argv[1], every=1, callbacks=[die])
"""


def processes_with(text: str) -> list[str]:
    """Command lines of processes that contain this text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_text().replace("\0", " ")
        except OSError:  # it has ended
            continue
        found += [line] if text in line else []
    return found


def test_a_killed_driver_leaves_nothing_running_and_its_run_goes_on_on_another_cluster(
    cluster: Any, tmp_path: Path
) -> None:
    before = set(Path("/tmp").glob("fedkeel-ray-*"))
    run = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    done = subprocess.run(run, env=os.environ | {"TMPDIR": "/tmp"}, timeout=200, check=False)
    assert done.returncode == -signal.SIGKILL
    (folder,) = set(Path("/tmp").glob("fedkeel-ray-*")) - before
    wait_until(lambda: not processes_with(str(folder)))
    there = fk.resume(tmp_path / "run", toy())
    assert there.status == "done"
    assert there.config["engine"] == "ray:workers=1,mode=serial"
    straight = fk.train(toy(), "scaffold", toy_world(), 6, engine="serial")
    assert torch.equal(there.params, straight.params)


# A cluster of several nodes listens on all interfaces, so it asks for a token. Ray replaces 127.0.0.1 by the machine's
# address, which its head would not listen on, so the nodes are at 127.0.0.2.
TWO_NODES = """
import secrets, os, shutil
import fedkeel as fk, torch
from fedkeel.engine.ray import short_folder, the_library
from fedkeel.toys import toy
folder = short_folder()
# Ray notes the newest cluster's address below this directory, and does not make it.
os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
os.makedirs(os.path.join(folder, "ray"))
the_library()
from ray.cluster_utils import Cluster
settings = {"include_dashboard": False, "object_store_memory": STORE * 2**20, "node_ip_address": "127.0.0.2"}
cluster = Cluster(True, head_node_args={"num_cpus": 0, "temp_dir": folder, **settings})
nodes = [cluster.add_node(num_cpus=1, **settings), cluster.add_node(num_cpus=1, **settings)]
"""
NODES = """
def change(row):
    if row["round"] == 2:
        cluster.remove_node(nodes[0], allow_graceful=False)
    if row["round"] == 4:
        cluster.add_node(num_cpus=1, **settings)
world = fk.World("all", fk.FixedSteps(3))
try:
    there = fk.train(toy(), "scaffold", world, 7, engine=fk.Ray(cluster.address, 2, mode="serial"), callbacks=[change])
finally:
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
here = fk.train(toy(), "scaffold", world, 7, engine="serial")
assert torch.equal(there.params, here.params)
print("the same bits")
"""


def test_a_machine_that_goes_and_another_that_comes_change_no_bit() -> None:
    pytest.importorskip("ray")
    script = TWO_NODES.replace("STORE", "100") + NODES
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert "the same bits" in done.stdout, done.stderr


COMMAND = """
import signal, sys, threading, time
from pathlib import Path
from fedkeel.cli import main
killed = []
def kill_a_worker():  # once a round is done
    history = Path(sys.argv[-1].partition("=")[2], "history.jsonl")
    while not history.exists() or history.read_text().count("\\n") < 2:
        time.sleep(0.01)
    lines = {int(file.parent.name): file.read_text() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()}
    killed.append(next(process for process, line in lines.items() if line.startswith("ray::Actor")))
    os.kill(killed[0], signal.SIGKILL)
threading.Thread(target=kill_a_worker, daemon=True).start()
try:
    code = main(sys.argv[1:-1] + ["--engine", f"ray:address={cluster.address},workers=2,mode=serial", sys.argv[-1]])
finally:
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
assert code == 0 and len(killed) == 1
"""
SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not there")
def test_the_command_on_two_machines_writes_the_same_file_with_a_worker_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    subprocess.run([sys.executable, SHARED / "unpack.py", tmp_path / "data", "cifar10"], check=True, timeout=200)
    words = [
        "run",
        "cifar10:model=resnet8",
        "ghbm",
        "--cohort",
        "4",
        "--budget",
        "2",
        "--rounds",
        "8",
        "--eval-samples",
        "100",
    ]
    scripts = {
        "ray": TWO_NODES.replace("STORE", "1500") + COMMAND,
        "local": "import sys; from fedkeel.cli import main; main([*sys.argv[1:], '--engine', 'serial'])",
    }
    surroundings = os.environ | {"FEDKEEL_DATA": str(tmp_path / "data")}
    for name, script in scripts.items():
        command = [sys.executable, "-c", script, *words, f"--out={tmp_path / name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=surroundings, check=False)
        assert done.returncode == 0, done.stderr
    ray, local = ((tmp_path / name / "model.safetensors").read_bytes() for name in scripts)
    assert ray == local


def test_chunks_that_take_longest_are_dealt_out_first() -> None:
    chunks = [fk.messages.Work(0, np.arange(1), np.array([steps])) for steps in (3, 5, 1, 9)]
    assert actors.longest_first(chunks, window=8) == [3, 1, 0, 2]
