"""FedProx's Synthetic(alpha, beta): 30 users, 10 classes, 60 features, generated (Li et al. 2020)."""

from functools import cache, partial

import numpy as np

from .. import draws
from ..data import FederatedData
from ..models.linear import softmax_regression
from ..ranges import check_memory
from ..task import Task, cross_entropy
from ..world import Epochs
from .naming import named

CLASSES, FEATURES = 10, 60
BYTES = 450_000  # of a user while the data are made, on average


def synthetic_fedprox(alpha: float = 1, beta: float = 1, users: int = 30, iid: bool = False, seed: int = 0) -> Task:
    """FedProx's Synthetic(alpha, beta), generated: 30 users, 10 classes; softmax regression, 610 parameters.

    alpha: how much users' labellings differ; beta: how much their inputs do.

        u_k ~ N(0, alpha^2),  W_k, b_k ~ N(u_k, 1);   B_k ~ N(0, beta^2),  v_k ~ N(B_k, 1),  x ~ N(v_k, diag(j^-1.2))
        y = argmax(W_k x + b_k);   sizes 50 + int(LogNormal(4, 2))

    iid: one labelling and one input distribution for all.

    >>> task = synthetic_fedprox()
    >>> len(task.data), task.data.x.shape[1], task.spec
    (30, 60, 'synthetic-fedprox')
    """
    name = named(synthetic_fedprox, locals())
    check_memory(f"{users:,} users", users * BYTES, "use fewer users")
    return Task(
        **name,
        model=partial(softmax_regression, FEATURES, CLASSES),
        loss=cross_entropy,
        data=_data(alpha, beta, users, iid, seed),
        batch_size=10,
        lr=0.01,
        budget=Epochs(20),
    )


@cache
def _data(alpha: float, beta: float, users: int, iid: bool, seed: int) -> FederatedData:
    # The authors' code sets no seed, so no draw can repeat theirs: this follows the formula, with alpha and beta
    # as deviations, as their code takes them. 90 % of a user's samples train.
    sizes = 50 + draws.generator(seed, "fedprox-sizes").lognormal(4, 2, users).astype(np.int64)
    scale = np.arange(1, FEATURES + 1) ** -0.6
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for user, size in enumerate(sizes):
        generator = draws.generator(seed, "fedprox-user", client=0 if iid else user)
        u, b = generator.normal(0, alpha), generator.normal(0, beta)
        weight, bias = generator.normal(u, 1, (FEATURES, CLASSES)), generator.normal(u, 1, CLASSES)
        centre = generator.normal(b, 1, FEATURES)
        own = draws.generator(seed, "fedprox-samples", client=user)
        x = centre + own.standard_normal((size, FEATURES)) * scale
        parts.append((x, np.argmax(x @ weight + bias, 1)))
    cuts = [int(0.9 * size) for size in sizes]
    train = [(x[:cut], y[:cut]) for (x, y), cut in zip(parts, cuts, strict=True)]
    test = [(x[cut:], y[cut:]) for (x, y), cut in zip(parts, cuts, strict=True)]
    x, y = (np.concatenate(part) for part in zip(*train, strict=True))
    tx, ty = (np.concatenate(part) for part in zip(*test, strict=True))
    return FederatedData(x, y, np.cumsum([0, *cuts]), test=(tx, ty))
