"""Small tables with natural clients: heart disease in four hospitals, activity of 36 phone users."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import draws
from ..data import FederatedData, read, store
from ..data.scaling import Scaling
from ..errors import InputError
from ..files import damaged, reading
from ..models.linear import mlp, softmax_regression
from ..task import Task, cross_entropy
from ..world import Epochs
from .naming import named

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# age, sex, chest pain, blood pressure, cholesterol, sugar, cardiogram, heart rate, angina, depression; the last three
# (slope, ca, thal) are missing almost everywhere outside Cleveland, and FLamby leaves them out.
FEATURES, CHEST_PAIN, CARDIOGRAM = 10, 2, 6
ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")


def heart(seed: int = 0) -> Task:
    """Heart disease or not, in the 740 complete records of four hospitals (FLamby's selection); logistic regression.

    Two thirds of each hospital's records train; use all clients (`World(cohort="all")`). seed: of that split.
    """
    name, data = named(heart, locals()), _hearts(store.folder("heart"), seed)
    return Task(
        model=partial(softmax_regression, data.x.shape[1], 2),
        loss=cross_entropy,
        data=data,
        batch_size=4,
        lr=0.01,
        budget=Epochs(1),
        **name,
    )


def wisdm(hidden: int = 64, seed: int = 0) -> Task:
    """Six activities from 43 features of ten seconds of a phone's accelerometer; 36 users; one hidden layer.

    A fifth of each user's windows is the test set. seed: of that split.
    """
    name, data = named(wisdm, locals()), _activities(store.folder("wisdm"), seed)
    return Task(
        model=partial(mlp, data.x.shape[1], (hidden,), len(ACTIVITIES)),
        loss=cross_entropy,
        data=data,
        batch_size=10,
        lr=0.05,
        budget=Epochs(1),
        **name,
    )


@lru_cache(maxsize=2)
def _hearts(folder: Path, seed: int) -> FederatedData:
    tables = [read.uci(folder / f"processed.{name}.data", 14) for name in HOSPITALS]
    hospital = np.repeat(HOSPITALS, [len(table) for table in tables])
    table = np.concatenate(tables)
    whole = ~np.isnan(table[:, [*range(FEATURES), 13]]).any(1)
    if not whole.any():
        raise InputError(f"{folder} has no complete record.")
    x, hospital = table[whole, :FEATURES], hospital[whole]
    y = (table[whole, 13] > 0).astype(np.int64)
    kinds = [x[:, [column]] == np.unique(x[:, column]) for column in (CHEST_PAIN, CARDIOGRAM)]
    x = np.hstack([np.delete(x, (CHEST_PAIN, CARDIOGRAM), 1), *kinds])
    return _split(x, y, hospital, 2 / 3, seed)


@lru_cache(maxsize=2)
def _activities(folder: Path, seed: int) -> FederatedData:
    file = folder / "WISDM_ar_v1.1_transformed.arff"
    columns = read.arff(file)
    if missing := [name for name in ("UNIQUE_ID", "user", "class") if name not in columns]:
        raise damaged(file, f"it has no attribute '{missing[0]}'")
    with reading(file, "WISDM activities"):
        users = np.array([read.whole_number(str(user)) for user in columns.pop("user")])
        y = np.array([ACTIVITIES.index(name) for name in columns.pop("class")])
        del columns["UNIQUE_ID"]
        x = np.stack([column.astype(np.float64) for column in columns.values()], 1)
    return _split(x, y, users, 0.8, seed)


def _split(x: NDArray[Any], y: NDArray[Any], owner: NDArray[Any], share: float, seed: int) -> FederatedData:
    """A random `share` of each owner's rows trains, the rest tests; columns are scaled by the training rows' mean and
    deviation, and missing values become the mean."""
    train = np.zeros(len(y), bool)
    for number, name in enumerate(np.unique(owner)):
        rows = np.flatnonzero(owner == name)
        train[draws.generator(seed, "split", client=number).permutation(rows)[: max(1, int(share * len(rows)))]] = True
    if np.isnan(x[train]).all(0).any():
        raise InputError("A column of the training records has no value at all.")
    with np.errstate(all="ignore"):  # numbers too large for float32 are refused by FederatedData
        mean, spread = np.nanmean(x[train], 0), np.nanstd(x[train], 0)
        scaled = (x - mean) / np.where(spread > 0, spread, 1)
        x = np.where(np.isnan(x), 0, scaled).astype(np.float32)
    data = FederatedData.from_arrays(x[train], y[train], owner[train], test=(x[~train], y[~train]))
    deviation = np.where(spread > 0, spread, 1)
    data.scaling = Scaling(tuple(mean.tolist()), tuple(deviation.tolist()), "columns of the file; NaN where missing")
    return data
