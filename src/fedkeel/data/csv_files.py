"""CSV files of users: columns of numbers and texts, with blanks."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..files import reading
from . import table
from .convert import Array, class_names, naming, no_column, plain, targets
from .read.tables import LONGEST
from .table import Preparation, Table, Target

if TYPE_CHECKING:
    from . import FederatedData

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class Rows:
    """The rows of a file: who holds them, their targets, and the table of their features."""

    clients: Array
    y: Array
    table: Table
    class_names: list[str] | None
    test_y: Array | None = None


def read_csv(path: Place) -> dict[str, list[str]]:
    """The columns of a CSV file with a header line, as text."""
    csv.field_size_limit(LONGEST)
    with reading(Path(path), "CSV"), open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        header = next(lines, [])
        rows = []
        for row in lines:
            if row and len(row) != len(header):
                line = f"{os.fspath(path)}, line {lines.line_num}"
                raise InputError(f"{line}: {len(row)} values for the {len(header)} columns of the header.")
            if row:
                rows.append(row)
    if len(set(header)) < len(header) or not rows:
        what = "has two columns of one name" if rows else "has no rows"
        raise InputError(f"{os.fspath(path)} {what}.")
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def csv_rows(
    path: Place, client: str, target: str, test: Place | None, drop: Sequence[str], categories: Sequence[str],
    scale: bool,
) -> Rows:  # fmt: skip
    """Read a file and its test file, and fit what makes inputs of their features on the rows of the first."""
    columns = read_csv(path)
    with naming(path):
        for name in (client, target, *drop, *categories):
            if name not in columns:
                raise no_separator(columns) or no_column(name, columns)
        if client == target:
            raise InputError(f"The client column and the target column are both '{client}'.")
        for name in (client, target):
            _check_no_blank(name, columns[name])
        clients, raw_y = (plain(columns.pop(name)) for name in (client, target))
        names = np.unique(raw_y)
        about = table.of(columns, drop, categories, scale)
        raw = {"train": about.encode(columns)}
        about = replace(about.fitted(raw["train"]), target=Target(target, _classes(names)))
    test_y = None
    if test is not None:
        raw["test"], test_y = rows_by(about, test, "test")
    return Rows(clients, targets(raw_y, names, "training"), Table(raw, about), class_names(names), test_y)


def prepared_rows(path: Place, client: str | None, test: Place | None, about: Preparation) -> Rows:
    """Read a file and its test file by what was fitted elsewhere; without a client column all rows are one client's."""
    raw, y = rows_by(about, path, "file's")
    clients = np.zeros(len(y), dtype=np.int64) if client is None else _clients(path, client)
    tested = None if test is None else rows_by(about, test, "test")
    parts = {"train": raw} if tested is None else {"train": raw, "test": tested[0]}
    table = Table(parts, about, given=True)
    return Rows(clients, y, table, class_names_of(about), None if tested is None else tested[1])


def no_rows(about: Preparation) -> Rows:
    """What a server has that holds no rows: two blank ones for the shapes (of a single one, torch.export would make a
    model for single rows)."""
    assert about.target is not None
    y = np.zeros(2, dtype=np.float64 if about.target.classes is None else np.int64)
    table = Table({"train": about.encode({column.name: ["", ""] for column in about.columns})}, about, given=True)
    return Rows(np.zeros(2, dtype=np.int64), y, table, class_names_of(about))


def class_names_of(about: Preparation) -> list[str] | None:
    """The names of classes that are texts, by number."""
    classes = None if about.target is None else about.target.classes
    return list(classes) if isinstance(classes, tuple) else None


def _clients(path: Place, client: str) -> Array:
    columns = read_csv(path)
    with naming(path):
        if client not in columns:
            raise no_column(client, columns)
        _check_no_blank(client, columns[client])
        return plain(columns[client])


def _classes(names: Array) -> tuple[str, ...] | int | None:
    """The classes of a target of which these values occur, see `Target`."""
    known = class_names(names)
    return tuple(known) if known is not None else int(names.max()) + 1 if names.dtype.kind == "i" else None


def no_separator(columns: Collection[str]) -> InputError | None:
    """The error for a file whose values have something else than commas between them, where it looks like one."""
    (header, *others) = columns
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if not others and mark in header:
            return InputError(f"It has one column, with {word} in its name; save it with commas between the values.")
    return None


def rows_by(about: Preparation, path: Place, what: str) -> tuple[Tensor, Array]:
    """Features and targets of another file than the one that was fitted, in the order of its columns."""
    assert about.target is not None
    columns = read_csv(path)
    with naming(path):
        for name in (about.target.name, *(column.name for column in about.columns)):
            if name not in columns:
                raise InputError(f"{os.fspath(path)} has no column {name!r:.100}.")
        _check_no_blank(about.target.name, columns[about.target.name])
        return about.encode(columns), _targets_by(about.target, columns[about.target.name], what)


def _targets_by(target: Target, values: Sequence[str], what: str) -> Array:
    """Targets as in training: the same texts are classes, and whole numbers are numbers where those had fractions."""
    if isinstance(target.classes, tuple):
        return targets(np.asarray(values), np.asarray(target.classes), what)
    found = plain(values)
    if found.dtype.kind not in ("i" if target.classes is not None else "if"):
        kind = "numbers" if target.classes is None else "whole numbers"
        raise InputError(f"Column {target.name!r:.100} must hold {kind}, as in training.")
    return found.astype(np.float64) if target.classes is None else found


def _check_no_blank(name: str, values: Sequence[str]) -> None:
    for row, value in enumerate(values, 1):
        if not value.strip():
            raise InputError(f"Row {row}: column {name!r:.100} is blank, and it names the client or the target.")


def csv_summary(path: Place, data: FederatedData) -> str:
    """What `from_csv` did, in lines."""
    assert data.table is not None
    tested = "no test rows" if data.test is None else f"{len(data.test[0]):,} test rows"
    for part, use in ((data.client_test, "tests of clients"), (data.validation, "validation")):
        tested += "" if part is None else f", {len(part[0]):,} rows for {use}"
    names = "numbers" if data.class_names is None else f"classes {', '.join(data.class_names[:10])}"
    head = f"{os.fspath(path)}: {len(data):,} clients, {len(data.x):,} training rows, {tested}; targets: {names}"
    return head + "".join(f"\n  {line}" for line in str(data.table).splitlines())
