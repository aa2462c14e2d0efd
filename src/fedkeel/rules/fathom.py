"""FATHOM: the server tunes the clients' rate, epochs and batch size while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..errors import check
from ..messages import Facts, Plan
from ..ranges import COEFFICIENT, FADING, POSITIVE, RATE, Range, keep
from ..rule import End, Me, Objective, Rule, Tensors, Up, View

if TYPE_CHECKING:
    from ..aggregate import Reports
    from ..data.batches import Batch


@dataclass(frozen=True, repr=False)
class Fathom(Rule):
    """Cosines between updates show whether steps are too short, too many or too noisy (Kan 2022).

        client      phi_i = min over steps of cos(g, x - y)            y after the step
        server      h = cos(D, s),  phi = sum_i p_i phi_i              D = -Delta, s the smoothed D of the rounds before
                    lr <- lr exp(gamma_lr h),   E <- E exp(gamma_epochs (h + phi)),   B <- B exp(-gamma_batch phi)
                    s <- (1 - a) D + a s                               a = smoothing

    A round asks client i for max(1, ceil(E n_i / B)) steps, B rounded (a client with fewer samples uses them all,
    and counts as if its batch were full). The values start at the client optimizer's lr, `epochs` and `batch_size`,
    which take the place of the run's, and stay within their bounds. steps: "ceil" or "floor".

    eq12: "code", as above and as the author's code has it, or "paper", equation 12 as it is printed: y before the step,
    from the second step on and once more after the last one, and phi = lr sum_i p_i phi_i. The gradient after the last
    step is an extra one, on the batch of the client's first step.

    >>> Fathom(epochs=2).epochs_max
    10.0
    """

    epochs: float = 1.0
    batch_size: float = 20
    gamma_lr: float = 0.01
    gamma_epochs: float = 0.01
    gamma_batch: float = 0.1
    smoothing: float = 0.5
    lr_min: float = 1e-6
    lr_max: float = 0.5
    epochs_min: float = 1e-3
    epochs_max: float = 10.0
    batch_min: float = 1
    batch_max: float = 5096
    steps: str = "ceil"
    eq12: str = "code"

    keeps_linear: ClassVar[bool] = True  # it does not change the steps

    def __post_init__(self) -> None:
        keep(self, COEFFICIENT, "gamma_lr", "gamma_epochs", "gamma_batch")
        keep(self, FADING, "smoothing")
        keep(self, RATE, "lr_min", "lr_max")
        keep(self, POSITIVE, "epochs", "epochs_min", "epochs_max")
        keep(self, Range(1, 1e9), "batch_size", "batch_min", "batch_max")
        check(self.steps in ("ceil", "floor"), self, "steps", "'ceil' or 'floor'", self.steps)
        check(self.eq12 in ("code", "paper"), self, "eq12", "'code' or 'paper'", self.eq12)
        for name in ("lr", "epochs", "batch"):
            low, high = self.bounds(name)
            check(high >= low, self, f"{name}_max", f">= {name}_min", high)
        self.check_within("epochs", self.epochs)
        self.check_within("batch", self.batch_size)

    def bounds(self, name: str) -> tuple[float, float]:
        """The least and the largest value of lr, epochs or batch."""
        return getattr(self, f"{name}_min"), getattr(self, f"{name}_max")

    def check_within(self, name: str, start: float) -> None:
        low, high = self.bounds(name)
        key = "batch_size" if name == "batch" else name
        check(low <= start <= high, self, key, f"in [{name}_min, {name}_max]", start)

    def init(self, x: Tensor, lr: float) -> Tensors:
        start = {"lr": lr, "epochs": self.epochs, "batch": self.batch_size, "h": 0, "phi": 0}
        return {"s": torch.zeros_like(x)} | {k: torch.tensor(v, dtype=torch.float64) for k, v in start.items()}

    def plan(self, plan: Plan, server: Tensors, facts: Facts) -> Plan:
        batch = max(1, int(server["batch"] + 0.5))
        return Plan(float(server["lr"]), batch, float(server["epochs"]), self.steps)

    def send(self, server: Tensors, view: View) -> Tensors:
        return {"batch": server["batch"]}  # rate and steps are always sent

    def start(self, me: Me) -> Tensors:
        return {"phi": torch.full_like(me.steps, torch.inf)}

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        before = me.x - y if self.eq12 == "paper" else None
        g, value = go(y, batch)
        if before is None:
            _lower(me, cosine(g, me.x - y))
        elif batch.step > 0:  # before the first step there is no direction to compare with
            _lower(me, cosine(g, before))
        return g, value

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        if self.eq12 == "paper":
            _lower(me, cosine(me.site.first_batch_gradient(y), me.x - y))
        return Up(scalars={"phi": me.notes["phi"]})

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        d, s = -up.delta, server["s"]
        a = self.smoothing
        h, phi = cosine(d.double(), s.double())[0].cpu(), up.average("phi").double().cpu()
        phi = phi * server["lr"] if self.eq12 == "paper" else phi
        growth = {"lr": self.gamma_lr * h, "epochs": self.gamma_epochs * (h + phi), "batch": -self.gamma_batch * phi}
        tuned = {name: (server[name] * g.exp()).clamp(*self.bounds(name)) for name, g in growth.items()}
        return tuned | {"s": (1 - a) * d + a * s, "h": h, "phi": phi}, up.delta

    def report(self, server: Tensors, up: Reports, view: View) -> dict[str, float]:
        return {"h": float(server["h"]), "phi": float(server["phi"])}


def _lower(me: Me, found: Tensor) -> None:
    me.notes["phi"].copy_(torch.minimum(me.notes["phi"], found))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of the angle between vectors along the last axis, 0 where one of them is zero.

    >>> cosine(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])).item()
    0.9599999785423279
    """
    lengths = torch.linalg.vector_norm(a, dim=-1, keepdim=True) * torch.linalg.vector_norm(b, dim=-1, keepdim=True)
    return torch.where(lengths > 0, (a * b).sum(-1, keepdim=True) / lengths, 0.0).clamp(-1, 1)
