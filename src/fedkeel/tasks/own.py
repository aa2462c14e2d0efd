"""A table of one's own as a task that the command line can name."""

import os
from collections.abc import Callable
from functools import lru_cache, partial

from torch import Tensor, nn

from ..data import FederatedData
from ..errors import InputError
from ..models.linear import mlp, softmax_regression
from ..task import Task, cross_entropy
from .naming import named


def csv(
    file: str = "", client: str = "", target: str = "", test: str | float = 0.2, drop: str = "", categories: str = "",
    hidden: int | None = None, seed: int = 0,
) -> Task:  # fmt: skip
    """A CSV file of your own: `csv:file=hearts.csv,client=hospital,target=ill`; see `FederatedData.from_csv`.

    client, target: columns. test: the share of every client's rows that are kept for the test, or another file. drop,
    categories: columns to leave out, and columns of numbers that are names, with `|` between them. hidden: the width of
    a hidden layer, none for a linear model. Targets with a fraction are predicted by squared error.
    """
    if not file or not client or not target:
        raise InputError("The task csv is not complete: write csv:file=hearts.csv,client=hospital,target=ill.")
    file = os.path.abspath(os.path.expanduser(file))  # a run may be resumed from elsewhere
    test = os.path.abspath(os.path.expanduser(test)) if isinstance(test, str) else test
    name = named(csv, locals())
    lists = tuple(tuple(filter(None, str(given).split("|"))) for given in (drop, categories))
    data = _data(file, os.stat(file).st_mtime_ns if os.path.exists(file) else 0, client, target, test, *lists, seed)
    return table_task(data, hidden, **name)


def table_task(
    data: FederatedData, hidden: int | None = None, name: str | None = None, spec: str | None = None
) -> Task:
    """The task of data that come from a CSV file: a linear model, or one with a hidden layer of this width.

    Its outputs are those of the preparation, so that devices with files of their own make the same model.
    """
    assert data.table is not None and data.table.preparation.target is not None
    classes, width = data.table.preparation.target.classes, data.x.shape[1]
    outputs = 1 if classes is None else max(2, classes if isinstance(classes, int) else len(classes))
    model = partial(softmax_regression, width, outputs) if hidden is None else partial(mlp, width, (hidden,), outputs)
    return Task(
        model=partial(_one_number, model) if classes is None else model,
        loss=squared_error if classes is None else cross_entropy,
        data=data,
        name=name,
        batch_size=20,
        lr=0.05,
        spec=spec,
    )


class OneNumber(nn.Module):
    """A model with one output as a module from inputs to one number per sample."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model(x)
        return output.squeeze(-1)


def _one_number(model: Callable[[], nn.Module]) -> nn.Module:
    return OneNumber(model())


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared difference, one value per sample.

    >>> squared_error(Tensor([1.0]), Tensor([3.0]))
    tensor([4.])
    """
    return (output - target) ** 2


@lru_cache(maxsize=2)
def _data(
    file: str, changed: int, client: str, target: str, test: str | float, drop: tuple[str, ...],
    categories: tuple[str, ...], seed: int,
) -> FederatedData:  # fmt: skip
    return FederatedData.from_csv(
        file, client, target, test, drop=drop, categories=categories, seed=seed, verbose=False
    )  # fmt: skip
