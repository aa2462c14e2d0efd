"""Optimizers on flat tensors. The same classes serve clients and the server.

`y` and `g` are `[clients, params]` on clients and `[params]` on the server; `at.lr` broadcasts against both.
`init` makes the state, `step` moves `y` and the state in place. Each formula is written once, as printed.
A default of None is the paper's value for the place where the optimizer serves (see `for_clients`, `for_server`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from .errors import check, is_number

if TYPE_CHECKING:
    from .algorithm import Algorithm, At
    from .wire import Reports

State = dict[str, Tensor]


@dataclass(frozen=True)
class Optimizer:
    """What every optimizer has: a rate, weight decay (coupled: it enters the momentum) and clipping by global norm."""

    lr: float | str | None = None
    weight_decay: float = 0.0
    clip: float | None = None

    linear: ClassVar[bool] = False  # the update is a fixed linear combination of gradients: FedNova's norm exists
    finds_rate: ClassVar[bool] = False  # clients choose their own step sizes: nobody else should
    slot: ClassVar[str] = "client"  # under which its scalars travel
    reference: ClassVar[str] = ""
    at_clients: ClassVar[dict[str, Any]] = {}
    at_server: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        lr = self.lr
        check(lr is None or lr == "match-gel" or (is_number(lr) and float(lr) > 0), self, "lr", "> 0", lr)
        wd, clip = self.weight_decay, self.clip
        check(is_number(wd) and wd >= 0, self, "weight_decay", ">= 0", wd)
        check(clip is None or (is_number(clip) and clip > 0), self, "clip", "> 0 or None", clip)

    def for_clients(self) -> Self:
        """With the defaults an optimizer has on clients."""
        return self._filled(self.at_clients)

    def for_server(self) -> Self:
        """With the defaults an optimizer has on the server."""
        return self._filled({"lr": 1.0} | self.at_server)

    def _filled(self, defaults: dict[str, Any]) -> Self:
        missing = {k: v for k, v in defaults.items() if getattr(self, k) is None}
        return replace(self, **missing) if missing else self

    @property
    def coasts(self) -> bool:
        """Whether it moves on zero gradients, so that a guess with a zero proxy means something."""
        return False

    def init(self, y: Tensor) -> State:
        """The state before the first step."""
        return {}

    def step(self, y: Tensor, g: Tensor, state: State, at: At) -> None:
        """Clip, decay, move: all in place."""
        self.move(y, self.tame(g, y), state, at)

    def tame(self, g: Tensor, y: Tensor) -> Tensor:
        """The gradient at y as the update sees it: clipped (in place), then with weight decay."""
        if self.clip is not None:
            norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            g.mul_((self.clip / (norm + 1e-12)).clamp_(max=1.0))
        return g.add(y, alpha=self.weight_decay) if self.weight_decay else g

    def move(self, y: Tensor, g: Tensor, state: State, at: At) -> None:
        """The update itself."""
        raise NotImplementedError

    def guess(self, y: Tensor, g: Tensor, state: State, at: At, counts: Tensor) -> None:
        """`counts` more steps with the gradient fixed at `g`: the general way, step by step."""
        for q in range(int(counts.max())):
            more = counts > q
            ahead, moved = y.clone(), {k: v.clone() for k, v in state.items()}
            self.move(ahead, g, moved, at)
            y.copy_(torch.where(more, ahead, y))
            for k, v in moved.items():
                state[k].copy_(torch.where(more, v, state[k]))

    def remembered(self, state: State) -> Tensor | None:
        """For a diagnosis: the momentum in this state, as a gradient of any length; None without one."""
        return None

    def box(self, server: bool) -> list[str]:
        """The update as a paper prints it: on clients from `g`, on the server from `Delta`."""
        return []

    def guess_box(self, zero: bool) -> str:
        """`guess` in the same notation."""
        return f"q more steps like these, with {'g = 0' if zero else 'the last g'} in place of a new gradient"

    def scalars(self, state: State, at: At) -> dict[str, Tensor]:
        """What each client says about its steps, `[clients, 1]` by name: sent up beside the update."""
        return {}

    def report(self, up: Reports) -> dict[str, float]:
        """Columns for the history, from those scalars."""
        return {}

    def refuse(self, algorithm: Algorithm) -> str | None:
        """Why this client optimizer cannot be part of that algorithm, and what to use instead."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Name and values, for configurations and tables."""
        return {"name": type(self).__name__.lower()} | {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with heavy-ball momentum, in velocity form.

        v <- momentum * v - lr * g
        y <- y + v                              (nesterov: y <- y + momentum * v - lr * g)

    With a constant rate this is `torch.optim.SGD(momentum=..., dampening=0)`.

    >>> SGD(0.01, momentum=0.9).momentum
    0.9
    """

    momentum: float = 0.0
    nesterov: bool = False

    linear: ClassVar[bool] = True
    reference: ClassVar[str] = "Polyak 1964 (heavy ball); Nesterov 1983"

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.momentum
        check(is_number(m) and 0 <= m < 1, self, "momentum", "in [0, 1)", m)
        check(isinstance(self.nesterov, bool), self, "nesterov", "true or false", self.nesterov)
        check(not self.nesterov or m > 0, self, "nesterov", "false when momentum is 0", self.nesterov)

    @property
    def coasts(self) -> bool:
        return self.momentum > 0

    def init(self, y: Tensor) -> State:
        return {"v": torch.zeros_like(y)} if self.momentum else {}

    def move(self, y: Tensor, g: Tensor, state: State, at: At) -> None:
        if not self.momentum:
            y.addcmul_(g, at.lr, value=-1)
            return
        v = state["v"]
        if at.lr.numel() == 1 and not self.nesterov and y.device.type == "cpu":
            _one_pass(y, g, v, self.momentum, float(at.lr))
            return
        v.mul_(self.momentum).addcmul_(g, at.lr, value=-1)
        if self.nesterov:
            y.addcmul_(g, at.lr, value=-1).add_(v, alpha=self.momentum)
        else:
            y.add_(v)

    def remembered(self, state: State) -> Tensor | None:
        return -state["v"] if self.momentum else None

    def box(self, server: bool) -> list[str]:
        x, move, b = ("x", "+ server_lr Delta", "beta") if server else ("y", "- lr g", "a")
        if not self.momentum:
            return [f"{x} <- {x} {move}"]
        step = f"{b} v {move}" if self.nesterov else "v"
        return [f"v <- {b} v {move}        {b} = {self.momentum:g}", f"{x} <- {x} + {step}"]

    def guess_box(self, zero: bool) -> str:
        a = "a^2" if self.nesterov else "a"
        return f"y <- y + c(q) v,   c(q) = {a} (1 - a^q) / (1 - a)" if zero else super().guess_box(zero)

    def coast(self, counts: Tensor) -> Tensor:
        """c(q) = a (1 - a^q) / (1 - a): how far q zero-gradient steps carry a unit of velocity (Nesterov: times a)."""
        a = self.momentum
        far = a * (1 - a ** counts.double()) / (1 - a)
        return far * a if self.nesterov else far


def _one_pass(y: Tensor, g: Tensor, v: Tensor, momentum: float, lr: float) -> None:
    """v <- momentum * v - lr * g;  y <- y + v: both in one walk through memory, which is what a large model waits for.

    torch's fused SGD does b <- momentum * b + (1 - dampening) * g;  y <- y - lr * b. With `maximize`, which turns the
    sign of g, with dampening = 1 - lr and with a rate of -1, its b is our v.
    """
    g = g.to(y).expand_as(y).contiguous()  # the kernel asks for nothing and takes it for granted
    torch._fused_sgd_(
        [y], [g], [v], weight_decay=0.0, momentum=momentum, lr=-1.0, dampening=1 - lr,
        nesterov=False, maximize=True, is_first_step=False,
    )  # fmt: skip


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
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            check(value is None or (is_number(value) and 0 <= value < 1), self, name, "in [0, 1)", value)
        check(self.eps is None or (is_number(self.eps) and self.eps > 0), self, "eps", "> 0", self.eps)
        check(self.v_init is None or (is_number(self.v_init) and self.v_init >= 0), self, "v_init", ">= 0", self.v_init)
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

    def init(self, y: Tensor) -> State:
        assert self.v_init is not None
        count = y.new_zeros((*y.shape[:-1], 1))
        return {"m": torch.zeros_like(y), "v": torch.full_like(y, self.v_init), "j": count}

    def remembered(self, state: State) -> Tensor | None:
        return state["m"] if self.beta1 else None

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        """Update `v` in place with the squared gradient."""
        raise NotImplementedError

    second: ClassVar[str] = ""  # the same as a formula, G for the gradient

    def box(self, server: bool) -> list[str]:
        x, move, g = ("x", "+ server_lr", "Delta") if server else ("y", "- lr", "g")
        start = f"eps = {self.eps:g}, v starts at {self.v_init:g}"
        if self.bias_correction:
            start += (
                ", server_lr times sqrt(1 - beta2^t) / (1 - beta1^t)" if server else ", both moments bias-corrected"
            )
        return [
            f"m <- beta1 m + (1 - beta1) {g}        beta1 = {self.beta1:g}",
            self.second.replace("G", g).replace("#", f"{self.beta2:g}"),
            f"{x} <- {x} {move} m / (sqrt(v) + eps)        {start}",
        ]

    def move(self, y: Tensor, g: Tensor, state: State, at: At) -> None:
        assert self.beta1 is not None and self.beta2 is not None and self.eps is not None
        m, v, j = state["m"], state["v"], state["j"]
        j.add_(1)
        m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        self.second_moment(v, g * g)
        rate = at.lr
        if self.bias_correction:
            first, second = 1 - self.beta1**j, 1 - self.beta2**j
            if at.rates is None:  # on clients as torch and Kingma & Ba's algorithm 1: eps meets the corrected root
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
    second: ClassVar[str] = "v <- beta2 v + (1 - beta2) G^2        beta2 = #"
    reference: ClassVar[str] = "Kingma & Ba 2015; on the server Reddi et al. 2021 (FedAdam)"

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
    second: ClassVar[str] = "v <- v - (1 - beta2) G^2 sign(v - G^2)        beta2 = #"
    reference: ClassVar[str] = "Zaheer et al. 2018; on the server Reddi et al. 2021 (FedYogi)"

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        assert self.beta2 is not None
        v.sub_((1 - self.beta2) * square * torch.sign(v - square))


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """Adagrad: the second moment only grows, so a beta2, taken for the sake of its siblings, has no effect.

        v <- v + g^2

    >>> Adagrad(0.01).for_server().beta1
    0.0
    """

    at_clients: ClassVar[dict[str, Any]] = {"beta1": 0.0, "beta2": 0.0, "eps": 1e-10, "bias_correction": False}
    at_server: ClassVar[dict[str, Any]] = Adaptive.at_server | {"beta1": 0.0, "beta2": 0.0}
    second: ClassVar[str] = "v <- v + G^2"
    reference: ClassVar[str] = "Duchi et al. 2011; on the server Reddi et al. 2021 (FedAdagrad)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta2 is not None:
            object.__setattr__(self, "beta2", 0.0)

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        v.add_(square)
