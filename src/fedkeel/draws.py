"""Counter-based randomness.

Every draw is a function of `(seed, purpose, round, client, step)` through the counter-based generator
Philox: no generator state travels between rounds, so runs that are compared share what they should share,
engines agree, and resuming needs no saved generator.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray


class Key(ISeedSequence):
    """A key for Philox. Given as its argument `key`, numpy would draw entropy from the system first, and not use it."""

    def __init__(self, *words: int) -> None:
        self.words = np.array(words, dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint64) -> NDArray[np.uint64]:
        return self.words


def generator(seed: int, purpose: str, round: int = 0, client: int = 0, step: int = 0) -> np.random.Generator:
    """A numpy generator for this purpose, round, client and step.

    >>> a, b = (generator(0, "batch", round=3, client=7).integers(100, size=4) for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    # Philox has a key of two words and a counter of four; it counts up in the first counter word.
    key, counter = Key(seed, zlib.crc32(purpose.encode())), np.array([0, step, client, round], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key, counter))  # type: ignore[arg-type]  # the stubs lack ISeedSequence


def generators(seed: int, purpose: str, round: int, clients: Iterable[int]) -> Iterator[np.random.Generator]:
    """`generator(...)` of one client after another: one object is reused, since making one takes longer than its draws.

    >>> [int(one.integers(100)) for one in generators(0, "batch", 3, [6, 7])][1]  == int(
    ...     generator(0, "batch", 3, 7).integers(100))
    True
    """
    one = generator(seed, purpose, round)
    place = one.bit_generator.state
    for client in clients:
        place["state"]["counter"][2] = client
        one.bit_generator.state = place
        yield one


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0, step: int = 0) -> int:
    """A seed for a torch generator, drawn from `generator`."""
    return int(generator(seed, purpose, round, client, step).integers(2**63))


def uniforms(seed: int, purpose: str, clients: int) -> NDArray[np.float64]:
    """Four numbers in [0, 1) for each of clients 0, 1, ..., at once; more clients change none of those before them.

    >>> bool((uniforms(0, "device", 5)[:3] == uniforms(0, "device", 3)).all())
    True
    """
    return generator(seed, purpose).random((clients, 4))
