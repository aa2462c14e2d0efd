"""Adam, Yogi and Adagrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..errors import check
from ..ranges import COEFFICIENT, FADING, POSITIVE, keep
from .base import Optimizer, State


@dataclass(frozen=True)
class Adaptive(Optimizer):
    """What Adam, Yogi and Adagrad share: a mean `m` of gradients over the root of a second moment `v`.

    m <- beta1 * m + (1 - beta1) * g
    v <- (each its own)
    y <- y - lr * m / (sqrt(v) + eps)
    """

    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    v_init: float | None = None
    bias_correction: bool | None = None

    at_server: ClassVar[dict[str, Any]] = {
        "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "bias_correction": False,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, FADING, "beta1", "beta2")
        keep(self, POSITIVE, "eps")
        keep(self, COEFFICIENT, "v_init")
        corrects = self.bias_correction
        check(corrects is None or isinstance(corrects, bool), self, "bias_correction", "true or false", corrects)

    def for_clients(self) -> Self:
        return super().for_clients()._filled({"v_init": 0.0})

    def for_server(self) -> Self:
        filled = super().for_server()
        assert filled.eps is not None
        return filled._filled({"v_init": filled.eps**2})

    @property
    def coasts(self) -> bool:
        return bool(self.beta1)

    def init(self, y: Tensor, lr: Tensor) -> State:
        assert self.v_init is not None
        count = y.new_zeros((*y.shape[:-1], 1))
        return {"m": torch.zeros_like(y), "v": torch.full_like(y, self.v_init), "j": count}

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        """Update `v` in place with the squared gradient."""
        raise NotImplementedError

    def move(self, y: Tensor, g: Tensor, state: State, lr: Tensor) -> None:
        assert self.beta1 is not None and self.beta2 is not None and self.eps is not None
        m, v = state["m"], state["v"]
        j = state["j"]
        j.add_(1)
        m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        self.second_moment(v, g * g)
        rate = lr
        if self.bias_correction:
            first, second = 1 - self.beta1**j, 1 - self.beta2**j
            if y.ndim > 1:  # on clients as torch and Kingma & Ba's algorithm 1: eps meets the corrected root
                m, v = m / first, v / second
            else:  # on the server as TFF: the rate is corrected, so that eps means the same in every round
                rate = rate * second.sqrt() / first
        y.sub_(rate * m / (v.sqrt() + self.eps))


@dataclass(frozen=True)
class Adam(Adaptive):
    """Adam. On clients as Kingma and Ba print it (0.999, 1e-8, bias-corrected); on the server FedAdam (0.99, 1e-3).

        v <- beta2 * v + (1 - beta2) * g^2

    >>> Adam().for_clients().eps, Adam().for_server().eps
    (1e-08, 0.001)
    """

    at_clients: ClassVar[dict[str, Any]] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "bias_correction": True}

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        assert self.beta2 is not None
        v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)


@dataclass(frozen=True)
class Yogi(Adaptive):
    """Yogi: the second moment moves additively, so one large gradient does not wipe out its memory.

        v <- v - (1 - beta2) * g^2 * sign(v - g^2)

    >>> Yogi(0.01).for_server().v_init
    1e-06
    """

    at_clients: ClassVar[dict[str, Any]] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-3, "bias_correction": True}

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        assert self.beta2 is not None
        v.sub_((1 - self.beta2) * square * torch.sign(v - square))


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """Adagrad: the second moment only grows, so beta2, which it accepts like Adam and Yogi, has no effect.

        v <- v + g^2

    >>> Adagrad(0.01).for_server().beta1
    0.0
    """

    at_clients: ClassVar[dict[str, Any]] = {"beta1": 0.0, "beta2": 0.0, "eps": 1e-10, "bias_correction": False}
    at_server: ClassVar[dict[str, Any]] = Adaptive.at_server | {"beta1": 0.0, "beta2": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta2 is not None:
            object.__setattr__(self, "beta2", 0.0)

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        v.add_(square)
