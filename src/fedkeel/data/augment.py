"""Augmentation on tensors, in the batch: a task's `augment` changes the inputs that clients train on.

It is any function `(x, generators) -> x` of the batch `[clients, batch, ...]` and of one numpy generator per client,
keyed by (seed, "augment", round, client, step): the draws do not depend on which other clients train, on the worker or
on the engine mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, check
from ..ranges import Range, keep

Augment = Callable[[Tensor, Sequence[np.random.Generator]], Tensor]


@dataclass(frozen=True)
class CropFlip:
    """The usual augmentation on CIFAR: pad, crop at a random place, mirror half of the images.

    fill: what pads, one value per channel; None: zeros. (Where inputs were centred, black is not zero.) per: "sample"
    draws for every image; "batch" one place and one mirroring for a client's whole batch, as the code of the GHBM paper
    does.

    >>> x = torch.arange(16.0).reshape(1, 1, 1, 4, 4)
    >>> CropFlip(pad=1)(x, [np.random.default_rng(0)])[0, 0, 0]
    tensor([[ 2.,  1.,  0.,  0.],
            [ 6.,  5.,  4.,  0.],
            [10.,  9.,  8.,  0.],
            [14., 13., 12.,  0.]])
    """

    pad: int = 4
    flip: bool = True
    per: str = "sample"
    fill: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        keep(self, Range(0, 1024, whole=True), "pad")
        check(isinstance(self.flip, bool), self, "flip", "True or False", self.flip)
        check(self.per in ("sample", "batch"), self, "per", "'sample' or 'batch'", self.per)

    def __call__(self, x: Tensor, generators: Sequence[np.random.Generator]) -> Tensor:
        if x.ndim != 5:
            raise InputError(f"CropFlip needs images [channels, height, width]. Got samples of {tuple(x.shape[2:])}.")
        rows = x.shape[1] if self.per == "sample" else 1
        # Row by row, so that a client's draws do not depend on how far its batch was padded for its neighbours.
        chance = np.stack([generator.random((rows, 3)) for generator in generators]).repeat(x.shape[1] // rows, 1)
        chance = chance.reshape(-1, 3)
        images = x.flatten(0, 1)
        if self.pad:
            top, left = (torch.from_numpy((chance[:, i] * (2 * self.pad + 1)).astype(np.int64)) for i in (0, 1))
            images = crop(images, self.pad, top.to(x.device), left.to(x.device), self._filling(x))
        if self.flip:
            mirrored = torch.from_numpy(chance[:, 2] < 0.5).to(x.device)
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        return images.view(x.shape)

    def _filling(self, x: Tensor) -> Tensor:
        """One value per channel."""
        fill = x.new_zeros(x.shape[2]) if self.fill is None else x.new_tensor(self.fill)
        if len(fill) != x.shape[2]:
            raise InputError(f"CropFlip(fill=) has {len(fill)} values for images of {x.shape[2]} channels.")
        return fill


def crop(images: Tensor, pad: int, top: Tensor, left: Tensor, fill: Tensor) -> Tensor:
    """Every image `[n, channels, height, width]` padded, by one value per channel, and cut to size at its own place.

    >>> crop(torch.ones(1, 1, 2, 2), 1, torch.tensor([0]), torch.tensor([1]), torch.tensor([5.0]))[0, 0]
    tensor([[5., 5.],
            [1., 1.]])
    """
    height, width = images.shape[-2:]
    padded = fill[:, None, None].expand(*images.shape[:2], height + 2 * pad, width + 2 * pad).clone()
    padded[..., pad : pad + height, pad : pad + width] = images
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view [n, channels, top, left, height, width]
    return windows[torch.arange(len(images), device=images.device), :, top, left]
