"""CSV files of users: columns of numbers and texts, with blanks."""

from __future__ import annotations

import csv
import difflib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, counted
from ..files import reading
from . import table
from .convert import Array, class_names, naming, no_column, placed, plain, targets, texts
from .read.tables import LONGEST
from .table import Preparation, Table, Target

if TYPE_CHECKING:
    from . import FederatedData

Place = str | os.PathLike[str]
SHOWN = 10  # classes that are listed by name
MOST_CLASSES = 1000
FEW_CLASSES = 20  # so many may be rare


@dataclass(frozen=True)
class Read:
    """The columns of a file as text, and the line of the file that each row ends in."""

    columns: dict[str, list[str]]
    lines: list[int]


@dataclass(frozen=True)
class Rows:
    """The rows of a file: who holds them, their targets, and the table of their features."""

    clients: Array
    y: Array
    table: Table
    class_names: list[str] | None
    test_y: Array | None = None


def read_csv(path: Place) -> Read:
    """A CSV file with a header line; spaces around names and values are left out."""
    csv.field_size_limit(LONGEST)
    if not os.path.exists(path):
        raise _missing(Path(path))
    with reading(Path(path), "CSV"), open(path, newline="", encoding="utf-8-sig") as file:
        try:
            return _read(path, file)
        except UnicodeDecodeError as error:
            byte = f"the byte 0x{error.object[error.start]:02x} does not fit"
            remedy = 'save it as UTF-8, which Excel calls "CSV UTF-8"'
            raise InputError(f"{os.fspath(path)} cannot be read as UTF-8: {byte}; {remedy}.") from None


def _read(path: Place, file: TextIO) -> Read:
    lines = csv.reader(file, strict=True, skipinitialspace=True)
    header = [name.strip() for name in next(lines, [])]
    _check_header(path, header)
    rows, places = [], []
    for row in lines:
        if row and len(row) != len(header):
            found, needed = counted(len(row), "value"), counted(len(header), "column")
            raise InputError(f"{os.fspath(path)}, line {lines.line_num}: {found} for the {needed} of the header.")
        if row:
            rows.append([value.strip() for value in row])
            places.append(lines.line_num)
    if not rows:
        raise InputError(f"{os.fspath(path)} has no rows below the line with the names of its columns.")
    return Read(dict(zip(header, map(list, zip(*rows, strict=True)), strict=True)), places)


def _missing(path: Path) -> InputError:
    """The error for a file that is not there, with the name of one in its folder that is nearly the same."""
    try:
        others = [other for other in os.listdir(path.parent) if other.lower().endswith(path.suffix.lower())]
    except OSError:
        others = []
    near = difflib.get_close_matches(path.name, others[:1000], n=1)
    return InputError(f"{path} is not there." + (f" Did you mean '{near[0]}'?" if near else ""))


def _check_header(path: Place, header: list[str]) -> None:
    """Refuse a header that does not name columns, each by another name, with commas between them."""
    if not header:
        raise InputError(f"{os.fspath(path)} is empty; it needs a line with the names of the columns, then rows.")
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise InputError(
                f"{os.fspath(path)}: It has one column, with {word} in its name; save it with commas between the "
                "values, and with points in numbers (10.5, not 10,5)."
            )
    if "" in header:
        which = f"Column {header.index('') + 1} of {os.fspath(path)} has no name"
        index = "; if it numbers the rows, as pandas does, write the file without it (index=False)"
        raise InputError(f"{which}; give it one{index * (header.index('') == 0)}.")
    name, times = Counter(header).most_common(1)[0]
    if times > 1:
        raise InputError(f"{os.fspath(path)} has {times} columns named {name!r:.100}; give each a name of its own.")


