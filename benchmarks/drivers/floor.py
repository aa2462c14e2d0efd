"""What the arithmetic alone takes: forward and backward passes on every core, and nothing learned, sent or averaged.

What an engine adds around its gradients shows in the distance. One that helps torch's layers can still be ahead.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from models import model, tensors
from torch.nn.functional import cross_entropy
from workloads import Data, Workload

from drivers.common import Clock, Losses, Options, main

WORKERS = len(os.sched_getaffinity(0))


def play(share: Callable[[int], None], clock: Clock) -> None:
    """Rounds in which every worker has its share, with one thread."""
    with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        stop = False
        while not stop:
            list(pool.map(share, range(WORKERS)))
            stop = clock.round_done()


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses | None:
    x, y = tensors(data)
    models = [model(work.name) for _ in range(WORKERS)]

    def share(number: int) -> None:
        module, parameters = models[number], list(models[number].parameters())
        for step in range(number, work.steps_per_round, WORKERS):
            chosen = torch.arange(step * work.batch, (step + 1) * work.batch) % len(x)
            inputs = x[chosen]
            if inputs.ndim == 4:
                inputs = inputs.to(memory_format=torch.channels_last)
            torch.autograd.grad(cross_entropy(module(inputs), y[chosen]), parameters)

    play(share, clock)
    return None


if __name__ == "__main__":
    main(drive, ["torch", "numpy"])
