"""Cutting a model to fewer channels: which elements of its flat vector remain, and the smaller module on them.

Every layer keeps the first channels of its output, and of its input those that its producers kept. Which layer
produces which channels is found by a trial forward pass: each layer sets the channels it cuts to NaN, and operations
between layers (addition, concatenation, pooling, flattening) carry the NaNs to the next one.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import InputError
from ..flat import FlatModel
from ..models.lstm import LSTM

Width = Callable[[int], int]  # from a layer's full width to the one that is kept


@dataclass(frozen=True)
class Cut:
    """What is left of a layer.

    kept: for each parameter, the index that is kept along each of its first axes. outside: the output channels that
    are kept. sizes: attributes of the layer that say how wide it is. axis: where its output has its channels.
    """

    kept: dict[str, tuple[Tensor, ...]]
    outside: Tensor
    sizes: dict[str, Any] = field(default_factory=dict)
    axis: int = -1


def _linear(layer: nn.Linear, inside: Tensor, width: Width) -> Cut:
    out = torch.arange(width(layer.out_features))
    return Cut({"weight": (out, inside), "bias": (out,)}, out, {"in_features": len(inside), "out_features": len(out)})


def _convolution(layer: Any, inside: Tensor, width: Width) -> Cut:
    if layer.groups == layer.in_channels == layer.out_channels:  # depthwise: one filter per channel
        sizes = dict.fromkeys(("in_channels", "out_channels", "groups"), len(inside))
        return Cut({"weight": (inside,), "bias": (inside,)}, inside, sizes, 1)
    if layer.groups > 1:
        raise InputError("grouped convolutions have no prefix of channels")
    out = torch.arange(width(layer.out_channels))
    sizes = {"in_channels": len(inside), "out_channels": len(out)}
    return Cut({"weight": (out, inside), "bias": (out,)}, out, sizes, 1)


def _embedding(layer: nn.Embedding, inside: Tensor, width: Width) -> Cut:
    out = torch.arange(width(layer.embedding_dim))
    return Cut({"weight": (torch.arange(layer.num_embeddings), out)}, out, {"embedding_dim": len(out)})


def _normalisation(layer: Any, inside: Tensor, width: Width) -> Cut:
    sizes: dict[str, Any] = {"num_features": len(inside)}
    if isinstance(layer, nn.GroupNorm):
        if len(inside) % layer.num_groups:
            raise InputError(f"{len(inside)} channels do not make {layer.num_groups} equal groups")
        sizes = {"num_channels": len(inside)}
    if isinstance(layer, nn.LayerNorm):
        if len(layer.normalized_shape) > 1:
            raise InputError("it normalises over more than the channels")
        sizes = {"normalized_shape": (len(inside),)}
    if getattr(layer, "track_running_stats", False):
        raise InputError("its running statistics have no meaning across sub-models; use track_running_stats=False")
    return Cut({"weight": (inside,), "bias": (inside,)}, inside, sizes, -1 if isinstance(layer, nn.LayerNorm) else 1)


def _recurrent(layer: Any, inside: Tensor, width: Width) -> Cut:
    if getattr(layer, "bidirectional", False) or getattr(layer, "proj_size", 0):
        raise InputError("two directions and projections are not supported")
    hidden = layer.weight_hh_l0.shape[1]
    out = torch.arange(width(hidden))
    rows = torch.cat([gate + out for gate in range(0, len(layer.weight_hh_l0), hidden)])  # a prefix inside each gate
    kept: dict[str, tuple[Tensor, ...]] = {}
    for name, _ in layer.named_parameters():
        columns = inside if name == "weight_ih_l0" else out
        kept[name] = (rows, columns) if name.startswith("weight") else (rows,)
    return Cut(kept, out, {"input_size": len(inside), "hidden_size": len(out)})


def _attention(layer: nn.MultiheadAttention, inside: Tensor, width: Width) -> Cut:
    if layer.in_proj_weight is None or layer.bias_k is not None:
        raise InputError("keys and values of another width, and their biases, are not supported")
    heads, size = layer.num_heads, layer.head_dim
    whole = layer.embed_dim
    own, out = torch.arange(width(size)), torch.arange(width(whole))
    inner = torch.cat([head * size + own for head in range(heads)])  # a prefix inside each head
    if not len(inner) == len(out) == len(inside):
        raise InputError(f"{heads} heads of {len(own)} are not {len(inside)} channels; use a rate that divides them")
    rows = torch.cat([block * whole + inner for block in range(3)])
    kept: dict[str, tuple[Tensor, ...]] = {"in_proj_weight": (rows, inside), "in_proj_bias": (rows,)}
    kept |= {"out_proj.weight": (out, inner), "out_proj.bias": (out,)}
    return Cut(kept, out, {"embed_dim": len(out), "kdim": len(out), "vdim": len(out), "head_dim": len(own)})


NORMS: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.GroupNorm, nn.LayerNorm,
)  # fmt: skip
CUTS: dict[type[nn.Module], Callable[..., Cut]] = {
    nn.Linear: _linear, nn.Conv1d: _convolution, nn.Conv2d: _convolution, nn.Embedding: _embedding,
    nn.LSTM: _recurrent, nn.GRU: _recurrent, nn.RNN: _recurrent, LSTM: _recurrent,
    nn.MultiheadAttention: _attention,
} | dict.fromkeys(NORMS, _normalisation)  # fmt: skip


def cut(layer: nn.Module, inside: Tensor, width: Width) -> Cut:
    """What is left of this layer; a user's own layer defines it by a method `cut(inside, width) -> Cut`.

    >>> cut(nn.Linear(4, 6), torch.arange(2), lambda wide: wide // 2).sizes
    {'in_features': 2, 'out_features': 3}
    """
    own = getattr(layer, "cut", None)
    return own(inside, width) if callable(own) else CUTS[type(layer)](layer, inside, width)


def _units(layer: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers to cut: known ones and those with a `cut` method; any other layer with parameters is refused."""
    if type(layer) in CUTS or callable(getattr(layer, "cut", None)):
        yield name, layer
        return
    if any(True for _ in layer.parameters(recurse=False)):
        raise InputError(
            f"The layer '{name or type(layer).__name__}' ({type(layer).__name__}) cannot be cut: fedkeel does not "
            "know it; give it a method cut(inside, width) -> Cut, or use an algorithm without levels."
        )
    for child, below in layer.named_children():
        yield from _units(below, f"{name}.{child}" if name else child)


def trace(
    module: nn.Module, x: Tensor, width: Width, last: tuple[str, ...] = (), like: nn.Module | None = None
) -> tuple[dict[str, Cut], tuple[str, ...]]:
    """The cut of each layer, and the layers whose output is the model's, found by a trial forward pass.

    last: layers that keep their whole output. like: a narrower model of the same kind, whose layers give the widths.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> cuts, last = trace(net, torch.zeros(2, 4), lambda wide: wide // 2, last=("2",))
    >>> last, {name: left.outside.tolist() for name, left in cuts.items()}
    (('2',), {'0': [0, 1, 2], '2': [0, 1, 2]})
    """
    module = copy.deepcopy(module).train()
    cuts: dict[str, Cut] = {}
    leaves: dict[str, Tensor] = {}

    def before(name: str, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        inside = _kept(args[0], _axis(layer)) if args[0].is_floating_point() else torch.arange(0)
        try:
            keep = width if like is None else _width_of(like.get_submodule(name))
            left = cut(layer, inside, (lambda wide: wide) if name in last else keep)
            if len(left.outside) == 0:
                raise InputError("no channel would be left")
        except InputError as error:
            raise InputError(f"The layer '{name}' ({type(layer).__name__}) cannot be cut: {error}.") from error
        if name in cuts and not torch.equal(cuts[name].outside, left.outside):
            raise InputError(f"The layer '{name}' cannot be cut: it is used twice, on different channels; use two.")
        cuts[name] = left
        return tree_map(lambda v: torch.nan_to_num(v) if _is_float(v) else v, args)  # type: ignore[no-any-return]

    def after(name: str, layer: nn.Module, output: Any) -> Any:
        left = cuts[name]

        def mark(value: Any) -> Any:
            if not _is_float(value):
                return value
            value = value.detach().clone()
            gone = torch.ones(value.shape[left.axis], dtype=torch.bool)
            gone[left.outside] = False
            value.movedim(left.axis, -1)[..., gone] = torch.nan
            leaves[name] = value.requires_grad_()
            return leaves[name]

        if isinstance(layer, nn.MultiheadAttention):
            return mark(output[0]), *output[1:]
        return tree_map(mark, output)

    for name, layer in _units(module):
        if isinstance(layer, NORMS):  # channels pass through: the producer stays the layer before
            _pass_through(name, layer, before)
        else:
            layer.register_forward_pre_hook(lambda m, a, n=name: before(n, m, a))
            layer.register_forward_hook(lambda m, a, o, n=name: after(n, m, o))
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), _naming(module):
        total = module(x)
        if total.requires_grad:
            torch.nan_to_num(total).sum().backward()  # type: ignore[no-untyped-call]
    return cuts, tuple(name for name, leaf in leaves.items() if leaf.grad is not None)


def _pass_through(name: str, layer: nn.Module, before: Callable[..., Any]) -> None:
    def forward(x: Tensor) -> Tensor:
        before(name, layer, (x,))
        return x

    layer.forward = forward


@contextmanager
def _naming(module: nn.Module) -> Iterator[None]:
    """Name the layer in the error of a failing forward pass."""
    inside: list[str] = []
    handles = [layer.register_forward_pre_hook(lambda m, a, n=name: inside.append(n))
               for name, layer in module.named_modules()]  # fmt: skip
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        where = next((name for name in reversed(inside) if name), type(module).__name__)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"The model cannot be cut at or after the layer '{where}': {reason}") from error
    finally:
        for handle in handles:
            handle.remove()


