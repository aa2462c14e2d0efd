"""MOON: representations stay near the received model's and away from the client's last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ..algorithm import Algorithm, At, Memory, Rule
from ..errors import InputError, check, is_number
from ..flat import halves, seeded
from ..wire import Upload

if TYPE_CHECKING:
    from ..task import Task
    from ..world import World


@dataclass(frozen=True, repr=False)
class Contrastive(Rule):
    """Model-contrastive learning (Li, He, Song 2021), MOON.

        loss <- loss + mu * -log(e^a / (e^a + e^b)),    a = cos(z, z_received)/T,   b = cos(z, z_previous)/T

    z is what the model being trained makes of a sample, z_received what the received model does, z_previous what
    the client's model at the end of its last round does. At a client's first participation that is the received
    model, and the term has no gradient. An `nn.Sequential` that ends in a linear layer is cut before it; any other
    model must have `represent(x) -> z` and `classify(z) -> output`, with `forward(x) = classify(represent(x))`:

        class Net(nn.Module):
            def represent(self, x): return self.head(self.body(x))
            def classify(self, z): return self.last(z)
            def forward(self, x): return self.classify(self.represent(x))

    >>> Contrastive(mu=5.0)
    Contrastive(mu=5.0, temperature=0.5)
    """

    mu: float = 1.0
    temperature: float = 0.5

    reference: ClassVar[str] = "Li, He & Song 2021, Model-contrastive federated learning (arXiv 2103.16257)"
    formulas: ClassVar[dict[str, str]] = {
        "loss": "loss <- loss + mu * -log(e^a / (e^a + e^b)),  a = cos(z, z_received)/T,  b = cos(z, z_previous)/T"
    }
    keeps: ClassVar[dict[str, Any]] = {"client": ("previous",)}

    def __post_init__(self) -> None:
        check(is_number(self.mu) and self.mu >= 0, self, "mu", ">= 0", self.mu)
        check(is_number(self.temperature) and self.temperature > 0, self, "temperature", "> 0", self.temperature)

    def client_init(self, x: Tensor, at: At) -> Memory:
        return {"previous": x}

    def loss(self, z: Tensor, at: At) -> Tensor | None:
        if not self.mu:
            return None
        previous = at.memory["previous"]
        received = at.represent(at.x.expand_as(previous))
        return self.mu * contrast(z, received, at.represent(previous), self.temperature)

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        return Upload(), {"previous": y}

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        module = seeded(0, task.model).eval()
        cut = halves(module)
        if cut is not None and isinstance(cut[0], nn.Module) and not list(cut[0].parameters()):
            cut = None  # z would be the input itself, which no training shapes
        if cut is None:
            lacks = [name for name in ("represent", "classify") if not callable(getattr(module, name, None))]
            raise InputError(
                f"MOON compares representations, and {type(module).__name__} has no {' and no '.join(lacks)}: give the "
                "model represent(x) -> z and classify(z) -> output, with forward(x) = classify(represent(x))."
            )
        represent, classify = cut
        x, like = task.data.x[:2], next(module.parameters())
        x = x.to(like) if x.is_floating_point() else x.to(like.device)
        with torch.no_grad():
            same = torch.allclose(module(x), classify(represent(x)))
        if not same:
            raise InputError(f"{type(module).__name__}.forward(x) is not classify(represent(x)), which MOON relies on.")
        return self


def contrast(z: Tensor, toward: Tensor, away: Tensor, temperature: float) -> Tensor:
    """-log(e^a / (e^a + e^b)) per sample, with a, b the cosines of z toward and away over the temperature.

    >>> z, toward, away = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), torch.tensor([-1.0, 1.0])
    >>> round(contrast(z, toward, away, 0.5).item(), 6)
    0.322094
    """
    # One operation on both, so that where they are equal the two slopes cancel before anything is added to them
    both = cosine_similarity(z.unsqueeze(-2), torch.stack([toward, away], -2), dim=-1) / temperature
    a, b = both.unbind(-1)
    return torch.logaddexp(a, b) - a
