"""Kernels: C of our own for chains of small layers and for convolutions, used only when asked for.

    chain.py, chain.c                 in lockstep: the gradients of a chain of plain layers, written out for its sizes
    convolution.py, convolution.c     one client at a time: 3 x 3 and 5 x 5 convolutions by Winograd's method
    pooled.py, pooled.c               one client at a time: convolution, pooling and ReLU in one pass
    native.py, products.c             how C is built and called, and what the convolutions share

Numbers differ from torch's by roundings, so `compile=True` stands in the configuration. Before kernels are used, their
gradients are compared with torch's. README.md has what they gain and how exact they are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...data.batches import Batch
from ...errors import InputError
from ...flat import FlatModel
from ...task import Task
from ..gradients import Serial
from ..gradients.lean import release
from ..gradients.lockstep import Plain, plain_gradients
from . import chain, convolution, pooled
from .native import NoCompiler

COMPARED = 256  # samples at most on which the gradients are compared
HINT = "--compile would train it by C kernels"  # the end of a run that would gain says so


@dataclass(frozen=True)
class Kernels:
    """What was compiled for a model: gradients in lockstep, or the layers of one client at a time."""

    plain: Plain | None
    summary: str

    def install(self, model: FlatModel) -> None:
        """Let the layers of a worker's replica run by C."""
        if self.plain is None:
            _install(model)


def available(task: Task, model: FlatModel, mode: str) -> bool:
    """Whether there is a kernel for this model; nothing is compiled."""
    if mode == "batched":
        return chain.fits(task, model)
    return any(kernel.reached(model, task.data.x[:2]) for kernel in (convolution, pooled))


def would_gain(task: Task, model: FlatModel, mode: str) -> bool:
    """Whether the end of a run should say that there are kernels for its model."""
    try:
        return available(task, model, mode)
    except Exception:  # a model that does not take its data: training says so, in its own words
        return False


def compiled(task: Task, model: FlatModel, mode: str) -> Kernels | None:
    """The kernels for this model; None if there are none, or if the model calls its layers in a way that never reaches
    them. An error, if they cannot be compiled or are not exact.
    """
    if not available(task, model, mode):
        return None
    began = time.perf_counter()
    try:
        plain = _chain(task, model) if mode == "batched" else None
        ran, exact = (True, plain is not None) if mode == "batched" else _compared(task, model)
    except NoCompiler as error:
        raise InputError(f"compile=True needs a C compiler: {error}. Install one, or leave out --compile.") from error
    if not ran:
        return None
    if not exact:
        raise InputError("The compiled gradients of this model differ from torch's; leave out --compile.")
    which = "a chain of layers" if mode == "batched" else "convolutions"
    return Kernels(plain, f"{which} compiled in {time.perf_counter() - began:.1f} s")


def _chain(task: Task, model: FlatModel) -> Plain | None:
    """The compiled gradients of a chain; None if they differ from torch's."""
    made, plain = chain.gradients(task, model), plain_gradients(task, model)
    with torch.no_grad():
        for clients, batch in ((11, 7), (3, 5)):
            sample = _sample(task, model, clients, batch)
            if not _agree(made(*sample), plain(*sample), model.sizes):
                return None
    return made


def _install(model: FlatModel) -> list[convolution.Compiled | pooled.Block]:
    return [*convolution.install(model), *pooled.install(model)]


def _compared(task: Task, model: FlatModel) -> tuple[bool, bool]:
    """Of a replica whose convolutions run by C: whether any of them did, and whether it has torch's gradients."""
    by_torch, by_c = model.replica(), model.replica()
    installed = _install(by_c)
    # Not at the initial model, whose biases may be zero: there ReLUs are at their edge, and some layers stay torch's.
    near = torch.randn(model.size, generator=torch.Generator().manual_seed(0)) * model.flat.abs().mean() / 10
    try:
        for n in (2, min(max(3, task.batch_size or 0), COMPARED)):
            batch = Batch(task.data.x[None, :n], task.data.y[None, :n], None)
            found = []
            for replica in (by_c, by_torch):
                with torch.random.fork_rng(devices=[]):  # both draw the same random numbers
                    torch.manual_seed(0)
                    serial = Serial(task, replica)
                    found.append(serial(serial.start(model.flat + near, 1), batch))
            if not _agree(found[0], found[1], model.sizes):
                return True, False
    finally:
        release(by_c)
    return any(one.ran for one in installed), True


def _agree(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], sizes: list[int]) -> bool:
    """The same losses, and gradients but for a few elements of a parameter: of many ReLUs one may be so near its edge
    that a sum in another order puts it on the other side.
    """
    (g, loss), (other, value) = got, want
    near = partial(torch.allclose, rtol=1e-3, atol=1e-5, equal_nan=True)
    return near(loss, value) and all(
        _nearly(mine, theirs) or near(mine, theirs)
        for mine, theirs in zip(g.split_with_sizes(sizes, 1), other.split_with_sizes(sizes, 1), strict=True)
    )


def _nearly(mine: Tensor, theirs: Tensor) -> bool:
    apart, length = (torch.linalg.vector_norm(rows, dim=1) for rows in (mine - theirs, theirs))
    return bool((torch.isfinite(length) & (apart <= 3e-2 * length)).all())


def _sample(task: Task, model: FlatModel, clients: int, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    index = torch.arange(clients * batch, device=model.flat.device).view(clients, batch) % len(task.data.x)
    points = model.flat * torch.linspace(0.5, 1.0, clients).to(model.flat)[:, None]
    share = torch.rand(clients, batch, generator=torch.Generator().manual_seed(0)).to(points)
    return points, task.data.x[index], task.data.y[index], share
