"""Residual networks for images of 32 x 32 (He et al. 2016), without running statistics.

`norm="group"` is GroupNorm (2 groups), which treats samples independently. `norm="batch"` is BatchNorm that uses the
statistics of the batch, in training and at test alike, so that no buffer has to travel.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import check, is_count

Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; `expansion` channels come out per channel of width.

    >>> from torch import ones
    >>> Block(16, 32, stride=2, norm=nn.Identity, project=False)(ones(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    expansion = 1

    def __init__(self, inside: int, width: int, stride: int, norm: Norm, project: bool) -> None:
        super().__init__()
        self.stride, self.grow = stride, width - inside
        self.conv1, self.norm1 = _conv(inside, width, 3, stride), norm(width)
        self.conv2, self.norm2 = _conv(width, width, 3), norm(width)
        self.project = _project(inside, width, stride, norm) if project else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + (self._pad(x) if self.project is None else self.project(x)))

    def _pad(self, x: Tensor) -> Tensor:
        # Option A of the paper: no parameters; every second pixel, and new channels are zero.
        x = x[..., :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.grow // 2, self.grow - self.grow // 2)) if self.grow else x


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, and a shortcut.

    >>> from torch import ones
    >>> Bottleneck(16, 8, stride=2, norm=nn.Identity, project=True)(ones(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    expansion = 4

    def __init__(self, inside: int, width: int, stride: int, norm: Norm, project: bool) -> None:
        super().__init__()
        outside = width * self.expansion
        self.conv1, self.norm1 = _conv(inside, width, 1), norm(width)
        self.conv2, self.norm2 = _conv(width, width, 3, stride), norm(width)
        self.conv3, self.norm3 = _conv(width, outside, 1), norm(outside)
        self.project = _project(inside, outside, stride, norm) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = F.relu(self.norm2(self.conv2(out)))
        return F.relu(self.norm3(self.conv3(out)) + self.project(x))


class ResNet(nn.Module):
    """A 3x3 convolution, stages of blocks (all but the first halve the image), mean over the image, a dense layer.

    >>> from torch import ones
    >>> ResNet(Block, [1, 1], width=4, classes=3, norm=nn.Identity, project=True)(ones(2, 3, 8, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, block: type[Block | Bottleneck], blocks: list[int], width: int, classes: int, norm: Norm, project: bool
    ) -> None:
        super().__init__()
        self.conv, self.norm = _conv(3, width, 3), norm(width)
        layers: list[nn.Module] = []
        inside = width
        for stage, count in enumerate(blocks):
            for place in range(count):
                wide, stride = width * 2**stage, 2 if stage > 0 and place == 0 else 1
                changes = stride > 1 or inside != wide * block.expansion
                layers.append(block(inside, wide, stride, norm, project and changes))
                inside = wide * block.expansion
        self.blocks = nn.Sequential(*layers)
        self.dense = nn.Linear(inside, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        return self.dense(x.mean((-2, -1)))  # type: ignore[no-any-return]


def resnet8(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-8 of the GEL paper: 3 stages of 1 block, widths 16, 32, 64, 1x1 projections; 78,042 parameters.

    >>> sum(p.numel() for p in resnet8().parameters())
    78042
    """
    return ResNet(Block, [1, 1, 1], 16, classes, _norm(norm, groups), True)


def resnet20(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-20 of the GHBM paper: 3 stages of 3 blocks, shortcuts without parameters; 269,722 parameters.

    >>> sum(p.numel() for p in resnet20(classes=100).parameters())
    275572
    """
    return ResNet(Block, [3, 3, 3], 16, classes, _norm(norm, groups), False)


def resnet110(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-110 of the ScaleFL paper without its early exits: 3 stages of 18 blocks; 1,730,714 parameters.

    >>> sum(p.numel() for p in resnet110().parameters())
    1730714
    """
    return ResNet(Block, [18, 18, 18], 16, classes, _norm(norm, groups), True)


def resnet18(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-18 with the 3x3 first convolution usual on CIFAR: widths 64 to 512; 11,173,962 parameters.

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    return ResNet(Block, [2, 2, 2, 2], 64, classes, _norm(norm, groups), True)


def resnet50(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-50 with the 3x3 first convolution usual on CIFAR: bottleneck blocks; 23,520,842 parameters.

    >>> sum(p.numel() for p in resnet50().parameters())
    23520842
    """
    return ResNet(Bottleneck, [3, 4, 6, 3], 64, classes, _norm(norm, groups), True)


def _norm(norm: str, groups: int) -> Norm:
    check(norm in ("group", "batch"), "ResNet", "norm", "'group' or 'batch'", norm)
    check(is_count(groups) and 16 % groups == 0, "ResNet", "groups", "a divisor of 16", groups)
    if norm == "group":
        return lambda channels: nn.GroupNorm(groups, channels)
    return lambda channels: nn.BatchNorm2d(channels, track_running_stats=False)


def _conv(inside: int, outside: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)


def _project(inside: int, outside: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(_conv(inside, outside, 1, stride), norm(outside))
