"""Where clients run one at a time: convolutions by compiled C, with Winograd's method (`convolution.c`).

It needs a fraction of the multiplications that torch's kernels do, at the price of about twice their rounding errors;
a test holds it to 2e-6 of a layer's outputs. `make bench` has it on W2, W3 and W5.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..flat import FlatModel
from .lean import special
from .native import EXACT, Layer, addresses, again_by_torch, build, written

SIDE, KERNELS = 6, (3, 5)  # of a tile, as in C
UNIT = 16  # channels come in multiples of this
WIDEST = 256 * 256  # inputs times outputs up to which C is ahead of torch's kernel (docs/speed.md)


def convolutions(model: FlatModel) -> list[nn.Conv2d]:
    """The model's layers that C can take over."""
    return [layer for layer in model.module.modules() if type(layer) is nn.Conv2d and _known(layer)]


def _known(layer: nn.Conv2d) -> bool:
    """Whether it is a plain one: a square kernel, every step, no groups, and nothing but zeros around an image."""
    (kernel, wide), (inside, outside) = layer.kernel_size, (layer.in_channels, layer.out_channels)
    plain = layer.groups == 1 and layer.stride == layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    square = kernel == wide and kernel in KERNELS and layer.padding in {(n, n) for n in range(SIDE)}
    return plain and square and inside % UNIT == outside % UNIT == 0 and inside * outside <= WIDEST


class Compiled(Layer):
    """A convolution by C."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.kernel, self.padding = layer.kernel_size[0], int(layer.padding[0])
        self.shape = (layer.out_channels, layer.in_channels, *layer.kernel_size)
        library(self.kernel)
        super().__init__(layer)

    def fits(self, x: Any) -> bool:
        if not isinstance(x, Tensor) or x.ndim != 4 or not x.numel() or special(x) or x.shape[1] != self.shape[1]:
            return False
        weight, bias = self.layer.weight, self.layer.bias
        parts = (x, weight) if bias is None else (x, weight, bias)
        typed = all(part.dtype == torch.float32 and part.device.type == "cpu" for part in parts)
        shaped = weight.shape == self.shape and (bias is None or bias.shape == self.shape[:1])
        return typed and shaped and self._saves(*x.shape[2:])

    def _saves(self, height: int, width: int) -> bool:
        """Whether tiles take at most half the multiplications, for a batch that fills some: those at an edge cover more
        than there is of an image.
        """
        step = SIDE + 1 - self.kernel
        down, across = (size + 2 * self.padding - self.kernel + 1 for size in (height, width))
        tiles = -(-down // step) * -(-across // step)
        return min(down, across) > 0 and 2 * tiles * SIDE**2 <= down * across * self.kernel**2

    def train(self, x: Tensor) -> Any:
        weights: list[Any] = [self.layer.weight, self.layer.bias]
        given = (None if part is None else part.contiguous() for part in weights)
        return _Tiles.apply(x.contiguous(memory_format=torch.channels_last), *given, self.padding)  # type: ignore[no-untyped-call]


class _Tiles(torch.autograd.Function):
    """The convolution of images `[n, inputs, height, width]`; in memory their channels are innermost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        (n, inside, height, width), (outside, _, kernel, _) = x.shape, weight.shape
        lost = kernel - 1 - 2 * padding
        shape, room = (n, outside, height - lost, width - lost), _room(weight)
        y = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        ctx.sizes, ctx.padding = (n, height, width, inside, padding, outside), padding
        library(kernel).forward(*ctx.sizes, *addresses(x, weight, bias, y, room))
        ctx.save_for_backward(x, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, bias), (by_x, by_weight, by_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *again_by_torch(
                partial(_plain, ctx.padding), (x, weight, bias), (by_x, by_weight, by_bias), [d]
            ), None
        d = d.contiguous(memory_format=torch.channels_last)
        dx, d_weight = torch.empty_like(x) if by_x else None, torch.empty_like(weight) if by_weight else None
        d_bias, room = weight.new_empty(len(weight)), _room(weight)
        library(weight.shape[-1]).backward(*ctx.sizes, *addresses(x, weight, d, dx, d_weight, d_bias, room))
        return dx, d_weight, d_bias if by_bias else None, None


def _plain(padding: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
    return (nn.functional.conv2d(x, weight, bias, padding=padding),)


def _room(weight: Tensor) -> Tensor:
    outside, inside, kernel, _ = weight.shape
    return weight.new_empty(library(kernel).room(inside, outside))


@cache
def library(kernel: int) -> Any:
    """The functions of `convolution.c` for kernels of this size."""
    found = build(written("products.c", "convolution.c"), (*EXACT, f"-DKERNEL={kernel}"))
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    found.room.argtypes, found.room.restype = [number] * 2, number
    found.forward.argtypes, found.forward.restype = [number] * 6 + [pointer] * 5, None
    found.backward.argtypes, found.backward.restype = [number] * 6 + [pointer] * 7, None
    return found
