"""Tables of text: CSV, ARFF, LIBSVM, JSON lines, and the UCI files with `?` for what is missing."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import broken, opened, reading

LONGEST = 2**24  # characters of one field


def rows(file: Path, least: int = 1) -> list[list[str]]:
    """The rows of a CSV file, each with at least `least` fields; empty lines are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "train.csv").write_text('"3","Oil","Prices, again"\\n')
    ...     rows(Path(folder, "train.csv"))
    [['3', 'Oil', 'Prices, again']]
    """
    csv.field_size_limit(LONGEST)
    with reading(file, "CSV"), opened(file) as stream, io.TextIOWrapper(stream, "utf-8", newline="") as text:
        try:
            found = [row for row in csv.reader(text, strict=True) if row]
        except csv.Error as error:
            raise broken(file, str(error)) from error
    for number, row in enumerate(found, 1):
        if len(row) < least:
            raise broken(file, f"row {number} has {len(row)} fields, {least} are needed")
    if not found:
        raise broken(file, "it has no rows")
    return found


def named(file: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file whose first row names its columns, which must include these."""
    header, *found = rows(file)
    if missing := [name for name in columns if name not in header]:
        raise broken(file, f"its first row does not name the column '{missing[0]}'")
    for number, row in enumerate(found, 2):
        if len(row) != len(header):
            raise broken(file, f"row {number} has {len(row)} fields, the first row has {len(header)}")
    return [dict(zip(header, row, strict=True)) for row in found]


def lines(file: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, each of which must have these keys."""
    found = []
    for number, line in numbered(file, "JSON lines"):
        with reading(file, f"JSON in line {number}"):
            value = json.loads(line)
        if not isinstance(value, dict) or (missing := [key for key in keys if key not in value]):
            raise broken(file, f"line {number} has no '{missing[0] if isinstance(value, dict) else keys[0]}'")
        found.append(value)
    return found


def vocabulary(file: Path, most: int) -> list[str]:
    """The first words of a list with a word and its count in each line, most frequent first."""
    found = [line.split()[0] for _, line in islice(numbered(file, "a list of words"), most)]
    if not found:
        raise broken(file, "it has no words")
    return found


def arff(file: Path) -> dict[str, NDArray[Any]]:
    """The columns of an ARFF file by name: numbers with NaN for `?`, and text for nominal ones.

    >>> import tempfile
    >>> text = "@relation r\\n@attribute user {'7', '9'}\\n@attribute X0 numeric\\n@data\\n7,0.5\\n9,?\\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.arff").write_text(text)
    ...     columns = arff(Path(folder, "a.arff"))
    >>> columns["user"].tolist(), columns["X0"].tolist()
    (['7', '9'], [0.5, nan])
    """
    names: dict[str, bool] = {}  # column -> whether it holds numbers
    values: list[list[str]] | None = None
    for number, line in numbered(file, "ARFF"):
        if line.startswith("%"):
            continue
        if values is None:
            if line.lower().startswith("@attribute"):
                name, kind = _attribute(file, number, line)
                names[name] = kind in ("numeric", "real", "integer")
            elif line.lower().startswith("@data"):
                values = []
        else:
            row = next(csv.reader([line], quotechar="'", skipinitialspace=True))
            if len(row) != len(names):
                raise broken(file, f"line {number} has {len(row)} values for {len(names)} attributes")
            values.append([value.strip().strip('"') for value in row])
    if not values:
        raise broken(file, "it has no @data")
    columns = dict(zip(names, zip(*values, strict=True), strict=True))
    with reading(file, "ARFF"):
        return {name: _numbers(columns[name]) if names[name] else np.array(columns[name]) for name in names}


def _attribute(file: Path, number: int, line: str) -> tuple[str, str]:
    match = re.fullmatch(r"""@attribute\s+(?:"([^"]*)"|'([^']*)'|([^\s{]+))\s*(.*)""", line, re.IGNORECASE)
    if match is None:
        raise broken(file, f"line {number} is not an attribute")
    return next(name for name in match.groups()[:3] if name is not None), match[4].strip().lower()


def uci(file: Path, columns: int) -> NDArray[np.float64]:
    """The numbers of a UCI `.data` file, comma by comma, with NaN for `?`."""
    found = rows(file)
    for number, row in enumerate(found, 1):
        if len(row) != columns:
            raise broken(file, f"row {number} has {len(row)} values, {columns} are needed")
    with reading(file, "numbers"):
        return np.array([_numbers(row) for row in found])


def libsvm(file: Path, features: int | None = None) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Inputs `[n, features]` and targets of a LIBSVM file (`target index:value ...`, indices from 1)."""
    targets: list[float] = []
    places: list[tuple[int, int, float]] = []
    for number, line in numbered(file, "LIBSVM"):
        with reading(file, f"LIBSVM in line {number}"):
            target, *pairs = line.split()
            for pair in pairs:
                index, _, value = pair.partition(":")
                places.append((len(targets), int(index) - 1, float(value)))
            targets.append(float(target))
    if not targets:
        raise broken(file, "it has no rows")
    low, high = (min((p[1] for p in places), default=0), max((p[1] for p in places), default=0))
    width = features if features is not None else high + 1
    if low < 0 or high >= width:
        raise broken(file, f"it has feature {low + 1 if low < 0 else high + 1}; features are 1..{width}")
    x = np.zeros((len(targets), width), np.float32)
    if places:
        row, column, numbers = zip(*places, strict=True)
        x[list(row), list(column)] = numbers
    return x, np.array(targets)


def numbered(file: Path, what: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without blanks around them; empty ones are left out."""
    with reading(file, what), opened(file) as stream, io.TextIOWrapper(stream, "utf-8") as text:
        for number, line in enumerate(text, 1):
            if line := line.strip():
                yield number, line


def _numbers(values: Sequence[str]) -> NDArray[np.float64]:
    return np.array([np.nan if value.strip() in ("?", "") else float(value) for value in values])
