"""Small grey pictures: MNIST, MNIST by its real writers, and Fashion-MNIST."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from ..data import FederatedData, read, store
from ..data.scaling import PIXELS, Scaling
from ..errors import InputError
from ..models import MODELS
from ..task import Task, cross_entropy
from ..world import Epochs, UniformSteps
from .naming import Name, named, takes_model
from .splitting import Pair, dealt, labels

Net = Literal["deltasgd_cnn", "gel_cnn", "fathom_cnn", "mnist_mlp", "softmax_regression", "exit_net"]
Scale = Literal["standard", "unit"]
# Mean and deviation of MNIST's training pixels, on the scale 0..1; the Delta-SGD code uses them for Fashion-MNIST, too.
MEAN, STD = 0.1307, 0.3081
STANDARD = Scaling((255 * MEAN,), (255 * STD,), PIXELS.what)


@takes_model
def mnist(
    alpha: float = 0.1, clients: int = 100, partition: str = "dirichlet_repeated", model: Net = "deltasgd_cnn",
    seed: int = 0, scale: Scale = "standard",
) -> Task:  # fmt: skip
    """MNIST in the setting of the Delta-SGD paper: 100 clients of 500 digits, batches of 64, one local epoch.

    scale: "standard" centres and scales pixels by MNIST's mean and deviation; "unit" leaves them from 0 to 1.
    """
    name = named(mnist, locals())
    return _task(name, _data(store.folder("mnist"), alpha, clients, partition, scale, seed), model)


@takes_model
def fmnist(
    alpha: float = 0.1, clients: int = 100, partition: str = "dirichlet_repeated", model: Net = "deltasgd_cnn",
    seed: int = 0, scale: Scale = "standard",
) -> Task:  # fmt: skip
    """Fashion-MNIST in the setting of the Delta-SGD paper, as `mnist`."""
    name = named(fmnist, locals())
    return _task(name, _data(store.folder("fmnist"), alpha, clients, partition, scale, seed), model)


@takes_model
def mnist_writers(model: Net = "deltasgd_cnn") -> Task:
    """MNIST with a client for each of the 539 people who wrote it; training and test writers differ.

    The writers come from the QMNIST label files. Batch size and budget are those of the GEL papers on FEMNIST.
    """
    name = named(mnist_writers, locals())
    return _task(name, _by_writer(store.folder("mnist"), store.folder("qmnist")), model, gel=True)


def _task(name: Name, data: FederatedData, model: Net, gel: bool = False) -> Task:
    shape = {"features": 784} if model == "softmax_regression" else {}
    default = model == "deltasgd_cnn"
    return Task(
        model=partial(MODELS[model], classes=10, **shape),
        loss=cross_entropy,
        data=data,
        batch_size=20 if gel else 64,
        lr=0.01,
        budget=UniformSteps(4, 20) if gel else Epochs(1),
        exits=partial(MODELS["exit_net"], classes=10) if default else None,  # a model chosen by the user stays
        **name,
    )


@lru_cache(maxsize=2)
def _data(folder: Path, alpha: float, clients: int, how: str, scale: Scale, seed: int) -> FederatedData:
    (x, y), (tx, ty) = (_part(folder, part) for part in ("train", "t10k"))
    if scale == "standard":
        for pictures in (x, tx):
            pictures -= np.float32(MEAN)
            pictures /= np.float32(STD)
    data = dealt((x, y), (tx, ty), clients, how, alpha, seed)
    data.scaling = STANDARD if scale == "standard" else PIXELS
    return data


@lru_cache(maxsize=1)
def _by_writer(folder: Path, labels: Path) -> FederatedData:
    (x, y), test = (_part(folder, part) for part in ("train", "t10k"))
    about = read.idx(labels / "qmnist-train-labels-idx2-int.gz")  # class, series, writer, ...
    if about.ndim != 2 or about.shape[1] < 3 or not np.array_equal(about[:, 0], y):
        raise InputError(f"The QMNIST labels in {labels} do not belong to the MNIST digits in {folder}.")
    data = FederatedData.from_arrays(x, y, about[:, 2], test)
    data.scaling = PIXELS
    return data


def _part(folder: Path, part: str) -> Pair:
    """The pictures `[n, 1, 28, 28]` in 0..1, and their labels."""
    file = folder / f"{part}-labels-idx1-ubyte.gz"
    x, y = read.idx(folder / f"{part}-images-idx3-ubyte.gz"), read.idx(file)
    if x.shape[1:] != (28, 28) or len(x) != len(y):
        raise InputError(f"{folder} has {part} pictures of shape {x.shape} and {len(y)} labels.")
    return np.divide(x[:, None], np.float32(255), dtype=np.float32), labels(file, y, 10)
