"""pfl-research: its simulated backend in one process, or in several under torchrun, as its documentation says."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import torch
from models import model, probe_loss, tensors
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightingStrategy
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workloads import Data, Workload

from drivers.common import Clock, Losses, Options, main, threads

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class WithLoss(nn.Module):
    """The model with the two methods that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor, **_: object) -> Tensor:
        return nn.functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: Tensor, y: Tensor, **_: object) -> dict[str, float]:
        return {}


class WeightBySamples(WeightingStrategy):
    """By what a client holds; a user's data set here is the batches of one visit."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def postprocess_one_user(self, *, stats, user_context):  # type: ignore[no-untyped-def]
        stats.reweight(self.data.size(user_context.user_id))
        return stats, Metrics()


class Watch(TrainingProcessCallback):
    """Times rounds; where there are several processes the first one decides for all."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        stop = self.clock.round_done()
        if PROCESSES > 1:
            decision = torch.tensor([int(stop)])
            torch.distributed.broadcast(decision, 0)
            stop = bool(decision)
        return stop, Metrics()


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses:
    torch.set_num_threads(threads(work) if PROCESSES == 1 else 1)
    np.random.seed(0)
    x, y = tensors(data)
    rng = np.random.default_rng(0)

    def visit(client: int) -> Dataset:
        chosen = torch.from_numpy(data.batches(client, work, rng))
        return Dataset((x[chosen], y[chosen]), user_id=client)

    module = WithLoss(model(work.name))
    users = FederatedDataset(visit, get_user_sampler("minimize_reuse", list(range(work.clients))))
    learner = PyTorchModel(
        module,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=work.momentum),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    before = probe_loss(module.inner, data)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6, evaluation_frequency=10**6, train_cohort_size=work.cohort, val_cohort_size=0
        ),
        SimulatedBackend(users, users, [WeightBySamples(data)]),
        learner,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch),
        NNEvalHyperParams(local_batch_size=None),
        [Watch(clock)],
        send_metrics_to_platform=False,
    )
    return before, probe_loss(module.inner, data)


if __name__ == "__main__":
    wanted = [text for text in sys.argv if text.startswith("processes=")]
    if wanted and wanted[0] != "processes=1" and PROCESSES == 1:
        count = wanted[0].split("=")[1]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
        raise SystemExit(subprocess.call([*torchrun, "-m", "drivers.pfl", *sys.argv[1:]]))
    main(drive, ["pfl", "torch", "numpy"], quiet=os.environ.get("RANK", "0") != "0")
