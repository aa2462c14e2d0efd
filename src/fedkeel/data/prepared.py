"""What was fitted on the training rows of one table, in a file for others."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..files import read_json, reading, write_text
from .convert import naming
from .table import Preparation

KEY = "preparation"  # as in the about.json of an exported model, which is read, too


def write_preparation(file: Path, about: Preparation) -> None:
    """Write it as JSON, which people may read and change."""
    write_text(file, json.dumps({KEY: about.plain()}, indent=2) + "\n")


def read_preparation(path: str | os.PathLike[str]) -> Preparation:
    """Read what `write_preparation` wrote, or what `fedkeel export` did."""
    file = Path(path)
    known = read_json(file, edited=True)
    with naming(file), reading(file, "the preparation of a table"):
        return Preparation.from_plain(known.get(KEY))
