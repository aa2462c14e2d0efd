"""What users give as arrays, checked and as tensors: inputs, targets, and who holds which sample."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..errors import FedkeelError, InputError, one_line, reason
from ..inputs import Inputs, pack
from . import convert
from .partition import WORDS, dirichlet

# The client of each sample: an id per sample, arrays of sample indices, or a function of the targets that gives either.
Clients = ArrayLike | Sequence[NDArray[Any]] | Callable[[NDArray[Any]], Any]


def held_by(clients: Clients, y: Tensor) -> Any:
    """Who holds which sample, by a user's partition where it is a function."""
    if isinstance(clients, Iterator):
        raise InputError(
            f"clients must be an array or a list, not a {type(clients).__name__}; make a list of it first."
        )
    if isinstance(clients, int | str) or (callable(clients) and clients in list(WORDS)):
        raise _incomplete(clients)
    if not callable(clients):
        return clients
    try:
        return clients(y.cpu().numpy())
    except FedkeelError:
        raise
    except Exception as error:  # of the user's function
        raise InputError(f"The partition of the samples fails: {reason(error)}.") from error


def _incomplete(clients: Any) -> InputError:
    """The error for a number of clients or the name of a partition alone, with the whole of it."""
    how: Any = next((known for known in WORDS if clients in (known, known.__name__)), dirichlet)
    number = clients if isinstance(clients, int) else 100
    alpha = ", alpha=0.1" if "alpha" in inspect.signature(how).parameters else ""
    use = f"functools.partial(fk.data.partition.{how.__name__}, clients={number}{alpha})"
    return InputError(f"clients must say who holds each sample: their ids, or a partition such as {use}.")


def index_lists(held: Any) -> Any:
    """Sample indices of each client as arrays, whatever kind of list each of them is; anything else as it is."""
    if not isinstance(held, list | tuple) or not held:
        return held
    kinds = (np.ndarray, Tensor, list, tuple, range)
    if not all(isinstance(own, kinds) or convert.is_frame(own) for own in held):
        return held
    arrays = [np.asarray(own) for own in held]
    return arrays if all(own.ndim == 1 for own in arrays) else held


def inputs_of(values: Any, name: str, like: Inputs | None = None) -> tuple[Tensor, Inputs | None]:
    """Inputs as one tensor; several of them packed side by side, with how to cut them."""
    arrays = (np.ndarray, Tensor)
    if isinstance(values, Mapping):
        return pack({str(key): tensor_of(value, f"{name} '{key}'") for key, value in values.items()}, like)
    if isinstance(values, tuple) and values and all(isinstance(one, arrays) and one.ndim for one in values):
        return pack([tensor_of(one, f"{name} {place}") for place, one in enumerate(values)], like)
    if like is not None:
        raise InputError(f"{name} must have the inputs of the training data, in a dict or a tuple.")
    return tensor_of(values, name), None


def tensor_of(values: Any, name: str) -> Tensor:
    if isinstance(values, torch.utils.data.DataLoader | torch.utils.data.Dataset):
        kind = type(values).__name__
        raise InputError(
            f"{name} must be an array, not a {kind}; use FederatedData.from_torch(dataset, partition=...)."
        )
    if isinstance(values, Iterator) or callable(values):
        kind = type(values).__name__
        raise InputError(f"{name} must be an array with one entry per sample, not a {kind}; make an array of it first.")
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        values = convert.unframed(values, name)
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise InputError(f"{name} must be one array: its entries differ in length.") from error
        except (TypeError, RuntimeError) as error:
            raise InputError(f"{name} must be one array of numbers: {one_line(error)}.") from error
        if array.dtype.kind not in "biuf":
            raise InputError(f"{name} must be numeric. Got an array of {array.dtype}.")
        array = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)  # pandas lends its own
        try:
            tensor = torch.from_numpy(np.ascontiguousarray(array)).view(array.shape)  # numpy makes 0-d 1-d here
        except TypeError as error:
            raise InputError(f"{name} must be of a type that torch has too. Got {array.dtype}.") from error
    if tensor.ndim == 0:
        raise InputError(f"{name} must have one entry per sample. Got a single number.")
    return tensor


def indices_of(held: Sequence[NDArray[Any]], samples: int) -> Tensor:
    order = np.concatenate([own if len(own) else np.empty(0, dtype=np.int64) for own in held])
    if order.dtype.kind not in "iu" or (len(order) and not 0 <= order.min() <= order.max() < samples):
        raise InputError(f"Lists of sample indices must hold whole numbers in 0..{samples - 1}.")
    return torch.from_numpy(order.astype(np.int64))


def ids_of(held: Any) -> NDArray[Any]:
    """Client ids as an array; its texts all take the room of the longest."""
    if isinstance(held, list | tuple) and any(isinstance(one, str) and len(one) > convert.NAME for one in held):
        raise InputError(f"A client id has more than {convert.NAME} characters.")
    held = convert.unframed(held, "clients")
    try:
        return np.asarray(held)
    except ValueError as error:
        raise InputError(f"Client ids must be one number or text for each sample: {error}.") from error
