"""The history of a run: one plain dict per round, row 0 for the initial model."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, is_number
from ..files import damaged, reading

Row = dict[str, Any]
COLUMNS = (
    "round", "loss", "accuracy", "train_loss", "gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes",
    "wall_seconds", "clients", "dropped",
)  # fmt: skip


class History(list[Row]):
    """A list of rows that can also be asked a few things.

    >>> history = History([{"round": 0, "accuracy": 0.1}, {"round": 1, "accuracy": 0.9}])
    >>> history.reaching(0.85)["round"], history.reaching(0.95)
    (1, None)
    """

    def reaching(self, target: float) -> Row | None:
        """The first evaluated row at or above the target accuracy."""
        return next((row for row in self if is_number(row.get("accuracy")) and row["accuracy"] >= target), None)

    def last(self, column: str) -> Any:
        """The last value of a column that is not None."""
        return next((row[column] for row in reversed(self) if row.get(column) is not None), None)

    def to_pandas(self) -> Any:
        """The rows as a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("pandas", "pandas", "to_pandas") from error
        return pandas.DataFrame(list(self))

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write a table that spreadsheets read: a column per name in any row, empty where a row has no value."""
        names: dict[str, None] = {}
        for row in self:
            names |= dict.fromkeys(row)
        with open(file, "w", newline="", encoding="utf-8") as out:
            table = csv.DictWriter(out, list(names), lineterminator="\n")
            table.writeheader()
            table.writerows(self)

    def write(self, file: Path) -> None:
        """Write a `history.jsonl`."""
        file.write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """One JSON object per line."""
        return "".join(line(row) for row in self)


class Written:
    """How long the history file is and what its checksum is, row by row."""

    def __init__(self, text: str = "") -> None:
        self.bytes, self._sum = 0, hashlib.sha256()
        self.add(text)

    def add(self, text: str) -> None:
        """Count what was appended."""
        self._sum.update(text.encode())
        self.bytes += len(text.encode())

    def known(self) -> dict[str, Any]:
        """What checkpoints and outcomes say about the file."""
        return {"bytes": self.bytes, "sha256": self._sum.hexdigest()}


def line(row: Row) -> str:
    """A row as a line of JSON."""
    return json.dumps(row) + "\n"


def lines(file: Path) -> int:
    """How many whole lines a file has; none where it is not there."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def read(file: Path, length: int | None = None) -> History:
    """Read a `history.jsonl`, or its first `length` bytes; a last line cut off by a crash is left out."""
    history = History()
    with reading(file, "the history of a run"):
        with open(file, "rb") as content:
            texts = content.read(-1 if length is None else length).split(b"\n")
        for number, text in enumerate(texts[:-1]):  # what follows the last newline is empty, or cut off
            try:
                row = json.loads(text)
            except ValueError as error:
                raise damaged(file, f"line {number + 1} is not JSON") from error
            if not _is_row(row, number):
                raise damaged(file, f"line {number + 1} is not the row of round {number}")
            history.append(row)
    return history


def _is_row(row: Any, number: int) -> bool:
    """Whether this is a row of numbers, of this round."""
    if not isinstance(row, dict) or not row.keys() >= set(COLUMNS) or row["round"] != number:
        return False
    return all(value is None or type(value) in (int, float) for value in row.values())
