"""Which way clients run: a fixed rule of model and task, never of the clock."""

from __future__ import annotations

import torch
from torch import nn

from ..data.batches import Batch
from ..errors import InputError, reason
from ..flat import FlatModel, flops
from ..task import Task
from .gradients import Lockstep, Serial
from .gradients.lockstep import chain, uses_batch_statistics

# Layers that treat samples independently, keep no running state and draw no random numbers. A layer of one's own that
# does the same says so by an attribute: client_axis = True. BatchNorm without running statistics runs there, too.
CLIENT_AXIS = (
    nn.Linear, nn.Bilinear, nn.Embedding, nn.Flatten, nn.Unflatten, nn.Identity,
    nn.LayerNorm, nn.GroupNorm, nn.Conv1d, nn.Conv2d, nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softmax,
    nn.LogSoftmax, nn.Hardtanh,
)  # fmt: skip
# Parameters up to which lockstep pays on CPUs (docs/speed.md, "Serial, batched or compiled"): chains of plain layers
# are ahead at 73,000 and behind at 291,000, other models ahead at 36,000 and behind at 73,000. Those that use their
# parameters often (convolutions, recurrent layers) fall behind sooner: by the operations of a client's step.
LARGEST_CHAIN, LARGEST, MOST_OPERATIONS = 100_000, 40_000, 10_000_000


def choose(mode: str, task: Task, model: FlatModel) -> tuple[str, str]:
    """(mode, reason) for "auto", "serial" or "batched"."""
    if mode == "serial":
        return "serial", "as asked"
    why_not = no_client_axis(task, model)
    if why_not is not None:
        return "serial", f"batched was asked for, but {why_not}" if mode == "batched" else why_not
    if mode == "batched":
        return "batched", "as asked"
    if any(map(uses_batch_statistics, model.module.modules())):
        return "serial", "normalisation by the batch is faster one client at a time"
    plain = chain(model.module) is not None
    bound = LARGEST_CHAIN if plain else LARGEST
    if model.size > bound:
        return "serial", f"{model.size:,} parameters > {bound:,}"
    if not plain and (needed := operations(task, model)) > MOST_OPERATIONS:
        return "serial", f"{needed:,} operations in a client's step > {MOST_OPERATIONS:,}"
    return "batched", f"every layer has a client-axis form and {model.size:,} parameters <= {bound:,}"


def no_client_axis(task: Task, model: FlatModel) -> str | None:
    """Why this model cannot run along the client axis, or None."""
    for name, layer in model.module.named_modules():
        leaf = next(layer.children(), None) is None
        known = type(layer) in CLIENT_AXIS or getattr(layer, "client_axis", False) or uses_batch_statistics(layer)
        if leaf and not known and (name or type(layer).__module__.startswith("torch.")):
            return f"{type(layer).__name__} has no client-axis form"
    if model.buffers():
        return "the model has buffers"
    x, y = task.data.x[:2], task.data.y[:2]
    # Two clients with models of their own: one has all of these samples, one the first alone, and padding.
    points = torch.stack([model.flat, 0.5 * model.flat])
    share = torch.zeros(2, len(x)).to(model.flat)
    share[0], share[1, 0] = 1 / len(x), 1
    batched, serial = Lockstep(task, model), Serial(task, model)
    try:
        both = Batch(torch.stack([x, x]), torch.stack([y, y]), share)
        batched.start(model.flat, 2)
        g, loss = batched(points, both)
        own = [Batch(x[None, :n], y[None, :n], None) for n in (len(x), 1)]
        oracles = [serial(point[None], batch) for point, batch in zip(points, own, strict=True)]
    except Exception as error:  # whatever a user's forward does that vmap cannot follow
        return f"its forward does not run under vmap ({type(error).__name__})"
    for client, (oracle, value) in enumerate(oracles):
        for got, want in ((g[client], oracle[0]), (loss[client], value[0])):
            if not torch.allclose(got, want, rtol=1e-3, atol=1e-5, equal_nan=True):
                return "its forward along the client axis gives other gradients than one client at a time"
    return None


def operations(task: Task, model: FlatModel) -> int:
    """Of one client's gradient on one batch."""
    held = len(task.data.x) / len(task.data)
    return round(flops(model, task.data.x[:2]) * min(task.batch_size or held, held))


@torch.no_grad()
def moves_global_generator(task: Task, model: FlatModel) -> bool:
    """Whether a forward pass in training mode draws from torch's process-wide generator."""
    with torch.random.fork_rng(devices=[]):
        before, buffers = torch.get_rng_state(), model.buffers()
        model.module.train()
        try:
            model.module(task.data.x[:2])
        except Exception as error:  # of the user's module
            raise InputError(f"The model fails in training mode, on two samples: {reason(error)}.") from error
        model.load(model.flat.clone(), buffers)
        return not torch.equal(before, torch.get_rng_state())
