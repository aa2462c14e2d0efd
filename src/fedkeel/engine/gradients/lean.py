"""Faster layers for a worker's own replica of a model: the same bits with fewer passes over memory."""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ...flat import FlatModel

L = TypeVar("L", bound=nn.Module)


def lean(model: FlatModel) -> None:
    """Speed up the layers of a worker's replica without changing a bit (W3: 1.06 by pooling first)."""
    layers = list(model.module.modules())
    for layer in layers:
        if is_plain(layer, nn.Sequential):
            PoolFirst(layer)
    for layer in layers:
        if type(layer) in (nn.MaxPool2d, nn.ReLU):
            layer.register_forward_hook(_ask_for_channels_last)


def is_plain(layer: nn.Module, kind: type[L]) -> TypeGuard[L]:
    """Whether a layer is exactly of this class and its `forward` was not replaced on the instance."""
    return type(layer) is kind and "forward" not in vars(layer)


def hooked(layer: nn.Module) -> bool:
    """Whether the layer has hooks other than ours, which may change what it returns."""
    after = any(hook is not _ask_for_channels_last for hook in layer._forward_hooks.values())
    return after or any((layer._forward_pre_hooks, layer._backward_pre_hooks, layer._backward_hooks))


def release(model: FlatModel) -> None:
    """Restore the layers' own `forward`; the replacements form reference cycles with their layers."""
    for layer in model.module.modules():
        vars(layer).pop("forward", None)


class PoolFirst:
    """A chain that runs max-pooling before the preceding ReLU, so that ReLU has a fraction of the elements to do.

    Outputs and gradients are bit-identical: if the maximum of a window is positive both orders select the same element,
    otherwise the gradient is zero in both. Only the chain's `forward` changes, not its layers.
    """

    def __init__(self, chain: nn.Sequential) -> None:
        self.chain, self.at = chain, [k for k in range(len(chain) - 1) if _commute(chain[k], chain[k + 1])]
        if self.at:
            chain.forward = self.forward  # type: ignore[method-assign]

    def forward(self, input: Tensor) -> Tensor:
        layers = list(self.chain)
        for k in self.at:
            layers[k], layers[k + 1] = layers[k + 1], layers[k]
        for layer in layers:
            input = layer(input)
        return input


def _commute(first: nn.Module, second: nn.Module) -> bool:
    """Whether ReLU and pooling can be swapped without another result: no in-place change, no dilation, no hooks."""
    if not is_plain(first, nn.ReLU) or not is_plain(second, nn.MaxPool2d):
        return False
    plain = not first.inplace and not second.return_indices and second.dilation in (1, (1, 1))
    return plain and not hooked(first) and not hooked(second)


def _ask_for_channels_last(layer: nn.Module, given: tuple[Tensor, ...], output: Any) -> None:
    """Convert the incoming gradient to the layout of the output, which makes the layer's backward pass much faster.

    Flattening images before a linear layer yields a gradient in another layout.
    """
    if isinstance(output, Tensor) and output.requires_grad and output.is_contiguous(memory_format=torch.channels_last):
        output.register_hook(lambda d: d.contiguous(memory_format=torch.channels_last))  # type: ignore[no-untyped-call]


def special(x: Tensor) -> bool:
    """Whether more than plain autograd is active: autocast, torch.func, forward-mode AD or torch.compile."""
    functional = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    kind = x.device.type
    mixed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return functional or mixed or torch.compiler.is_compiling()
