"""The loop everybody writes first: a deep copy, a DataLoader and torch.optim.SGD per client, then a weighted mean."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from models import model, probe_loss, tensors
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import Data, Workload

from drivers.common import Clock, Losses, Options, main


def batches(x: Tensor, y: Tensor, work: Workload) -> Iterator[list[Tensor]]:
    """As many full batches as a client may do, epoch after epoch."""
    loader = DataLoader(TensorDataset(x, y), work.batch, shuffle=True, drop_last=True)
    done = 0
    while True:
        for batch in loader:
            yield batch
            done += 1
            if done == work.steps:
                return


def train_client(server: nn.Module, x: Tensor, y: Tensor, work: Workload) -> nn.Module:
    client = copy.deepcopy(server)
    optimizer = torch.optim.SGD(client.parameters(), lr=work.lr, momentum=work.momentum)
    for inputs, targets in batches(x, y, work):
        optimizer.zero_grad()
        nn.functional.cross_entropy(client(inputs), targets).backward()
        optimizer.step()
    return client


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses:
    torch.set_num_threads(int(options.get("threads", "1")))
    x, y = tensors(data)
    rng, server = np.random.default_rng(0), model(work.name)
    before, stop = probe_loss(server, data), False
    while not stop:
        total = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
        cohort = rng.choice(work.clients, work.cohort, replace=False)
        samples = sum(data.size(client) for client in cohort)
        for client in cohort:
            own = slice(data.offsets[client], data.offsets[client + 1])
            trained = train_client(server, x[own], y[own], work)
            for name, value in trained.state_dict().items():
                total[name] += value * (data.size(client) / samples)
        server.load_state_dict(total)
        stop = clock.round_done()
    return before, probe_loss(server, data)


if __name__ == "__main__":
    main(drive, ["torch", "numpy"])
