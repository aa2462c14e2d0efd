"""FedDyn and AdaBest: regularise clients towards agreeing stationary points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, zeros_like

from ..algorithm import Algorithm, At, Memory, Rule
from ..errors import check, is_number
from ..optim import SGD
from ..wire import Reports, Upload


def _own_server(algorithm: Algorithm, name: str) -> str | None:
    server = algorithm.server
    plain = isinstance(server, SGD) and server.lr == 1 and not server.momentum
    return None if plain else f"{name} has a server step of its own; leave server_lr=1 and the plain server."


@dataclass(frozen=True, repr=False)
class FedDyn(Rule):
    """FedDyn: a linear term and a proximal one make local and global stationary points agree (Acar et al. 2021).

    `adaptive=True` scales alpha by the mean client size over the client's own. `evaluate="cohort"` measures the mean
    of the cohort's models instead of the model trained from; the history has both.

    >>> FedDyn(0.1).alpha
    0.1
    """

    alpha: float = 0.01
    adaptive: bool = False
    evaluate: str = "server"

    reference: ClassVar[str] = "Acar et al. 2021, Federated learning based on dynamic regularization (arXiv 2111.04263)"
    averages: ClassVar[tuple[str, ...]] = ("mean",)
    keeps: ClassVar[dict[str, Any]] = {"server": ["h"], "client": ["g_i"]}

    @property
    def formulas(self) -> dict[str, str]:  # type: ignore[override]
        own, told = ("alpha_i", "        alpha_i = alpha (mean of n) / n_i") if self.adaptive else ("alpha", "")
        return {
            "gradient": f"g <- g - g_i + {own} (y - x){told}",
            "finish": f"g_i <- g_i - {own} (y - x)",
            "server_step": "h <- h - (alpha / N) sum_i (y_i - x)        (the paper's bracket leaves x outside the sum)",
            "update": "Delta <- Delta - h / alpha",
        }

    def __post_init__(self) -> None:
        check(is_number(self.alpha) and self.alpha > 0, self, "alpha", "> 0", self.alpha)
        check(isinstance(self.adaptive, bool), self, "adaptive", "true or false", self.adaptive)
        check(self.evaluate in ("server", "cohort"), self, "evaluate", "'server' or 'cohort'", self.evaluate)

    def server_init(self, x: Tensor, at: At) -> dict[str, Tensor]:
        return {"h": zeros_like(x)}

    def client_init(self, x: Tensor, at: At) -> Memory:
        return {"gi": zeros_like(x)}

    def _alpha(self, at: At) -> Tensor:
        return self.alpha * (at.mean_samples / at.samples if self.adaptive else torch.ones_like(at.samples))

    def start(self, y: Tensor, at: At) -> None:
        at.scratch["fixed"] = torch.addcmul(at.memory["gi"], at.x, self._alpha(at))  # what no step of the round changes

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        return g.sub_(at.scratch["fixed"]).addcmul_(y, self._alpha(at))

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        assert at.moved is not None
        new = at.memory["gi"].addcmul_(at.moved, self._alpha(at), value=-1)
        return Upload(derived={"moved": at.moved}), {"gi": new}

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        return {"h": server["h"] - self.alpha * at.fraction * up.mean("moved")}

    def update(self, delta: Tensor, server: dict[str, Tensor], at: At) -> Tensor:
        return delta - server["h"] / self.alpha

    def eval_params(self, x: Tensor, server: dict[str, Tensor]) -> dict[str, Tensor]:
        cohort = x + server["h"] / self.alpha  # the mean of the cohort's models
        return {"": x, "cohort": cohort} if self.evaluate == "server" else {"": cohort, "server": x}

    def refuse(self, algorithm: Algorithm) -> str | None:
        return _own_server(algorithm, "FedDyn")


@dataclass(frozen=True, repr=False)
class AdaBest(Rule):
    """A bias estimate that fades while a client is away, and an extrapolated average (Varno et al. 2022).

    >>> AdaBest(mu=0.1).beta
    0.9
    """

    mu: float = 0.01
    beta: float = 0.9

    reference: ClassVar[str] = "Varno et al. 2022, AdaBest (arXiv 2204.13170)"
    formulas: ClassVar[dict[str, str]] = {
        "gradient": "g <- g - h_i",
        "finish": "h_i <- h_i / (t - t_i) + mu (x - y);   t_i <- t        (t_i the last round client i took part in)",
        "server_step": "avg <- x + Delta",
        "update": "Delta <- Delta + beta (avg - previous avg)",
    }
    keeps: ClassVar[dict[str, Any]] = {"server": ["avg"], "client": ["h_i", "t_i"]}

    def __post_init__(self) -> None:
        check(is_number(self.mu) and self.mu >= 0, self, "mu", ">= 0", self.mu)
        check(is_number(self.beta) and self.beta >= 0, self, "beta", ">= 0", self.beta)

    def server_init(self, x: Tensor, at: At) -> dict[str, Tensor]:
        return {"average": x, "push": zeros_like(x)}

    def client_init(self, x: Tensor, at: At) -> Memory:
        return {"hi": zeros_like(x), "last": x.new_zeros(1)}

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        return g.sub_(at.memory["hi"]) if self.mu else g

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        new = at.memory["hi"] / (at.round - at.memory["last"]) + self.mu * (at.x - y)
        return Upload(), {"hi": new, "last": zeros_like(at.memory["last"]) + at.round}

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        assert at.delta is not None
        average = at.x + at.delta
        return {"average": average, "push": self.beta * (average - server["average"])}

    def update(self, delta: Tensor, server: dict[str, Tensor], at: At) -> Tensor:
        return delta + server["push"] if self.beta else delta

    def refuse(self, algorithm: Algorithm) -> str | None:
        return _own_server(algorithm, "AdaBest")
