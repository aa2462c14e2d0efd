"""Photographs by the people on them or behind the camera: CelebA, Google Landmarks v2, iNaturalist."""

from collections import Counter
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import draws
from ..data import FederatedData, read, store
from ..errors import InputError, check
from ..files import reading
from ..models import MODELS
from ..ranges import check_memory
from ..task import Task, cross_entropy
from ..world import Epochs
from .naming import Name, named, takes_model
from .splitting import labels

Net = Literal["mobilenet_v2", "vit_b16", "resnet18", "resnet50", "resnet8"]


class Pixels(nn.Module):
    """A model on bytes: pictures stay 0..255 in memory, a quarter of the size, and become -1..1 in the forward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x.to(next(self.model.parameters()).dtype) / 127.5 - 1)
        return scores


def _on_pixels(model: str, classes: int) -> nn.Module:
    return Pixels(MODELS[model](classes=classes))


def _celeba_cnn(size: int) -> nn.Module:
    """Four convolutions of 32 channels, each with normalisation, 2x2 pooling and ReLU, then a dense layer."""
    blocks: list[nn.Module] = []
    for inside in (3, 32, 32, 32):
        blocks += [nn.Conv2d(inside, 32, 3, padding=1), nn.GroupNorm(2, 32), nn.MaxPool2d(2), nn.ReLU()]
    return Pixels(nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * (size // 16) ** 2, 2)))


def celeba(size: int = 84, least: int = 5, people: int | None = None) -> Task:
    """CelebA as LEAF uses it: is the person smiling? A client is a person with at least `least` photographs.

    90 % of each person's photographs are training data. size: pixels of a side. people: only the first ones, by number.
    Batch size and target of the first GEL paper; GroupNorm stands where LEAF has BatchNorm.
    """
    name = named(celeba, locals())
    check(size >= 16, "celeba", "size", "at least 16", size)
    check(least >= 2, "celeba", "least", "at least 2", least)
    return Task(
        **name,
        model=partial(_celeba_cnn, size),
        loss=cross_entropy,
        data=_faces(store.folder("celeba"), size, least, people),
        batch_size=5,
        lr=0.01,
        target=0.885,
    )


@partial(takes_model, inside=Pixels)
def gldv2(model: Net = "mobilenet_v2", size: int = 224, people: int | None = None) -> Task:
    """Google Landmarks v2, 2,028 landmarks by 1,262 photographers (Landmarks-User-160k), five local epochs.

    size: pixels of a side; all pictures are kept in memory. people: only the first ones, by number.
    """
    return _photos(named(gldv2, locals()), "federated_train.csv", 2028, 32, model, size, people)


@partial(takes_model, inside=Pixels)
def inaturalist(model: Net = "mobilenet_v2", size: int = 224, people: int | None = None) -> Task:
    """iNaturalist 2017, 1,203 species by 9,275 observers (iNaturalist-User-120k), five local epochs; as `gldv2`."""
    return _photos(named(inaturalist, locals()), "federated_train_user_120k.csv", 1203, 64, model, size, people)


def _photos(name: Name, table: str, classes: int, batch: int, model: Net, size: int, people: int | None) -> Task:
    check(size >= 8, name["name"], "size", "at least 8", size)
    return Task(
        model=partial(_on_pixels, model, classes),
        loss=cross_entropy,
        data=_mapped(store.folder(name["name"]), table, size, people, classes),
        # The GHBM paper does not give these; they are from the authors of the splits (Hsu et al. 2020).
        batch_size=batch,
        lr=0.03 if model == "vit_b16" else 0.1,
        budget=Epochs(5),
        **name,
    )


@lru_cache(maxsize=1)
def _mapped(folder: Path, table: str, size: int, people: int | None, classes: int) -> FederatedData:
    files = read.by_stem(folder / "images")
    train = read.named(folder / table, ("user_id", "image_id", "class"))
    if people is not None:
        first = set(sorted({row["user_id"] for row in train}, key=_natural)[:people])
        train = [row for row in train if row["user_id"] in first]
    test = read.named(folder / "test.csv", ("image_id", "class"))
    (x, y), held = (_look_up(folder, files, rows, size, classes) for rows in (train, test))
    return FederatedData.from_arrays(x, y, [row["user_id"] for row in train], held)


def _natural(text: str) -> tuple[int, str]:
    """Sort key: numbers by value, then other texts alphabetically."""
    return (int(text), "") if text.isdecimal() and len(text) < 19 else (2**62, text)


def _look_up(
    folder: Path, files: dict[str, Path], rows: list[dict[str, str]], size: int, classes: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    if not rows:
        raise InputError(f"The tables in {folder} name no pictures.")
    for row in rows:
        if row["image_id"] not in files:
            raise InputError(f"{folder / 'images'} has no picture {row['image_id']!r:.100}, which the tables name.")
    with reading(folder, "tables of pictures and classes"):
        y = labels(folder, [read.whole_number(row["class"]) for row in rows], classes)
    check_memory(f"{len(rows):,} pictures of {size} x {size}", 3 * size**2 * len(rows), "use a smaller size")
    return read.pictures((files[row["image_id"]] for row in rows), size), y


@lru_cache(maxsize=1)
def _faces(folder: Path, size: int, least: int, people: int | None) -> FederatedData:
    owner = read.identities(folder / "identity_CelebA.txt")
    smiling = read.attribute(folder / "list_attr_celeba.txt", "Smiling")
    if strange := [file for file in owner if file not in smiling]:
        raise InputError(f"{folder / 'list_attr_celeba.txt'} has no picture {strange[0]!r:.100}.")
    if min(owner.values()) < 0:
        raise InputError(f"{folder / 'identity_CelebA.txt'} has person {min(owner.values())}; numbers are 0 or more.")
    known = sorted(person for person, photos in Counter(owner.values()).items() if photos >= least)[:people]
    chosen = set(known)
    files = sorted(file for file, person in owner.items() if person in chosen)
    if not files:
        raise InputError(f"{folder} has no person with {least} photographs.")
    test = np.zeros(len(files), bool)
    people_of = np.array([owner[file] for file in files])
    for person in known:
        rows = np.flatnonzero(people_of == person)
        held = max(1, len(rows) - int(0.9 * len(rows)))
        test[draws.generator(0, "faces", client=person).permutation(rows)[:held]] = True
    check_memory(f"{len(files):,} pictures of {size} x {size}", 3 * size**2 * len(files), "use a smaller size")
    x = read.pictures((folder / "img_align_celeba" / file for file in files), size)
    y = np.array([smiling[file] for file in files])
    return FederatedData.from_arrays(x[~test], y[~test], people_of[~test], (x[test], y[test]))
