"""Federated data as packed arrays: the samples of client i are the slice `offsets[i]:offsets[i+1]`.

No Python object per client: a million registered clients are one array of offsets.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..errors import InputError


class FederatedData:
    """Samples packed by client, and a test set.

    >>> data = FederatedData.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], clients=["b", "a", "b"])
    >>> len(data), data.client_ids.tolist(), data.sizes([0, 1]).tolist()
    (2, ['a', 'b'], [1, 2])
    >>> data.x.flatten().tolist()
    [1.0, 0.0, 2.0]
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        offsets: ArrayLike,
        client_ids: ArrayLike | None = None,
        test: tuple[Any, Any] | None = None,
    ) -> None:
        self.x, self.y = _tensor(x, "x"), _tensor(y, "y")
        self.offsets = np.asarray(offsets, dtype=np.int64)
        ids = np.arange(len(self.offsets) - 1) if client_ids is None else np.asarray(client_ids)
        self.client_ids: NDArray[Any] = ids
        self.test = None if test is None else (_tensor(test[0], "test x"), _tensor(test[1], "test y"))
        self._validate()

    @classmethod
    def from_arrays(cls, x: Any, y: Any, clients: ArrayLike, test: tuple[Any, Any] | None = None) -> FederatedData:
        """Group samples by the client id beside each; clients are numbered by sorted id."""
        x, y, ids = _tensor(x, "x"), _tensor(y, "y"), np.asarray(clients)
        if ids.ndim != 1 or not len(x) == len(y) == len(ids):
            raise InputError(
                f"x, y and clients must have one entry per sample. Got {len(x)}, {len(y)} and {ids.shape} entries."
            )
        unique, owner, counts = np.unique(ids, return_inverse=True, return_counts=True)
        order = torch.from_numpy(np.argsort(owner, kind="stable"))
        return cls(x[order], y[order], np.concatenate([[0], np.cumsum(counts)]), unique, test)

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    def sizes(self, clients: ArrayLike) -> NDArray[np.int64]:
        """How many samples each of these clients holds."""
        clients = np.asarray(clients, dtype=np.int64)
        held: NDArray[np.int64] = self.offsets[clients + 1] - self.offsets[clients]
        return held

    def cast(self, dtype: torch.dtype, device: str) -> FederatedData:
        """The same data with floating tensors in `dtype`, integer targets as int64, on `device`."""
        test = None
        if self.test is not None:
            test = (_cast(self.test[0], dtype, device), _target(self.test[1], dtype, device))
        same = copy.copy(self)  # checked already
        same.x, same.y, same.test = _cast(self.x, dtype, device), _target(self.y, dtype, device), test
        return same

    def _validate(self) -> None:
        offsets = self.offsets
        if len(offsets) < 2:
            raise InputError("The data have no client.")
        if offsets[0] != 0 or not offsets[-1] == len(self.x) == len(self.y):
            raise InputError(f"offsets must run from 0 to the {len(self.x)} samples of x and {len(self.y)} of y.")
        if len(self.client_ids) != len(offsets) - 1:
            raise InputError(f"{len(self.client_ids)} client ids for {len(offsets) - 1} clients.")
        empty = np.flatnonzero(np.diff(offsets) <= 0)
        if len(empty):
            raise InputError(f"Client {self.client_ids[empty[0]]} has no samples ({len(empty)} such). Leave it out.")
        tensors = {"x": self.x, "y": self.y}
        if self.test is not None:
            tensors |= {"test x": self.test[0], "test y": self.test[1]}
            if len(self.test[0]) != len(self.test[1]) or not len(self.test[0]):
                raise InputError(f"The test set has {len(self.test[0])} inputs and {len(self.test[1])} targets.")
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = int((~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1)).nonzero()[0])
                raise InputError(f"{name} has non-finite values, the first in sample {bad}.")


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise InputError(f"{name} must be one array: its entries differ in length.") from error
        if array.dtype.kind not in "biuf":
            raise InputError(f"{name} must be numeric. Got an array of {array.dtype}.")
        tensor = torch.from_numpy(np.ascontiguousarray(array)).view(array.shape)  # numpy makes 0-d 1-d here
    if tensor.ndim == 0:
        raise InputError(f"{name} must have one entry per sample. Got a single number.")
    return tensor


def _cast(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def _target(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else torch.int64)
