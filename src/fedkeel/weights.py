"""How the server weighs the updates of a round.

    Delta = scale(...) * sum_i each(...)_i * Delta_i          over the clients that reported

Raw coefficients are summed and one factor is applied at the end, so weights need not sum to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .errors import check

if TYPE_CHECKING:
    from .algorithm import Rule
    from .optim import Optimizer


@dataclass(frozen=True)
class Weights:
    """`each` gives a client's raw coefficient, `scale` the one final factor; arguments are `[clients, 1]`."""

    needs_norm: ClassVar[bool] = False
    formula: ClassVar[str] = ""

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        raise NotImplementedError

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        raise NotImplementedError

    def parameters(self) -> dict[str, Any]:
        return {"name": type(self).__name__.lower()} | self.__dict__


@dataclass(frozen=True)
class Samples(Weights):
    """p_i = n_i / sum n: by the samples a client holds."""

    formula: ClassVar[str] = "Delta = sum_i p_i Delta_i,   p_i = n_i / sum_j n_j"

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        return samples

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        return 1 / samples.sum()


@dataclass(frozen=True)
class Uniform(Weights):
    """p_i = 1 / |S|: every client counts the same."""

    formula: ClassVar[str] = "Delta = (1/|S|) sum_i Delta_i"

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        return samples.new_ones(samples.shape)

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        return samples.new_ones(()) / len(samples)


@dataclass(frozen=True)
class Nova(Weights):
    """FedNova: each update is divided by A_i = ||a_i||_1, the weight its gradients carry (Wang et al. 2020).

    `tau_eff="norm"` steps by sum p_i A_i; `"steps"`, as the official code with a proximal term, by sum p_i tau_i.
    """

    tau_eff: str = "norm"
    needs_norm: ClassVar[bool] = True

    @property
    def formula(self) -> str:  # type: ignore[override]
        steps = "A_i" if self.tau_eff == "norm" else "J_i"
        norm = "A_i = ||a_i||_1 where Delta_i = -lr sum_k a_ik g_k"
        return f"Delta = tau_eff sum_i p_i Delta_i / A_i,   tau_eff = sum_i p_i {steps},   {norm}"

    def __post_init__(self) -> None:
        check(self.tau_eff in ("norm", "steps"), self, "tau_eff", "'norm' or 'steps'", self.tau_eff)

    def each(self, samples: Tensor, norm: Tensor) -> Tensor:
        return samples / norm

    def scale(self, samples: Tensor, norms: Tensor, steps: Tensor) -> Tensor:
        lengths = norms if self.tau_eff == "norm" else steps
        return (samples * lengths).sum() / samples.sum() ** 2


WEIGHTS: dict[str, type[Weights]] = {"samples": Samples, "uniform": Uniform, "nova": Nova}


def lengths(client: Optimizer, rules: Sequence[Rule], steps: Tensor, lr: float, expected: int | None) -> Tensor:
    """A_i = ||a_i||_1 for `[clients, 1]` step counts, whatever the mix of momentum, proximal term and guess.

    The same optimizer and the same guess run on a scalar shadow whose gradient is 1 plus the rules' linear parts.

    >>> import fedkeel as fk
    >>> round(lengths(fk.SGD(0.1, momentum=0.9), [fk.Guess()], torch.tensor([[2.0]]), 0.1, expected=9).item(), 12)
    11.82112301
    """
    return _respond(client, rules, steps, lr, expected, torch.ones(int(steps.max()), 1))


def coefficients(client: Optimizer, rules: Sequence[Rule], steps: Tensor, lr: float, expected: int | None) -> Tensor:
    """a_ik, the weight of client i's gradient of step k in its update, `[clients, longest]`; 0 after its last step.

        Delta_i = -lr sum_k a_ik g_ik;      with momentum a and q guesses a_ik = (1 - a^(q + J_i - k)) / (1 - a)

    The second line is GEL's lemma 1; here each a_ik is the answer to a gradient of 1 in step k alone, which also
    covers a proximal term and Nesterov's momentum.

    >>> import fedkeel as fk
    >>> coefficients(fk.SGD(0.1, momentum=0.5), [], torch.tensor([[3.0]]), 0.5, None).tolist()
    [[1.75, 1.5, 1.0]]
    """
    return _respond(client, rules, steps, lr, expected, torch.eye(int(steps.max())))


def _respond(
    client: Optimizer, rules: Sequence[Rule], steps: Tensor, lr: float, expected: int | None, gradients: Tensor
) -> Tensor:
    """How far the clients go along -lr when their gradient in step k is `gradients[k]`, `[clients, width]`."""
    from .algorithm import At, Rows  # imported here because an algorithm is made of weights

    steps = steps.double()
    s = steps.new_zeros(len(steps), gradients.shape[1])
    client = replace(client, clip=None)
    at = At(x=s[0], x0=s[0], optimizer=client, expected_steps=expected)
    at.scalars, at.state = Rows({"lr": torch.full_like(s, lr), "steps": steps}), Rows(client.init(s))
    at.g = torch.zeros_like(s)
    for k in range(int(steps.max())):
        unit = gradients[k].to(s).repeat(len(s), 1)
        for rule in rules:
            pull = rule.shadow(s)
            assert pull is not None
            unit += pull
        at.g = torch.where(steps > k, unit, at.g)
        held = {"s": s.clone()} | {name: value.clone() for name, value in at.state.items()}
        client.step(s, unit, at.state, at)
        for name, value in held.items():  # who has spent its budget stays where it was
            now = s if name == "s" else at.state[name]
            now.copy_(torch.where(steps > k, now, value))
    for rule in rules:
        rule.extra(s, at.of(rule))
    return -s / lr
