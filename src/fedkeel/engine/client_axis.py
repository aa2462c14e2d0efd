"""Layers along the client axis: `[clients, batch, ...]` in and out, parameters `[clients, ...]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

# Elementwise layers do not see how many axes stand in front.
ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Hardtanh,
)  # fmt: skip


def chain(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor] | None:
    """`outputs(vectors, x)` for a chain of linear and elementwise layers; None for any other module.

    >>> outputs = chain(nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    >>> outputs(torch.zeros(4, 8), torch.ones(4, 5, 3)).shape
    torch.Size([4, 5, 2])
    """
    layers = list(_layers(module))
    if not all(type(layer) in (nn.Linear, nn.Flatten, *ELEMENTWISE) for layer in layers):
        return None
    if any(not parameter.requires_grad for parameter in module.parameters()):
        return None
    if len({id(layer) for layer in layers if isinstance(layer, nn.Linear)}) < sum(type(m) is nn.Linear for m in layers):
        return None  # a layer used twice has its parameters in the vector once
    sizes = [parameter.numel() for parameter in module.parameters()]

    def outputs(vectors: Tensor, x: Tensor) -> Tensor:
        parts = iter(torch.split(vectors, sizes, -1))
        for layer in layers:
            if isinstance(layer, nn.Linear):
                weight = next(parts).view(-1, layer.out_features, layer.in_features).mT
                rows = x.flatten(1, -2)
                rows = rows @ weight if layer.bias is None else torch.baddbmm(next(parts)[:, None], rows, weight)
                x = rows.view(*x.shape[:-1], layer.out_features)
            elif isinstance(layer, nn.Flatten):
                first, last = (axis + 1 if axis >= 0 else axis for axis in (layer.start_dim, layer.end_dim))
                x = x.flatten(first, last)
            else:
                x = layer(x)
        return x

    return outputs


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _layers(child)
    else:
        yield module
