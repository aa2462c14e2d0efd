"""Gradients of all clients of a group at once, along the client axis.

Clients own separate rows, so the gradient of the sum of all losses is the stack of their gradients. Tensors are
`[clients, batch, ...]`, parameters `[clients, ...]`. For a chain of linear and elementwise layers the derivative is
written out: on models this small, recording a graph and walking back through it costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...data.batches import Batch
from ...flat import FlatModel
from ...task import Loss, Task, cross_entropy
from .lean import hooked
from .split import Split

if TYPE_CHECKING:
    from ...rule import Losses

# (models `[clients, params]`, inputs, targets, shares or None) -> (gradients, losses `[clients, 1]`)
Plain = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


class Lockstep:
    """All clients of a group in lockstep along the client axis."""

    def __init__(self, task: Task, model: FlatModel, compiled: Plain | None = None) -> None:
        self.task, self.model, self.split = task, model, Split(model)
        self.plain = plain_gradients(task, model) if compiled is None else compiled
        self.outputs = outputs_of(model)
        self.both: Callable[..., tuple[Tensor, Tensor]] = along_clients(model, self.split.at)

    def start(self, x: Tensor, clients: int) -> Tensor:
        """The clients' starting points `[clients, params]`."""
        self.model.module.train()
        return x.repeat(clients, 1)

    def represent(self, point: Tensor, batch: Batch) -> Tensor:
        """The batches as other models `[clients, params]` represent them."""
        return self.split.represent(self.both, point, batch.x, batch.share)

    def __call__(
        self, y: Tensor, batch: Batch, loss: Losses | None = None, represents: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(gradients, values) at y; `loss` replaces the task's, and reads z where `represents`."""
        if loss is None:
            return self.plain(y, batch.x, batch.y, batch.share)

        def values(leaf: Tensor) -> Tensor:
            x, share = batch.x, batch.share
            z, output = self.both(leaf, x, share) if represents else (None, self.outputs(leaf, x, share))
            return mean(loss(z, output, batch.y), share)

        g, value = differentiate(values, y)
        return g, value[:, None]


def differentiate(values: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """(the derivative of the sum of the values, the values) at this point, by autograd."""
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        found = values(leaf)
        (d,) = torch.autograd.grad(found.sum(), leaf)
    return d, found.detach()


def outputs_of(model: FlatModel) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """`outputs(models [clients, params], inputs, shares or None)` of any module that vmap can follow."""

    def one(vector: Tensor, x: Tensor) -> Tensor:
        output: Tensor = functional_call(model.module, model.views(vector), (x,))
        return output

    return along_clients(model, one)


def uses_batch_statistics(layer: nn.Module) -> bool:
    """Whether a layer normalises by the statistics of its batch and keeps none, so that samples affect each other."""
    return type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d) and not layer.track_running_stats


def along_clients(model: FlatModel, one: Callable[..., Any]) -> Callable[..., Any]:
    """`all(models, inputs, shares or None)`, from `one(model, inputs)`: a tensor or a tuple of tensors.

    Where samples of a batch affect each other, padding would enter the statistics. There, clients with equally many
    real samples run together, without the padding; outputs of padding are 0.
    """
    every: Callable[..., Any] = vmap(one)
    mixes = any(uses_batch_statistics(layer) for layer in model.module.modules())

    def padded(vectors: Tensor, x: Tensor, share: Tensor | None) -> Any:
        if share is None or not mixes:
            return every(vectors, x)
        real = (share > 0).sum(1)
        groups = [(real == count).nonzero()[:, 0] for count in sorted(set(real.tolist()))]
        found = [every(vectors[rows], x[rows, : max(1, int(real[rows[0]]))]) for rows in groups]
        back = torch.cat(groups).argsort()
        if isinstance(found[0], Tensor):
            return _joined(found, back, x.shape[1])
        return tuple(_joined(parts, back, x.shape[1]) for parts in zip(*found, strict=True))

    return padded


def _joined(parts: Sequence[Tensor], back: Tensor, width: int) -> Tensor:
    """The rows of groups in the order `back`, each row filled up with zeros to `width` samples."""
    ends = [[0, 0] * (part.ndim - 2) + [0, width - part.shape[1]] for part in parts]
    return torch.cat([nn.functional.pad(part, end) for part, end in zip(parts, ends, strict=True)])[back]


def losses_of(loss: Loss, output: Tensor, y: Tensor) -> Tensor:
    """Every sample's loss: it needs no other sample, so those of all clients can stand in one batch."""
    return loss(output.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])


def mean(losses: Tensor, share: Tensor | None) -> Tensor:
    """Every client's mean loss."""
    return losses.mean(1) if share is None else (losses * share).sum(1)


