"""How a task's inputs were scaled, so that an exported model can do it by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scaling:
    """`(raw - mean) / deviation`, by channel `[n, channels, ...]` or by column; missing values (NaN) become 0.

    what: what raw inputs are, in words.

    >>> Scaling((0.0,), (255.0,), "pixels in 0..255").inputs(torch.tensor([[[[255, 0]]]], dtype=torch.uint8)).tolist()
    [[[[1.0, 0.0]]]]
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    what: str

    def inputs(self, raw: Tensor) -> Tensor:
        """What a model gets of raw inputs."""
        shape = (-1, *[1] * (raw.ndim - 2))
        raw = raw.to(torch.float32) if not raw.is_floating_point() else raw
        mean, deviation = (torch.tensor(list(v), dtype=raw.dtype).view(shape) for v in (self.mean, self.deviation))
        return torch.nan_to_num((raw - mean) / deviation, nan=0.0)

    def raw(self, inputs: Tensor) -> Tensor:
        """The raw values of inputs."""
        shape = (-1, *[1] * (inputs.ndim - 2))
        mean, deviation = (torch.tensor(list(v)).to(inputs).view(shape) for v in (self.mean, self.deviation))
        return inputs * deviation + mean

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"what": self.what, "mean": list(self.mean), "deviation": list(self.deviation)}


PIXELS = Scaling((0.0,), (255.0,), "pixels in 0..255")
