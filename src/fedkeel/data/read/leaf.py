"""LEAF JSON: folders of files with `users` and `user_data`, the samples of every user under its name."""

import json
from pathlib import Path
from typing import Any

from .files import broken, opened, reading

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
        raise broken(path, "it holds no .json file")
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
            raise broken(file, "it has no 'users' and 'user_data'")
        found = {}
        for place, user in enumerate(content["users"]):
            if user not in content["user_data"]:
                raise broken(file, f"user '{user}' is listed but has no data")
            x, y = (list(content["user_data"][user][key]) for key in ("x", "y"))
            said = content.get("num_samples", [])[place : place + 1] or [len(y)]
            if not len(x) == len(y) == said[0]:
                raise broken(file, f"user '{user}' has {len(x)} inputs and {len(y)} targets, {said[0]} are announced")
            found[str(user)] = (x, y)
    return found
