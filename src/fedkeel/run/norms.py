"""A warning about clients whose updates are far larger than all others."""

from __future__ import annotations

import statistics
import warnings
from collections import deque

import torch

from ..aggregate import Sums
from ..algorithm import Algorithm
from ..errors import StabilityWarning

# Honest norms differ by steps, samples and data: in short runs of named tasks they reached 18 times the usual norm
# where clients share a rate, and 117 times where each finds its own (DeltaSGD).
FACTOR = 1000.0
WINDOW = 20  # rounds


class NormWatch:
    """Warns once in a run of a client whose update is beyond 1000 times the usual norm. It changes nothing.

    The usual norm is the median of recent rounds' medians or, if that is larger, the round's own median: where all
    updates of a round grow, the run diverges and no client is at fault.
    """

    def __init__(self) -> None:
        self.medians: deque[float] = deque(maxlen=WINDOW)
        self.warned = False

    @classmethod
    def of(cls, algorithm: Algorithm) -> NormWatch | None:
        """A watch for algorithms that do not limit what one client can do."""
        return None if algorithm.hooks["screen"] or algorithm.weighing.stacks else cls()

    def __call__(self, round: int, total: Sums) -> None:
        if self.warned or not total.clients:
            return
        norms = torch.cat(total.update_norms).flatten().tolist()
        median, largest = statistics.median_low(norms), max(norms)
        earlier = statistics.median_low(self.medians) if self.medians else 0.0
        usual = max(earlier, median) if len(norms) > 1 else earlier
        self.medians.append(median)
        if usual > 0 and largest > FACTOR * usual:
            self.warned = True
            client = total.clients[norms.index(largest)]
            warnings.warn(
                f"The update of client {client} in round {round} has norm {largest:.3g}, {largest / usual:.3g} times "
                "the usual one, and moves the model. If the client may be at fault, add +guard to limit such updates, "
                "or use +median, +trimmed or +krum.",
                StabilityWarning,
                stacklevel=4,
            )
