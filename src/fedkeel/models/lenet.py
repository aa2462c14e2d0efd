"""LeNet as the heavy-ball papers use it on CIFAR, and a small one for studies on a laptop."""

from torch import nn

from ..errors import InputError
from .linear import mlp


def lenet(
    classes: int = 10, size: int = 32, colors: int = 3, channels: tuple[int, int] = (64, 64),
    hidden: tuple[int, ...] = (384, 192), padding: int = 0,
) -> nn.Sequential:  # fmt: skip
    """The CNN of the GHBM paper: two 5x5 convolutions, each with ReLU and 2x2 pooling, then dense layers.

    797,962 parameters with 10 classes, 815,332 with 100.

    >>> sum(p.numel() for p in lenet().parameters())
    797962
    """
    side = size
    for _ in channels:
        side = (side + 2 * padding - 4) // 2
    if side < 1:
        raise InputError(f"Images of {size} x {size} are too small for two 5x5 convolutions with padding {padding}.")
    return nn.Sequential(
        nn.Conv2d(colors, channels[0], 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), *mlp(channels[1] * side * side, hidden, classes),
    )  # fmt: skip


def small_lenet(classes: int = 10) -> nn.Sequential:
    """The same shape at a quarter of the width, for CIFAR shrunk to 16 x 16: 31,578 parameters.

    The convolutions are padded by one; without padding only one place of the image would reach the dense layers.

    >>> sum(p.numel() for p in small_lenet().parameters())
    31578
    """
    return lenet(classes, size=16, channels=(16, 32), hidden=(96, 48), padding=1)
