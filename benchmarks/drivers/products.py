"""What the machine can do: as many multiplications as a round's gradients have, in large products on every core.

A measure, not a bound: these are the products of one library, and another's convolutions can be a little faster.
"""

from __future__ import annotations

import torch
from models import model, tensors
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode
from workloads import Data, Workload

from drivers.common import Clock, Losses, Options, main
from drivers.floor import WORKERS, play

SIDE = 512  # of a matrix


def flops(work: Workload, data: Data) -> int:
    """Of one step's gradient: its products and convolutions."""
    x, y = (part[: work.batch] for part in tensors(data))
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:  # type: ignore[no-untyped-call]
        cross_entropy(model(work.name)(x), y).backward()  # an LSTM too in products that the counter knows
    return int(counter.get_total_flops())


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses | None:
    each = round(work.steps_per_round * flops(work, data) / (2 * SIDE**3) / WORKERS)
    factors = [[torch.randn(SIDE, SIDE) for _ in range(3)] for _ in range(WORKERS)]

    def share(number: int) -> None:
        a, b, out = factors[number]
        for _ in range(each):
            torch.mm(a, b, out=out)

    play(share, clock)
    return None


if __name__ == "__main__":
    main(drive, ["torch", "numpy"])
