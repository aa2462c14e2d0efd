"""Where clients run one at a time: convolutions by compiled C, with Winograd's method (`convolution.c`).

It needs a fraction of the multiplications that torch's kernels do, at the price of about twice their rounding errors;
a test holds it to 2e-6 of a layer's outputs, as a vector. A single output's error is that of the largest ones nearby:
where torch's is exactly zero, since all it is made of is, this may be a millionth of its neighbours.
`make bench` has it on W2, W3 and W5.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ...flat import FlatModel
from ..gradients.lean import hooked, is_plain, special
from .native import EXACT, addresses, build, inputs_of, ordinary, written

SIDE, KERNELS = 6, (3, 5)  # of a tile, as in C
PADDINGS = tuple((n, n) for n in range(SIDE))
UNIT = 16  # channels come in multiples of this
WIDEST = 256 * 256  # inputs times outputs up to which C is ahead of torch's kernel (docs/speed.md)


def layers(model: FlatModel) -> list[nn.Conv2d]:
    """The model's convolutions that C was written for; none where a hook, a wrapper or a `forward` of its own changes
    what a layer does.
    """
    if model.flat.dtype != torch.float32 or model.flat.device.type != "cpu":
        return []
    return [layer for layer in model.module.modules() if is_plain(layer, nn.Conv2d) and known(layer)]


def reached(model: FlatModel, x: Tensor) -> bool:
    """Whether the model, applied to x, uses such a layer at a size for which C was written."""
    return any(part.ndim == 4 and saves(layer, *part.shape[2:]) for layer, part in inputs_of(layers, model, x))


def install(model: FlatModel) -> list[Compiled]:
    """Let these convolutions of a worker's replica run by C."""
    return [Compiled(layer) for layer in layers(model)]


def known(layer: nn.Conv2d) -> bool:
    """Whether C has this layer: a square kernel, stride 1, no dilation or groups, zero padding, no hooks."""
    (kernel, wide), (inside, outside) = layer.kernel_size, (layer.in_channels, layer.out_channels)
    plain = layer.groups == 1 and layer.stride == layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    square = kernel == wide and kernel in KERNELS and layer.padding in PADDINGS
    changed = "_conv_forward" in vars(layer) or hooked(layer) or is_parametrized(layer)
    sized = inside % UNIT == outside % UNIT == 0 and inside * outside <= WIDEST
    return plain and square and sized and not changed


def saves(layer: nn.Conv2d, height: int, width: int) -> bool:
    """Whether tiles take at most half the multiplications, for a batch that fills some: those at an edge cover more
    than there is of an image.
    """
    kernel, padding = layer.kernel_size[0], int(layer.padding[0])
    step = SIDE + 1 - kernel
    down, across = (size + 2 * padding - kernel + 1 for size in (height, width))
    tiles = -(-down // step) * -(-across // step)
    return min(down, across) > 0 and 2 * tiles * SIDE**2 <= down * across * kernel**2


class Compiled:
    """A convolution that trains by C on inputs that was written for; everything else stays torch's.

    So does an evaluation: it has no backward pass, many samples, and its numbers stay torch's.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        library(layer.kernel_size[0])
        self.layer, self.otherwise, self.ran = layer, layer.forward, False
        layer.forward = self.forward  # type: ignore[method-assign]

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or not known(self.layer) or special(input) or not self.fits(input):
            return self.otherwise(input)
        self.ran = True
        return self.train(input)

    def fits(self, x: Tensor) -> bool:
        """Whether x and the current weights have the types and shapes that C assumes."""
        layer, bias = self.layer, self.layer.bias
        if not ordinary(x, layer.weight, *([] if bias is None else [bias])):
            return False
        outside, *within = shape = (layer.out_channels, layer.in_channels, *layer.kernel_size)
        shaped = layer.weight.shape == shape and (bias is None or bias.shape == (outside,))
        taken = x.ndim == 4 and x.numel() > 0 and x.shape[1] == within[0]
        # Without a bias a ReLU behind this may stand at zero exactly, where a rounding error opens or shuts it.
        moved = bias is None or bool(bias.all())
        return taken and shaped and saves(layer, *x.shape[2:]) and moved

    def train(self, x: Tensor) -> Tensor:
        """The layer's outputs, from which the backward pass leads through C."""
        weight, bias, padding = self.layer.weight, self.layer.bias, int(self.layer.padding[0])
        given = (None if part is None else part.contiguous() for part in (weight, bias))
        outputs: Tensor = _Tiles.apply(x.contiguous(memory_format=torch.channels_last), *given, padding)  # type: ignore[no-untyped-call]
        return outputs


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
        if torch.is_grad_enabled():  # create_graph: by torch, since what C returns has no derivative
            bias = weight.new_zeros(len(weight), requires_grad=True) if by_bias else None  # its value does not matter
            needed = (by_x, by_weight, by_bias)
            asked = [part for part, need in zip((x, weight, bias), needed, strict=True) if need]
            y = nn.functional.conv2d(x, weight, bias, padding=ctx.padding)
            found = iter(torch.autograd.grad(y, asked, d, create_graph=True))
            return *(next(found) if need else None for need in needed), None
        d = d.contiguous(memory_format=torch.channels_last)
        dx, d_weight = torch.empty_like(x) if by_x else None, torch.empty_like(weight) if by_weight else None
        d_bias, room = weight.new_empty(len(weight)), _room(weight)
        library(weight.shape[-1]).backward(*ctx.sizes, *addresses(x, weight, d, dx, d_weight, d_bias, room))
        return dx, d_weight, d_bias if by_bias else None, None


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
