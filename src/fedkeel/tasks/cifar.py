"""CIFAR-10 and CIFAR-100 dealt out to 100 clients, as in the GHBM paper, and a small CIFAR-10 for quick studies."""

import warnings
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..data import FederatedData, read, store
from ..data.augment import CropFlip
from ..data.scaling import Scaling
from ..errors import StabilityWarning, check
from ..models import MODELS
from ..task import Task, cross_entropy
from ..world import Epochs
from .naming import Name, named, takes_model
from .splitting import dealt

# By colour, on the scale 0..255: the mean of CIFAR-10's training pixels, and what the codes of the GHBM, FedNova and
# Delta-SGD papers divide by, 0.82, 0.82 and 0.77 times the pixels' deviation. GHBM's uses both for CIFAR-100, too.
MEAN = np.array([125.307, 122.950, 113.865], np.float32).reshape(3, 1, 1)
STD = 255 * np.array([0.2023, 0.1994, 0.2010], np.float32).reshape(3, 1, 1)
SMALL_STD = np.array([62.993, 62.089, 66.705], np.float32).reshape(3, 1, 1)  # the deviation itself
BLACK = tuple(float(value) for value in (-MEAN / STD).flatten())
Net = Literal["lenet", "resnet8", "resnet18", "resnet20", "resnet50", "resnet110", "resnet110_exits", "msdnet24"]
Norm = Literal["group", "batch"]


@takes_model
def cifar10(
    alpha: float = 0, clients: int = 100, partition: str = "dirichlet", model: Net = "lenet", augment: bool = True,
    seed: int = 0, norm: Norm = "group",
) -> Task:  # fmt: skip
    """CIFAR-10 in the setting of the GHBM paper: 100 clients of 500 pictures, batches of 64, one local epoch.

    alpha: 0 gives every client one class; the larger, the more alike clients are. augment: random crops and
    flips. seed: of the partition. norm: of ResNets, "group" (2 groups) or "batch", by the statistics of the batch, in
    training and at test, as in GEL's ResNet-8.
    """
    return _task(named(cifar10, locals()), 10, model, augment, alpha, clients, partition, seed, norm)


@takes_model
def cifar100(
    alpha: float = 0, clients: int = 100, partition: str = "dirichlet", model: Net = "resnet20", augment: bool = True,
    seed: int = 0, norm: Norm = "group",
) -> Task:  # fmt: skip
    """CIFAR-100, 100 fine classes, in the setting of the GHBM paper: as `cifar10`, with ResNet-20 or LeNet."""
    return _task(named(cifar100, locals()), 100, model, augment, alpha, clients, partition, seed, norm)


def cifar10_small(alpha: float = 0, clients: int = 100, partition: str = "dirichlet", seed: int = 0) -> Task:
    """CIFAR-10 shrunk to 16x16, with a LeNet of 16 and 32 channels (31,578 parameters): the same problem in minutes."""
    return _task(named(cifar10_small, locals()), 10, "small_lenet", False, alpha, clients, partition, seed)


def _task(
    name: Name, classes: int, model: str, augment: bool, alpha: float, clients: int, how: str, seed: int,
    norm: Norm = "group",
) -> Task:  # fmt: skip
    choice = model in ("resnet8", "resnet18", "resnet20", "resnet50", "resnet110")
    check(choice or norm == "group", name["name"], "norm", f"left out with {model}, which has no choice of it", norm)
    return Task(
        model=partial(MODELS[model], classes=classes, **({"norm": norm} if norm != "group" else {})),
        loss=cross_entropy,
        data=_data(store.folder(f"cifar{classes}"), classes, model == "small_lenet", alpha, clients, how, seed),
        batch_size=64,
        lr=0.1 if model.startswith("resnet") else 0.05,
        augment=CropFlip(fill=BLACK) if augment else None,
        # The paper's code leaves out the short last batch where the model has normalisation layers.
        budget=Epochs(1, per_epoch=True, drop_last=True) if model.startswith("resnet") else Epochs(1),
        **name,
    )


@lru_cache(maxsize=2)
def _data(folder: Path, classes: int, small: bool, alpha: float, clients: int, how: str, seed: int) -> FederatedData:
    if classes == 10:
        x, y = read.cifar10(*(folder / f"data_batch_{i}.bin" for i in range(1, 6)))
        tx, ty = read.cifar10(folder / "test_batch.bin")
    else:
        (x, y, _), (tx, ty, _) = (read.cifar100(folder / name) for name in ("train.bin", "test.bin"))
        if (len(y), len(ty)) != (50_000, 10_000):
            part = f"{folder} has {len(y):,} training and {len(ty):,} test pictures"
            why = "the whole CIFAR-100 has 50,000 and 10,000, so accuracies do not compare with those of papers"
            warnings.warn(f"{part}; {why}.", StabilityWarning, stacklevel=2)
    data = dealt((pixels(x, small), y), (pixels(tx, small), ty), clients, how, alpha, seed)
    what = "pixels in 0..255, means of 2x2 squares" if small else "pixels in 0..255"
    data.scaling = Scaling(tuple(MEAN.flatten().tolist()), tuple(_std(small).flatten().tolist()), what)
    return data


def pixels(x: NDArray[Any], small: bool = False) -> NDArray[np.float32]:
    """Centred and scaled by colour; small: means of 2x2 squares, 16x16 in all.

    >>> pixels(np.full((1, 3, 32, 32), 125, np.uint8), small=True).shape
    (1, 3, 16, 16)
    """
    if small:
        x = x.reshape(len(x), 3, 16, 2, 16, 2).mean((3, 5), dtype=np.float32)
    scaled: NDArray[np.float32] = (x.astype(np.float32) - MEAN) / _std(small)
    return scaled


def _std(small: bool) -> NDArray[np.float32]:
    return SMALL_STD if small else STD
