"""The client of the Flower driver, in a module of its own: an actor imports it once and keeps the data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from models import model, tensors
from torch import Tensor, nn
from workloads import WORKLOADS, Data, load

app = ClientApp()


@cache
def held(workload: str, folder: str) -> tuple[Data, Tensor, Tensor, nn.Module, np.random.Generator]:
    """What an actor makes once: data and a model to load weights into."""
    torch.set_num_threads(1)
    data = load(WORKLOADS[workload], Path(folder))
    return data, *tensors(data), model(workload), np.random.default_rng()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    work = WORKLOADS[str(config["workload"])]
    data, x, y, module, rng = held(work.name, str(config["data"]))
    client = int(context.node_config["partition-id"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=work.lr, momentum=work.momentum)
    chosen = torch.from_numpy(data.batches(client, work, rng))
    for inputs, targets in zip(x[chosen].split(work.batch), y[chosen].split(work.batch), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    answer = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": data.size(client)})}
    return Message(content=RecordDict(answer), reply_to=message)
