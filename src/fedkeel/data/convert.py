"""Convert the user's own data to arrays: torch data sets, Hugging Face data sets and columns of text."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError, reason, unknown
from .read.files import optional

Array = NDArray[Any]
NAME = 256  # characters of a client's or a class's name


def torch_pairs(dataset: Any, name: str, target: str = "labels") -> tuple[Any, Tensor]:
    """Inputs and targets of a torch data set of (input, target) pairs, each stacked into one tensor.

    Inputs that are dicts or tuples give a dict or a tuple of tensors.

    >>> torch_pairs([(1.5, 0), (2.5, 1)], "The data set")
    (tensor([1.5000, 2.5000]), tensor([0, 1]))
    >>> torch_pairs([{"ids": [3, 4], "labels": 1}], "The data set")
    ({'ids': tensor([[3, 4]])}, tensor([1]))
    """
    if isinstance(dataset, torch.utils.data.TensorDataset):
        *inputs, y = dataset.tensors
        if not inputs:
            raise InputError(f"{name} must give (input, target) pairs. Got {len(dataset.tensors)} tensors.")
        return inputs[0] if len(inputs) == 1 else tuple(inputs), y
    if isinstance(dataset, torch.utils.data.DataLoader):
        raise InputError(f"{name} must be the data set itself, not a DataLoader; give loader.dataset.")
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"{name} needs __len__ and __getitem__, as map-style torch data sets have. Got a {type(dataset).__name__}."
        )
    items = []
    for i in range(len(dataset)):  # iterating may never end without an IndexError
        try:
            items.append(dataset[i])
        except Exception as error:  # of the user's data set
            raise InputError(f"{name} fails at item {i}: {reason(error)}.") from error
    if not items:
        raise InputError(f"{name} is empty.")
    pairs = [_pair(item, f"{name} must give (input, target) pairs. Item {i}", target) for i, item in enumerate(items)]
    return _stack_inputs([x for x, _ in pairs], f"{name} inputs"), _stack([y for _, y in pairs], f"{name} targets")


def _pair(item: Any, where: str, target: str) -> tuple[Any, Any]:
    """Input and target of an item: a pair, or a dict with the target under this key."""
    if isinstance(item, Mapping):
        if target not in item:
            raise InputError(f"{where} is a dict without '{target}'; name the key of the target by target=.")
        return {key: value for key, value in item.items() if key != target}, item[target]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(f"{where} is a {type(item).__name__}.")
    return item[0], item[1]


def _stack_inputs(values: Sequence[Any], name: str) -> Any:
    """One tensor, or a dict or a tuple of them where each input is one."""
    first = values[0]
    if isinstance(first, Mapping):
        if any(not isinstance(value, Mapping) or value.keys() != first.keys() for value in values):
            raise InputError(f"{name} must all be dicts with the same keys.")
        return {key: _stack([value[key] for value in values], f"{name} '{key}'") for key in first}
    if isinstance(first, tuple):
        if any(not isinstance(value, tuple) or len(value) != len(first) for value in values):
            raise InputError(f"{name} must all be tuples of one length.")
        return tuple(_stack(column, f"{name} {place}") for place, column in enumerate(zip(*values, strict=True)))
    return _stack(values, name)


def _stack(values: Sequence[Any], name: str) -> Tensor:
    try:
        tensors = [torch.as_tensor(value) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(values[0]).__name__
        raise InputError(
            f"{name} must be tensors, arrays or numbers, not {kind}; use a transform that converts it."
        ) from error
    for i, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            shapes = f"{tuple(tensors[0].shape)} and {tuple(tensor.shape)}"
            raise InputError(f"{name} must have one shape. Items 0 and {i} have {shapes}.")
    return torch.stack(tensors)


def is_frame(values: Any) -> bool:
    """Whether this is a data frame or a series of pandas, which is not imported for it."""
    return hasattr(values, "iloc") and hasattr(values, "to_numpy")


def unframed(values: Any, name: str) -> Any:
    """A data frame of numbers and truth values as one array, of one column as that column, unless it is the inputs.

    Anything else is left as it is. A frame of several types would become an array of Python objects.
    """
    if not is_frame(values) or values.ndim != 2:
        return values
    columns = []
    for column in values.columns:
        if bool(values[column].isna().any()):
            raise InputError(f"{name}: column {str(column)!r:.100} has missing values; fill them in or leave them out.")
        columns.append(values[column].to_numpy())
    if len(columns) == 1 and not name.endswith("x"):
        return columns[0]
    for column, array in zip(values.columns, columns, strict=True):
        if array.dtype.kind not in "biuf":
            raise InputError(f"{name}: column {str(column)!r:.100} holds {array.dtype}; encode it as numbers.")
    return np.stack(columns, 1) if columns else values


def hub_dataset(dataset: Any, split: str) -> Any:
    """The given data set, or this split of the data set with this hub name."""
    if isinstance(dataset, str):
        return optional("datasets", "datasets", "hf", "A data set by its hub name").load_dataset(dataset, split=split)
    if not hasattr(dataset, "column_names") or not isinstance(dataset.column_names, list):
        raise InputError(f"A datasets.Dataset (one split) is needed. Got a {type(dataset).__name__}.")
    return dataset


def hub_column(dataset: Any, column: str) -> list[Any]:
    """All values of a column."""
    if column not in dataset.column_names:
        raise no_column(column, dataset.column_names)
    return list(dataset[column])


def no_column(name: str, columns: Iterable[str]) -> InputError:
    """The error for a column that is not there; names out of a file may be long and many."""
    return unknown("column", name, [" ".join(column.split())[:60] for column in islice(columns, 30)])


def hub_inputs(dataset: Any, columns: str | Sequence[str] | Mapping[str, str]) -> Any:
    """One column as it is (images as `[channels, height, width]` in 0..1), several number columns side by side, or by
    the arguments of a model."""
    if isinstance(columns, Mapping):
        return {name: hub_inputs(dataset, column) for name, column in columns.items()}
    if isinstance(columns, str):
        return _pack([_pixels(value) for value in hub_column(dataset, columns)], columns)
    parts = [_pack(hub_column(dataset, column), column) for column in columns]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)


def _pixels(value: Any) -> Any:
    """A PIL image as an array; anything else as it is."""
    if not (hasattr(value, "getbands") and hasattr(value, "size")):
        return value
    array = np.asarray(value, dtype=np.float32) / 255
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _pack(values: list[Any], column: str) -> Array:
    try:
        array = np.asarray(values)
        if array.dtype.kind in "biuf":
            return array
    except ValueError:  # rows differ in length
        pass
    raise InputError(f"Column '{column}' does not hold numbers of one shape (encode texts and pad them to one length).")


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before an InputError that does not have one."""
    try:
        yield
    except InputError as error:
        if os.fspath(path) in str(error):
            raise
        raise InputError(f"{os.fspath(path)}: {error}") from None


