"""Where clients run one at a time: convolutions that are pooled and rectified, in one pass by compiled C (`pooled.c`).

For images of few channels, where torch's convolutions are slow and `convolution.py` has nothing. What is pooled away
never leaves the cache, and the backward pass needs a quarter of the multiplications, since of four places that are
pooled only one has a derivative. The C is written out for the sizes of a layer and its images.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from ...flat import CountedDropout, FlatModel
from ..gradients.lean import PoolFirst, hooked, is_plain, special
from .native import EXACT, addresses, build, inputs_of, ordinary, written

LONGEST, LARGEST = 64, 7  # numbers in a row of a kernel, and its side, up to which sums stay in registers
Layers = Callable[[Tensor], Tensor]
FLAGS = (*EXACT, "-fno-predictive-commoning")  # which moves numbers through memory that are cheaper to load again


@dataclass(frozen=True)
class Sizes:
    """Of a convolution and the images it is given."""

    kernel: int
    inside: int
    outside: int
    height: int
    width: int
    padding: int

    def pooled(self, n: int) -> tuple[int, int, int, int]:
        """The shape of what comes out for n images."""
        down, across = ((side + 2 * self.padding - self.kernel + 1) // 2 for side in (self.height, self.width))
        return n, self.outside, down, across


def reached(model: FlatModel, x: Tensor) -> bool:
    """Whether the model, applied to x, gives such layers images of a size for which C is written."""
    return any(sizes_of(layer, part) is not None for layer, part in inputs_of(convolutions, model, x))


def install(model: FlatModel) -> list[Block]:
    """Let these layers of a worker's replica run by C."""
    made = []
    for chain in chains(model):
        if starts := blocks(chain):
            made += Pooled(chain, starts).blocks
    return made


def convolutions(model: FlatModel) -> list[nn.Conv2d]:
    """The first layers of all blocks."""
    found = [chain[start] for chain in chains(model) for start in blocks(chain)]
    return [layer for layer in found if isinstance(layer, nn.Conv2d)]


def chains(model: FlatModel) -> Iterator[nn.Sequential]:
    """The chains in which layers are looked for."""
    if model.flat.dtype == torch.float32 and model.flat.device.type == "cpu":
        for layer in model.module.modules():
            own = vars(layer).get("forward")  # only the one that `lean` puts there may be replaced
            if type(layer) is nn.Sequential and (own is None or isinstance(getattr(own, "__self__", None), PoolFirst)):
                yield layer


def blocks(chain: nn.Sequential) -> dict[int, int]:
    """Where blocks begin in this chain, and how many layers they have."""
    layers, found = list(chain), {}
    for start in range(len(layers)):
        for length in (3, 4):
            if known(layers[start : start + length]):
                found[start] = length
    return found


def known(layers: list[nn.Module]) -> bool:
    """Whether C has these layers: a convolution, dropout of whole channels or none, 2 x 2 max-pooling and a ReLU in
    either order. Such a dropout may as well come last: it multiplies by numbers that are not negative.
    """
    if len(layers) == 4 and _keeps_order(layers[1]):
        layers = [layers[0], *layers[2:]]
    if len(layers) != 3 or any(map(hooked, layers)):
        return False
    layer, *behind = layers
    pool, relu = behind if isinstance(behind[0], nn.MaxPool2d) else reversed(behind)
    if not (is_plain(layer, nn.Conv2d) and is_plain(pool, nn.MaxPool2d) and is_plain(relu, nn.ReLU)):
        return False
    halves = all(value in (2, (2, 2)) for value in (pool.kernel_size, pool.stride))
    pooled = halves and pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1))
    plain = layer.groups == 1 and layer.stride == layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    (kernel, wide), padding = layer.kernel_size, layer.padding
    square = kernel == wide <= LARGEST and isinstance(padding, tuple) and padding[0] == padding[1] < kernel
    changed = "_conv_forward" in vars(layer) or is_parametrized(layer)
    small = layer.in_channels * kernel <= LONGEST
    return pooled and not pool.ceil_mode and not pool.return_indices and plain and square and small and not changed


def _keeps_order(layer: nn.Module) -> bool:
    channelwise = is_plain(layer, CountedDropout) and layer.channelwise
    return (channelwise or is_plain(layer, nn.Identity)) and not hooked(layer)


def sizes_of(layer: nn.Conv2d, x: Tensor) -> Sizes | None:
    """What C is written for; None where these are no images that the convolution takes."""
    kernel, padding = layer.kernel_size[0], int(layer.padding[0])
    if x.ndim != 4 or x.shape[1] != layer.in_channels or min(x.shape[2:]) + 2 * padding <= kernel:
        return None
    return Sizes(kernel, layer.in_channels, layer.out_channels, x.shape[2], x.shape[3], padding)


