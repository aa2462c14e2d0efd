"""Residual networks for images of 32 x 32 (He et al. 2016), without running statistics.

`norm="group"` is GroupNorm (2 groups), which treats samples independently. `norm="batch"` is BatchNorm that uses the
statistics of the batch, in training and at test alike, so that no buffer has to travel.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import check, is_count

Norm = Callable[[int], nn.Module]
batch_norm: Norm = partial(nn.BatchNorm2d, track_running_stats=False)


class Block(nn.Module):
    """Two 3x3 convolutions, or a 3x3 one between two 1x1 ones when the block expands, and a shortcut.

    expansion: the channels that come out per channel of width.

    >>> from torch import ones
    >>> Block(16, 32, stride=2, norm=nn.Identity, project=False)(ones(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    >>> Block(16, 8, stride=2, norm=nn.Identity, project=True, expansion=4)(ones(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    shortcuts = ("project",)

    def __init__(self, inside: int, width: int, stride: int, norm: Norm, project: bool, expansion: int = 1) -> None:
        super().__init__()
        deep, outside = expansion > 1, width * expansion
        self.stride, self.grow = stride, outside - inside
        self.conv1, self.norm1 = _conv(inside, width, 1 if deep else 3, 1 if deep else stride), norm(width)
        self.conv2, self.norm2 = _conv(width, width, 3, stride if deep else 1), norm(width)
        self.conv3 = _conv(width, outside, 1) if deep else None
        self.norm3 = norm(outside) if deep else None
        self.project = nn.Sequential(_conv(inside, outside, 1, stride), norm(outside)) if project else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.conv3 is not None and self.norm3 is not None:
            out = self.norm3(self.conv3(F.relu(out)))
        return F.relu(out + (self._pad(x) if self.project is None else self.project(x)))

    def _pad(self, x: Tensor) -> Tensor:
        # Option A of the paper: no parameters; every second pixel, and new channels are zero.
        x = x[..., :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.grow // 2, self.grow - self.grow // 2)) if self.grow else x


class ResNet(nn.Module):
    """A 3x3 convolution, stages of blocks (all but the first halve the image), mean over the image, a dense layer.

    >>> from torch import ones
    >>> ResNet([1, 1], width=4, classes=3, norm=nn.Identity, project=True)(ones(2, 3, 8, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, blocks: list[int], width: int, classes: int, norm: Norm, project: bool, expansion: int = 1
    ) -> None:
        super().__init__()
        self.conv, self.norm = _conv(3, width, 3), norm(width)
        layers: list[nn.Module] = []
        inside = width
        for stage, count in enumerate(blocks):
            for place in range(count):
                wide, stride = width * 2**stage, 2 if stage > 0 and place == 0 else 1
                changes = stride > 1 or inside != wide * expansion
                layers.append(Block(inside, wide, stride, norm, project and changes, expansion))
                inside = wide * expansion
        self.blocks = nn.Sequential(*layers)
        self.dense = nn.Linear(inside, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)

    def represent(self, x: Tensor) -> Tensor:
        """What the last layer classifies: the mean over the image of the last block's channels."""
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        return x.mean((-2, -1))

    def classify(self, z: Tensor) -> Tensor:
        """The scores of representations."""
        scores: Tensor = self.dense(z)
        return scores

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.represent(x))


def resnet8(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-8 of the GEL paper: 3 stages of 1 block, widths 16, 32, 64, 1x1 projections; 78,042 parameters.

    >>> sum(p.numel() for p in resnet8().parameters())
    78042
    """
    return ResNet([1, 1, 1], 16, classes, _norm(norm, groups), True)


def resnet20(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-20 of the GHBM paper: 3 stages of 3 blocks, shortcuts without parameters; 269,722 parameters.

    >>> sum(p.numel() for p in resnet20(classes=100).parameters())
    275572
    """
    return ResNet([3, 3, 3], 16, classes, _norm(norm, groups), False)


def resnet110(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-110 of the ScaleFL paper without its early exits: 3 stages of 18 blocks; 1,730,714 parameters.

    >>> sum(p.numel() for p in resnet110().parameters())
    1730714
    """
    return ResNet([18, 18, 18], 16, classes, _norm(norm, groups), True)


def resnet18(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-18 with the 3x3 first convolution usual on CIFAR: widths 64 to 512; 11,173,962 parameters.

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    return ResNet([2, 2, 2, 2], 64, classes, _norm(norm, groups), True)


def resnet50(classes: int = 10, norm: str = "group", groups: int = 2) -> ResNet:
    """ResNet-50 with the 3x3 first convolution usual on CIFAR: bottleneck blocks; 23,520,842 parameters.

    >>> sum(p.numel() for p in resnet50().parameters())
    23520842
    """
    return ResNet([3, 4, 6, 3], 64, classes, _norm(norm, groups), True, expansion=4)


def _norm(norm: str, groups: int) -> Norm:
    check(norm in ("group", "batch"), "ResNet", "norm", "'group' or 'batch'", norm)
    check(is_count(groups) and 16 % groups == 0, "ResNet", "groups", "a divisor of 16", groups)
    return partial(nn.GroupNorm, groups) if norm == "group" else batch_norm


def _conv(inside: int, outside: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)
