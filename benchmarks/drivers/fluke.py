"""fluke: its FedAVG with clients of its own kind over its fast loader, no evaluation, no persistence of models."""

from __future__ import annotations

import numpy as np
import torch
from models import model, probe_loss, tensors
from workloads import Data, Workload

import drivers.no_torchvision  # noqa: F401 - before fluke, which imports it
from drivers.common import Clock, Losses, Options, main, threads

# isort: split
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import EarlyStopping, Server


class Visitor(Client):
    """A client that trains on the batches of one visit and is weighted by all it holds."""

    visits: tuple[Workload, Data, torch.Tensor, torch.Tensor, np.random.Generator]

    @property
    def n_examples(self) -> int:
        return self.visits[1].size(self.index)

    def fit(self, override_local_epochs: int = 0) -> float:
        work, data, x, y, rng = self.visits
        chosen = torch.from_numpy(data.batches(self.index, work, rng))
        self.train_set = FastDataLoader(x[chosen], y[chosen], num_labels=work.classes, batch_size=work.batch)
        return super().fit(override_local_epochs)


class Watch:
    """Ends the run when the clock has enough."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def end_round(self, round: int) -> None:
        if self.clock.round_done():
            raise EarlyStopping(round)


class Unfinished(FedAVG):
    """Without the farewell after the last round, which sends the model to everybody."""

    def finalize(self) -> None:
        pass


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses:
    torch.set_num_threads(threads(work))
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    Visitor.visits = (work, data, *tensors(data), np.random.default_rng(0))
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=work.lr, momentum=work.momentum))
    loss = torch.nn.CrossEntropyLoss()
    clients = [Visitor(i, None, None, optimizer, loss, local_epochs=1, persistency=False) for i in range(work.clients)]
    server = Server(model(work.name), None, clients, weighted=True)
    for client in clients:
        client.set_channel(server.channel)
    federation = Unfinished(work.clients, None, DDict(client=DDict(), server=DDict()), clients=clients, server=server)
    federation.attach(Watch(clock))
    before = probe_loss(server.model, data)
    federation.run(10**6, (work.cohort + 0.5) / work.clients, finalize=False)
    return before, probe_loss(server.model, data)


if __name__ == "__main__":
    main(drive, ["fluke-fl", "torch", "numpy"])
