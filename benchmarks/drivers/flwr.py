"""Flower's simulation: its FedAvg strategy over Ray actors of one core each."""

from __future__ import annotations

import os
import sys

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import contextlib
import logging

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from models import model, probe_loss
from workloads import Data, Workload

from drivers import flwr_client
from drivers.common import Clock, Losses, Options, main

logging.getLogger("flwr").setLevel(logging.ERROR)


class Enough(Exception):
    """The clock has seen enough rounds."""


class Watched(FedAvg):
    """FedAvg that notes when a round ends and keeps its model."""

    clock: Clock
    latest: ArrayRecord

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        replies = list(replies)
        if failed := [reply for reply in replies if reply.has_error()]:
            raise RuntimeError(f"a client failed: {failed[0].error.reason}")
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.latest = arrays
        if self.clock.round_done():
            raise Enough
        return arrays, metrics


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses:
    server, module = ServerApp(), model(work.name)
    before = probe_loss(module, data)
    strategy = Watched(
        fraction_train=work.cohort / work.clients, fraction_evaluate=0.0, min_train_nodes=work.cohort,
        min_available_nodes=work.clients,
    )  # fmt: skip
    strategy.clock = clock

    @server.main()
    def play(grid: Grid, context: Context) -> None:
        config = ConfigRecord({"workload": work.name, "data": os.path.abspath(sys.argv[2])})
        with contextlib.suppress(Enough):
            strategy.start(grid, ArrayRecord(module.state_dict()), num_rounds=10**6, train_config=config)

    cores = len(os.sched_getaffinity(0))
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"address": "local", "num_cpus": cores, "include_dashboard": False, "log_to_driver": False},
    }
    run_simulation(server, flwr_client.app, work.clients, backend_config=backend)
    module.load_state_dict(strategy.latest.to_torch_state_dict())
    return before, probe_loss(module, data)


if __name__ == "__main__":
    main(drive, ["flwr", "ray", "torch", "numpy"])
