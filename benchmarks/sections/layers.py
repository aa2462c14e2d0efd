"""Convolutions by torch's kernels and by compiled C, so that the bounds on C stand where a measurement puts them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedkeel.engine.gradients.lean import lean
from fedkeel.engine.kernels import convolution, pooled
from fedkeel.flat import FlatModel
from sections.common import arguments

TURNS, INPUTS = 25, 8  # inputs in turn: a layer in the middle of a model does not find its own near
# (kernel, channels in and out, height and width, padding, samples); the first four are in W2, W3, W5 and W6
CONVOLUTIONS = (
    (3, 32, 64, 26, 0, 20), (5, 64, 64, 14, 0, 64), (3, 16, 16, 32, 1, 16), (5, 32, 64, 12, 0, 20),
    (3, 64, 64, 8, 1, 16), (3, 128, 128, 8, 1, 16), (3, 256, 256, 8, 1, 16), (3, 512, 512, 4, 1, 16),
    (5, 16, 32, 14, 2, 20), (3, 16, 16, 4, 1, 20),
)  # fmt: skip
# With max-pooling and ReLU; the first two are in W3 and W6, the others in DeltaSGD's network. Nobody asks for a
# derivative by images of one or three channels.
POOLED = ((5, 3, 64, 32, 0, 64), (5, 1, 32, 28, 0, 20), (5, 1, 10, 28, 0, 64), (5, 10, 20, 12, 0, 64))


def seconds(layer: nn.Module, x: torch.Tensor) -> float:
    """There and back."""
    layer.zero_grad()
    x.grad = None
    begin = time.perf_counter()
    outputs = layer(x)
    outputs.backward(torch.ones_like(outputs))
    return time.perf_counter() - begin


def compare(name: str, plain: nn.Module, compiled: nn.Module, given: list[torch.Tensor]) -> dict[str, Any]:
    """Medians of both, and of their ratio, in turns."""
    turns = []
    for turn in range(TURNS + INPUTS):
        one, other = given[turn % INPUTS], given[(turn + INPUTS // 2) % INPUTS]  # neither has its own from the other
        turns.append((seconds(plain, one), seconds(compiled, other)))
    torch_s, c_s = (statistics.median(each) for each in zip(*turns[INPUTS:], strict=True))
    ratio = statistics.median(a / b for a, b in turns[INPUTS:])
    return {"layer": name, "torch_s": torch_s, "c_s": c_s, "ratio": ratio}


def pair(layers: Callable[[], list[nn.Module]], kernel: ModuleType) -> tuple[nn.Module, nn.Module, Any]:
    """The same layers by torch and by C, as a worker has them, and what knows whether C ran."""
    plain, compiled = (FlatModel(nn.Sequential(*layers())) for _ in range(2))
    for model in (plain, compiled):
        lean(model)
    (by,) = kernel.install(compiled)
    return plain.module, compiled.module, by


if __name__ == "__main__":
    arguments()
    torch.set_num_threads(1)  # as a worker has
    torch.empty(31 * 2**20, dtype=torch.uint8)  # as in an engine: what is freed is kept
    # C beyond its bounds, too: that is what shows where they belong
    convolution.WIDEST = 2**62
    rows = []
    for behind, sizes in ((False, CONVOLUTIONS), (True, POOLED)):
        for kernel, inside, outside, size, padding, samples in sizes:
            name = f"{kernel} x {kernel}, {inside} to {outside} channels, {samples} images of {size} x {size}"

            def layers() -> list[nn.Module]:
                made: list[nn.Module] = [nn.Conv2d(inside, outside, kernel, padding=padding)]  # noqa: B023
                return [*made, nn.ReLU(), nn.MaxPool2d(2)] if behind else made  # noqa: B023

            plain, compiled, by = pair(layers, pooled if behind else convolution)
            shape = (samples, inside, size, size)
            drawn = [torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(INPUTS)]
            given = [x.requires_grad_(inside > 3) for x in drawn]
            rows.append(compare(f"{name}, pooled" if behind else name, plain, compiled, given))
            if not by.ran:
                raise SystemExit(f"{name}: C did not run")
    print(json.dumps({"rows": rows}))
