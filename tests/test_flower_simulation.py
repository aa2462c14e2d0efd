"""`flwr run` in Flower's own simulation: the app that `fedkeel deploy init` writes, on simulated nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

import fedkeel as fk

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("ray", reason="the extra `flower-simulation` is not installed")
from fedkeel.deploy.local import Deployment, log_of
from fedkeel.deploy.processes import last_line
from fedkeel.deploy.project import write_project
from fedkeel.run.folder import OUTCOME

pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning"),
]
TASK = "synthetic:users=3"
THREE = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=1"


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A SuperLink that simulates its nodes."""
    deployment = Deployment(tmp_path_factory.mktemp("simulation"), nodes=0)
    deployment.link.command = [*deployment.link.command, "--simulation"]
    deployment.link.environment = {**deployment.environment, "RAY_USAGE_STATS_ENABLED": "0"}
    with deployment:
        yield deployment


@pytest.mark.parametrize("algorithm", ["fedavg", "fedhbm"])
def test_the_result_is_that_of_the_local_engine(link: Deployment, algorithm: str) -> None:
    app, out = link.folder / f"app-{algorithm}", link.folder / algorithm
    write_project(app, TASK, algorithm)
    config = f"out='{out}' rounds=3"
    link.flwr("run", str(app), "deployment", "--federation-config", THREE, "--run-config", config)
    end = time.monotonic() + 100
    while not (out / OUTCOME).exists():
        assert time.monotonic() < end and link.link.is_alive(), last_line(link.link.log)
        time.sleep(0.2)
    assert json.loads((out / OUTCOME).read_text())["status"] == "done", last_line(log_of(out))
    run = fk.load(out)
    local = fk.train(fk.tasks.get(TASK), algorithm, fk.World(cohort="all"), rounds=3, engine="serial")
    assert float((run.params - local.params).abs().max()) <= 1e-6
    for name in ("gradients", "bytes_down", "bytes_up", "clients"):
        assert [row[name] for row in run.history] == [row[name] for row in local.history]
    assert out.with_name(f"{algorithm}.memory").exists() == (algorithm == "fedhbm")
