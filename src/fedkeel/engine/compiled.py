"""`compile=True`: the gradients of a group of clients, translated once into machine code.

What is translated does not know how many clients or samples there are, nor the rate or the budget, so nothing ever
triggers a second translation. torch's own checks before every call are left out, because they take longer than the
call; in their place this file sees to what they check: the same types, contiguous tensors, at least two of everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..flat import FlatModel
from ..task import Task
from .gradients import Plain, lockstep

PRIMES = (11, 7, 13, 17, 19, 23)  # sizes to translate with: torch takes equal sizes for the same one


def translate(task: Task, model: FlatModel) -> tuple[Plain | None, str]:
    """(the translated gradients, how long it took), or (None, why it runs without).

    They are for at least two clients with two samples each; `Batched` does the others without.
    """
    began, eager = time.perf_counter(), lockstep(task, model)
    source = _of_its_own(lockstep(task, model, to_compile=True))

    def contiguous(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        if share is None:
            share = y.new_full(x.shape[:2], 1 / x.shape[1])
        both: tuple[Tensor, Tensor] = fast(y.contiguous(), x.contiguous(), target.contiguous(), share.contiguous())
        return both

    taken = {size for part in (task.data.x[0], *model.module.parameters()) for size in part.shape}
    sizes = [prime for prime in PRIMES if prime not in taken]
    try:
        fast: Callable[..., Any] = torch.compile(
            source, dynamic=True, fullgraph=True, options={"guard_filter_fn": _no_checks}
        )
        with torch.no_grad():
            for clients, batch in ((sizes[0], sizes[1]), (3, 5)):
                sample = _sample(task, model, clients, batch)
                for got, want in zip(contiguous(*sample), eager(*sample), strict=True):
                    if not torch.allclose(got, want, rtol=1e-3, atol=1e-5, equal_nan=True):
                        return None, "compiled gradients differ from the others"
    except Exception as error:  # no C++ compiler, or a model the compiler cannot follow
        return None, str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
    return contiguous, f"compiled in {time.perf_counter() - began:.1f} s"


def _of_its_own(function: Any) -> Any:
    """The same function with a code object of its own: torch keeps what it translated by code object, unchecked."""
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _no_checks(checks: list[Any]) -> list[bool]:
    return [False] * len(checks)


def _sample(task: Task, model: FlatModel, clients: int, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    index = torch.arange(clients * batch, device=model.flat.device).view(clients, batch) % len(task.data.x)
    points = model.flat * torch.linspace(0.5, 1.0, clients).to(model.flat)[:, None]
    share = torch.rand(clients, batch, generator=torch.Generator().manual_seed(0)).to(points)
    return points, task.data.x[index], task.data.y[index], share
