"""The workloads: sizes, and random data of the right shape. Needs numpy alone, so that every peer can read it.

The inputs carry a trace of their class, so that a driver which really trains sees its loss fall.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
PROBE = 200  # samples on which a driver shows that it trained


@dataclass(frozen=True)
class Workload:
    """FedAvg on this many clients, with client SGD of momentum 0.9 and the mean weighted by samples."""

    name: str
    title: str
    about: str  # what its model is, and whose
    shape: tuple[int, ...]  # of one input
    classes: int
    clients: int
    samples: int  # per client; the mean where sizes differ
    cohort: int
    batch: int
    steps: int  # per client and round
    lr: float
    momentum: float = 0.9
    tokens: bool = False  # inputs are characters
    even: bool = True  # all clients hold the same number of samples

    @property
    def steps_per_round(self) -> int:
        return self.cohort * self.steps

    def sizes(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """How many samples each client holds; log-normal, at least 10, where they differ."""
        if self.even:
            return np.full(self.clients, self.samples)
        drawn = np.exp(rng.normal(0.0, 1.0, self.clients))
        return np.maximum(10, np.rint(drawn * self.samples / drawn.mean())).astype(np.int64)


LINEAR = "60 numbers to 10 classes, as on LEAF's Synthetic; 610 parameters"
FATHOM = "the FATHOM paper's CNN, without its dropout: 3 x 3 to 32 and 64 channels, dense 128; 1,206,590 parameters"
LENET = "the GHBM paper's LeNet: two times 5 x 5 to 64 channels, dense 384 and 192; 797,962 parameters"
GHBM = "the GHBM paper's LSTM: embedding of 8, two layers of 100 units, 80 characters; 133,520 parameters"
RESNET = "the GEL paper's ResNet-8: blocks of 16, 32 and 64 channels with GroupNorm; 78,042 parameters"
GEL_CNN = "the GEL papers' CNN: 5 x 5 to 32 and 64 channels, each with a pool, dense 512; 608,702 parameters"
GEL_LSTM = "the GEL papers' LSTM: as W4 with 256 units; 819,920 parameters"
WORKLOADS = {
    work.name: work
    for work in (
        Workload("W1", "logistic regression", LINEAR, (60,), 10, 1000, 96, 20, 5, 13, lr=0.01, even=False),
        Workload("W2", "FATHOM's FEMNIST CNN", FATHOM, (1, 28, 28), 62, 200, 200, 10, 20, 10, lr=0.01),
        Workload("W3", "LeNet on CIFAR", LENET, (3, 32, 32), 10, 100, 500, 10, 64, 8, lr=0.01),
        Workload("W4", "GHBM's Shakespeare LSTM", GHBM, (80,), 80, 100, 200, 10, 20, 10, lr=0.1, tokens=True),
        Workload("W5", "ResNet-8, GroupNorm", RESNET, (3, 32, 32), 10, 100, 200, 10, 16, 10, lr=0.01),
        # Clients and steps as in W2 and W4, so that only the model differs.
        Workload("W6", "GEL's FEMNIST CNN", GEL_CNN, (1, 28, 28), 62, 200, 200, 10, 20, 10, lr=0.02),
        Workload("W7", "GEL's Shakespeare LSTM", GEL_LSTM, (80,), 80, 100, 200, 10, 20, 10, lr=0.3, tokens=True),
    )
}


@dataclass(frozen=True)
class Data:
    """Samples packed by client: those of client i are the slice `offsets[i]:offsets[i + 1]`."""

    x: Array
    y: Array
    offsets: NDArray[np.int64]

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def batches(self, client: int, work: Workload, rng: np.random.Generator) -> NDArray[np.int64]:
        """Sample numbers of one visit, batch after batch: every batch full, a fresh permutation when one runs out."""
        needed, size = work.steps * work.batch, self.size(client)
        walk = np.concatenate([rng.permutation(size) for _ in range(-(-needed // size))])[:needed]
        return self.offsets[client] + walk

    def probe(self) -> tuple[Array, Array]:
        """A few samples of many clients, on which to see the loss fall."""
        chosen = np.linspace(0, len(self.x) - 1, PROBE).astype(np.int64)
        return self.x[chosen], self.y[chosen]


def make(work: Workload) -> Data:
    """The data of a workload; the same numbers every time."""
    rng = np.random.default_rng(7)
    sizes = work.sizes(rng)
    total = int(sizes.sum())
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if work.tokens:  # the next character is the last one again; some are frequent, as in a text
        frequency = 1.0 / np.arange(1, work.classes + 1)
        x = rng.choice(work.classes, (total, *work.shape), p=frequency / frequency.sum())
        return Data(x, x[:, -1].copy(), offsets)
    y = rng.integers(0, work.classes, total)
    patterns = rng.standard_normal((work.classes, *work.shape), dtype=np.float32)
    x = rng.standard_normal((total, *work.shape), dtype=np.float32)
    for begin in range(0, total, 4096):  # block by block: the pattern of every sample at once would double the memory
        x[begin : begin + 4096] += patterns[y[begin : begin + 4096]]
    return Data(x, y, offsets)


def store(work: Workload, folder: Path) -> None:
    """Write a workload's data, unless they are there."""
    where = folder / work.name
    if (where / "offsets.npy").exists():
        return
    where.mkdir(parents=True, exist_ok=True)
    data = make(work)
    for name in ("x", "y", "offsets"):  # offsets last: they say that the rest is whole
        np.save(where / f"{name}.npy", getattr(data, name))


def load(work: Workload, folder: Path) -> Data:
    """A workload's data, read into memory."""
    return Data(*(np.load(folder / work.name / f"{name}.npy") for name in ("x", "y", "offsets")))