def _width_of(layer: nn.Module) -> Width:
    own = getattr(layer, "out_channels", getattr(layer, "out_features", None))
    return lambda wide: wide if own is None else own


def _axis(layer: nn.Module) -> int:
    of_images = (nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm1d, nn.InstanceNorm2d)
    return 1 if isinstance(layer, (*of_images, nn.GroupNorm)) else getattr(layer, "channel_axis", -1)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _kept(x: Tensor, axis: int) -> Tensor:
    gone = x.detach().isnan().movedim(axis, -1).flatten(0, -2)
    if not torch.equal(gone.any(0), gone.all(0)) or bool(gone.all()):
        raise InputError("its input mixes channels that are kept with channels that are cut")
    return torch.nonzero(~gone[0]).flatten()


def narrow(
    model: FlatModel, x: Tensor, width: Width, wrap: Callable[[nn.Module], nn.Module] = lambda module: module,
    like: nn.Module | None = None,
) -> tuple[Tensor, nn.Module]:  # fmt: skip
    """(index, module): which elements of the model's vector remain, and the module on them, in the same order.

    wrap: selects the part of the model that runs, such as its first exits; layers that do not run are left out.

    >>> model = FlatModel(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)))
    >>> index, module = narrow(model, torch.zeros(2, 4), lambda wide: wide // 2)
    >>> len(index), module[0]
    (27, Linear(in_features=4, out_features=3, bias=True))
    """
    _, last = trace(wrap(model.module), x, lambda wide: wide)
    found, _ = trace(wrap(model.module), x, width, last, None if like is None else wrap(like))
    module = wrap(copy.deepcopy(model.module))
    layers, whole = dict(_units(module)), dict(_units(wrap(model.module)))
    names = {id(p): name for name, p in model.module.named_parameters()}
    places = model.views(torch.arange(model.size))
    index: dict[str, tuple[Tensor, nn.Parameter]] = {}
    for name, layer in layers.items():
        if name not in found:
            layer.requires_grad_(False)
            continue
        for local, axes in found[name].kept.items():
            owner, _, own = local.rpartition(".")
            part, full = layer.get_submodule(owner), whole[name].get_submodule(owner)
            if (value := getattr(part, own, None)) is None:
                continue
            smaller = nn.Parameter(_take(value.detach(), axes).clone(), value.requires_grad)
            setattr(part, own, smaller)
            place = names[id(getattr(full, own))]
            if place in index:
                raise InputError(f"The layer '{name}' cannot be cut: it shares '{place}' with another; use two.")
            if value.requires_grad:
                index[place] = _take(places[place], axes).flatten(), smaller
        for attribute, size in found[name].sizes.items():
            setattr(layer, attribute, size)
    used = {id(parameter) for parameter in _used(module, x)}
    for place, (_, parameter) in list(index.items()):
        if id(parameter) not in used:  # it runs, but no output of this level depends on it
            parameter.requires_grad_(False)
            del index[place]
    return torch.cat([index[name][0] for name in places if name in index]), module


