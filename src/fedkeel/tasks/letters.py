"""FEMNIST: letters and digits by the people who wrote them."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..data import FederatedData, read, store
from ..errors import InputError
from ..files import reading
from ..models import MODELS
from ..task import Task, cross_entropy
from ..world import Epochs, UniformSteps
from .naming import named
from .splitting import Pair, labels

CLASSES = 62


def femnist(setting: Literal["gel", "fathom"] = "gel") -> Task:
    """Federated EMNIST, 62 classes, a client for each writer, from LEAF's JSON or TensorFlow Federated's HDF5.

    setting: "gel" (CNN of 608,702 parameters, budgets of 4 to 20 steps) or "fathom" (CNN of 1,206,590, one
    epoch, and letters of 1 on paper of 0, as in fedjax, where LEAF and TFF have them the other way round).
    """
    gel = setting == "gel"
    return Task(
        **named(femnist, locals()),
        model=MODELS["gel_cnn" if gel else "fathom_cnn"],
        loss=cross_entropy,
        data=_data(store.folder("femnist"), inverted=not gel),
        batch_size=20,
        lr=0.02 if gel else 0.1,
        budget=UniformSteps(4, 20) if gel else Epochs(1),
        target=0.76 if gel else 0.86,
    )


@lru_cache(maxsize=1)
def _data(folder: Path, inverted: bool) -> FederatedData:
    read_part = _leaf if (folder / "train").is_dir() else _hdf5
    ((x, y), writers), ((tx, ty), _) = (read_part(folder, part) for part in ("train", "test"))
    if inverted:
        x, tx = 1 - x, 1 - tx
    return FederatedData.from_arrays(x, y, writers, (tx, ty))


def _leaf(folder: Path, part: str) -> tuple[Pair, list[str]]:
    x, y, writers = read.leaf(folder / part)
    with reading(folder / part, "FEMNIST pictures"), np.errstate(over="ignore"):  # FederatedData refuses infinity
        pixels = np.array(x, np.float32)
    return (_pictures(folder / part, pixels), labels(folder / part, y, CLASSES)), writers


def _hdf5(folder: Path, part: str) -> tuple[Pair, list[str]]:
    file = folder / f"fed_emnist_{part}.h5"
    clients = list(read.hdf5(file, ("pixels", "label")))
    with reading(file, "FEMNIST pictures"), np.errstate(over="ignore"):
        x = np.concatenate([fields["pixels"] for _, fields in clients]).astype(np.float32)
        y = labels(file, np.concatenate([fields["label"] for _, fields in clients]), CLASSES).astype(np.int64)
    writers: list[str] = []
    for writer, fields in clients:
        writers += [writer] * len(fields["label"])
    return (_pictures(file, x), y), writers


def _pictures(file: Path, x: NDArray[Any]) -> NDArray[Any]:
    if x[:1].size != 28 * 28:
        raise InputError(f"{file} has pictures of {x[:1].size} pixels; FEMNIST has 28 x 28.")
    return x.reshape(-1, 1, 28, 28)
