"""UCI's handwritten digits of 8x8: small enough to come with the package."""

from functools import cache, partial
from importlib.resources import files
from typing import Literal

import numpy as np

from .. import draws
from ..data import FederatedData
from ..data.scaling import Scaling
from ..models.linear import softmax_regression
from ..task import Task, cross_entropy
from ..world import Epochs
from .naming import named, takes_model
from .splitting import dealt


@takes_model
def digits(
    alpha: float = 0.3, clients: int = 50, partition: str = "dirichlet",
    model: Literal["softmax_regression"] = "softmax_regression", seed: int = 0,
) -> Task:  # fmt: skip
    """1,797 digits of 8x8 pixels, no download: softmax regression (650 parameters) on 50 clients.

    A fixed fifth of the digits is the test set. model: in Python also a function that makes an `nn.Module` for inputs
    `[batch, 1, 8, 8]`. seed: of the partition.
    (Alpaydin & Kaynak 1998, Optical Recognition of Handwritten Digits, UCI, CC BY 4.0.)

    >>> task = digits()
    >>> len(task.data), len(task.data.x), len(task.data.test[1])
    (50, 1438, 359)
    """
    return Task(
        **named(digits, locals()),
        model=partial(softmax_regression, 64, 10),
        loss=cross_entropy,
        data=_data(alpha, clients, partition, seed),
        batch_size=10,
        lr=0.1,
        budget=Epochs(1),
    )


@cache
def _data(alpha: float, clients: int, how: str, seed: int) -> FederatedData:
    with (files("fedkeel.tasks") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as content:
        x, y = content["x"][:, None].astype(np.float32) / 16, content["y"]
    order = draws.generator(0, "digits-test").permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    data = dealt((x[train], y[train]), (x[test], y[test]), clients, how, alpha, seed)
    data.scaling = Scaling((0.0,), (16.0,), "pixels in 0..16")
    return data
