"""A table of one's own as a task that the command line can name."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice

import torch
from torch import Tensor, nn

from ..data import FederatedData
from ..data.csv_files import FEW_CLASSES, MOST_CLASSES, labels_of, most_classes, read_csv
from ..errors import InputError
from ..models.linear import mlp, softmax_regression
from ..task import Task, cross_entropy
from .naming import named


def csv(
    file: str = "", client: str = "", target: str = "", test: str | float | None = 0.2, drop: str = "",
    categories: str = "", hidden: int | None = None, seed: int = 0,
) -> Task:  # fmt: skip
    """A CSV file of your own: `csv:file=patients.csv,client=hospital,target=readmitted`; see `from_csv`.

    client, target: columns. test: the share of every client's rows that are kept for the test, or another file, or 0
    for no test set. drop, categories: columns to leave out, and columns of numbers that are names, with `|` between
    them. hidden: the width of a hidden layer, none for a linear model. seed: which rows are held out. Targets that are
    texts or whole numbers, or are named in categories, are classes, at most 1,000 of them; targets with a fraction are
    predicted by squared error.
    """
    file = os.path.abspath(os.path.expanduser(file)) if file else ""  # a run may be resumed from elsewhere
    if missing := [key for key, value in {"file": file, "client": client, "target": target}.items() if not value]:
        raise _incomplete(missing, file)
    test = os.path.abspath(os.path.expanduser(test)) if isinstance(test, str) else test or 0
    name = named(csv, locals())
    changed = os.stat(file).st_mtime_ns if os.path.exists(file) else 0
    return table_task(_data(file, changed, client, target, test, str(drop), str(categories), seed), hidden, **name)


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


def check_text(text: str) -> None:
    """Refuse what people write for a file of their own before they know the grammar.

    >>> check_text("patients.csv")
    Traceback (most recent call last):
    fedkeel.errors.InputError: 'patients.csv' is no task; for a CSV file write \
csv:file=patients.csv,client=COLUMN,target=COLUMN.
    """
    if text.lower().endswith(".csv") and "=" not in text:
        file = text.removeprefix("csv:")
        raise InputError(
            f"'{text}' is no task; for a CSV file write csv:file={file},client=COLUMN,target=COLUMN.{_columns_of(file)}"
        )
    if found := re.fullmatch(r"csv:.*\b(drop|categories)=([^,=]+(?:,[^,=]+)+)(,[^,=]+=.*)?", text):
        names = "|".join(name.strip() for name in found[2].split(","))
        raise InputError(f"Cannot read '{text}': columns have | between them, in quotes: '{found[1]}={names}'.")


def _incomplete(missing: list[str], file: str) -> InputError:
    lacks = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    form = f"write csv:file={os.path.basename(file) or 'FILE.csv'},client=COLUMN,target=COLUMN."
    return InputError(f"The task csv has no {lacks}: {form}{_columns_of(file)}")


def _columns_of(file: str) -> str:
    """The columns of a file, for an error; nothing where it cannot be read."""
    try:
        columns = read_csv(file).columns
    except (InputError, OSError):
        return ""
    return f" Its columns are {', '.join(name[:60] for name in islice(columns, 30))}."


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
    file: str, changed: int, client: str, target: str, test: str | float, drop: str, categories: str, seed: int
) -> FederatedData:
    data = FederatedData.from_csv(
        file, client, target, test, drop=drop, categories=categories, seed=seed, verbose=False
    )  # fmt: skip
    if data.class_names is None and not data.y.is_floating_point():
        _number_classes(data)
    if data.class_names is not None:
        parts = [data.y] if data.test is None or isinstance(test, str) else [data.y, data.test[1]]
        _check_classes(file, target, len(data.class_names), sum(map(len, parts)))
    return data


def _number_classes(data: FederatedData) -> None:
    """Make classes of whole numbers, in sorted order; those of test rows count, too."""
    labels = labels_of(data)
    place = torch.tensor(labels)
    assert data.table is not None and data.table.preparation.target is not None
    target = replace(data.table.preparation.target, classes=tuple(labels))
    data.table = replace(data.table, preparation=replace(data.table.preparation, target=target))
    data.class_names = [str(label) for label in labels]
    data.y = torch.searchsorted(place, data.y)
    if data.test is not None:
        data.test = data.test[0], torch.searchsorted(place, data.test[1])


def _check_classes(file: str, target: str, classes: int, rows: int) -> None:
    """Refuse a target that is not one of few classes: a number of the patient, a date, or a number to be predicted."""
    if classes <= most_classes(rows):
        return
    raise InputError(
        f"{file}: the target column {target!r:.100} has {classes:,} different values in {rows:,} rows, each of them a "
        f"class; at most {MOST_CLASSES:,} are allowed, and above {FEW_CLASSES} no more than a tenth of the rows. Name "
        "the column of the label; where numbers are to be predicted, write them with a fraction, such as 12.0."
    )
