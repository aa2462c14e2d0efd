"""LSTM layers by torch's kernel and by compiled C, so that the bound on C stands where a measurement puts it."""

from __future__ import annotations

import json
import statistics
import time

import torch
from torch import nn

from fedkeel.engine.recurrent import Compiled
from sections.common import arguments

FEATURES, STEPS, BATCH, TURNS = 8, 80, 20, 25  # as in W4
HIDDEN = (32, 100, 192, 256, 320, 512)


def seconds(layer: nn.LSTM, x: torch.Tensor) -> float:
    """There and back."""
    begin = time.perf_counter()
    layer.zero_grad()
    layer(x)[0].sum().backward()
    return time.perf_counter() - begin


if __name__ == "__main__":
    arguments()
    torch.set_num_threads(1)  # as a worker has
    torch.empty(31 * 2**20, dtype=torch.uint8)  # as in an engine: what is freed is kept
    rows = []
    for hidden in HIDDEN:
        plain, compiled = (nn.LSTM(FEATURES, hidden, batch_first=True) for _ in range(2))
        Compiled(compiled)
        x = torch.randn(BATCH, STEPS, FEATURES, requires_grad=True)
        turns = [(seconds(plain, x), seconds(compiled, x)) for _ in range(TURNS + 2)][2:]
        ratio = statistics.median(a / b for a, b in turns)
        torch_s, c_s = (statistics.median(each) for each in zip(*turns, strict=True))
        rows.append({"hidden": hidden, "torch_s": torch_s, "c_s": c_s, "ratio": ratio})
    print(json.dumps({"rows": rows}))
