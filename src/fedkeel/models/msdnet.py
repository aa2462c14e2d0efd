"""MSDNet-24: several scales side by side, and early exits (Huang et al. 2018, arXiv 1703.09844)."""

import math
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn

from ..errors import check, is_count
from .resnet import batch_norm

FACTORS = (1, 2, 4)  # of growth and of bottleneck widths, fine to coarse
LAYERS, GROWTH, CHANNELS, HEAD = 24, 6, 16, 128  # the last three are widths, of which levels keep a part
EXITS = (15, 18, 21, 24)


def unit(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution, normalisation by the batch at hand (no running statistics), ReLU."""
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, batch_norm(outside), nn.ReLU())


def narrow(inside: int, outside: int, factor: int, stride: int = 1) -> nn.Sequential:
    """A 1x1 bottleneck of at most `factor` times the output's width, then 3x3."""
    inner = min(inside, factor * outside)
    return nn.Sequential(unit(inside, inner, 1), unit(inner, outside, 3, stride))


class Stem(nn.Module):
    """The picture at every scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [channels * factor for factor in FACTORS]
        first = unit(3, widths[0], 3)
        self.scales = nn.ModuleList([first, *(unit(a, b, 3, 2) for a, b in pairwise(widths))])

    def forward(self, x: Tensor) -> list[Tensor]:
        out: list[Tensor] = []
        for scale in self.scales:
            out.append(scale(out[-1] if out else x))
        return out


class Layer(nn.Module):
    """New channels at every scale that stays, from the same scale and from the next finer one; finer scales may end."""

    def __init__(self, inside: int, before: int, after: int, growth: int) -> None:
        super().__init__()
        self.ends = before - after
        same, finer = [], []
        for i in range(len(FACTORS) - after, len(FACTORS)):
            width, alone = growth * FACTORS[i], i == len(FACTORS) - before
            share = width if alone else width // 2
            same.append(narrow(inside * FACTORS[i], share, FACTORS[i]))
            below = FACTORS[i - 1]
            finer.append(nn.Identity() if alone else narrow(inside * below, width // 2, below, stride=2))
        self.same, self.finer = nn.ModuleList(same), nn.ModuleList(finer)

    def forward(self, scales: list[Tensor]) -> list[Tensor]:
        out = []
        for i, (same, finer) in enumerate(zip(self.same, self.finer, strict=True), self.ends):
            down = [] if isinstance(finer, nn.Identity) else [finer(scales[i - 1])]
            out.append(torch.cat([scales[i], *down, same(scales[i])], 1))
        return out


class Transition(nn.Module):
    """Half of the channels, at the scales that are left."""

    def __init__(self, inside: int, outside: int, scales: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(unit(inside * f, outside * f, 1) for f in FACTORS[len(FACTORS) - scales :])

    def forward(self, scales: list[Tensor]) -> list[Tensor]:
        return [thin(x) for thin, x in zip(self.scales, scales, strict=True)]


class MSDNet(nn.Module):
    """24 layers over three scales that end one by one, with a classifier on the coarsest after 15, 18, 21 and 24."""

    def __init__(self, classes: int, ratio: float = 1.0) -> None:
        super().__init__()
        self.classes = classes
        inside, growth, head = (math.floor(ratio * wide + 1e-9) for wide in (CHANNELS, GROWTH, HEAD))
        self.stem = Stem(inside)
        self.layers, self.heads = nn.ModuleList(), nn.ModuleList()
        every = math.ceil(LAYERS / len(FACTORS))
        for number in range(1, LAYERS + 1):
            before = len(FACTORS) - max(0, number - 2) // every
            after = len(FACTORS) - (number - 1) // every
            layer: list[nn.Module] = [Layer(inside, before, after, growth)]
            inside += growth
            if before > after:
                layer.append(Transition(inside, inside // 2, after))
                inside //= 2
            self.layers.append(nn.Sequential(*layer))
            if number in EXITS:
                wide = inside * FACTORS[-1]
                pool = nn.Sequential(unit(wide, head, 3, 2), unit(head, head, 3, 2), nn.AdaptiveAvgPool2d(1))
                self.heads.append(nn.Sequential(pool, nn.Flatten(), nn.Linear(head, classes)))

    ratios = (0.65, 0.7, 0.85, 1.0)  # ScaleFL's widths by level
    scaled = False  # its code divides no activation by them

    def narrowed(self, ratio: float) -> Self:
        """The same network with narrower first layers and growth, which give the widths of a level."""
        return type(self)(self.classes, ratio)

    def exits(self, x: Tensor, depth: int = len(EXITS)) -> list[Tensor]:
        """The scores at the first `depth` exits; later layers do not run."""
        scales, heads = self.stem(x), iter(self.heads)
        out = []
        for number, layer in enumerate(self.layers, 1):
            scales = layer(scales)
            if number in EXITS:
                out.append(next(heads)(scales[-1]))
            if len(out) == depth:
                break
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.exits(x)[-1]


def msdnet24(classes: int = 10) -> MSDNet:
    """MSDNet with 24 layers for pictures of 32 x 32, as in ScaleFL: 2,646,556 parameters; `exits(x)` has all four.

    >>> sum(p.numel() for p in msdnet24().parameters())
    2646556
    """
    check(is_count(classes), "msdnet24", "classes", "an integer >= 1", classes)
    return MSDNet(classes)
