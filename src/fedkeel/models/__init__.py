"""The papers' models by name: each is a function that makes an `nn.Module`, for `Task(model=partial(...))`."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .cnn import deltasgd_cnn, fathom_cnn, gel_cnn
from .lenet import lenet, small_lenet
from .linear import softmax_regression

MODELS: dict[str, Callable[..., nn.Module]] = {
    "softmax_regression": softmax_regression,
    "gel_cnn": gel_cnn,
    "fathom_cnn": fathom_cnn,
    "deltasgd_cnn": deltasgd_cnn,
    "lenet": lenet,
    "small_lenet": small_lenet,
}

__all__ = ["MODELS", *MODELS]
