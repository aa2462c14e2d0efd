"""A table of numbers and texts as a model's inputs: what is fitted on training rows, and applied to others."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .. import errors
from ..errors import InputError, counted, is_count

BLANKS = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})  # in small letters
MOST_VALUES = 100  # different texts of one column
DECIMAL_COMMA = re.compile(r"[+-]?[\d.]*\d,\d+")  # also 1.234,5 and 1,234
DATE = re.compile(r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([ T]\d.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([ T]\d.*)?")


@dataclass(frozen=True)
class Column:
    """A column of a table. values: its texts in sorted order, a column of inputs for each; None for numbers.

    words: how often the file has each word that counts as blank, such as "none".
    """

    name: str
    values: tuple[str, ...] | None = None
    mean: float = 0.0
    deviation: float = 1.0
    words: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def width(self) -> int:
        """How many columns of inputs it becomes."""
        return 1 if self.values is None else len(self.values)


@dataclass(frozen=True)
class Target:
    """The column that is predicted. classes: the texts or whole numbers that are classes, in sorted order; how many
    there are where whole numbers are class numbers as they stand; None where numbers are predicted."""

    name: str
    classes: tuple[str, ...] | tuple[int, ...] | int | None


@dataclass(frozen=True)
class Preparation:
    """What was fitted on the training rows of a table, and how inputs are made of any row.

    Numbers are scaled to mean 0 and deviation 1 (they stay as they are without `scale`), blanks become the mean. A text
    becomes one column for each value of the training file, with a 1 at its own; a blank or an unknown text has none.

    >>> about = Preparation((Column("age"), Column("sex", ("f", "m"))))
    >>> raw = about.encode({"age": ["40", "60", "?"], "sex": ["m", "f", "x"]})
    >>> about.fitted(raw).inputs(raw).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """

    columns: tuple[Column, ...]
    scale: bool = True
    target: Target | None = None

    def encode(self, rows: Mapping[str, Sequence[Any]]) -> Tensor:
        """Rows `[n, columns]` as numbers: a text is its place among the column's values; NaN for blank or unknown."""
        found = []
        for column in self.columns:
            texts = ["" if value is None else str(value).strip() for value in rows[column.name]]
            if column.values is None:
                found.append([_number(column.name, row, text) for row, text in enumerate(texts)])
            else:
                place = {value: float(number) for number, value in enumerate(column.values)}
                found.append([place.get(text, math.nan) for text in texts])
        return torch.tensor(found, dtype=torch.float64).T

    def fitted(self, raw: Tensor) -> Preparation:
        """The same columns with the means and deviations of these rows."""
        columns = []
        for column, values in zip(self.columns, raw.T, strict=True):
            if column.values is None:
                known = values[~values.isnan()]
                if not len(known):
                    raise InputError(f"Column {column.name!r:.100} has no value in the training rows; drop it.")
                spread = float(known.std(correction=0))
                column = replace(column, mean=float(known.mean()), deviation=spread if spread > 0 else 1.0)
            columns.append(column)
        return replace(self, columns=tuple(columns))

    def inputs(self, raw: Tensor) -> Tensor:
        """What a model gets of these rows: `[n, inputs]`."""
        parts = []
        for column, values in zip(self.columns, raw.T, strict=True):
            if column.values is not None:
                parts.append((values[:, None] == torch.arange(len(column.values))).to(raw.dtype))
                continue
            filled = torch.where(values.isnan(), column.mean, values)
            parts.append(((filled - column.mean) / column.deviation if self.scale else filled)[:, None])
        return torch.cat(parts, 1)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        shown = [
            {"name": column.name, "values": list(column.values)}
            if column.values is not None
            else {"name": column.name, "mean": column.mean, "deviation": column.deviation}
            for column in self.columns
        ]
        target = None if self.target is None else {"name": self.target.name, "classes": self.target.classes}
        return {"scale": self.scale, "columns": shown, "target": target}

    @classmethod
    def from_plain(cls, known: Any) -> Preparation:
        """The preparation that `plain` gave, which people may have changed or written.

        >>> about = Preparation((Column("age", mean=40.0), Column("sex", ("f", "m"))), target=Target("ill", 2))
        >>> Preparation.from_plain(about.plain()) == about
        True
        """
        if not isinstance(known, dict) or not known.get("columns") or not known.get("target"):
            raise InputError("It has no columns and no target of a table.")
        columns, target, scale = tuple(map(_column, known["columns"])), known["target"], known.get("scale", True)
        names = [target["name"], *(column.name for column in columns)]
        if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise InputError("Its columns and its target need names, each another one.")
        if not isinstance(scale, bool):
            raise InputError(f"scale must be true or false. Got {scale!r:.100} instead.")
        return cls(columns, scale, Target(target["name"], _classes(target["classes"])))


