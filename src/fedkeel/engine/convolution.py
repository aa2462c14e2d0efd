"""Where clients run one at a time: convolutions by compiled C, with Winograd's method (`convolution.c`).

It needs a fraction of the multiplications that torch's kernels do, at the price of about twice their rounding errors;
a test holds it to 2e-6 of a layer's outputs, as a vector. A single output's error is that of the largest ones nearby:
where torch's is exactly zero, since all it is made of is, this may be a millionth of its neighbours.
`make bench` has it on W2, W3 and W5.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from .native import EXACT, Layer, addresses, again_by_torch, build, ordinary, written

SIDE, KERNELS = 6, (3, 5)  # of a tile, as in C
PADDINGS = tuple((n, n) for n in range(SIDE))
UNIT = 16  # channels come in multiples of this
WIDEST = 256 * 256  # inputs times outputs up to which C is ahead of torch's kernel (docs/speed.md)


class Compiled(Layer):
    """A convolution by C."""

    kinds = (nn.Conv2d,)
    layer: nn.Conv2d

    def __init__(self, layer: nn.Conv2d) -> None:
        library(layer.kernel_size[0])
        super().__init__(layer)

    @staticmethod
    def knows(layer: nn.Conv2d) -> bool:
        """A square kernel, every step, no groups, and nothing but zeros around an image."""
        (kernel, wide), (inside, outside) = layer.kernel_size, (layer.in_channels, layer.out_channels)
        plain = layer.groups == 1 and layer.stride == layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        square = kernel == wide and kernel in KERNELS and layer.padding in PADDINGS
        own = "_conv_forward" in vars(layer)
        return plain and square and not own and inside % UNIT == outside % UNIT == 0 and inside * outside <= WIDEST

    def fits(self, x: Tensor) -> bool:
        layer, bias = self.layer, self.layer.bias
        if not ordinary(x, layer.weight, *([] if bias is None else [bias])):
            return False
        outside, *within = shape = (layer.out_channels, layer.in_channels, *layer.kernel_size)
        shaped = layer.weight.shape == shape and (bias is None or bias.shape == (outside,))
        taken = x.ndim == 4 and x.numel() > 0 and x.shape[1] == within[0]
        # Without a bias a ReLU behind this may stand at zero exactly, where a rounding error opens or shuts it.
        moved = bias is None or bool(bias.all())
        return taken and shaped and self._saves(*x.shape[2:]) and moved

    def _saves(self, height: int, width: int) -> bool:
        """Whether tiles take at most half the multiplications, for a batch that fills some: those at an edge cover more
        than there is of an image.
        """
        kernel, padding = self.layer.kernel_size[0], int(self.layer.padding[0])
        step = SIDE + 1 - kernel
        down, across = (size + 2 * padding - kernel + 1 for size in (height, width))
        tiles = -(-down // step) * -(-across // step)
        return min(down, across) > 0 and 2 * tiles * SIDE**2 <= down * across * kernel**2

    def train(self, x: Tensor) -> Any:
        weight, bias, padding = self.layer.weight, self.layer.bias, int(self.layer.padding[0])
        given = (None if part is None else part.contiguous() for part in (weight, bias))
        return _Tiles.apply(x.contiguous(memory_format=torch.channels_last), *given, padding)  # type: ignore[no-untyped-call]


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
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (by_x, by_weight, by_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():
            # no derivative depends on its value
            bias = weight.new_zeros(len(weight), requires_grad=True) if by_bias else None
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
