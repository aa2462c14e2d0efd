"""Shakespeare by speaking role: the next character after 80."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import draws
from ..data import FederatedData, read, store
from ..errors import InputError, check
from ..models.text import shakespeare_lstm
from ..task import Task, cross_entropy
from ..world import Budget, Epochs, UniformSteps
from .naming import named

# LEAF's 80 characters; any other is read as a space.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CODES = {character: code for code, character in enumerate(ALPHABET)}
SHARE = 0.9  # of a role's windows that train

# setting -> hidden units, batch size, rate, budget, target, roles, samples per role at most
SETTINGS: dict[str, tuple[int, int, float, Budget, float | None, int | None, int | None]] = {
    "gel": (256, 20, 0.3, UniformSteps(10, 30), 0.54, None, None),
    "ghbm": (100, 100, 1.0, Epochs(1), None, 100, 2000),
}


def shakespeare(
    setting: Literal["gel", "ghbm"] = "gel", roles: int | None = None, limit: int | None = None, length: int = 80,
    hidden: int | None = None, layers: int = 2, test: int = 10_000, partition: Literal["roles", "iid"] = "roles",
    seed: int = 0,
) -> Task:  # fmt: skip
    """Next-character prediction; a client is a role of a play, its samples are windows of its speeches.

    setting: "gel" (all roles, 256 hidden units) or "ghbm" (100 roles with 2,000 samples at most, 100 hidden units).
    roles, limit, hidden: change the setting's; roles are drawn by `seed`. test: windows kept for testing, evenly spaced
    over all roles' test parts. partition: "iid" shuffles the training windows of these roles over as many clients.
    """
    name = named(shakespeare, locals())
    units, batch, lr, budget, target, most, each = SETTINGS[setting]
    return Task(
        model=partial(shakespeare_lstm, len(ALPHABET), hidden or units, layers),
        loss=cross_entropy,
        data=_data(store.folder("shakespeare"), roles or most, limit or each, length, test, partition, seed),
        batch_size=batch,
        lr=lr,
        budget=budget,
        target=target,
        **name,
    )


def encode(text: str) -> NDArray[np.int32]:
    """Characters as numbers.

    >>> encode("To be").tolist()
    [44, 67, 1, 54, 57]
    """
    return np.array([CODES.get(character, CODES[" "]) for character in text], np.int32)


@lru_cache(maxsize=1)
def _data(
    folder: Path, roles: int | None, limit: int | None, length: int, test: int, partition: str, seed: int
) -> FederatedData:
    check(partition in ("roles", "iid"), "shakespeare", "partition", "'roles' or 'iid'", partition)
    file = folder / "roles.jsonl"
    found = {f"{role.play}: {role.name}": encode("\n".join(role.speeches))
             for role in read.roles(file if file.exists() else folder)}  # fmt: skip
    # The first windows are training data; test windows start later, so that no character is predicted in both.
    cuts = {name: int(SHARE * (len(text) - length)) for name, text in found.items()}
    names = [name for name in sorted(found) if cuts[name] > 0 and cuts[name] + length - 1 < len(found[name]) - length]
    if not names:
        raise InputError(f"No role in {folder} says enough for windows of {length} characters.")
    if roles is not None and roles < len(names):
        names = sorted(draws.generator(seed, "roles").choice(names, roles, replace=False).tolist())
    elif roles is not None and roles > len(names):
        raise InputError(f"{roles} roles were asked for; {len(names)} say enough.")
    train = [_windows(found[name], length, 0, min(cuts[name], limit or cuts[name])) for name in names]
    held = [_windows(found[name], length, cuts[name] + length - 1, None) for name in names]
    windows, held_all = np.concatenate(train), np.concatenate(held)
    held_all = held_all[np.linspace(0, len(held_all) - 1, min(len(held_all), test)).astype(np.int64)]
    offsets = np.cumsum([0, *map(len, train)])
    if partition == "iid":
        windows = draws.generator(seed, "iid").permutation(windows)
        names = [f"{number:03d}" for number in range(len(names))]
    how, pairs = "shuffled over the clients" if partition == "iid" else "", (held_all[:, :-1], held_all[:, -1])
    return FederatedData(windows[:, :-1], windows[:, -1], offsets, names, pairs, how)


def _windows(text: NDArray[np.int32], length: int, begin: int, end: int | None) -> NDArray[np.int32]:
    """Rows of `length` characters and the one that follows."""
    return np.lib.stride_tricks.sliding_window_view(text, length + 1)[begin:end]
