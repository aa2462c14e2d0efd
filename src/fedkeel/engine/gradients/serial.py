"""Gradients of one client at a time, by the module's own backward pass: any module, and the oracle of lockstep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data.batches import Batch
from ...errors import InputError
from ...flat import FlatModel
from ...task import Task
from .split import Split

if TYPE_CHECKING:
    from ...rule import Losses


def channels_last(x: Tensor) -> Tensor:
    """Images with their channels innermost: convolutions and pooling on CPUs are faster that way."""
    if x.ndim != 4 or not x.is_floating_point():
        return x
    _, channels, height, width = x.shape
    strides = (channels * height * width, 1, channels * width, channels)  # also where channels = 1, unlike contiguous()
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def layout(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """How images are laid out for this model: channels last, unless torch is known to fail with it.

    torch 2.13 on CPUs writes beyond its memory in the backward pass of a 1 x 1 convolution with a stride and fewer than
    8 input channels in that layout. Narrow copies of ResNets (HeteroFL) have such layers.
    """
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    unsafe = any(c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels < 8 for c in convolutions)
    return torch.Tensor.contiguous if unsafe else channels_last


class Serial:
    """One client at a time: the backward pass writes into the flat gradient."""

    def __init__(self, task: Task, model: FlatModel, draws_globally: bool = False) -> None:
        self.task, self.model, self.split = task, model, Split(model)
        self.layout = layout(model.module)
        self.draws_globally = draws_globally  # see `choose.moves_global_generator`

    def start(self, x: Tensor, clients: int) -> Tensor:
        """The clients' starting points `[1, params]`: the module's own storage."""
        assert clients == 1
        self.model.module.train()
        self.model.flat.copy_(x)
        return self.model.flat[None]

    def represent(self, point: Tensor, batch: Batch) -> Tensor:
        """The batch as another model `[1, params]` represents it."""
        return self.split.represent(self.split.at, point[0], self.layout(batch.x[0]))[None]

    def __call__(
        self, y: Tensor, batch: Batch, loss: Losses | None = None, represents: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(gradient, value) at y; `loss` replaces the task's, and reads z where `represents`."""
        model = self.model
        model.place.step, model.place.masks = batch.step, batch.masks
        if y.data_ptr() == model.flat.data_ptr():
            return self._here(model.grad, batch, loss, represents)
        grad = torch.empty_like(model.grad)  # elsewhere: the client's own model and gradient stay as they are
        model.bind(y[0].clone(), grad)
        try:
            return self._here(grad, batch, loss, represents)
        finally:
            model.bind(model.flat, model.grad)

    def _here(self, grad: Tensor, batch: Batch, loss: Losses | None, represents: bool) -> tuple[Tensor, Tensor]:
        """Where the module is, into the vector that its gradients are views of."""
        if self.draws_globally:
            torch.manual_seed(self.model.place.torch_seed(-1))
        with torch.enable_grad():
            losses = self._losses(self.layout(batch.x[0]), batch.y[0], loss, represents)
            value = losses.mean() if batch.share is None else (losses * batch.share[0]).sum()
        if not value.requires_grad:
            raise InputError(
                "The loss does not depend on the model's parameters, so there is nothing to train: look for detach(), "
                "no_grad(), item() or numpy in the model and the loss."
            )
        grad.zero_()
        value.backward()  # type: ignore[no-untyped-call]
        return grad[None], value.detach().view(1, 1)

    def _losses(self, x: Tensor, y: Tensor, loss: Losses | None, represents: bool) -> Tensor:
        if loss is None:
            return self.task.loss(self.model.module(x), y)
        z, output = self.split(x) if represents else (None, self.model.module(x))
        return loss(None if z is None else z[None], output[None], y[None])[0]
