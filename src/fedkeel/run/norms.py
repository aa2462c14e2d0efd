"""A warning about clients whose updates are far larger than all others."""

from __future__ import annotations

import statistics
import warnings
from collections import deque

import torch

from ..aggregate import Sums
from ..algorithm import Algorithm
from ..errors import StabilityWarning, is_number

# Honest norms differ by steps, samples and data: in short runs of named tasks they reached 18 times the usual norm
# where clients share a rate, and 117 times where each finds its own (DeltaSGD): benchmarks/update_norms.py.
FACTOR = 1000.0
WINDOW = 20  # rounds


class NormWatch:
    """Warns once in a run of a client whose update is beyond 1000 times the usual norm. It changes nothing.

    The usual norm is the median of recent rounds' medians or, if that is larger, the round's own median: where all
    updates of a round grow, the run diverges and no client is at fault.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        rate = f", client lr {algorithm.client.lr:g}" if is_number(algorithm.client.lr) else ""
        self.name = f"{algorithm.spec or algorithm.title}{rate}"
        self.medians: deque[float] = deque(maxlen=WINDOW)
        self.warned = False

    @classmethod
    def of(cls, algorithm: Algorithm) -> NormWatch | None:
        """A watch for algorithms that do not limit what one client can do."""
        return None if algorithm.hooks["screen"] or algorithm.weighing.stacks else cls(algorithm)

    def __call__(self, round: int, total: Sums) -> None:
        if self.warned or not total.clients:
            return
        client, norm, ratio = self.compare(total)
        if ratio > FACTOR:
            self.warned = True
            warnings.warn(
                f"{self.name}: the update of client {client} in round {round} has norm {norm:.3g}, {ratio:.3g} times "
                "the usual one, and moves the model. If the rate is too high, give a lower lr; if the client may be at "
                "fault, add +guard to limit such updates, or use +median, +trimmed or +krum.",
                StabilityWarning,
                stacklevel=4,
            )

    def compare(self, total: Sums) -> tuple[int, float, float]:
        """The client with the largest norm, that norm, and how many times the usual one it is (0: none is known)."""
        norms = torch.cat(total.update_norms).flatten().tolist()
        median, largest = statistics.median_low(norms), max(norms)
        earlier = statistics.median_low(self.medians) if self.medians else 0.0
        usual = max(earlier, median) if len(norms) > 1 else earlier
        self.medians.append(median)
        return total.clients[norms.index(largest)], largest, largest / usual if usual > 0 else 0.0