def plain(values: Sequence[Any]) -> Array:
    """Texts as integers if all are integers, else as floats if all are numbers, else unchanged.

    Integers of more than 18 digits stay texts: as floats, two names could become one.

    >>> plain(["7", "10"]).tolist(), plain(["7", "0.5"]).tolist(), plain(["7", "b"]).tolist()
    ([7, 10], [7.0, 0.5], ['7', 'b'])
    """
    if not all(isinstance(v, str) for v in values):
        return _array(values)
    numbers = [_number(v) for v in values]
    whole = all(v.lstrip("+-").isdigit() for v in values)
    longest = max(map(len, values), default=0)
    if None not in numbers and not (whole and longest > 18):
        return np.array([int(v) for v in values] if whole else numbers)
    return texts(values)


def texts(values: Sequence[str]) -> Array:
    """Names of clients or classes."""
    longest = max(map(len, values), default=0)
    if longest > NAME:
        raise InputError(f"A name of a client or a class has {longest:,} characters; {NAME} are allowed.")
    return np.asarray(values)


def _array(values: Sequence[Any]) -> Array:
    """Values of one kind and shape that can be sorted."""
    try:
        array = np.asarray(values)
        np.unique(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"A column of clients or targets must be all numbers or all texts: {error}.") from error
    return array


def targets(values: Array, names: Array, what: str) -> Array:
    """Numbers as they are; texts as class numbers, by their place in the sorted `names` of the training data.

    >>> targets(np.array(["yes", "no"]), np.array(["no", "yes"]), "test").tolist()
    [1, 0]
    """
    texts = [array.dtype.kind in "US" for array in (values, names)]
    if texts[0] != texts[1]:
        raise InputError(f"The {what} targets and the training targets must both be numbers or both be texts.")
    return placed(values, names, what) if texts[0] else values


def placed(values: Array, names: Array, what: str) -> Array:
    """The places of values among the sorted `names` of the training data."""
    place = np.searchsorted(names, values).clip(max=len(names) - 1)
    if (strange := values[names[place] != values]).size:
        raise InputError(f"The {what} target {str(strange[0])!r:.100} does not occur in the training data.")
    return place


def class_names(names: Array) -> list[str] | None:
    """The names of classes that are texts, by number; None where targets are numbers."""
    return [str(name) for name in names] if names.dtype.kind in "US" else None


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
