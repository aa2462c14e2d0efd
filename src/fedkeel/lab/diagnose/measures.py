"""The formulas: from gradients, paths and coefficients to the columns of a history."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ...aggregate import Weights
from ...optim import Optimizer
from ...run.history import History

COLUMNS = (
    "drift", "spread", "dissimilarity", "dissimilarity_ratio", "gradient_norm", "sampling_error", "cosine_mean",
    "cosine_min", "update_norm_mean", "update_norm_max", "momentum_error", "momentum_cosine", "coefficient_norm",
    "coefficient_first", "coefficient_last", "bound_tau_eff", "bound_A", "bound_B", "bound_C", "diagnostic_gradients",
)  # fmt: skip


def means(histories: Sequence[History]) -> dict[str, float]:
    """Every measure's mean over diagnosed rounds and seeds; measures that never had a value are left out.

    >>> means([History([{"round": 1, "drift": 1.0}, {"round": 2, "drift": 3.0}, {"round": 3}])])
    {'drift': 2.0}
    """
    rows = list(chain.from_iterable(histories))
    found = {name: [row[name] for row in rows if row.get(name) is not None] for name in COLUMNS}
    return {name: statistics.mean(values) for name, values in found.items() if values}


@dataclass(frozen=True)
class Slope:
    """The clients' exact gradients at one point: their mean, their mean square, the mean of recent cohorts."""

    mean: Tensor
    square: float
    recent: Tensor | None

    def columns(self) -> dict[str, float | None]:
        """With g = sum_i p_i g_i:

            gradient_norm = ||g||
            dissimilarity = sum_i p_i ||g_i - g||^2 = sum_i p_i ||g_i||^2 - ||g||^2       (GHBM, assumption 4.3)
            dissimilarity_ratio = sum_i p_i ||g_i||^2 / ||g||^2     (the beta^2 of GEL's assumption 3 where kappa = 0)
            sampling_error = ||g_recent - g||^2 / ||g||^2        (the left side of GHBM's lemma 4.7, by ||g||^2)

        >>> Slope(torch.tensor([3.0, 4.0]), 35.0, None).columns()
        {'gradient_norm': 5.0, 'dissimilarity': 10.0, 'dissimilarity_ratio': 1.4}
        """
        norm = float(torch.linalg.vector_norm(self.mean))
        found: dict[str, float | None] = {"gradient_norm": norm, "dissimilarity": at_least(self.square - norm**2, 0.0)}
        if norm:
            found["dissimilarity_ratio"] = at_least(self.square / norm**2, 1.0)
        if norm and self.recent is not None:
            found["sampling_error"] = float((self.recent - self.mean).square().sum()) / norm**2
        return found


def shadow_sequence(
    x: Tensor, g: Tensor, gradient: Callable[[Tensor], Tensor], client: Optimizer, lr: float, steps: int
) -> Tensor:
    """theta^1 ... theta^J, as if gradients were averaged after every local step (GHBM, definition 3.1), `[J, params]`.

        theta^j = theta^{j-1} - lr sum_i p_i g_i(theta^{j-1}),      theta^0 = x,   g the first mean gradient

    The paper prints no rate. Clients with momentum, or Adam, have a shadow that steps as they do.

    >>> import fedkeel as fk
    >>> one = torch.ones(1)
    >>> shadow_sequence(one, one, lambda y: y, fk.SGD(0.5), 0.5, 3).flatten().tolist()
    [0.5, 0.25, 0.125]
    """
    y, places = x[None].clone(), []
    rate = y.new_full((1, 1), lr)
    state = client.init(y, rate)
    for j in range(steps):
        g = gradient(y[0]) if j else g
        client.apply(y, g[None].to(y).clone(), state, rate)  # clipping works in place
        places.append(y[0].clone())
    return torch.stack(places)


def at_least(value: float, least: float) -> float:
    """Rounding does not take a square below its least value; NaN stays NaN (`max` would hide it)."""
    return least if value < least else value


