"""Python objects as bytes and arrays, for workers in other processes of the same account.

Tensors become arrays beside the bytes, which shared memory can hold: nothing is copied while they are packed. This is
pickle, so it is for processes that we started ourselves, never for files or devices.
"""

from __future__ import annotations

import io
import pickle
import warnings
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Packed = tuple[bytes, list[NDArray[np.uint8]]]

DEVICE = ContextVar("DEVICE", default="cpu")  # where tensors of other devices than the CPU are put


def _own(array: NDArray[Any], elsewhere: bool) -> Tensor:
    # A copy: the array may lie in memory that other processes read, too.
    tensor = torch.from_numpy(array.copy())
    return tensor.to(DEVICE.get()) if elsewhere else tensor


def _shared(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch does not know memory that cannot be written to
        return torch.from_numpy(array)


def pack(thing: Any, shared: bool = False) -> Packed:
    """shared: whoever unpacks it reads its tensors where they lie, and must not write to them.

    Functions and classes of the user's main program are included, which plain pickle does not do.
    """
    cloudpickle = import_module("ray.cloudpickle")

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, one: Any) -> Any:
            if type(one) is Tensor and one.layout is torch.strided and one.dtype is not torch.bfloat16:
                array, elsewhere = one.detach().cpu().numpy(), one.device.type != "cpu"
                return (_shared, (array,)) if shared and not elsewhere else (_own, (array, elsewhere))
            return super().reducer_override(one)

    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    Pickler(file, protocol=5, buffer_callback=buffers.append).dump(thing)
    return file.getvalue(), [np.frombuffer(one.raw(), dtype=np.uint8) for one in buffers]


def unpack(packed: Packed, device: str = "cpu") -> Any:
    """What was packed."""
    before = DEVICE.set(device)
    try:
        return pickle.loads(packed[0], buffers=packed[1])
    finally:
        DEVICE.reset(before)
