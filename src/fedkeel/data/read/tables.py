"""Tables of text: CSV, ARFF, LIBSVM, JSON lines, and the UCI files with `?` for what is missing."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import damaged, reading
from .files import check_size, opened

LONGEST = 2**24  # characters of one field
FLOAT32 = float(np.finfo(np.float32).max)


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
        found = [row for row in csv.reader(text, strict=True) if row]
    for number, row in enumerate(found, 1):
        if len(row) < least:
            raise damaged(file, f"row {number} has {len(row)} fields, {least} are needed")
    if not found:
        raise damaged(file, "it has no rows")
    return found


def named(file: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file whose first row names its columns, which must include these."""
    header, *found = rows(file)
    if missing := [name for name in columns if name not in header]:
        raise damaged(file, f"its first row does not name the column '{missing[0]}'")
    if len(set(header)) < len(header):
        raise damaged(file, "its first row names a column twice")
    for number, row in enumerate(found, 2):
        if len(row) != len(header):
            raise damaged(file, f"row {number} has {len(row)} fields, the first row has {len(header)}")
    return [dict(zip(header, row, strict=True)) for row in found]


def lines(file: Path, keys: Sequence[str] = (), texts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, each of which must have these keys, and texts under some of them."""
    found = []
    for number, line in numbered(file, "JSON lines"):
        with reading(file, f"JSON in line {number}"):
            value = json.loads(line)
        if not isinstance(value, dict):
            raise damaged(file, f"line {number} is not a JSON object")
        if missing := [key for key in (*texts, *keys) if key not in value]:
            raise damaged(file, f"line {number} has no '{missing[0]}'")
        if wrong := [key for key in texts if not isinstance(value[key], str)]:
            raise damaged(file, f"line {number} has no text under '{wrong[0]}'")
        found.append(value)
    return found


def vocabulary(file: Path, most: int) -> list[str]:
    """The first words of a list with a word and its count in each line, most frequent first."""
    found = [line.split()[0] for _, line in islice(numbered(file, "a list of words"), most)]
    if not found:
        raise damaged(file, "it has no words")
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
                if name in names:
                    raise damaged(file, f"line {number} names an attribute of an earlier line")
                names[name] = kind in ("numeric", "real", "integer")
            elif line.lower().startswith("@data"):
                values = []
        else:
            with reading(file, f"ARFF in line {number}"):
                row = next(csv.reader([line], quotechar="'", skipinitialspace=True))
            if len(row) != len(names):
                raise damaged(file, f"line {number} has {len(row)} values for {len(names)} attributes")
            values.append([value.strip().strip('"') for value in row])
    if not values:
        raise damaged(file, "it has no @data")
    columns = dict(zip(names, zip(*values, strict=True), strict=True))
    with reading(file, "ARFF"):
        return {name: _numbers(columns[name]) if names[name] else np.array(columns[name], object) for name in names}


def _attribute(file: Path, number: int, line: str) -> tuple[str, str]:
    match = re.fullmatch(r"""@attribute\s+(?:"([^"]*)"|'([^']*)'|([^\s{]+))\s*(.*)""", line, re.IGNORECASE)
    if match is None:
        raise damaged(file, f"line {number} is not an attribute")
    return next(name for name in match.groups()[:3] if name is not None), match[4].strip().lower()


def uci(file: Path, columns: int) -> NDArray[np.float64]:
    """The numbers of a UCI `.data` file, comma by comma, with NaN for `?`."""
    found = rows(file)
    for number, row in enumerate(found, 1):
        if len(row) != columns:
            raise damaged(file, f"row {number} has {len(row)} values, {columns} are needed")
    with reading(file, "numbers"):
        return np.array([_numbers(row) for row in found])


def libsvm(file: Path, features: int | None = None) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Inputs `[n, features]` and targets of a LIBSVM file (`target index:value ...`, indices from 1).

    Inputs are not sparse: a file whose table would be out of all proportion to it is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "w8a").write_text("-1 1:0.5 3:2\\n+1 2:1\\n")
    ...     x, y = libsvm(Path(folder, "w8a"))
    >>> x.tolist(), y.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [-1.0, 1.0])
    """
    targets: list[float] = []
    inputs: list[dict[int, float]] = []
    for number, line in numbered(file, "LIBSVM"):
        with reading(file, f"LIBSVM in line {number}"):
            target, *pairs = line.split()
            targets.append(finite_number(target))
            inputs.append(_pairs(pairs))
    if not targets:
        raise damaged(file, "it has no rows")
    high = max((max(row, default=1) for row in inputs), default=1)
    width = features if features is not None else high
    if high > width:
        raise damaged(file, f"it has feature {high}; features are 1..{width}")
    check_size(file, 4 * len(inputs) * width, f"{len(inputs):,} rows of {width:,} features need")
    x = np.zeros((len(inputs), width), np.float32)
    for own, row in zip(x, inputs, strict=True):
        own[np.fromiter(row, np.int64, len(row)) - 1] = np.fromiter(row.values(), np.float64, len(row))
    return x, np.array(targets)


def _pairs(pairs: Sequence[str]) -> dict[int, float]:
    """The values of a row by feature."""
    found: dict[int, float] = {}
    for pair in pairs:
        index, _, text = pair.partition(":")
        feature, value = whole_number(index), finite_number(text)
        if feature < 1:
            raise ValueError(f"it has feature {feature}; the first is 1")
        if feature in found:
            raise ValueError(f"it has feature {feature} twice")
        if abs(value) > FLOAT32:
            raise ValueError(f"the value {text} does not fit float32")
        found[feature] = value
    return found


def whole_number(text: str) -> int:
    """A whole number of at most 18 digits.

    >>> whole_number("-12")
    -12
    """
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):
        raise ValueError(f"'{text:.50}' is not a whole number of at most 18 digits")
    return int(text)


def finite_number(text: str) -> float:
    """A number that is neither NaN nor infinite.

    >>> finite_number("1e400")
    Traceback (most recent call last):
    ValueError: '1e400' is not a finite number
    """
    if not math.isfinite(value := float(text)):
        raise ValueError(f"'{text:.50}' is not a finite number")
    return value


def numbered(file: Path, what: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without blanks around them; empty ones are left out."""
    with reading(file, what), opened(file) as stream, io.TextIOWrapper(stream, "utf-8") as text:
        for number, line in enumerate(text, 1):
            if line := line.strip():
                yield number, line


def _numbers(values: Sequence[str]) -> NDArray[np.float64]:
    return np.array([np.nan if value.strip() in ("?", "") else finite_number(value) for value in values])
