"""Mime and MimeLite: local steps that mimic the centralised optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, zeros_like

from ..algorithm import At, Memory, Rule
from ..errors import check, is_number
from ..wire import Reports, Upload

MIME_PAPER = "Karimireddy et al. 2021, Breaking the centralized barrier: Mime (arXiv 2008.03606)"


@dataclass(frozen=True)
class Momentum:
    """U(q, m): beta m + q ("torch") or beta m + (1 - beta) q ("paper"), the same with lr scaled by 1 - beta."""

    beta: float
    convention: str

    def mix(self, q: Tensor, m: Tensor) -> Tensor:
        return (q if self.convention == "torch" else (1 - self.beta) * q).add(m, alpha=self.beta)

    def text(self, q: str) -> str:
        return q if not self.beta else f"beta m + {q}" if self.convention == "torch" else f"beta m + (1 - beta) {q}"


def momentum(rule: Mime | MimeLite) -> Momentum:
    """The rule's momentum, its parameters checked."""
    check(is_number(rule.beta) and 0 <= rule.beta < 1, rule, "beta", "in [0, 1)", rule.beta)
    check(rule.convention in ("torch", "paper"), rule, "convention", "'torch' or 'paper'", rule.convention)
    return Momentum(rule.beta, rule.convention)


@dataclass(frozen=True, repr=False)
class Mime(Rule):
    """An SVRG-style correction and the server's momentum, frozen during the round; two exchanges per round.

        q = g(y) - g(x; same batch) + c,    c the cohort's mean full gradient at x

    beta=0 is Mime with SGD, beta > 0 MimeMom.

    >>> Mime(beta=0.0).beta
    0.0
    """

    beta: float = 0.9
    convention: str = "torch"

    reference: ClassVar[str] = MIME_PAPER

    def __post_init__(self) -> None:
        momentum(self)

    @property
    def formulas(self) -> dict[str, str]:  # type: ignore[override]
        lines = {
            "send": "clients send G_i, the full gradient at x, and receive c, the mean of G_i, weighted like Delta",
            "gradient": f"q = g - g(x; same batch) + c;   g <- {momentum(self).text('q')}",
        }
        return lines | ({"server_step": f"m <- {momentum(self).text('c')}"} if self.beta else {})

    @property
    def keeps(self) -> dict[str, Any]:  # type: ignore[override]
        paper = "the GHBM paper prints 3x for MimeMom; 3 models down and 2 up in two exchanges are 2.5x"
        return {"server": ["m"], "traffic": paper} if self.beta else {}

    def server_init(self, x: Tensor, at: At) -> dict[str, Tensor]:
        return {"m": zeros_like(x)} if self.beta else {}

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return server

    def survey(self, at: At) -> dict[str, Tensor]:
        return {"c": at.full_gradient(at.x)}

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        q = (g - at.raw_gradient(at.x.expand_as(y))).add_(at.surveyed["c"])
        return momentum(self).mix(q, at.sent["m"]) if self.beta else q

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        return {"m": momentum(self).mix(at.surveyed["c"], server["m"])} if self.beta else server

    def remembered(self, at: At) -> Tensor | None:
        return at.sent.get("m")


@dataclass(frozen=True, repr=False)
class MimeLite(Rule):
    """Mime without the correction: only the server's momentum, from full gradients sent with the update.

    beta=0 is FedAvg.

    >>> MimeLite().beta
    0.9
    """

    beta: float = 0.9
    convention: str = "torch"

    reference: ClassVar[str] = MIME_PAPER

    def __post_init__(self) -> None:
        momentum(self)

    @property
    def formulas(self) -> dict[str, str]:  # type: ignore[override]
        if not self.beta:
            return {}
        return {
            "gradient": f"g <- {momentum(self).text('g')}",
            "finish": "send G_i, the full gradient at x",
            "server_step": f"c = mean of G_i, weighted like Delta;   m <- {momentum(self).text('c')}",
        }

    @property
    def keeps(self) -> dict[str, Any]:  # type: ignore[override]
        return {"server": ["m"]} if self.beta else {}

    def server_init(self, x: Tensor, at: At) -> dict[str, Tensor]:
        return {"m": zeros_like(x)} if self.beta else {}

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return server

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        return momentum(self).mix(g, at.sent["m"]) if self.beta else g

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        return (Upload(c=at.full_gradient(at.x)) if self.beta else Upload()), {}

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        return {"m": momentum(self).mix(up.weighted("c"), server["m"])} if self.beta else server

    def remembered(self, at: At) -> Tensor | None:
        return at.sent.get("m")