@dataclass(frozen=True)
class Table:
    """The rows that inputs were made of, by part ("train", "test", ...): another split is fitted anew on its training
    rows."""

    raw: dict[str, Tensor]
    preparation: Preparation
    given: bool = False  # the preparation was fitted elsewhere, and stays as it is

    def split(self, kept: Tensor, other: Tensor, names: Sequence[str]) -> Table:
        """The same table with some training rows under other names, fitted on the rest."""
        train = self.raw["train"]
        raw = self.raw | {"train": train[kept]} | dict.fromkeys(names, train[other])
        return replace(
            self, raw=raw, preparation=self.preparation if self.given else self.preparation.fitted(raw["train"])
        )

    def inputs(self, part: str) -> Tensor:
        """The inputs of a part."""
        return self.preparation.inputs(self.raw[part])

    def __str__(self) -> str:
        """What was done with each column, in lines."""
        train, about = self.raw["train"], self.preparation
        blank = train.isnan().sum(0).tolist()
        lines = []
        for column, count in zip(about.columns, blank, strict=True):
            name = f"{column.name!r:.60}"
            if column.values is not None:
                shown = ", ".join(column.values[:6]) + (", ..." if len(column.values) > 6 else "")
                remarks = _blanks(count, "0 in all", column.words) + _date_like(column.values)
                lines.append(f"{name}: {len(column.values)} texts, a column each ({shown}){remarks}")
                continue
            done = f"scaled by mean {column.mean:.4g} and deviation {column.deviation:.4g}" if about.scale else "as is"
            filled = _blanks(count, f"the mean {column.mean:.4g}", column.words)
            lines.append(f"{name}: numbers, {done}{filled}")
        for part, rows in self.raw.items():
            strange = int((rows.isnan().sum(0)[[c.values is not None for c in about.columns]]).sum())
            if part != "train" and strange:
                texts = "1 text that is" if strange == 1 else f"{strange:,} texts that are"
                lines.append(f"{part}: {texts} blank or not in the training file became 0 in all")
        fitted = "fitted elsewhere, not on these rows" if self.given else f"fitted on {len(train):,} training rows"
        return "\n".join([*lines, fitted])

    def identifiers(self) -> list[str]:
        """The columns of whole numbers of which every training row has another one."""
        pairs = zip(self.preparation.columns, self.raw["train"].T, strict=True)
        return [column.name for column, values in pairs if column.values is None and _all_differ(values)]


def _column(known: Any) -> Column:
    """A column as `Preparation.plain` gives it."""
    name = known["name"]
    if "values" in known:
        return Column(name, _texts_of(known["values"], f"The values of column {name!r:.100}"))
    mean, deviation = known["mean"], known["deviation"]
    if not errors.is_number(mean) or not errors.is_number(deviation) or deviation <= 0:
        raise InputError(f"Column {name!r:.100} needs a mean, and a deviation above 0.")
    return Column(name, None, float(mean), float(deviation))


def _classes(known: Any) -> tuple[str, ...] | tuple[int, ...] | int | None:
    """The classes of a target as `Preparation.plain` gives them."""
    if known is None or is_count(known):
        return known if known is None else int(known)
    if isinstance(known, list | tuple) and known and all(type(one) is int for one in known):
        if list(known) != sorted(set(known)):
            raise InputError(f"The classes of the target must be in sorted order. Got {known!r:.100} instead.")
        return tuple(known)
    return _texts_of(known, "The classes of the target")


def _texts_of(known: Any, what: str) -> tuple[str, ...]:
    texts = isinstance(known, list | tuple) and all(isinstance(text, str) for text in known)
    if not texts or not known or list(known) != sorted(set(known)):
        raise InputError(f"{what} must be different texts in sorted order. Got {known!r:.100} instead.")
    return tuple(known)


def _all_differ(values: Tensor) -> bool:
    """Whether these are whole numbers, each another one; of few that may be chance."""
    whole = len(values) > 20 and bool((values == values.round()).all())
    return whole and len(set(values.tolist())) == len(values)


def _date_like(values: Collection[str]) -> str:
    """A remark about texts that are all dates or months."""
    dates = all(DATE.fullmatch(value) for value in values)
    return (
        "; looks like dates, of which each is a text of its own: leave it out with drop, or make numbers of it" * dates
    )


def _blanks(count: int, became: str, words: Mapping[str, int]) -> str:
    if not count:
        return ""
    said = ", ".join(f"{word!r} {times:,} times" for word, times in words.items())
    return f"; {count} blank became {became}" + (f" (the file has {said}, which counts as blank)" if said else "")


def listed(given: str | Sequence[str], columns: Collection[str] = ()) -> list[str]:
    """Names of columns: a list, or a text with `|` between them.

    >>> listed("id|name"), listed(["id"]), listed("a|b", columns=["a|b", "c"])
    (['id', 'name'], ['id'], ['a|b'])
    """
    if not isinstance(given, str):
        return list(given)
    return [given] if given in columns else [name for name in given.split("|") if name]


