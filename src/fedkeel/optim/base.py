"""The base of all optimizers, and SGD. The same classes serve clients and the server."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from ..errors import check
from ..ranges import COEFFICIENT, FADING, POSITIVE, RATE, keep

if TYPE_CHECKING:
    from ..aggregate import Reports
    from ..data.batches import Batch
    from ..rule import End, Objective

State = dict[str, Tensor]


@dataclass(frozen=True)
class Optimizer:
    """A rate, weight decay (coupled: it enters the momentum) and clipping by global norm.

    `y` and `g` are `[clients, params]` on clients and `[params]` on the server; `lr` broadcasts against both. A default
    of None is the paper's value for the place where the optimizer serves (see `for_clients`, `for_server`).
    """

    lr: float | str | None = None
    weight_decay: float = 0.0
    clip: float | None = None

    linear: ClassVar[bool] = False  # the update is a fixed linear combination of gradients: FedNova's norm exists
    finds_rate: ClassVar[bool] = False  # clients choose their own step sizes, so no rate may be set
    reads_value: ClassVar[bool] = False  # a step depends on the objective's value, so penalties belong to it
    slot: ClassVar[str] = "client"  # under which its scalars travel
    at_clients: ClassVar[dict[str, Any]] = {}
    at_server: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        if not (isinstance(self.lr, str) and self.lr == "match-gel"):
            keep(self, RATE, "lr")
        keep(self, COEFFICIENT, "weight_decay")
        keep(self, POSITIVE, "clip")

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
        """Whether it moves on zero gradients, as guesses with a zero proxy require."""
        return False

    def init(self, y: Tensor, lr: Tensor) -> State:
        """The state before the first step."""
        return {}

    def step(self, f: Objective, state: State, lr: Tensor, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """One step of clients: moves `y` and the state in place; gives the gradient and the value at the old y."""
        g, value = f(y, batch)
        self.move(y, self.tame(g, y), state, lr)
        return g, value

    def apply(self, x: Tensor, g: Tensor, state: State, lr: Tensor) -> None:
        """One step of the server along -g."""
        self.move(x, self.tame(g, x), state, lr)

    def tame(self, g: Tensor, y: Tensor) -> Tensor:
        """The gradient at y as the update sees it: clipped (in place), then with weight decay."""
        if self.clip is not None:
            norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            g.mul_((self.clip / (norm + 1e-12)).clamp_(max=1.0))
        return g.add(y, alpha=self.weight_decay) if self.weight_decay else g

    def move(self, y: Tensor, g: Tensor, state: State, lr: Tensor) -> None:
        """The update itself, in place."""
        raise NotImplementedError

    def guess(self, y: Tensor, g: Tensor, state: State, lr: Tensor, counts: Tensor) -> None:
        """`counts` more steps with the gradient fixed at `g`, one by one."""
        for q in range(int(counts.max())):
            more = counts > q
            ahead, moved = y.clone(), {k: v.clone() for k, v in state.items()}
            self.move(ahead, g, moved, lr)
            y.copy_(torch.where(more, ahead, y))
            for k, v in moved.items():
                state[k].copy_(torch.where(more, v, state[k]))

    def scalars(self, end: End, steps: Tensor) -> dict[str, Tensor]:
        """Scalars about each client's steps, `[clients, 1]` by name, which are sent up with the update."""
        return {}

    def report(self, up: Reports) -> dict[str, float]:
        """Columns for the history, from those scalars."""
        return {}

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

    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, FADING, "momentum")
        check(isinstance(self.nesterov, bool), self, "nesterov", "true or false", self.nesterov)
        check(not self.nesterov or self.momentum > 0, self, "nesterov", "false when momentum is 0", self.nesterov)

    @property
    def coasts(self) -> bool:
        return self.momentum > 0

    def init(self, y: Tensor, lr: Tensor) -> State:
        return {"v": torch.zeros_like(y)} if self.momentum else {}

    def move(self, y: Tensor, g: Tensor, state: State, lr: Tensor) -> None:
        if not self.momentum:
            y.addcmul_(g, lr, value=-1)
            return
        v = state["v"]
        if lr.numel() == 1 and not self.nesterov and y.device.type == "cpu":
            _one_pass(y, g, v, self.momentum, float(lr))
            return
        v.mul_(self.momentum).addcmul_(g, lr, value=-1)
        if self.nesterov:
            y.addcmul_(g, lr, value=-1).add_(v, alpha=self.momentum)
        else:
            y.add_(v)

    def coast(self, counts: Tensor) -> Tensor:
        """c(q) = a (1 - a^q) / (1 - a): how far q zero-gradient steps carry a unit of velocity (Nesterov: times a)."""
        a = self.momentum
        far = a * (1 - a ** counts.double()) / (1 - a)
        return far * a if self.nesterov else far


def _one_pass(y: Tensor, g: Tensor, v: Tensor, momentum: float, lr: float) -> None:
    """v <- momentum * v - lr * g;  y <- y + v: both in one pass over memory, which limits the speed of large models.

    torch's fused SGD does b <- momentum * b + (1 - dampening) * g;  y <- y - lr * b. With `maximize`, which flips
    the sign of g, dampening = 1 - lr and a rate of -1, its b is our v.
    """
    g = g.to(y).expand_as(y).contiguous()  # the kernel does not check this
    torch._fused_sgd_(
        [y], [g], [v], weight_decay=0.0, momentum=momentum, lr=-1.0, dampening=1 - lr,
        nesterov=False, maximize=True, is_first_step=False,
    )  # fmt: skip
