"""Your own model, loss and arrays: each sample has the id of its client."""

import torch
from torch import nn

import fedkeel as fk

torch.manual_seed(0)
ids = torch.randint(0, 30, (3000,)).tolist()  # thirty devices
x = torch.randn(3000, 8)
y = (x[:, 0] + x[:, 1] * torch.tensor(ids).remainder(3).sub(1) > 0).long()  # three groups of devices label differently
test = (x[:500], y[:500])


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


data = fk.FederatedData.from_arrays(x[500:], y[500:], clients=ids[500:], test=test)
task = fk.Task(model=make_model, loss=fk.cross_entropy, data=data, name="devices", batch_size=20)
world = fk.World(cohort=0.3, budget=fk.UniformSteps(2, 8))

for algorithm in ("fedavg:lr=0.1", "ghbm:lr=0.02", "fedavgcm:lr=0.02+gel"):
    run = fk.train(task, algorithm, world, rounds=40, seed=0)
    print(f"{algorithm:24} accuracy {run.history[-1]['accuracy']:.3f} after {run.history[-1]['gradients']} gradients")
