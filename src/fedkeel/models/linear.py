"""Softmax regression and dense layers."""

from itertools import pairwise

from torch import nn


def softmax_regression(features: int = 60, classes: int = 5) -> nn.Sequential:
    """One dense layer on the flattened input: 305 parameters on LEAF's Synthetic, 610 with FedProx's 10 classes.

    >>> sum(p.numel() for p in softmax_regression().parameters())
    305
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mlp(features: int, hidden: tuple[int, ...], classes: int) -> nn.Sequential:
    """Dense layers with ReLU between them."""
    widths = [features, *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def mnist_mlp(classes: int = 10, hidden: int = 100) -> nn.Sequential:
    """One hidden layer on pictures of 28 x 28: small enough for studies of many runs.

    >>> sum(p.numel() for p in mnist_mlp().parameters())
    79510
    """
    return nn.Sequential(nn.Flatten(), *mlp(784, (hidden,), classes))
