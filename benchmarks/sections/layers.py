"""Layers by torch's kernels and by compiled C, so that the bounds on C stand where a measurement puts them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fedkeel.engine import convolution, native, pooling, recurrent
from sections.common import arguments

TURNS, INPUTS = 25, 8  # inputs in turn: a layer in the middle of a model does not find its own near
FEATURES, STEPS, BATCH = 8, 80, 20  # of an LSTM, as in W4
HIDDEN = (32, 100, 192, 256, 320, 512)
# (kernel, channels in and out, height and width, padding, samples); the first three are in W2, W3 and W5
CONVOLUTIONS = (
    (3, 32, 64, 26, 0, 20), (5, 64, 64, 14, 0, 64), (3, 16, 16, 32, 1, 16), (3, 64, 64, 8, 1, 16),
    (3, 128, 128, 8, 1, 16), (3, 256, 256, 8, 1, 16), (3, 512, 512, 4, 1, 16), (5, 16, 32, 14, 2, 20),
    (3, 16, 16, 4, 1, 20),
)  # fmt: skip

POOLS = (
    (20, 64, 24),
    (64, 64, 28),
    (16, 32, 8),
    (8, 16, 8),
)  # samples, channels, height and width; W2's, W3's, smaller


def seconds(layer: nn.Module, x: torch.Tensor) -> float:
    """There and back."""
    layer.zero_grad()
    x.grad = None
    begin = time.perf_counter()
    found = layer(x)
    outputs = found[0] if isinstance(found, tuple) else found
    outputs.backward(torch.ones_like(outputs))
    return time.perf_counter() - begin


def compare(
    name: str, make: Callable[[], nn.Module], by_c: Callable[[Any], native.Layer], *shape: int
) -> dict[str, Any]:
    """Medians of both, and of their ratio, in turns."""
    plain, compiled = make(), make()
    by = by_c(compiled)
    drawn = [torch.randn(shape) for _ in range(INPUTS)]
    if len(shape) == 4:  # as models are given images
        drawn = [x.contiguous(memory_format=torch.channels_last) for x in drawn]
    given = [x.requires_grad_() for x in drawn]
    turns = []
    for turn in range(TURNS + INPUTS):
        one, other = given[turn % INPUTS], given[(turn + INPUTS // 2) % INPUTS]  # neither has its own from the other
        turns.append((seconds(plain, one), seconds(compiled, other)))
    if not by.ran:
        raise SystemExit(f"{name}: C did not run")
    torch_s, c_s = (statistics.median(each) for each in zip(*turns[INPUTS:], strict=True))
    ratio = statistics.median(a / b for a, b in turns[INPUTS:])
    return {"layer": name, "torch_s": torch_s, "c_s": c_s, "ratio": ratio}


if __name__ == "__main__":
    arguments()
    torch.set_num_threads(1)  # as a worker has
    torch.empty(31 * 2**20, dtype=torch.uint8)  # as in an engine: what is freed is kept
    # C beyond its bounds, too: that is what shows where they belong
    recurrent.WIDEST, convolution.WIDEST, pooling.SMALLEST = 2**62, 2**62, 0
    rows = []
    for hidden in HIDDEN:
        make = partial(nn.LSTM, FEATURES, hidden, batch_first=True)
        rows.append(compare(f"LSTM, {hidden} units", make, recurrent.Compiled, BATCH, STEPS, FEATURES))
    for kernel, inside, outside, size, padding, samples in CONVOLUTIONS:
        name = f"{kernel} x {kernel}, {inside} to {outside} channels, {samples} images of {size} x {size}"
        make = partial(nn.Conv2d, inside, outside, kernel, padding=padding)
        rows.append(compare(name, make, convolution.Compiled, samples, inside, size, size))
    for samples, channels, size in POOLS:
        name = f"max-pooling, {channels} channels, {samples} images of {size} x {size}"
        rows.append(compare(name, partial(nn.MaxPool2d, 2), pooling.Compiled, samples, channels, size, size))
    print(json.dumps({"rows": rows}))