def csv_rows(
    path: Place, client: str, target: str, test: Place | None, drop: str | Sequence[str],
    categories: str | Sequence[str], scale: bool,
) -> Rows:  # fmt: skip
    """Read a file and its test file, and fit what makes inputs of their features on the rows of the first."""
    read = read_csv(path)
    columns = read.columns
    with naming(path):
        named = table.listed(categories, columns)
        for name in (client, target, *table.listed(drop, columns), *named):
            if name not in columns:
                raise no_column(name, columns)
        if client == target:
            raise InputError(f"The client column and the target column are both '{client}'.")
        for what, name in (("client", client), ("target", target)):
            _check_no_blank(what, name, read, name in named)
        if target not in named:
            table.check_numbers(target, columns[target], read.lines, categories, "take its row out of the file")
        clients = plain(columns.pop(client))
        raw_y = (texts if target in named else plain)(columns.pop(target))
        names = np.unique(raw_y)
        about = table.of(columns, read.lines, drop, categories, scale)
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
    """The names of classes, by number, where the preparation lists them."""
    classes = None if about.target is None else about.target.classes
    return [str(one) for one in classes] if isinstance(classes, tuple) else None


def _clients(path: Place, client: str) -> Array:
    read = read_csv(path)
    with naming(path):
        if client not in read.columns:
            raise no_column(client, read.columns)
        _check_no_blank("client", client, read)
        return plain(read.columns[client])


def _classes(names: Array) -> tuple[str, ...] | int | None:
    """The classes of a target of which these values occur, see `Target`."""
    known = class_names(names)
    return tuple(known) if known is not None else int(names.max()) + 1 if names.dtype.kind == "i" else None


def rows_by(about: Preparation, path: Place, what: str) -> tuple[Tensor, Array]:
    """Features and targets of another file than the one that was fitted, in the order of its columns."""
    assert about.target is not None
    read = read_csv(path)
    columns = read.columns
    with naming(path):
        for name in (about.target.name, *(column.name for column in about.columns)):
            if name not in columns:
                raise InputError(f"{os.fspath(path)} has no column {name!r:.100}.")
        _check_no_blank("target", about.target.name, read, _are_texts(about.target))
        return about.encode(columns), _targets_by(about.target, columns[about.target.name], what)


def _are_texts(target: Target) -> bool:
    return isinstance(target.classes, tuple) and isinstance(target.classes[0], str)


def _targets_by(target: Target, values: Sequence[str], what: str) -> Array:
    """Targets as in training: the same values are classes, and whole numbers are numbers where those had fractions."""
    classes = target.classes
    if _are_texts(target):
        return targets(np.asarray(values), np.asarray(classes), what)
    found = plain(values)
    if found.dtype.kind not in ("i" if classes is not None else "if"):
        kind = "numbers" if classes is None else "whole numbers"
        raise InputError(f"Column {target.name!r:.100} must hold {kind}, as in training.")
    if isinstance(classes, tuple):
        return placed(found, np.asarray(classes), what)
    return found.astype(np.float64) if classes is None else found


def _check_no_blank(what: str, name: str, read: Read, texts: bool = False) -> None:
    """Refuse rows without a client or a target; words such as NA are blanks among numbers, unless these are texts."""
    values = read.columns[name]
    known = [value for value in values if value.lower() not in table.BLANKS]
    numbers = not texts and known and all(map(table.is_number, known))
    blanks = table.BLANKS if numbers else frozenset({""})
    rows = [row for row, value in enumerate(values) if value.lower() in blanks]
    if rows:
        many = f"{counted(len(rows), 'row')} of the file {'is' if len(rows) == 1 else 'are'}"
        them = "it" if len(rows) == 1 else "them"
        word = f" ({values[rows[0]]!r})" if values[rows[0]] else ""
        raise InputError(
            f"Line {read.lines[rows[0]]}: the {what} column {name!r:.100} is blank{word}; {many} like that. Fill "
            f"{them} in, or take {them} out of the file."
        )


