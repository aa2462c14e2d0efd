"""FATHOM: the server tunes the clients' rate, epochs and batch size while it trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..algorithm import Algorithm, At, Memory, Plan, Rule
from ..errors import check, is_number
from ..wire import Reports, Upload

if TYPE_CHECKING:
    from ..task import Task
    from ..world import Ints, World


@dataclass(frozen=True, repr=False)
class Fathom(Rule):
    """Inner products that are there anyway say whether steps are too short, too many, too noisy (Kan 2022).

        client      phi_i = min over steps of cos(g, x - y)            y after the step
        server      h = cos(D, s),  phi = sum_i p_i phi_i              D = -Delta, s the smoothed D of the rounds before
                    lr <- lr exp(gamma_lr h),   E <- E exp(gamma_epochs (h + phi)),   B <- B exp(-gamma_batch phi)
                    s <- (1 - a) D + a s                               a = smoothing

    A round asks client i for max(1, ceil(E n_i / B)) steps, B rounded (a client with fewer samples uses them all,
    and counts as if its batch were full). The values start at the client optimizer's lr, `epochs` and `batch_size`,
    which take the place of the run's, and stay within their bounds. steps: "ceil" or "floor".

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

    reference: ClassVar[str] = "Kan 2022, Federated hypergradient descent"
    scalars_only: ClassVar[bool] = True
    keeps: ClassVar[dict[str, Any]] = {"server": ("s", "lr", "epochs", "batch", "h", "phi")}

    def __post_init__(self) -> None:
        for name in ("gamma_lr", "gamma_epochs", "gamma_batch"):
            value = getattr(self, name)
            check(is_number(value) and value >= 0, self, name, ">= 0", value)
        a = self.smoothing
        check(is_number(a) and 0 <= a < 1, self, "smoothing", "in [0, 1)", a)
        check(self.steps in ("ceil", "floor"), self, "steps", "'ceil' or 'floor'", self.steps)
        for name, least in (("lr", 0), ("epochs", 0), ("batch", 1)):
            low, high = self.bounds(name)
            check(is_number(low) and low >= least and low > 0, self, f"{name}_min", f">= {least} and > 0", low)
            check(is_number(high) and high >= low, self, f"{name}_max", f">= {name}_min", high)
        self._within("epochs", self.epochs)
        self._within("batch", self.batch_size)

    @property
    def formulas(self) -> dict[str, str]:  # type: ignore[override]
        return {
            "plan": f"J_i = max(1, {self.steps}(E n_i / B)) steps with rate lr on batches of B",
            "after_step": "phi_i <- min(phi_i, cos(g, x - y))",
            "server_step": "h = cos(-Delta, s),  phi = sum_i p_i phi_i\n"
            "lr <- lr exp(gamma_lr h),  E <- E exp(gamma_epochs (h + phi)),  B <- B exp(-gamma_batch phi)\n"
            "s <- (1 - smoothing) (-Delta) + smoothing s",
        }

    def bounds(self, name: str) -> tuple[float, float]:
        """The least and the largest value of lr, epochs or batch."""
        return getattr(self, f"{name}_min"), getattr(self, f"{name}_max")

    def _within(self, name: str, start: float) -> None:
        low, high = self.bounds(name)
        key = "batch_size" if name == "batch" else name
        check(is_number(start) and low <= start <= high, self, key, f"in [{name}_min, {name}_max]", start)

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        assert isinstance(algorithm.client.lr, int | float)
        self._within("lr", algorithm.client.lr)
        return self

    def refuse(self, algorithm: Algorithm) -> str | None:
        if algorithm.client.finds_rate:
            return f"FATHOM tunes a rate that {type(algorithm.client).__name__} clients find by themselves; use sgd."
        return None

    def server_init(self, x: Tensor, at: At) -> dict[str, Tensor]:
        start = {"lr": at.optimizer.lr, "epochs": self.epochs, "batch": self.batch_size, "h": 0, "phi": 0}
        return {"s": torch.zeros_like(x)} | {k: torch.tensor(v, dtype=torch.float64) for k, v in start.items()}

    def plan(self, plan: Plan, server: dict[str, Tensor], at: At) -> Plan:
        epochs, batch = float(server["epochs"]), max(1, int(server["batch"] + 0.5))
        rounded = np.ceil if self.steps == "ceil" else np.floor
        slack = -1e-9 if self.steps == "ceil" else 1e-9  # binary rounding must not gain or lose a step

        def steps(samples: Ints) -> Ints:
            count: Ints = np.maximum(1, rounded(epochs * samples / batch + slack)).astype(np.int64)
            return count

        return replace(plan, lr=float(server["lr"]), batch_size=batch, epochs=epochs, steps=steps)

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return {"batch": server["batch"]}  # rate and steps travel anyway

    def after_step(self, y: Tensor, at: At) -> None:
        assert at.g is not None
        now = cosine(at.g, at.x - y)
        at.scratch["phi"] = now if at.k == 0 else torch.minimum(at.scratch["phi"], now)

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        return Upload(scalars={"phi": at.scratch["phi"]}), {}

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        assert at.delta is not None
        d, s, a = -at.delta, server["s"], self.smoothing
        h, phi = cosine(d.double(), s.double())[0].cpu(), up.average("phi").double().cpu()
        growth = {"lr": self.gamma_lr * h, "epochs": self.gamma_epochs * (h + phi), "batch": -self.gamma_batch * phi}
        tuned = {name: (server[name] * g.exp()).clamp(*self.bounds(name)) for name, g in growth.items()}
        return tuned | {"s": (1 - a) * d + a * s, "h": h, "phi": phi}

    def report(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, float]:
        return {"h": float(server["h"]), "phi": float(server["phi"])}

    def shadow(self, s: Tensor) -> Tensor:
        return torch.zeros_like(s)  # `after_step` only watches


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of the angle between vectors along the last axis, 0 where one of them is zero.

    >>> cosine(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])).item()
    0.9599999785423279
    """
    lengths = torch.linalg.vector_norm(a, dim=-1, keepdim=True) * torch.linalg.vector_norm(b, dim=-1, keepdim=True)
    return torch.where(lengths > 0, (a * b).sum(-1, keepdim=True) / lengths, 0.0).clamp(-1, 1)
