"""FedLab's standalone simulation: a serial trainer over DataLoaders and a synchronous handler."""

from __future__ import annotations

import random

import numpy as np
import torch
from models import model, probe_loss, tensors
from torch.utils.data import DataLoader, TensorDataset
from workloads import Data, Workload

import drivers.no_torchvision  # noqa: F401 - before FedLab, which imports it
from drivers.common import Clock, Losses, Options, main, threads

# isort: split
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.aggregator import Aggregators
from fedlab.utils.logger import Logger
from fedlab.utils.serialization import SerializationTool


class Visits:
    """A loader over the batches of one visit."""

    def __init__(self, work: Workload, data: Data) -> None:
        self.work, self.data, self.rng = work, data, np.random.default_rng(0)
        self.all = TensorDataset(*tensors(data))

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader[list[torch.Tensor]]:
        return DataLoader(self.all, batch_size, sampler=self.data.batches(client, self.work, self.rng).tolist())


class Trainer(FedAvgSerialClientTrainer):
    """With momentum, which starts anew at every client, and the client's samples beside its model."""

    def local_process(self, payload, id_list):  # type: ignore[no-untyped-def]
        for client in id_list:
            work = self.dataset.work
            self.optimizer = torch.optim.SGD(self._model.parameters(), lr=work.lr, momentum=work.momentum)
            pack = self.train(payload[0], self.dataset.get_dataloader(client, self.batch_size))
            self.cache.append([*pack, torch.tensor(float(self.dataset.data.size(client)))])


class Handler(FedAvgServerHandler):
    """The mean weighted by samples."""

    def global_update(self, buffer):  # type: ignore[no-untyped-def]
        models, samples = zip(*buffer, strict=True)
        SerializationTool.deserialize_model(
            self._model, Aggregators.fedavg_aggregate(list(models), torch.stack(list(samples)))
        )


class Pipeline(StandalonePipeline):
    """Rounds until the clock has enough."""

    def __init__(self, handler: Handler, trainer: Trainer, clock: Clock) -> None:
        super().__init__(handler, trainer)
        self.clock = clock

    def evaluate(self) -> None:
        if self.clock.round_done():
            self.handler.global_round = 0


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses:
    torch.set_num_threads(threads(work))
    random.seed(0)
    logger = Logger()
    handler = Handler(model(work.name), 10**6, (work.cohort + 0.5) / work.clients, logger=logger)
    trainer = Trainer(model(work.name), work.clients, logger=logger)
    trainer.setup_dataset(Visits(work, data))
    trainer.setup_optim(1, work.batch, work.lr)
    before = probe_loss(handler.model, data)
    Pipeline(handler, trainer, clock).main()
    return before, probe_loss(handler.model, data)


if __name__ == "__main__":
    main(drive, ["fedlab", "torch", "numpy"])