def _used(module: nn.Module, x: Tensor) -> list[nn.Parameter]:
    """The parameters that the output depends on; refuses a module that does not run."""
    module.train()
    module.zero_grad()
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), _naming(module):
        module(x).sum().backward()
    return [parameter for parameter in module.parameters() if parameter.grad is not None]


def _take(value: Tensor, axes: tuple[Tensor, ...]) -> Tensor:
    for axis, kept in enumerate(axes):
        value = value.index_select(axis, kept.to(value.device))
    return value


class Scaled(nn.Module):
    """A layer of a narrow model whose activations are divided by the level's rate: before a normalisation, or after
    any other layer. `always`: at evaluation too."""

    def __init__(self, layer: nn.Module, rate: float, always: bool) -> None:
        super().__init__()
        self.layer = layer
        self.rate, self.always = rate, always

    def forward(self, x: Tensor) -> Tensor:
        rate = self.rate if self.always or self.training else 1.0
        if isinstance(self.layer, NORMS):
            return self.layer(x / rate)  # type: ignore[no-any-return]
        return self.layer(x) / rate  # type: ignore[no-any-return]


def scale(module: nn.Module, rate: float, always: bool, x: Tensor, shortcuts: bool = True) -> None:
    """Put the scaler before every normalisation; in a model without any, after hidden layers.

    shortcuts: before those of shortcuts, too. A block names its own in `shortcuts`.
    """
    if rate == 1:
        return
    units = dict(_units(module))
    _, last = trace(module, x, lambda wide: wide)
    norms = [name for name, layer in units.items() if isinstance(layer, NORMS)]
    if not shortcuts:
        for name, block in module.named_modules():
            beside = tuple(f"{name}.{child}." for child in getattr(block, "shortcuts", ()))
            norms = [norm for norm in norms if not norm.startswith(beside)]
    plain = (nn.Linear, nn.Conv1d, nn.Conv2d)
    hidden = [name for name, layer in units.items() if isinstance(layer, plain) and name not in last]
    for name in norms or hidden:
        owner, _, own = name.rpartition(".")
        setattr(module.get_submodule(owner), own, Scaled(units[name], rate, always))


def class_rows(model: FlatModel, x: Tensor) -> Tensor:
    """For each element of the vector, the only class whose score depends on it; -1 if several do.

    >>> class_rows(FlatModel(nn.Linear(2, 3)), torch.zeros(2, 2)).tolist()
    [0, 0, 1, 1, 2, 2, 0, 1, 2]
    """
    rows = model.views(torch.full((model.size,), -1))
    names = {id(p): name for name, p in model.module.named_parameters() if p.requires_grad}
    units = dict(_units(model.module))
    for name in trace(model.module, x, lambda wide: wide)[1]:
        if isinstance(units[name], nn.Linear):
            for parameter in units[name].parameters(recurse=False):
                place = rows[names[id(parameter)]]
                place.copy_(torch.arange(len(place)).view(-1, *[1] * (place.ndim - 1)).expand_as(place))
    return torch.cat([view.reshape(-1) for view in rows.values()])