class Pooled:
    """A chain whose blocks train by C; everything else stays torch's, and so does an evaluation."""

    def __init__(self, chain: nn.Sequential, starts: dict[int, int]) -> None:
        self.otherwise: Layers = chain.forward
        self.blocks: list[Block] = []
        self.parts: list[Layers] = []
        layers, done = list(chain), 0
        for start, length in starts.items():
            self.blocks.append(Block(layers[start : start + length]))
            self.parts += [_by_torch(layers[done:start]), self.blocks[-1]]
            done = start + length
        self.parts.append(_by_torch(layers[done:]))
        chain.forward = self.forward  # type: ignore[method-assign]

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or special(input):
            return self.otherwise(input)
        for part in self.parts:
            input = part(input)
        return input


def _by_torch(layers: Sequence[nn.Module]) -> Layers:
    chain = nn.Sequential(*layers)
    run = PoolFirst(chain).forward
    vars(chain).pop("forward", None)  # a chain that held this would hold itself, and `release` does not see it
    return run


class Block:
    """A convolution with what follows it, of which `ran` says whether it ever ran by C."""

    def __init__(self, layers: list[nn.Module]) -> None:
        assert isinstance(layers[0], nn.Conv2d)
        self.layers, self.layer, self.ran = layers, layers[0], False
        self.last: Layers = layers[1] if len(layers) == 4 else nn.Identity()
        self.otherwise = _by_torch(layers)

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not known(self.layers) or (sizes := sizes_of(layer, x)) is None or not fits(sizes, layer, x):
            return self.otherwise(x)
        self.ran = True
        given = (None if part is None else part.contiguous() for part in (layer.weight, layer.bias))
        return self.last(_Convolution.apply(x.contiguous(memory_format=torch.channels_last), *given, sizes))  # type: ignore[no-untyped-call]


def fits(sizes: Sizes, layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether x and the current weights have the types and shapes that C assumes."""
    weight, bias = layer.weight, layer.bias
    shape = (sizes.outside, sizes.inside, sizes.kernel, sizes.kernel)
    shaped = weight.shape == shape and (bias is None or bias.shape == shape[:1])
    return shaped and len(x) > 0 and ordinary(x, weight, *([] if bias is None else [bias]))


class _Convolution(torch.autograd.Function):
    """ReLU of the pooled convolution of images `[n, inputs, height, width]`; in memory their channels are innermost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sizes) -> Tensor:
        n, outside, down, across = shape = sizes.pooled(len(x))
        y = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        chosen, room = torch.empty((n, down, across, outside), dtype=torch.uint8), _room(sizes)
        library(sizes).forward(n, *addresses(x, weight, bias, y, chosen, room))
        ctx.sizes = sizes
        ctx.save_for_backward(x, weight, bias, chosen)
        return y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, bias, chosen), needed = ctx.saved_tensors, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # create_graph: by torch, since what C returns has no derivative
            asked = [part for part, need in zip((x, weight, bias), needed, strict=True) if need]
            y = F.relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=ctx.sizes.padding), 2))
            found = iter(torch.autograd.grad(y, asked, d, create_graph=True))
            return *(next(found) if need else None for need in needed), None
        d = d.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x) if needed[0] else None
        d_weight, d_bias, room = torch.empty_like(weight), weight.new_empty(len(weight)), _room(ctx.sizes)
        library(ctx.sizes).backward(len(x), *addresses(x, weight, d, chosen, dx, d_weight, d_bias, room))
        return dx, d_weight if needed[1] else None, d_bias if needed[2] else None, None


def _room(sizes: Sizes) -> Tensor:
    return torch.empty(library(sizes).room(), dtype=torch.float32)


@cache
def library(sizes: Sizes) -> Any:
    """The functions of `pooled.c` for these sizes."""
    macros = {
        "KERNEL": sizes.kernel, "IN": sizes.inside, "OUT": sizes.outside, "HEIGHT": sizes.height,
        "WIDTH": sizes.width, "PADDING": sizes.padding,
    }  # fmt: skip
    given = (f"-D{name}={value}" for name, value in macros.items())
    found = build(written("products.c", "pooled.c"), (*FLAGS, *given))
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    found.room.argtypes, found.room.restype = [], number
    found.forward.argtypes, found.forward.restype = [number] + [pointer] * 6, None
    found.backward.argtypes, found.backward.restype = [number] + [pointer] * 8, None
    return found
