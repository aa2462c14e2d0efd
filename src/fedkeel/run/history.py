"""The history of a run: one plain dict per round, row 0 for the initial model."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InputError, MissingExtra, is_number

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
        names = list(dict.fromkeys(name for row in self for name in row))
        with open(file, "w", newline="") as out:
            table = csv.DictWriter(out, names, lineterminator="\n")
            table.writeheader()
            table.writerows(self)

    def write(self, file: Path) -> None:
        """One JSON object per line."""
        file.write_text("".join(line(row) for row in self))


def line(row: Row) -> str:
    """A row as a line of JSON."""
    return json.dumps(row) + "\n"


def read(file: Path) -> History:
    """Read a `history.jsonl`; a last line cut off by a crash is left out."""
    return History(_rows(file.read_text().splitlines(), file))


def _rows(lines: list[str], file: Path) -> Iterable[Row]:
    for number, text in enumerate(lines, 1):
        try:
            yield json.loads(text)
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise InputError(f"{file} is damaged in line {number}.") from error
