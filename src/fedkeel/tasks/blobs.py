"""Generated Gaussian classes, one class per client: small problems with strong client drift."""

from functools import cache, partial

import numpy as np

from .. import draws
from ..data import FederatedData
from ..models.linear import mlp
from ..task import Task, cross_entropy
from ..world import FixedSteps
from .naming import Name, named

FEATURES, MODES, SPREAD = 32, 2, 1.1
TEST = 100  # test samples per class


def blobs_deep(seed: int = 0) -> Task:
    """20 classes on 20 clients, three hidden layers of 48: take 2 clients per round (cohort=2).

    >>> task = blobs_deep()
    >>> len(task.data), len(task.data.x), sum(p.numel() for p in task.model().parameters())
    (20, 4000, 7268)
    """
    return _task(named(blobs_deep, locals()), 20, 200, (48, 48, 48), 20, seed)


def blobs_wide(seed: int = 0) -> Task:
    """40 classes on 40 clients, two hidden layers of 48: take 4 clients per round (cohort=4).

    >>> len(blobs_wide().data)
    40
    """
    return _task(named(blobs_wide, locals()), 40, 100, (48, 48), 10, seed)


def _task(name: Name, classes: int, samples: int, hidden: tuple[int, ...], steps: int, seed: int) -> Task:
    return Task(
        model=partial(mlp, FEATURES, hidden, classes),
        loss=cross_entropy,
        data=_data(classes, samples, seed),
        batch_size=10,
        lr=0.05,
        budget=FixedSteps(steps),
        **name,
    )


@cache
def _data(classes: int, samples: int, seed: int) -> FederatedData:
    """Each class is a mixture of Gaussians around centres of its own; the client's number is its class."""
    generator = draws.generator(seed, "blobs")
    centres = generator.normal(0, SPREAD, (classes, MODES, FEATURES))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(classes), count)
        x = centres[y, generator.integers(MODES, size=len(y))] + generator.normal(0, 1, (len(y), FEATURES))
        return x.astype(np.float32), y

    x, y = draw(samples)
    return FederatedData.from_arrays(x, y, clients=y, test=draw(TEST))
