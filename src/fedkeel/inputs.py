"""Models with several inputs: packed side by side into one tensor, so that all else knows one kind of sample.

`pack` makes the tensor and says how it is cut; `adapt` cuts it again right before a model's own `forward`, by a hook
that leaves the model's names and class as they are; `restore` takes the hook away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError

EXACT = 2**24  # whole numbers up to here are exact in float32


@dataclass(frozen=True)
class Input:
    """One of a model's inputs: the argument of `forward`, or None for the next place, and what a sample of it is."""

    name: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def width(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Inputs:
    """How a packed sample is cut into a model's inputs.

    >>> x, cut = pack({"ids": torch.tensor([[1, 2]]), "age": torch.tensor([0.5])})
    >>> x.tolist(), cut.unpack(x)
    ([[1.0, 2.0, 0.5]], ([], {'ids': tensor([[1, 2]]), 'age': tensor([0.5000])}))
    """

    parts: tuple[Input, ...]

    def unpack(self, x: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The arguments and keywords of `forward` for a packed batch."""
        places: list[Tensor] = []
        names: dict[str, Tensor] = {}
        for one, part in zip(self.parts, torch.split(x, [one.width for one in self.parts], -1), strict=True):
            part = part.reshape(*x.shape[:-1], *one.shape)
            part = part if one.dtype.is_floating_point else part.to(one.dtype)
            if one.name is None:
                places.append(part)
            else:
                names[one.name] = part
        return places, names

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As a hook before `forward`."""
        places, names = self.unpack(args[0])
        return tuple(places), names


class Logits:
    """As a hook after `forward`: the scores of an output that has more beside them."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return logits_of(output)


def logits_of(output: Any) -> Any:
    """`.logits`, or "logits" of a dict; anything else as it is.

    >>> logits_of({"logits": 3, "loss": 1}), logits_of(4)
    (3, 4)
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    return getattr(output, "logits", output)


def adapt(module: nn.Module, inputs: Inputs | None) -> nn.Module:
    """Let a module take packed samples."""
    if inputs is not None:
        module.register_forward_pre_hook(inputs, with_kwargs=True)
    return module


def restore(module: nn.Module) -> nn.Module:
    """Take away what `adapt` and a task added: the module takes its own inputs again."""
    for hooks, kind in ((module._forward_pre_hooks, Inputs), (module._forward_hooks, Logits)):
        for key in [key for key, hook in hooks.items() if isinstance(hook, kind)]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
    return module


def pack(values: Mapping[str, Tensor] | Sequence[Tensor], like: Inputs | None = None) -> tuple[Tensor, Inputs]:
    """Several inputs, `[n, ...]` each, side by side in one tensor `[n, width]`; like: how training data were cut.

    With a floating input among them all are kept as floats, and whole numbers must be exact there.
    """
    names: list[str | None] = list(values) if isinstance(values, Mapping) else [None] * len(values)
    tensors = list(values.values()) if isinstance(values, Mapping) else list(values)
    if not tensors:
        raise InputError("There is no input: give a dict with a tensor for each argument of the model.")
    rows = {len(tensor) for tensor in tensors}
    if len(rows) > 1:
        raise InputError(f"All inputs must have one entry per sample. Got {', '.join(map(str, sorted(rows)))} entries.")
    parts = tuple(Input(name, tuple(t.shape[1:]), t.dtype) for name, t in zip(names, tensors, strict=True))
    floats = [one.dtype for one in (*parts, *(like.parts if like else ())) if one.dtype.is_floating_point]
    kind = torch.float64 if torch.float64 in floats else torch.float32 if floats else torch.int64
    for one, tensor in zip(parts, tensors, strict=True):
        if floats and not tensor.is_floating_point() and int(tensor.to(torch.int64).abs().max()) > EXACT:
            name = "An input" if one.name is None else f"Input '{one.name}'"
            raise InputError(f"{name} has whole numbers above {EXACT:,}, which are not exact beside inputs of floats.")
    if like is not None and _shown(parts) != _shown(like.parts):
        raise InputError(f"The test inputs are {_shown(parts)}; those of the training data are {_shown(like.parts)}.")
    return torch.cat([tensor.reshape(len(tensor), -1).to(kind) for tensor in tensors], 1), Inputs(parts)


def _shown(parts: Sequence[Input]) -> str:
    return ", ".join(f"{one.name or number} {one.shape}" for number, one in enumerate(parts))
