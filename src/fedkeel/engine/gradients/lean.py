"""What a worker's own replica of a model does differently: the same numbers, with fewer walks through memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ...flat import FlatModel

L = TypeVar("L", bound=nn.Module)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
LARGE = 2**18  # elements of a weight from which its derivative is written straight to its place: a megabyte


def lean(model: FlatModel) -> list[Direct]:
    """Let the model's layers give the same numbers sooner; returns those that write their own derivatives."""
    layers = list(model.module.modules())
    for layer in layers:
        if is_plain(layer, nn.Sequential):
            PoolFirst(layer)
    for layer in layers:
        if type(layer) in (nn.MaxPool2d, nn.ReLU):
            layer.register_forward_hook(_ask_for_channels_last)
    return [Direct(layer) for layer in layers if is_plain(layer, nn.Linear) and _is_large(layer)]


def is_plain(layer: nn.Module, kind: type[L]) -> TypeGuard[L]:
    """Whether a layer does what its class says: nobody gave it a `forward` of its own."""
    return type(layer) is kind and "forward" not in vars(layer)


def release(model: FlatModel) -> None:
    """Let go what replaced a layer's forward: it refers to its layer, and the layer to it."""
    for layer in model.module.modules():
        vars(layer).pop("forward", None)


def _is_large(layer: nn.Linear) -> bool:
    weight = layer._parameters.get("weight")  # what a parametrization computes is not here
    return weight is not None and weight.grad is not None and weight.numel() >= LARGE


class PoolFirst:
    """A chain in which max-pooling comes before the ReLU that precedes it, which then has a fraction of the elements.

    The same bits, of derivatives too: where the largest of a window is positive it is the same element, and where it is
    not nothing flows back either way. Only running the chain as a whole is changed, not what it consists of.
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
    """Whether nobody can tell: nothing is changed in place, every window has a sample, and no hook looks on."""
    if not is_plain(first, nn.ReLU) or not is_plain(second, nn.MaxPool2d):
        return False
    plain = not first.inplace and not second.return_indices and second.dilation in (1, (1, 1))
    return plain and not any(getattr(layer, kind) for layer in (first, second) for kind in HOOKS)


def _ask_for_channels_last(layer: nn.Module, given: tuple[Tensor, ...], output: Any) -> None:
    """Have the derivative arrive in the layout of the output: the way back through the layer is much faster then.

    What flattens images, before a linear layer, sends it in another.
    """
    if isinstance(output, Tensor) and output.requires_grad and output.is_contiguous(memory_format=torch.channels_last):
        output.register_hook(lambda d: d.contiguous(memory_format=torch.channels_last))  # type: ignore[no-untyped-call]


class Direct:
    """A large linear layer that writes its weight's derivative straight into the flat gradient.

    torch would make it elsewhere and add it to zeros here: two more walks through memory. It writes between `begin` and
    `finish`, which stand around the way back of a training step; any other derivative is torch's own affair.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.layer, self.weight, self.begun, self.written = layer, layer.weight, False, False
        self.bind()
        layer.forward = self.forward  # type: ignore[method-assign]

    def bind(self) -> None:
        """Write from now on where the weight's gradient is."""
        assert self.weight.grad is not None
        self.slot, self.weight.grad = self.weight.grad, None

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if weight is not self.weight or not torch.is_grad_enabled() or special(input):
            return nn.functional.linear(input, weight, bias)
        rows: Tensor = _Linear.apply(input.reshape(-1, input.shape[-1]), weight, bias, self)  # type: ignore[no-untyped-call]
        return rows if input.ndim == 2 else rows.view(*input.shape[:-1], rows.shape[-1])

    def begin(self) -> None:
        """Before the way back."""
        self.begun, self.written = True, False

    def write(self, d: Tensor, x: Tensor) -> None:
        """The part of the derivative that comes from one use of the layer."""
        if self.written:
            self.slot.addmm_(d.t(), x)
        else:
            torch.mm(d.t(), x, out=self.slot)
        self.written = True

    def finish(self) -> None:
        """After the way back: what came by other ways than this layer, or did not come at all."""
        self.begun = False
        if not self.written:
            self.slot.zero_()
        if self.weight.grad is not None:  # the model uses the weight elsewhere, too
            self.slot.add_(self.weight.grad)
            self.weight.grad = None


def special(x: Tensor) -> bool:
    """Whether more than plain autograd looks on: mixed precision, torch.func, forward derivatives, torch.compile."""
    functional = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    kind = x.device.type
    mixed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return functional or mixed or torch.compiler.is_compiling()


class _Linear(torch.autograd.Function):
    """x W' + b on rows, where the derivative by W goes where `Direct` says."""

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
    """(begin, end) of the flat gradient between what is written directly: what has to be zero before a way back."""
    offsets = sorted((int(direct.slot.storage_offset()), direct.slot.numel()) for direct in directs)
    taken = [(begin, begin + size) for begin, size in offsets]
    begins, ends = [0, *(end for _, end in taken)], [*(begin for begin, _ in taken), model.size]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
