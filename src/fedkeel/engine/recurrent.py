"""Where clients run one at a time: LSTM layers by compiled C (`recurrent.c`).

A client's batches are small: each step is a product of few rows, and the C is made for those. The rest of the model
stays torch's. `make bench` has it on W4.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..models.lstm import LSTM
from .native import EXACT, Layer, addresses, again_by_torch, build, ordinary, written

WIDEST = 256  # hidden units up to which C is ahead of torch's kernel on every machine tried; docs/speed.md has one


class Compiled(Layer):
    """An LSTM by C."""

    kinds = (LSTM, nn.LSTM)

    def __init__(self, layer: LSTM | nn.LSTM) -> None:
        self.ours = isinstance(layer, LSTM)
        self.count = layer.layers if isinstance(layer, LSTM) else layer.num_layers
        self.samples_first = isinstance(layer, LSTM) or layer.batch_first
        library()
        super().__init__(layer)

    @staticmethod
    def knows(layer: LSTM | nn.LSTM) -> bool:
        """One way through time, with nothing between its layers."""
        plain = isinstance(layer, LSTM) or not (layer.bidirectional or layer.proj_size or layer.dropout)
        return plain and _weights(layer, 0)[1].shape[-1] <= WIDEST

    def weights(self) -> list[list[Tensor]]:
        return [_weights(self.layer, k) for k in range(self.count)]

    def fits(self, x: Tensor) -> bool:
        return _fits(x, self.weights())

    def train(self, x: Tensor) -> Any:
        x, last = (x.transpose(0, 1) if self.samples_first else x).contiguous(), []
        for by, own, *biases in self.weights():
            bias = biases[0] + biases[1] if len(biases) == 2 else biases[0] if biases else None
            bias = None if bias is None else bias.contiguous()
            x, cell = _Steps.apply(x, by.contiguous(), own.contiguous(), bias)  # type: ignore[no-untyped-call]
            last.append((x[-1], cell))
        outputs = x.transpose(0, 1) if self.samples_first else x
        return outputs if self.ours else (outputs, tuple(torch.stack(part) for part in zip(*last, strict=True)))


def _weights(layer: nn.Module, number: int) -> list[Tensor]:
    """W_in, W and what it has of biases."""
    names = (f"{name}_l{number}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return [getattr(layer, name) for name in names if hasattr(layer, name)]


def _fits(x: Tensor, weights: Sequence[Sequence[Tensor]]) -> bool:
    """Whether these are samples for these weights, as C takes for granted."""
    if not ordinary(x, *(part for layer in weights for part in layer)) or x.ndim != 3 or not x.numel():
        return False
    width, hidden = x.shape[-1], weights[0][1].shape[-1]
    for by, own, *biases in weights:
        if by.shape != (4 * hidden, width) or own.shape != (4 * hidden, hidden):
            return False
        if any(bias.shape != (4 * hidden,) for bias in biases):
            return False
        width = hidden
    return True


class _Steps(torch.autograd.Function):
    """(outputs `[steps, n, hidden]`, the last step's cells) of inputs `[steps, n, features]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Tensor, own: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        (steps, n, features), hidden = x.shape, own.shape[1]
        gates, outputs = x.new_empty(steps, n, 4 * hidden), x.new_empty(steps, n, hidden)
        cells, room = torch.empty_like(outputs), x.new_empty(library().room(n, features, hidden))
        library().forward(steps, n, features, hidden, *addresses(x, by, own, bias, gates, cells, outputs, room))
        ctx.save_for_backward(x, by, own, bias, gates, cells, outputs)
        ctx.set_materialize_grads(False)
        return outputs, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor | None, by_cell: Tensor | None) -> tuple[Tensor | None, ...]:
        x, by, own, bias, gates, cells, outputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return again_by_torch(_plain, (x, by, own, bias), ctx.needs_input_grad, (slope, by_cell))
        (steps, n, features), hidden = x.shape, own.shape[1]
        if slope is None:
            slope = x.new_zeros(hidden).expand(steps, n, hidden)
        elif slope.stride(2) != 1:
            slope = slope.contiguous()
        dc = x.new_zeros(n, hidden) if by_cell is None else by_cell.clone(memory_format=torch.contiguous_format)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        d_by, d_own, d_bias = torch.empty_like(by), torch.empty_like(own), own.new_empty(4 * hidden)
        room = x.new_empty(library().room(n, features, hidden))
        given = addresses(x, by, own, gates, cells, outputs, slope)
        made = addresses(dc, dx, d_by, d_own, d_bias, room)
        library().backward(steps, n, features, hidden, *given, slope.stride(0), slope.stride(1), *made)
        return dx, d_by, d_own, d_bias if ctx.needs_input_grad[3] else None


def _plain(x: Tensor, by: Tensor, own: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    zeros = x.new_zeros(1, x.shape[1], own.shape[1])
    weights = [by, own] if bias is None else [by, own, bias, torch.zeros_like(bias)]
    dropout, training, both_ways, batch_first = 0.0, True, False, False
    outputs, _, cell = torch.lstm(
        x, (zeros, zeros), weights, bias is not None, 1, dropout, training, both_ways, batch_first
    )
    return outputs, cell[0]


@cache
def library() -> Any:
    """The functions of `recurrent.c`."""
    found = build(written("products.c", "recurrent.c"), EXACT)
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    found.room.argtypes, found.room.restype = [number] * 3, number
    found.forward.argtypes, found.forward.restype = [number] * 4 + [pointer] * 8, None
    found.backward.argtypes = [number] * 4 + [pointer] * 7 + [number] * 2 + [pointer] * 6
    found.backward.restype = None
    return found
