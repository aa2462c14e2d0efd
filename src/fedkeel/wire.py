"""Serialize messages: safetensors, with plain values as JSON in the header. Loading executes nothing."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from .messages import Broadcast, Facts, Flights, Memory, Plan, Update, Work, header

MESSAGES: dict[str, type] = {kind.__name__: kind for kind in (Plan, Facts, Broadcast, Work, Memory, Update, Flights)}


def to_bytes(message: Any) -> bytes:
    """A message as safetensors: tensors by their path in the message, plain values as JSON in the header.

    >>> from fedkeel.messages import Work
    >>> work = from_bytes(to_bytes(Work(3, np.array([5]), np.array([2]))))
    >>> work.version, work.clients, work.expected
    (3, array([5]), None)
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, Tensor | np.ndarray):
            # A copy of an array, which may be a read-only or reversed view.
            given = value if isinstance(value, Tensor) else torch.from_numpy(value.copy())
            tensors[path] = given.detach().cpu().contiguous()
            return {"tensor" if isinstance(value, Tensor) else "array": path}
        if is_dataclass(value):
            inside = {f.name: plain(getattr(value, f.name), f"{path}/{f.name}") for f in fields(value)}
            return {"message": type(value).__name__, "fields": inside}
        if isinstance(value, dict):
            return {"dict": {name: plain(one, f"{path}/{name}") for name, one in value.items()}}
        return value

    about = json.dumps(plain(message, ""))
    head, order = header(tensors, {"fedkeel": about})
    # safetensors.torch.save holds a large model three times; this holds it once.
    return b"".join([head, *(_buffer(tensors[name]) for name in order)])


def _buffer(tensor: Tensor) -> memoryview:
    """The tensor's memory; numpy has no bfloat16."""
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy().data


def from_bytes(data: bytes, device: str = "cpu") -> Any:
    """The message that `to_bytes` wrote, with its tensors on this device."""
    tensors = safetensors.torch.load(data)
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + size])["__metadata__"]["fedkeel"]

    def whole(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "message" in value:
            return MESSAGES[value["message"]](**{name: whole(one) for name, one in value["fields"].items()})
        if "dict" in value:
            return {name: whole(one) for name, one in value["dict"].items()}
        return tensors[value["tensor"]].to(device) if "tensor" in value else tensors[value["array"]].numpy()

    return whole(json.loads(about))
