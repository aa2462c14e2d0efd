"""Residual networks with early exits, as ScaleFL trains them: each level runs up to its own exit."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from .resnet import Block, batch_norm


class Head(nn.Module):
    """Three 3x3 convolutions of the same width (none at the last exit), mean over the image, a dense layer."""

    def __init__(self, width: int, classes: int, convolutions: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(convolutions):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), batch_norm(width), nn.ReLU()]
        self.body, self.dense = nn.Sequential(*layers), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dense(self.body(x).mean((-2, -1)))
        return scores


class ExitResNet(nn.Module):
    """A convolution, then residual blocks of the given widths (a wider one halves the image), with exits after some.

    after: the number of the block before each exit, counted from 1; the last block has the last exit.

    >>> from torch import ones
    >>> net = ExitResNet(3, 1, widths=[4, 4, 8], after=(1, 3), ratios=(0.5, 1.0), classes=5)
    >>> [scores.shape[1] for scores in net.exits(ones(2, 3, 8, 8), depth=2)]
    [5, 5]
    """

    def __init__(
        self, colors: int, stride: int, widths: list[int], after: tuple[int, ...], ratios: tuple[float, ...],
        classes: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.after, self.ratios = after, ratios
        self.conv = nn.Conv2d(colors, widths[0], 3, stride, padding=1, bias=False)
        self.norm = batch_norm(widths[0])
        self.blocks = nn.ModuleList(
            Block(a, b, 2 if b > a else 1, batch_norm, project=b > a) for a, b in pairwise([widths[0], *widths])
        )
        self.heads = nn.ModuleList(Head(widths[n - 1], classes, 0 if n == len(widths) else 3) for n in after)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)

    def exits(self, x: Tensor, depth: int) -> list[Tensor]:
        """The scores at the first `depth` exits; later layers do not run."""
        x = F.relu(self.norm(self.conv(x)))
        out: list[Tensor] = []
        for number, block in enumerate(self.blocks, 1):
            x = block(x)
            if number in self.after:
                out.append(self.heads[len(out)](x))
            if len(out) == depth:
                break
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.heads[-1](x)
        return scores


def resnet110_exits(classes: int = 10) -> ExitResNet:
    """ResNet-110 with ScaleFL's exits after blocks 30, 38, 46 and 54: 1,982,136 parameters.

    >>> sum(p.numel() for p in resnet110_exits().parameters())
    1982136
    """
    widths = [16] * 18 + [32] * 18 + [64] * 18
    return ExitResNet(3, 1, widths, (30, 38, 46, 54), (0.7, 0.7, 0.75, 1.0), classes)


def exit_net(classes: int = 10, colors: int = 1) -> ExitResNet:
    """Four residual blocks with an exit after each, for small pictures and studies on a laptop: 85,464 parameters.

    >>> sum(p.numel() for p in exit_net().parameters())
    85464
    """
    return ExitResNet(colors, 2, [16, 16, 32, 32], (1, 2, 3, 4), (0.7, 0.7, 0.75, 1.0), classes)
