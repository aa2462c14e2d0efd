"""LEAF Synthetic: 1,000 users, 5 classes, 60 features, generated (Caldas et al. 2018, arXiv 1812.01097)."""

from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..data import FederatedData
from ..errors import check
from ..ranges import check_memory
from ..task import Task, cross_entropy
from ..world import UniformSteps
from .naming import named

CLASSES, FEATURES = 5, 60
LEAF_SEED = 931231
BYTES = 100_000  # of a user while the data are made, on average


def synthetic(users: int = 1000, seed: int = LEAF_SEED) -> Task:
    """The data set of the GEL papers, with their batch size, budget and target; softmax regression, 305 parameters.

    Every user has a feature centre of its own and a linear labelling near a common one; sizes are log-normal.
    The defaults draw exactly LEAF's numbers: 96,374 training and 11,179 test samples.

    >>> len(synthetic().data.x)
    96374
    """
    name = named(synthetic, locals())
    check(seed < 2**32, "synthetic", "seed", "below 2^32, as LEAF's generator takes no more", seed)
    check_memory(f"{users:,} users", users * BYTES, "use fewer users")
    return Task(
        **name,
        model=partial(nn.Linear, FEATURES, CLASSES),
        loss=cross_entropy,
        data=_data(users, seed),
        batch_size=5,
        lr=0.01,
        budget=UniformSteps(4, 13),
        target=0.85,
    )


@cache
def _data(users: int, seed: int) -> FederatedData:
    sizes = np.minimum(np.random.RandomState(seed).lognormal(3, 2, users).astype(int) + 5, 1000)
    # LEAF seeds again before the features, and draws from numpy's legacy generator in exactly this order.
    random = np.random.RandomState(seed)
    mixing = random.normal(0, 1, (FEATURES + 1, CLASSES, 1))
    mean = random.normal(random.normal(0, 1), 1, 1)
    # multivariate_normal factors the covariance at every call; factoring it once gives the same numbers.
    # Powers by Python, as LEAF takes them: numpy's differ in the last bit.
    _, spread, axes = np.linalg.svd(np.diag([j**-1.2 for j in range(1, FEATURES + 1)]))
    factor = np.sqrt(spread)[:, None] * axes
    cuts = np.maximum(1, (0.9 * sizes).astype(int))
    x, y, offsets = _room(cuts)
    test_x, test_y, test_offsets = _room(sizes - cuts)
    for user, (size, cut) in enumerate(zip(sizes, cuts, strict=True)):
        random.choice(1, p=[1.0])  # the user's cluster; there is one
        centre = random.normal(random.normal(0, 1), 1, FEATURES)
        inputs = centre + random.standard_normal((size, FEATURES)) @ factor
        labelling = mixing @ random.normal(mean, 0.1, 1)
        scores = np.hstack([np.ones((size, 1)), inputs]) @ labelling
        labels = np.argmax(scores + random.normal(0, 0.1, (size, CLASSES)), 1)
        own, tested = slice(*offsets[user : user + 2]), slice(*test_offsets[user : user + 2])
        x[own], y[own] = inputs[:cut], labels[:cut]
        test_x[tested], test_y[tested] = inputs[cut:], labels[cut:]
    return FederatedData(x, y, offsets, test=(test_x, test_y))


def _room(sizes: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Arrays for so many samples of every user, filled in place: one copy; and where each user begins."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return np.empty((offsets[-1], FEATURES)), np.empty(offsets[-1], dtype=np.int64), offsets