def alignment(updates: Tensor, weights: Tensor) -> dict[str, float | None]:
    """Cosines of the clients' updates with their weighted mean, and the updates' norms.

        cos_i = <Delta_i, Delta> / (||Delta_i|| ||Delta||)

    >>> found = alignment(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2, 1))
    >>> round(found["cosine_mean"] ** 2, 6), found["update_norm_max"]
    (0.5, 1.0)
    """
    mean, norms = (weights * updates).sum(0), torch.linalg.vector_norm(updates, dim=1)
    found: dict[str, float | None] = {"update_norm_mean": float(norms.mean()), "update_norm_max": float(norms.max())}
    lengths = norms * torch.linalg.vector_norm(mean)
    if bool((lengths > 0).any()):
        cosines = (updates @ mean)[lengths > 0] / lengths[lengths > 0]
        found |= {"cosine_mean": float(cosines.mean()), "cosine_min": float(cosines.min())}
    return found


def momentum_error(memory: Tensor, gradient: Tensor) -> dict[str, float | None]:
    """How far what a method remembers is from the true gradient (GHBM, lemmas 4.5 to 4.7 together).

        error = min over s >= 0 of ||s m - g||^2 / ||g||^2,      cosine = <m, g> / (||m|| ||g||)

    The lemma divides m by the sum of its coefficients; methods differ in that sum and it changes while a run warms up,
    so the scale that fits best is taken. 0: along the true gradient; 1: nothing of it, no better than no memory.

    >>> momentum_error(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 0.0]))["momentum_cosine"]
    0.6
    """
    square, inner = float(memory.square().sum()), float(memory @ gradient)
    norm = float(gradient.square().sum())
    if not square or not norm or not math.isfinite(square):
        return {}
    s = max(0.0, inner / square)
    error = float((s * memory - gradient).square().sum()) / norm
    return {"momentum_error": error, "momentum_cosine": inner / math.sqrt(square * norm)}


def bound(a: Tensor, samples: Tensor, steps: Tensor, weights: Weights) -> dict[str, float | None]:
    """How much each local gradient counts: means over the cohort of ||a_i||_1 and of the first and the last gradient's
    share of it; and the constants of GEL's theorem 2 for this cohort of m clients (equations 10 to 14).

        tau_eff = sum_i p_i ||a_i||_1,   w_i = p_i ||a_i||_1 / tau_eff        (FedNova: w_i = p_i)
        A = m tau_eff sum_i w_i^2 ||a_i||_2^2 / ||a_i||_1^2        B = sum_i w_i (||a_i||_2^2 - last_i^2)
        C = max_i (||a_i||_1^2 - ||a_i||_1 last_i)

    Here p_i are the algorithm's own weights: tau_eff w_i is what multiplies a client's mean gradient.

    >>> import fedkeel as fk
    >>> found = bound(torch.tensor([[3.0, 1.0]]), torch.ones(1, 1), torch.tensor([[2.0]]), fk.Uniform())
    >>> found["coefficient_norm"], found["coefficient_first"], found["coefficient_last"]
    (4.0, 0.75, 0.25)
    """
    norms, squares, last = a.sum(1, keepdim=True), a.square().sum(1, keepdim=True), a.gather(1, steps.long() - 1)
    pull = weights.each(samples, norms) * norms * weights.scale(samples, norms, steps)
    tau_eff, w = pull.sum(), pull / pull.sum()
    return {
        "coefficient_norm": float(norms.mean()),
        "coefficient_first": float((a[:, :1] / norms).mean()),
        "coefficient_last": float((last / norms).mean()),
        "bound_tau_eff": float(tau_eff),
        "bound_A": float(len(a) * tau_eff * (w**2 * squares / norms**2).sum()),
        "bound_B": float((w * (squares - last**2)).sum()),
        "bound_C": float((norms**2 - norms * last).max()),
    }