def _leave_out(name: str, drop: str | Sequence[str]) -> str:
    """How a column is left out beside those that are."""
    return f"Leave it out: {_with('drop', drop, name)}."


def _with(key: str, given: str | Sequence[str], name: str) -> str:
    """A key with one more column, in the form in which the others were given."""
    names = [*listed(given), name[:100]]
    if not isinstance(given, str):
        return f"{key}={names}"
    return f"{key}={'|'.join(names)}{', in quotes' * (len(names) > 1)}"


def check_numbers(
    name: str, texts: Sequence[str], lines: Sequence[int], categories: str | Sequence[str] = (),
    remedy: str = "leave it blank",
) -> None:  # fmt: skip
    """Refuse a column of which at least half the values that are not blank are numbers, but not all: the others would
    make a text of every number. Numbers with a decimal comma count as numbers here.

    >>> check_numbers("age", ["40", "6o", "?", "50"], lines=[2, 3, 4, 5])
    Traceback (most recent call last):
    fedkeel.errors.InputError: Column 'age' has 2 numbers and 1 other value: line 3 has '6o'. Correct what is wrong, \
or leave it blank; a column of names is read as texts with categories=['age'].
    """
    known = [(line, text) for line, text in zip(lines, texts, strict=True) if text.lower() not in BLANKS]
    others = [(line, text) for line, text in known if not is_number(text)]
    numbers, commas = len(known) - len(others), sum(has_decimal_comma(text) for _, text in others)
    if not others or 2 * (numbers + commas) < len(known):
        return
    line, text = others[0]
    comma = ", with a comma; write 10.5, not 10,5, and 1234, not 1,234" if has_decimal_comma(text) else ""
    first = f"line {line} has {text!r:.60}{comma}"
    raise InputError(
        f"Column {name!r:.100} has {counted(numbers, 'number')} and {counted(len(others), 'other value')}: {first}. "
        f"Correct what is wrong, or {remedy}; a column of names is read as texts with "
        f"{_with('categories', categories, name)}."
    )


def has_decimal_comma(text: str) -> bool:
    """Whether a text would be a number with a point in the place of a comma.

    >>> [has_decimal_comma(text) for text in ("10,5", "-1.234,5", "10.5", "a,5")]
    [True, True, False, False]
    """
    return DECIMAL_COMMA.fullmatch(text) is not None


def of(
    columns: Mapping[str, Sequence[str]], lines: Sequence[int], drop: str | Sequence[str] = (),
    categories: str | Sequence[str] = (), scale: bool = True,
) -> Preparation:  # fmt: skip
    """The kinds of these columns: numbers where all values that are not blank are, else texts; nothing is fitted yet.

    lines: where each row stands in its file.

    >>> of({"age": ["40", ""], "sex": ["m", "f"], "id": ["1", "2"]}, lines=[2, 3], drop=["id"]).columns
    (Column(name='age', values=None, mean=0.0, deviation=1.0), Column(name='sex', values=('f', 'm'), mean=0.0, \
deviation=1.0))
    """
    found, names, left_out = [], listed(categories, columns), listed(drop, columns)
    for name, texts in columns.items():
        if name not in left_out:
            known = [text for text in texts if text.lower() not in BLANKS]
            if not known:
                raise InputError(f"Column {name!r:.100} is blank in every row. {_leave_out(name, drop)}")
            if name not in names:
                check_numbers(name, texts, lines, categories)
            words = Counter(text for text in texts if text and text.lower() in BLANKS)
            numeric = name not in names and all(map(is_number, known))
            column = Column(name) if numeric else Column(name, _texts(name, known, drop))
            found.append(replace(column, words=dict(words.most_common(3))))
    if not found:
        raise InputError("There is no feature column beside the client and the target.")
    return Preparation(tuple(found), scale)


def _texts(name: str, known: list[str], drop: str | Sequence[str]) -> tuple[str, ...]:
    values = tuple(sorted(set(known)))
    if len(values) > MOST_VALUES:
        raise InputError(
            f"Column {name!r:.100} has {len(values):,} different texts, such as {known[0]!r:.60}"
            f"{_date_like(values).partition(',')[0]}; {MOST_VALUES} are allowed. {_leave_out(name, drop)}"
        )
    return values


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(name: str, row: int, text: str) -> float:
    """The number of a field, NaN for a blank."""
    if text.lower() in BLANKS:
        return math.nan
    if not is_number(text):
        raise InputError(f"Row {row + 1}: column {name!r:.100} has {text!r:.100}, a number is needed as in training.")
    value = float(text)
    if not math.isfinite(value):
        raise InputError(f"Row {row + 1}: column {name!r:.100} has {text!r:.100}, which is not a finite number.")
    return value
