"""Where clients run one at a time: max-pooling by 2 x 2 by compiled C (`pooling.c`), with torch's own numbers.

torch keeps eight bytes for every window and fills the derivatives with zeros before it writes them.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .native import EXACT, Layer, addresses, again_by_torch, build, ordinary, written

UNIT = 16  # channels come in multiples of this
SMALLEST = 2**15  # elements of a batch from which C is ahead: its call takes longer than torch's (docs/speed.md)


class Compiled(Layer):
    """Max-pooling by C."""

    kinds = (nn.MaxPool2d,)

    def __init__(self, layer: nn.MaxPool2d) -> None:
        library()
        super().__init__(layer)

    @staticmethod
    def knows(layer: nn.MaxPool2d) -> bool:
        """Windows of 2 x 2, side by side, and all inside."""
        square = layer.kernel_size in (2, (2, 2)) and layer.stride in (2, (2, 2))
        inside = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.ceil_mode
        return square and inside and not layer.return_indices

    def fits(self, x: Tensor) -> bool:
        if not ordinary(x) or x.ndim != 4 or x.shape[1] % UNIT or min(x.shape[2:]) < 2:
            return False
        return x.is_contiguous(memory_format=torch.channels_last) and x.numel() >= SMALLEST

    def train(self, x: Tensor) -> Any:
        return _Largest.apply(x)  # type: ignore[no-untyped-call]


class _Largest(torch.autograd.Function):
    """The largest of each window of images `[n, channels, height, width]`, whose channels are innermost in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        shape, ctx.sizes = (n, channels, height // 2, width // 2), (n, height, width, channels)
        y = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        place = torch.empty(y.numel(), dtype=torch.uint8)
        library().forward(*ctx.sizes, *addresses(x, y, place))
        ctx.save_for_backward(x if ctx.needs_input_grad[0] else None, place)
        return y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor | None:
        x, place = ctx.saved_tensors
        if torch.is_grad_enabled():
            return again_by_torch(lambda x: (nn.functional.max_pool2d(x, 2),), [x], ctx.needs_input_grad, [d])[0]
        d, dx = d.contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        library().backward(*ctx.sizes, *addresses(d, place, dx))
        return dx


@cache
def library() -> Any:
    """The functions of `pooling.c`."""
    found = build(written("products.c", "pooling.c"), EXACT)
    for function in (found.forward, found.backward):
        function.argtypes, function.restype = [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 3, None
    return found
