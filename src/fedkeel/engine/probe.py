"""`engine="probe"`: try both ways of running clients for a moment, and keep the faster one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ..data.batches import Batch
from ..flat import FlatModel
from ..task import Task
from .choose import no_client_axis
from .gradients import Lockstep, Serial
from .gradients.lean import lean, release

if TYPE_CHECKING:
    from .kernels import Kernels

CLIENTS = 8  # in lockstep while it is tried; a larger cohort gains a little more
PATIENCE = 0.15  # seconds for each way, beside the first call


def probe(
    task: Task, model: FlatModel, workers: int, alone: Kernels | None = None, together: Kernels | None = None
) -> tuple[str, str]:
    """(mode, what was measured); by C kernels, where there are some for one client at a time, or for many together.

    Of the clock: two probes may differ, so a command probes once and writes it down.
    """
    why_not = no_client_axis(task, model)
    if why_not is not None:
        return "serial", why_not
    model = model.replica()
    width = min(task.batch_size or 20, len(task.data.x) // CLIENTS)
    index = torch.arange(CLIENTS * width, device=task.data.x.device).view(CLIENTS, width)
    x, y = task.data.x[index], task.data.y[index]
    by_c = None if together is None else together.plain
    lean(model)
    batched, serial = Lockstep(task, model.replica(), by_c), Serial(task, model)
    if alone is not None:
        alone.install(model)
    one, all_ = serial.start(model.flat.clone(), 1), batched.start(model.flat, CLIENTS)
    one_by_one = _seconds(lambda: serial(one, Batch(x[:1], y[:1], None)), task) / workers
    in_lockstep = _seconds(lambda: batched(all_, Batch(x, y, None)), task) / CLIENTS
    release(model)
    measured = f"probed: a client's step takes {one_by_one * 1e3:.3g} ms serially, {in_lockstep * 1e3:.3g} ms batched"
    return ("batched" if in_lockstep < one_by_one else "serial"), measured


@torch.no_grad()
def _seconds(call: Callable[[], object], task: Task) -> float:
    def once() -> float:
        begin = time.perf_counter()
        call()
        if task.data.x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    once()
    end, least = time.perf_counter() + PATIENCE, once()
    while time.perf_counter() < end:
        least = min(least, once())
    return least
