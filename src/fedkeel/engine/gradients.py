"""The one function in which serial and batched differ: `gradients(y, batch) -> g, loss`.

Serial runs the module's own backward for one client; it works for any module and is the oracle of batched.
Batched runs the forward along the client axis and differentiates the sum of all losses: clients own separate rows,
so the gradient of the sum is the stack of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..data.batches import Batch
from ..flat import FlatModel, flops, halves
from ..task import Task
from . import client_axis
from .lean import Direct, gaps

# Layers that treat samples independently, keep no running state and draw no random numbers. A layer of one's own that
# does the same says so by an attribute: client_axis = True.
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


def channels_last(x: Tensor) -> Tensor:
    """Images with their channels innermost: convolutions and pooling on CPUs are faster that way."""
    if x.ndim != 4 or not x.is_floating_point():
        return x
    _, channels, height, width = x.shape
    strides = (channels * height * width, 1, channels * width, channels)  # also where channels = 1, unlike contiguous()
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


class Split(nn.Module):
    """A model cut at its representation: `forward(x)` gives both `represent(x)` and what `classify` makes of it."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__()
        self.module, self.views = model.module, model.views

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cut = halves(self.module)
        assert cut is not None  # `Contrastive.resolve` has seen that it is there
        represent, classify = cut
        z = represent(x)
        return z, classify(z)

    def at(self, vector: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Representations and outputs with these parameters."""
        parameters = {f"module.{name}": value for name, value in self.views(vector).items()}
        both: tuple[Tensor, Tensor] = functional_call(self, parameters, (x,))
        return both

    @torch.no_grad()
    def represent(self, at: Callable[..., tuple[Tensor, Tensor]], *arguments: Tensor) -> Tensor:
        """Representations only, in evaluation mode: no dropout, no statistics moved."""
        was = self.module.training
        self.module.eval()
        z, _ = at(*arguments)
        self.module.train(was)
        return z


class Serial:
    """One client at a time, by the module's own backward into the flat gradient."""

    def __init__(self, task: Task, model: FlatModel, directs: Sequence[Direct] = ()) -> None:
        self.task, self.model, self.split = task, model, Split(model)
        self.directs, self.gaps = directs, gaps(model, directs)
        self.draws_globally = False  # see `moves_global_generator`
        self.terms: Callable[[Tensor], Tensor | None] | None = None  # rules' terms of the loss, from representations
        self.outcome: Callable[[Tensor], Tensor] | None = None  # what rules make of the outputs before the loss

    def start(self, x: Tensor, clients: int) -> Tensor:
        """The clients' starting points `[1, params]`: the module's own storage."""
        assert clients == 1
        self.model.module.train()
        self.model.flat.copy_(x)
        return self.model.flat[None]

    def represent(self, point: Tensor) -> Tensor:
        """The current batch as another model `[1, params]` represents it."""
        return self.split.represent(self.split.at, point[0], channels_last(self.batch.x[0]))[None]

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        if self.terms is None:
            output = self.model.module(x)
            return self.task.loss(output if self.outcome is None else self.outcome(output[None])[0], y)
        z, output = self.split(x)
        added = self.terms(z[None])
        output = output if self.outcome is None else self.outcome(output[None])[0]
        return self.task.loss(output, y) if added is None else self.task.loss(output, y) + added[0]

    def __call__(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        model, self.batch = self.model, batch
        model.place.step = batch.step
        if y.data_ptr() == model.flat.data_ptr():
            return self._here(model.grad, batch)
        grad = torch.empty_like(model.grad)  # elsewhere: the client's own model and gradient stay as they are
        self._bind(y[0].clone(), grad)
        try:
            return self._here(grad, batch)
        finally:
            self._bind(model.flat, model.grad)

    def _bind(self, point: Tensor, grad: Tensor) -> None:
        self.model.bind(point, grad)
        for direct in self.directs:
            direct.bind()

    def _here(self, grad: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Where the module is, into the vector that its gradients are views of."""
        if self.draws_globally:
            torch.manual_seed(self.model.place.torch_seed(-1))
        with torch.enable_grad():
            losses = self._losses(channels_last(batch.x[0]), batch.y[0])
            loss = losses.mean() if batch.share is None else (losses * batch.share[0]).sum()
        for begin, end in self.gaps:
            grad[begin:end].zero_()
        for direct in self.directs:
            direct.begin()
        loss.backward()  # type: ignore[no-untyped-call]
        for direct in self.directs:
            direct.finish()
        return grad[None], loss.detach().view(1, 1)


class Batched:
    """All clients of a group in lockstep along the client axis."""

    def __init__(self, task: Task, model: FlatModel, compiled: Plain | None = None) -> None:
        self.task, self.model, self.split = task, model, Split(model)
        self.plain = lockstep(task, model) if compiled is None else compiled
        self.outputs = outputs_of(model)
        self.both: Callable[..., tuple[Tensor, Tensor]] = vmap(self.split.at)
        self.terms: Callable[[Tensor], Tensor | None] | None = None
        self.outcome: Callable[[Tensor], Tensor] | None = None

    def start(self, x: Tensor, clients: int) -> Tensor:
        """The clients' starting points `[clients, params]`."""
        self.model.module.train()
        return x.repeat(clients, 1)

    def represent(self, point: Tensor) -> Tensor:
        """The current batches as other models `[clients, params]` represent them."""
        return self.split.represent(self.both, point, self.batch.x)

    def __call__(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        self.batch = batch
        if self.terms is None and self.outcome is None:
            return self.plain(y, batch.x, batch.y, batch.share)
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            z, output = (None, self.outputs(leaf, batch.x)) if self.terms is None else self.both(leaf, batch.x)
            losses = losses_of(self.task, output if self.outcome is None else self.outcome(output), batch.y)
            added = None if z is None or self.terms is None else self.terms(z)
            loss = mean(losses if added is None else losses + added, batch.share)
            (g,) = torch.autograd.grad(loss.sum(), leaf)
        return g, loss.detach()[:, None]


# (models `[clients, params]`, inputs, targets, shares or None) -> (gradients, losses `[clients, 1]`)
Plain = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def outputs_of(model: FlatModel) -> Callable[[Tensor, Tensor], Tensor]:
    """`outputs(models [clients, params], inputs)` of any module that vmap can follow."""

    def one(vector: Tensor, x: Tensor) -> Tensor:
        output: Tensor = functional_call(model.module, model.views(vector), (x,))
        return output

    return vmap(one)


def losses_of(task: Task, output: Tensor, y: Tensor) -> Tensor:
    """Every sample's loss: it needs no other sample, so those of all clients can stand in one batch."""
    return task.loss(output.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])


def mean(losses: Tensor, share: Tensor | None) -> Tensor:
    """Every client's mean loss."""
    return losses.mean(1) if share is None else (losses * share).sum(1)


def lockstep(task: Task, model: FlatModel) -> Plain:
    """The gradients of many clients at once, with nothing added to the task's loss.

    A chain of plain layers is a few matrix products; vmap follows any other module, at a price per step.
    """
    chain, slope = client_axis.chain(model.module), client_axis.slope(task.loss)
    outputs = outputs_of(model)

    def by_hand(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        assert chain is not None
        output, kept = chain.forward(y, x)
        losses, d = slope(output, target)
        d = d / d.shape[1] if share is None else d * share.view(*share.shape, *[1] * (d.ndim - 2))
        return chain.backward(kept, d), mean(losses, share)[:, None]

    def by_autograd(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            loss = mean(losses_of(task, outputs(leaf, x), target), share)
            (g,) = torch.autograd.grad(loss.sum(), leaf)
        return g, loss.detach()[:, None]

    return by_autograd if chain is None else by_hand


def no_client_axis(task: Task, model: FlatModel) -> str | None:
    """Why this model cannot run along the client axis, or None."""
    for name, layer in model.module.named_modules():
        leaf = next(layer.children(), None) is None
        known = type(layer) in CLIENT_AXIS or getattr(layer, "client_axis", False)
        if leaf and not known and (name or type(layer).__module__.startswith("torch.")):
            return f"{type(layer).__name__} has no client-axis form"
    if model.buffers():
        return "the model has buffers"
    x, y = task.data.x[:2], task.data.y[:2]
    # Two clients with models of their own: one has all of these samples, one the first alone, and padding.
    points = torch.stack([model.flat, 0.5 * model.flat])
    share = torch.zeros(2, len(x)).to(model.flat)
    share[0], share[1, 0] = 1 / len(x), 1
    batched, serial = Batched(task, model), Serial(task, model)
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


def choose(mode: str, task: Task, model: FlatModel) -> tuple[str, str]:
    """(mode, reason): a fixed rule of model and task, never of the clock."""
    if mode == "serial":
        return "serial", "as asked"
    why_not = no_client_axis(task, model)
    if mode == "batched" or why_not is None:
        if why_not is not None:
            return "serial", f"batched was asked for, but {why_not}"
        if mode == "batched":
            return "batched", "as asked"
        plain = client_axis.chain(model.module) is not None
        bound = LARGEST_CHAIN if plain else LARGEST
        if model.size > bound:
            return "serial", f"{model.size:,} parameters > {bound:,}"
        if not plain and (needed := operations(task, model)) > MOST_OPERATIONS:
            return "serial", f"{needed:,} operations in a client's step > {MOST_OPERATIONS:,}"
        return "batched", f"every layer has a client-axis form and {model.size:,} parameters <= {bound:,}"
    return "serial", why_not


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
        model.module(task.data.x[:2])
        model.load(model.flat.clone(), buffers)
        return not torch.equal(before, torch.get_rng_state())
