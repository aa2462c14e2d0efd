"""A torch Dataset and a model with two inputs: items are dicts, keys are the arguments of the model's forward."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedkeel as fk
from fedkeel.data.partition import dirichlet


class Visits(Dataset[dict[str, Tensor]]):
    """A small picture and the number of the device that took it."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.picture = torch.randn(samples, 1, 8, 8, generator=generator)
        self.device = torch.randint(0, 4, (samples,), generator=generator)
        self.label = (self.picture[:, :, 2:6, 2:6].mean((1, 2, 3)) > 0.05 * self.device - 0.1).long()

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"picture": self.picture[i], "device": self.device[i], "label": self.label[i]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look, self.device = nn.Conv2d(1, 8, 3, stride=2), nn.Embedding(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, picture: Tensor, device: Tensor) -> Tensor:
        return self.last(torch.relu(self.look(picture)).mean((2, 3)) + self.device(device))


by_label = partial(dirichlet, clients=20, alpha=0.5)
data = fk.FederatedData.from_torch(Visits(2000, 0), partition=by_label, test=Visits(500, 1), target="label")
task = fk.Task(Net, fk.cross_entropy, data, name="visits", lr=0.3)
run = fk.train(task, "fedavg", fk.World(cohort=10), rounds=30)
print(f"accuracy {run.history[-1]['accuracy']:.3f}; the model is yours again:", type(run.model()).__name__)
