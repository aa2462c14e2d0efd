"""LEAF JSON: folders of files with `users` and `user_data`, the samples of every user under its name."""

import json
from pathlib import Path
from typing import Any

from ...files import damaged, reading
from .files import opened

Samples = tuple[list[Any], list[Any], list[str]]  # inputs, targets, and the user each belongs to


def leaf(path: Path) -> Samples:
    """All samples of a LEAF file, or of all `*.json` files of a folder: inputs, targets and users, one per sample.

    >>> import tempfile
    >>> text = '{"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": [[1], [2]], "y": [0, 1]}}}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "all_data.json").write_text(text)
    ...     leaf(Path(folder))
    ([[1], [2]], [0, 1], ['ann', 'ann'])
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise damaged(path, "it holds no .json file")
    x: list[Any] = []
    y: list[Any] = []
    owner: list[str] = []
    for file in files:
        for user, (inputs, targets) in _users(file).items():
            x += inputs
            y += targets
            owner += [user] * len(targets)
    return x, y, owner


def _users(file: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    with reading(file, "LEAF JSON"), opened(file) as stream:
        content = json.load(stream)
        if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
            raise damaged(file, "it has no 'users' and 'user_data'")
        users, data = content["users"], content["user_data"]
        if not isinstance(users, list) or not isinstance(data, dict):
            raise damaged(file, "'users' is not a list or 'user_data' is not an object")
        announced = content.get("num_samples", [None] * len(users))
        if not isinstance(announced, list) or len(announced) != len(users):
            raise damaged(file, "'num_samples' does not have one number for each user")
        found: dict[str, tuple[list[Any], list[Any]]] = {}
        for user, count in zip(users, announced, strict=True):
            if not isinstance(user, str) or user not in data:
                raise damaged(file, f"user {user!r:.100} is listed but has no data")
            if user in found:
                raise damaged(file, f"user {user!r:.100} is listed twice")
            found[user] = _samples(file, user, data[user], count)
    return found


def _samples(file: Path, user: str, held: Any, count: Any) -> tuple[list[Any], list[Any]]:
    x, y = (held.get(key) if isinstance(held, dict) else None for key in ("x", "y"))
    if not isinstance(x, list) or not isinstance(y, list):
        raise damaged(file, f"user {user!r:.100} has no lists 'x' and 'y'")
    if len(x) != len(y) or count not in (None, len(y)):
        raise damaged(file, f"user {user!r:.100} has {len(x)} inputs and {len(y)} targets, {count!r:.20} are announced")
    return x, y
