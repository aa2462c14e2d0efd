"""Faster layers for a worker's own replica of a model: the same bits with fewer passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ...flat import FlatModel

L = TypeVar("L", bound=nn.Module)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
LARGE = 2**18  # elements (a megabyte) from which a weight's gradient is written straight into the flat gradient


def lean(model: FlatModel) -> list[Direct]:
    """Speed up the model's layers without changing a bit; returns those that write their own weight gradients."""
    layers = list(model.module.modules())
    for layer in layers:
        if is_plain(layer, nn.Sequential):
            PoolFirst(layer)
    for layer in layers:
        if type(layer) in (nn.MaxPool2d, nn.ReLU):
            layer.register_forward_hook(_ask_for_channels_last)
    return [Direct(layer) for layer in layers if is_plain(layer, nn.Linear) and _is_large(layer)]


def is_plain(layer: nn.Module, kind: type[L]) -> TypeGuard[L]:
    """Whether a layer is exactly of this class and its `forward` was not replaced on the instance."""
    return type(layer) is kind and "forward" not in vars(layer)


def release(model: FlatModel) -> None:
    """Restore the layers' own `forward`; the replacements form reference cycles with their layers."""
    for layer in model.module.modules():
        vars(layer).pop("forward", None)


def _is_large(layer: nn.Linear) -> bool:
    weight = layer._parameters.get("weight")  # None if a parametrization computes the weight
    return weight is not None and weight.grad is not None and weight.numel() >= LARGE


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
    """Whether ReLU and pooling can be swapped unnoticed: no in-place change, no dilation, no hooks."""
    if not is_plain(first, nn.ReLU) or not is_plain(second, nn.MaxPool2d):
        return False
    plain = not first.inplace and not second.return_indices and second.dilation in (1, (1, 1))
    return plain and not any(getattr(first, kind) or getattr(second, kind) for kind in HOOKS)


def _ask_for_channels_last(layer: nn.Module, given: tuple[Tensor, ...], output: Any) -> None:
    """Convert the incoming gradient to the layout of the output, which makes the layer's backward pass much faster.

    Flattening images before a linear layer yields a gradient in another layout.
    """
    if isinstance(output, Tensor) and output.requires_grad and output.is_contiguous(memory_format=torch.channels_last):
        output.register_hook(lambda d: d.contiguous(memory_format=torch.channels_last))  # type: ignore[no-untyped-call]


class Direct:
    """A large linear layer that writes its weight's gradient straight into the flat gradient.

    torch would allocate it and then add it to zeros: two more passes over memory. The layer writes between `begin` and
    `finish`, which enclose the backward pass of a training step; outside of them autograd works as usual.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.layer, self.weight = layer, layer.weight
        self.begun, self.written = False, False
        self.bind()
        layer.forward = self.forward  # type: ignore[method-assign]

    def bind(self) -> None:
        """Take the current `weight.grad` as the place to write to."""
        assert self.weight.grad is not None
        self.slot, self.weight.grad = self.weight.grad, None

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if weight is not self.weight or not torch.is_grad_enabled() or special(input):
            return nn.functional.linear(input, weight, bias)
        rows: Tensor = _Linear.apply(input.reshape(-1, input.shape[-1]), weight, bias, self)  # type: ignore[no-untyped-call]
        return rows if input.ndim == 2 else rows.view(*input.shape[:-1], rows.shape[-1])

    def begin(self) -> None:
        """Call before the backward pass."""
        self.begun, self.written = True, False

    def write(self, d: Tensor, x: Tensor) -> None:
        """Add the weight gradient of one use of the layer."""
        if self.written:
            self.slot.addmm_(d.t(), x)
        else:
            torch.mm(d.t(), x, out=self.slot)
        self.written = True

    def finish(self) -> None:
        """Call after the backward pass: adds gradients from other uses of the weight; zero if there were none."""
        self.begun = False
        if not self.written:
            self.slot.zero_()
        if self.weight.grad is not None:  # the model uses the weight elsewhere, too
            self.slot.add_(self.weight.grad)
            self.weight.grad = None


def special(x: Tensor) -> bool:
    """Whether more than plain autograd is active: autocast, torch.func, forward-mode AD or torch.compile."""
    functional = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    kind = x.device.type
    mixed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return functional or mixed or torch.compiler.is_compiling()


class _Linear(torch.autograd.Function):
    """x W' + b on rows; `Direct` receives the gradient of W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, direct: Direct) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.direct = direct
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x, weight), direct = ctx.saved_tensors, ctx.direct
        by_x, by_weight, by_bias, _ = ctx.needs_input_grad
        returned = None
        if by_weight and not direct.begun:
            returned = d.t() @ x
        elif by_weight:
            direct.write(d, x)
        return d @ weight if by_x else None, returned, d.sum(0) if by_bias else None, None


def gaps(model: FlatModel, directs: Sequence[Direct]) -> list[tuple[int, int]]:
    """(begin, end) ranges of the flat gradient that no layer writes directly: to be zeroed before a backward pass."""
    offsets = sorted((int(direct.slot.storage_offset()), direct.slot.numel()) for direct in directs)
    taken = [(begin, begin + size) for begin, size in offsets]
    begins, ends = [0, *(end for _, end in taken)], [*(begin for begin, _ in taken), model.size]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
