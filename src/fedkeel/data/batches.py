"""Batches as slices of seeded permutations, so that the batch size may change from round to round."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import draws
from ..ranges import check_memory
from ..world import Ints
from . import FederatedData
from .augment import Augment

LARGE = 2**27  # sample numbers of a round from which on memory is checked
AHEAD = 2**20  # input numbers that are gathered for all steps at once


@dataclass
class Batch:
    """One batch of every active client: `x` and `y` are `[clients, batch, ...]`.

    `share` is `[clients, batch]`: what each sample counts in its client's mean (0 for padding), or None when
    every client has a full batch. Passes with the same `masks` have the same dropout masks.
    """

    x: Tensor
    y: Tensor
    share: Tensor | None
    step: int = 0
    masks: int = 0


class Batches:
    """The batches of a group of clients in one round; clients stand with the longest budgets first.

    A client walks through a permutation of its samples; when that runs out a fresh one is appended, so every
    batch is full. A client with fewer samples than the batch size uses all of them.
    """

    def __init__(
        self, data: FederatedData, clients: Ints, steps: Ints, batch_size: int | None, seed: int, round: int,
        augment: Augment | None = None,
    ) -> None:  # fmt: skip
        self.data, self.augment = data, augment
        self.clients = clients
        self.seed, self.round = seed, round
        self.sizes = sizes = data.sizes(clients)
        self.widths = sizes if batch_size is None else np.minimum(batch_size, sizes)
        self.steps, self.longest = steps, int(steps[0])
        width = int(self.widths.max())
        if (places := len(clients) * self.longest * width) > LARGE:
            what = f"The batches of {len(clients)} clients, {self.longest:,} steps of {width:,} samples,"
            check_memory(what, 3 * 8 * places, "use fewer steps, smaller batches or engine='serial'")
        # The number of clients that do step k: a prefix, since the longest budgets come first.
        done = np.searchsorted(steps[::-1], np.arange(self.longest + 1), side="right")
        self.active: list[int] = (len(steps) - done).tolist()
        # Batches smaller than the widest are padded with the client's first sample, at weight 0.
        index = np.repeat(data.offsets[clients], self.longest * width).reshape(len(clients), self.longest, width)
        drawn = draws.generators(seed, "batch", round, clients)
        needed = (steps * self.widths).tolist()
        walks = [_walk(g, size, count) for g, size, count in zip(drawn, sizes.tolist(), needed, strict=True)]
        if sum(needed) == index.size:
            index += np.concatenate(walks).reshape(index.shape)
        else:
            within, early = np.arange(width) < self.widths[:, None], np.arange(self.longest) < steps[:, None]
            index[early[:, :, None] & within[:, None]] += np.concatenate(walks)
        # by steps, then clients, so that the samples of a step are contiguous
        self.index = torch.from_numpy(np.ascontiguousarray(index.swapaxes(0, 1))).to(data.x.device)
        # Small batches of all steps are gathered at once, since the overhead of a gather exceeds its work.
        ahead = augment is None and index.size * data.x[0].numel() <= AHEAD
        self.gathered = tuple(part.unbind() for part in self._samples(self.index)) if ahead else None
        self.share: Tensor | None = None
        if (self.widths != width).any():
            real = np.arange(width) < self.widths[:, None]
            self.share = torch.from_numpy(real / self.widths[:, None]).to(data.x.device, _share_type(data))

    def stop(self, done: int) -> None:
        """End all budgets after so many steps."""
        self.steps = np.minimum(self.steps, done)
        self.longest, self.active[done] = done, 0

    def at(self, k: int, active: int) -> Batch:
        """The batches of step k for the first `active` clients."""
        share = None if self.share is None else self.share[:active]
        if self.gathered is not None:
            x, y = self.gathered[0][k], self.gathered[1][k]
            if active < len(self.clients):
                x, y = x[:active], y[:active]
        else:
            x, y = self._samples(self.index[k, :active])
        if self.augment is not None:
            x = self.augment(
                x, [draws.generator(self.seed, "augment", self.round, int(c), k) for c in self.clients[:active]]
            )
        self.current = Batch(x, y, share, k)
        return self.current

    def _samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples: `x[index]` and `y[index]`, but row by row, which is faster on CPUs."""
        rows = index.reshape(-1)
        x, y = (part.index_select(0, rows).view(*index.shape, *part.shape[1:]) for part in (self.data.x, self.data.y))
        return x, y


def _walk(generator: np.random.Generator, size: int, count: int) -> Ints:
    """The next `count` samples of a client: one permutation after another."""
    walk = generator.permutation(size)
    if count > size:
        more = (generator.permutation(size) for _ in range(-(-count // size) - 1))
        walk = np.concatenate([walk, *more])
    return walk[:count]


def whole(data: FederatedData, clients: Ints, block: int = 256) -> Iterator[Batch]:
    """All samples of these clients in blocks; samples weigh 1/n_i, so that block gradients sum to the mean."""
    sizes = data.sizes(clients)
    for begin in range(0, int(sizes.max()), block):
        place = np.arange(begin, min(begin + block, int(sizes.max())))
        real = place < sizes[:, None]
        index = torch.from_numpy(data.offsets[clients][:, None] + np.where(real, place, 0)).to(data.x.device)
        share = torch.from_numpy(real / sizes[:, None]).to(data.x.device, _share_type(data))
        yield Batch(data.x[index], data.y[index], share)


def _share_type(data: FederatedData) -> torch.dtype:
    return data.x.dtype if data.x.is_floating_point() else torch.get_default_dtype()