def too_small(path: Place, client: str, sizes: Array, share: float) -> InputError:
    """The error for clients of whose rows a share for the test keeps none."""
    each = "one row each" if sizes.max() == 1 else f"at most {sizes.max():,} rows each"
    return InputError(
        f"{os.fspath(path)}: column {client!r:.100} makes {counted(len(sizes), 'client')} of {each}, and a test "
        f"share of {share:g} keeps none of them. Name the column that says who holds a row, such as a hospital, or "
        "give test=0."
    )


def csv_summary(path: Place, data: FederatedData) -> str:
    """What `from_csv` did, in lines."""
    assert data.table is not None
    tested = "no test rows" if data.test is None else counted(len(data.test[0]), "test row")
    raw = data.table.raw
    if "client_test" in raw and raw["client_test"] is raw.get("test"):
        tested += " (those of the tests of clients)"
    elif data.client_test is not None:
        tested += f", {counted(len(data.client_test[0]), 'row')} for tests of clients"
    tested += "" if data.validation is None else f", {counted(len(data.validation[0]), 'row')} for validation"
    trained = f"{counted(len(data), 'client')}, {counted(len(data.x), 'training row')}"
    head = f"{os.fspath(path)}: {trained}, {tested}"
    lines = [f"{head}; targets: {_targets_in_words(data)}", *str(data.table).splitlines()]
    return "\n  ".join(lines + [f"Warning: {warning}." for warning in _warnings(data)])


def _warnings(data: FederatedData) -> list[str]:
    """What looks like an oversight in the file."""
    assert data.table is not None
    why = "looks like an identifier, since every row has another whole number; leave it out with drop"
    numbered = [] if data.table.given else data.table.identifiers()
    found = [f"column {name!r:.60} {why}={name:.60}" for name in numbered]
    for what, names in (("classes", data.class_names or []), ("clients", data.client_ids.tolist())):
        found += [f"the {what} {pair} differ only in upper and lower case" for pair in _alike(map(str, names))]
    return found + _few_numbers(data)


def _alike(names: Iterable[str]) -> list[str]:
    """Names that are the same but for upper and lower case, together.

    >>> _alike(["no", "Yes", "yes"])
    ["'Yes' and 'yes'"]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.casefold(), []).append(f"{name!r:.60}")
    return [" and ".join(group) for group in groups.values() if len(group) > 1]


def _few_numbers(data: FederatedData) -> list[str]:
    """A warning about targets that may be classes although they are written with a fraction, such as 1.0."""
    assert data.table is not None and data.table.preparation.target is not None
    values = _all_targets(data)
    found = np.unique(values)
    few = len(found) <= most_classes(len(values)) and bool((found == found.round()).all())
    if data.table.given or values.dtype.kind != "f" or not few:
        return []
    shown = ", ".join(str(value) for value in found[:SHOWN].tolist()) + ", ..." * (len(found) > SHOWN)
    name = f"{data.table.preparation.target.name:.60}"
    numbers = f"the target {name!r} is read as a number, but has only whole ones ({shown})"
    return [f"{numbers}; if they are classes, add categories={name}"]


def most_classes(rows: int) -> int:
    """How many classes a target of so many rows may have."""
    return min(MOST_CLASSES, max(FEW_CLASSES, rows // 10))


def _targets_in_words(data: FederatedData) -> str:
    if data.y.is_floating_point():
        return "numbers"
    names = data.class_names or [str(label) for label in labels_of(data)]
    few = ", ".join(names[:SHOWN])
    return f"classes {few}" if len(names) <= SHOWN else f"{len(names):,} classes ({few}, ...)"


def labels_of(data: FederatedData) -> list[int]:
    """The different labels of all rows, whatever they are kept for, in sorted order."""
    found: list[int] = np.unique(_all_targets(data)).tolist()
    return found


def _all_targets(data: FederatedData) -> Array:
    parts = [part[1] for part in (data.test, data.client_test, data.validation) if part is not None]
    return torch.cat([data.y, *parts]).cpu().numpy()
