"""The workloads' models in PyTorch, shared by every driver that is PyTorch."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from workloads import Data

PARAMETERS = {"W1": 610, "W2": 1_206_590, "W3": 797_962, "W4": 133_520, "W5": 78_042, "W6": 608_702, "W7": 819_920}


class LastCharacter(nn.Module):
    """Embedding, two LSTM layers, and the scores of the character after the last one."""

    def __init__(self, characters: int = 80, embedding: int = 8, hidden: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.scores = nn.Linear(hidden, characters)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.lstm(self.embedding(x))[0][:, -1])


class Block(nn.Module):
    """Two 3x3 convolutions with GroupNorm, and the shortcut around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(2, outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(2, outside)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(2, outside))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.around(x))


class AnyModel(nn.Module):
    """W1's logistic regression written so that no engine can recognise it: the general path of a batched engine."""

    client_axis = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(10, 60).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


def logistic_regression() -> nn.Module:
    return nn.Linear(60, 10)


def femnist_cnn() -> nn.Module:
    """FATHOM's, without its dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62),
    )  # fmt: skip


def gel_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 62),
    )  # fmt: skip


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip


def resnet8() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(2, 16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


MODELS = {
    "W1": logistic_regression, "W2": femnist_cnn, "W3": lenet, "W4": LastCharacter, "W5": resnet8, "W6": gel_cnn,
    "W7": partial(LastCharacter, hidden=256),
}  # fmt: skip


def model(workload: str) -> nn.Module:
    """The workload's model; the same initial weights in every driver."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[workload]()


def tensors(data: Data) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(data.x), torch.from_numpy(data.y)


@torch.no_grad()
def probe_loss(module: nn.Module, data: Data) -> float:
    """The loss on a few samples of many clients."""
    x, y = (torch.from_numpy(part) for part in data.probe())
    was = module.training
    module.eval()
    loss = float(nn.functional.cross_entropy(module(x), y))
    module.train(was)
    return loss
