"""HeteroFL's static BatchNorm: clients normalise by their batch; for evaluation the server averages statistics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..flat import FlatModel

BLOCK = 250  # samples whose statistics are averaged


def _norms(model: FlatModel) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [m for m in model.module.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


@contextmanager
def settled(models: Sequence[FlatModel], x: Tensor, size: int) -> Iterator[None]:
    """In this context BatchNorm layers in evaluation mode use the mean statistics of `size` evenly spaced samples.

    The models are replicas with the same parameters: one computes the statistics, all use them.
    """
    if not size or not _norms(models[0]):
        yield
        return
    chosen = torch.linspace(0, len(x) - 1, min(size, len(x)), device=x.device).round().long()
    blocks = torch.tensor_split(chosen, max(1, len(chosen) // BLOCK))
    _measure(models[0], [x[block] for block in blocks])
    found = [(layer.running_mean, layer.running_var) for layer in _norms(models[0])]
    for model in models:
        for layer, (mean, variance) in zip(_norms(model), found, strict=True):
            layer.running_mean, layer.running_var = mean, variance
    try:
        yield
    finally:
        for model in models:
            for layer in _norms(model):
                layer.running_mean = layer.running_var = None


@torch.no_grad()
def _measure(model: FlatModel, blocks: Sequence[Tensor]) -> None:
    held = [(layer, layer.momentum) for layer in _norms(model)]
    for layer, _ in held:
        like = model.flat.new_zeros(layer.num_features)
        layer.running_mean, layer.running_var = like, torch.ones_like(like)
        layer.num_batches_tracked = torch.zeros((), dtype=torch.long)
        layer.momentum, layer.track_running_stats = None, True  # None: a cumulative average
    model.module.eval()
    for layer, _ in held:
        layer.train()
    for block in blocks:
        model.module(block)
    for layer, momentum in held:
        layer.momentum, layer.track_running_stats = momentum, False
        layer.num_batches_tracked = None