def plain_gradients(task: Task, model: FlatModel) -> Plain:
    """The gradients of many clients at once, with nothing added to the task's loss.

    A chain of plain layers is a few matrix products; vmap follows any other module, at a price per step.
    """
    layers, derivative = chain(model.module), slope(task.loss)
    outputs = outputs_of(model)

    def by_hand(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        assert layers is not None
        output, kept = layers.forward(y, x)
        losses, d = derivative(output, target)
        d = d / d.shape[1] if share is None else d * share.view(*share.shape, *[1] * (d.ndim - 2))
        return layers.backward(kept, d), mean(losses, share)[:, None]

    def by_autograd(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        g, value = differentiate(lambda leaf: mean(losses_of(task.loss, outputs(leaf, x, share), target), share), y)
        return g, value[:, None]

    return by_autograd if layers is None else by_hand


aten = torch.ops.aten

# What arrives behind an elementwise layer, made from what arrives before it (d) and the layer's output.
DERIVATIVE: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.Identity: lambda d, output: d,
    nn.ReLU: lambda d, output: aten.threshold_backward(d, output, 0),
    nn.Tanh: lambda d, output: aten.tanh_backward(d, output),
    nn.Sigmoid: lambda d, output: aten.sigmoid_backward(d, output),
}


class Chain:
    """A chain of layers for many clients at once: `forward` keeps what `backward` needs.

    >>> chain = Chain(nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    >>> output, kept = chain.forward(torch.zeros(4, 8), torch.ones(4, 5, 3))
    >>> output.shape, chain.backward(kept, torch.ones_like(output)).shape
    (torch.Size([4, 5, 2]), torch.Size([4, 8]))
    """

    def __init__(self, module: nn.Module) -> None:
        self.layers = list(_layers(module))
        self.sizes = [parameter.numel() for parameter in module.parameters()]

    def forward(self, vectors: Tensor, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The outputs; and of each layer its input, with the weights (linear) or the output (others)."""
        parts, kept = iter(vectors.split_with_sizes(self.sizes, -1)), []
        for layer in self.layers:
            before = x
            if isinstance(layer, nn.Linear):
                weight = next(parts).view(-1, layer.out_features, layer.in_features)
                rows, across = x.flatten(1, -2), weight.mT
                rows = rows @ across if layer.bias is None else torch.baddbmm(next(parts)[:, None], rows, across)
                x = rows.view(*x.shape[:-1], layer.out_features)
            elif isinstance(layer, nn.Flatten):
                first, last = (axis + 1 if axis >= 0 else axis for axis in (layer.start_dim, layer.end_dim))
                x = x.flatten(first, last)
            else:
                x = layer(x)
            kept.append((before, weight if isinstance(layer, nn.Linear) else x))
        return x, kept

    def backward(self, kept: list[tuple[Tensor, Tensor]], d: Tensor) -> Tensor:
        """The gradients `[clients, params]`, from d: what the losses change by with the outputs."""
        found: list[Tensor] = []
        for layer, (x, other) in zip(reversed(self.layers), reversed(kept), strict=True):
            if isinstance(layer, nn.Linear):
                rows, d = x.flatten(1, -2), d.flatten(1, -2)
                if layer.bias is not None:
                    found.append(d.sum(1))
                found.append((d.mT @ rows).flatten(1))
                if len(found) == len(self.sizes):
                    break  # the derivative by the data is not needed
                d = (d @ other).view(x.shape)
            elif isinstance(layer, nn.Flatten):
                d = d.view(x.shape)
            else:
                d = DERIVATIVE[type(layer)](d, other)
        return torch.cat(found[::-1], 1)


def chain(module: nn.Module) -> Chain | None:
    """The module as a chain; None if it is not one."""
    layers = list(_layers(module))
    if not all(type(layer) in (nn.Linear, nn.Flatten, *DERIVATIVE) for layer in layers):
        return None
    if any(not parameter.requires_grad for parameter in module.parameters()):
        return None
    if any(hooked(layer) or "forward" in vars(layer) for layer in module.modules()):
        return None  # it may not do what its class says
    own = sum(len(list(layer.parameters())) for layer in layers)
    if not own or own != len(list(module.parameters())):
        return None  # what two layers share is in the vector once
    return Chain(module)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _layers(child)
    else:
        yield module


def slope(loss: Loss) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`(losses, d)` of outputs `[clients, batch, ...]`: each sample's loss, and its derivative by the outputs."""

    def by_autograd(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        d, losses = differentiate(lambda leaf: losses_of(loss, leaf, y), output)
        return losses, d

    def of_cross_entropy(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if output.ndim != 3 or y.ndim != 2 or y.is_floating_point():
            return by_autograd(output, y)
        label = y[..., None]
        logs = torch.log_softmax(output, -1)
        ones = torch.ones_like(label, dtype=logs.dtype)
        return -logs.gather(2, label)[..., 0], logs.exp().scatter_add_(2, label, -ones)

    return of_cross_entropy if is_cross_entropy(loss) else by_autograd


def is_cross_entropy(loss: Loss) -> bool:
    """Whether a loss is known to be plain cross-entropy: ours, or torch's own class without extras."""
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.label_smoothing == 0 and loss.reduction == "none"
        return plain and loss.ignore_index < 0  # labels are not negative, so such an index ignores no sample
    return loss is cross_entropy
