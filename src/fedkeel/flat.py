"""A model as one flat vector of its trainable parameters.

The parameters of the module become views into `flat` and their gradients views into `grad`, so loading a
vector is one copy and reading a gradient is none; `bind` makes them views of other vectors.
Buffers (BatchNorm statistics) are separate.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import draws
from .errors import FedkeelError, InputError, check, reason
from .inputs import restore

ONE_AT_A_TIME = threading.Lock()


@dataclass
class Place:
    """Seed, round, client and step of a forward pass, and which of the step's masks: the key of dropout masks."""

    seed: int = 0
    round: int = 0
    client: int = 0
    step: int = 0
    masks: int = 0

    def torch_seed(self, module: int) -> int:
        purpose = f"dropout-{module}" if self.masks == 0 else f"dropout-{module}, masks {self.masks}"
        return draws.torch_seed(self.seed, purpose, self.round, self.client, self.step)


class CountedDropout(nn.Module):
    """Dropout whose mask depends on its `Place` and its number among the modules, and on nothing else.

    torch's own modules draw from a process-wide generator, which threads would share.
    """

    def __init__(self, original: nn.Module, p: float, channelwise: bool, index: int, place: Place) -> None:
        super().__init__()
        self.original = (original,)  # in a tuple, so that torch does not register it as a submodule
        self.p, self.channelwise = p, channelwise
        self.index, self.place = index, place

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channelwise else x.shape
        generator = torch.Generator().manual_seed(self.place.torch_seed(self.index))
        mask = torch.empty(shape, dtype=x.dtype).bernoulli_(1 - self.p, generator=generator)
        return x * mask.to(x.device) / (1 - self.p)


class FlatModel:
    """An adopted `nn.Module`.

    >>> model = FlatModel(nn.Linear(2, 1))
    >>> model.size, list(model.shapes)
    (3, ['weight', 'bias'])
    >>> model.load(torch.tensor([1.0, 2.0, 3.0]))
    >>> model.module(torch.ones(1, 2)).item()
    6.0
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.module = module.to(device=device, dtype=dtype)
        self.place = Place()
        self._count_dropout()
        self.trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self.trainable:
            raise InputError("The model has no trainable parameter; set requires_grad=True on those to train.")
        self.shapes = {name: p.shape for name, p in self.trainable.items()}
        self.sizes = [p.numel() for p in self.trainable.values()]
        self.size = sum(self.sizes)
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.trainable.values()])
        self.grad = torch.zeros_like(self.flat)
        self.bind(self.flat, self.grad)

    def bind(self, vector: Tensor, grad: Tensor) -> None:
        """Make the module's parameters views of `vector` and their gradients views of `grad`."""
        values, slopes = self.views(vector), self.views(grad)
        for name, parameter in self.trainable.items():
            parameter.data = values[name]
            parameter.grad = slopes[name]

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The vector cut into parameters by name."""
        parts = torch.split(vector, self.sizes, -1)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    @torch.no_grad()
    def load(self, vector: Tensor, buffers: dict[str, Tensor] | None = None) -> None:
        """Put these values into the module."""
        self.flat.copy_(vector)
        if buffers:
            for name, buffer in self.module.named_buffers():
                buffer.copy_(buffers[name])

    def buffers(self) -> dict[str, Tensor]:
        """A copy of the module's buffers."""
        return {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    def replica(self) -> FlatModel:
        """An independent copy for another worker."""
        dtype, device = self.flat.dtype, str(self.flat.device)
        return FlatModel(copy.deepcopy(self.module), dtype, device)

    def _count_dropout(self) -> None:
        for parent in list(self.module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, CountedDropout):  # a replica of an adopted module
                    child.place = self.place
                elif type(child) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
                    assert isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
                    index = sum(isinstance(m, CountedDropout) for m in self.module.modules())
                    counted = CountedDropout(child, child.p, not isinstance(child, nn.Dropout), index, self.place)
                    setattr(parent, name, counted)

    def give_back(self) -> nn.Module:
        """The module with its original dropout layers and inputs; do not use this adopted model afterwards."""
        for parent in list(self.module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, CountedDropout):
                    setattr(parent, name, child.original[0])
        return restore(self.module)


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """`make()`, a task's model, under a torch seed of its own; the caller's generator is left as it was."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):  # the generator belongs to the whole process
        torch.manual_seed(seed)
        try:
            module = make()
        except FedkeelError:
            raise
        except Exception as error:  # of the user's function
            raise InputError(f"The task's model cannot be made: {reason(error)}.") from error
    check(isinstance(module, nn.Module), "Task", "model", "a function that makes an nn.Module", module)
    return module


def halves(module: nn.Module) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None:
    """`(represent, classify)` of a model, `classify(represent(x)) = module(x)`; None if it cannot be cut.

    A model may define two methods of these names; an `nn.Sequential` that ends in a linear layer is cut before it.

    >>> represent, classify = halves(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> represent(torch.zeros(1, 3)).shape, classify(torch.zeros(1, 4)).shape
    (torch.Size([1, 4]), torch.Size([1, 2]))
    """
    represent, classify = getattr(module, "represent", None), getattr(module, "classify", None)
    if callable(represent) and callable(classify):
        return represent, classify
    if type(module) is nn.Sequential and len(module) > 1 and isinstance(module[-1], nn.Linear):
        return module[:-1], module[-1]
    return None


def flops(model: FlatModel, x: Tensor) -> int:
    """Floating-point operations of one sample's gradient: three times its forward pass (one forward, two backward).

    Counted are products with weights, a multiplication and an addition each; normalisation, pooling and attention's
    own products are not.

    >>> flops(FlatModel(nn.Linear(10, 5)), torch.zeros(2, 10)) / (3 * 2)
    50.0
    """
    products = 0

    def count(layer: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        nonlocal products
        matrices = [p for p in layer.parameters(recurse=isinstance(layer, nn.MultiheadAttention)) if p.ndim > 1]
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            products += output.numel() * matrices[0][0].numel()
        elif matrices and args and not isinstance(layer, nn.Embedding):  # every position meets every weight once
            products += args[0].shape[:-1].numel() * sum(p.numel() for p in matrices)

    was, handles = model.module.training, [layer.register_forward_hook(count) for layer in model.module.modules()]
    model.module.eval()
    with torch.no_grad():
        model.module(x)
    model.module.train(was)
    for handle in handles:
        handle.remove()
    return 3 * 2 * products // len(x)
