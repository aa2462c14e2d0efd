"""The papers' models by name: each is a function that makes an `nn.Module`, for `Task(model=partial(...))`.

>>> sum(p.numel() for p in MODELS["lenet"](classes=100).parameters())
815332
"""

from collections.abc import Callable

from torch import nn

from .cnn import deltasgd_cnn, fathom_cnn, gel_cnn
from .early_exits import exit_net, resnet110_exits
from .hub import distilbert, mobilenet_v2, vit_b16
from .lenet import lenet, small_lenet
from .linear import mnist_mlp, softmax_regression
from .lstm import LSTM
from .msdnet import msdnet24
from .resnet import resnet8, resnet18, resnet20, resnet50, resnet110
from .text import sent140_lstm, shakespeare_lstm, stackoverflow_lstm

_ALL: tuple[Callable[..., nn.Module], ...] = (
    softmax_regression, mnist_mlp, gel_cnn, fathom_cnn, deltasgd_cnn, lenet, small_lenet,
    resnet8, resnet18, resnet20, resnet50, resnet110, resnet110_exits, exit_net, msdnet24,
    shakespeare_lstm, stackoverflow_lstm, sent140_lstm, mobilenet_v2, vit_b16, distilbert,
)  # fmt: skip
MODELS = {make.__name__: make for make in _ALL}

__all__ = ["LSTM", "MODELS", *MODELS]
