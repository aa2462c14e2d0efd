"""Small tables with natural clients: heart disease in four hospitals, activity of 36 phone users."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import draws
from ..data import FederatedData, read, store
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
    whole = ~np.isnan(table[:, :FEATURES]).any(1)
    x, hospital = table[whole, :FEATURES], hospital[whole]
    y = (table[whole, 13] > 0).astype(np.int64)
    kinds = [x[:, [column]] == np.unique(x[:, column]) for column in (CHEST_PAIN, CARDIOGRAM)]
    x = np.hstack([np.delete(x, (CHEST_PAIN, CARDIOGRAM), 1), *kinds])
    return _split(x, y, hospital, 2 / 3, seed)


@lru_cache(maxsize=2)
def _activities(folder: Path, seed: int) -> FederatedData:
    columns = read.arff(folder / "WISDM_ar_v1.1_transformed.arff")
    users, classes = columns.pop("user").astype(np.int64), columns.pop("class")
    del columns["UNIQUE_ID"]
    y = np.array([ACTIVITIES.index(name) for name in classes])
    return _split(np.stack(list(columns.values()), 1), y, users, 0.8, seed)


def _split(x: NDArray[Any], y: NDArray[Any], owner: NDArray[Any], share: float, seed: int) -> FederatedData:
    """A random `share` of each owner's rows trains, the rest tests; columns are scaled by the training rows' mean and
    deviation, and missing values become the mean."""
    train = np.zeros(len(y), bool)
    for number, name in enumerate(np.unique(owner)):
        rows = np.flatnonzero(owner == name)
        train[draws.generator(seed, "split", client=number).permutation(rows)[: max(1, int(share * len(rows)))]] = True
    mean, spread = np.nanmean(x[train], 0), np.nanstd(x[train], 0)
    x = np.nan_to_num((x - mean) / np.where(spread > 0, spread, 1)).astype(np.float32)
    return FederatedData.from_arrays(x[train], y[train], owner[train], test=(x[~train], y[~train]))
