"""Gradients translated once into machine code.

Where clients run one at a time, LSTM layers (`recurrent.py`), convolutions (`convolution.py`) and max-pooling
(`pooling.py`) run by C, unless `compile=False`. Where they run in lockstep, with `compile=True` a chain of plain layers
becomes C (`chain.py`); any other model is left to torch's compiler, which takes much longer.
What that translates does not know how many clients or samples there are, nor the rate or the budget, so nothing ever
triggers a second translation. It is called without torch's dispatch in between, which would take longer than the
arithmetic; what that checks is seen to here: the same types, contiguous tensors, two of everything.
What vmap makes of some layers (embeddings, norms, convolutions) torch cannot translate for any number of clients: those
models run without.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from ..data.batches import Batch
from ..flat import FlatModel
from ..task import Task
from . import chain, convolution, pooling, recurrent
from .gradients import Serial, lockstep
from .gradients.lean import release
from .gradients.lockstep import Plain, losses_of, mean, outputs_of, plain_gradients
from .native import Layer

PRIMES = (11, 7, 13, 17, 19, 23)  # sizes to translate with: torch takes equal sizes for the same one
MOST = 2**20  # clients, or samples in a batch
COMPARED = 256  # samples at most of which C's gradients are compared with torch's
NOTHING = "clients run one at a time here, and the model has no layer that C would be faster with"
TRANSLATED: dict[str, bytes] = {}  # by what is computed: the arms and seeds of a command share it


def translate(task: Task, model: FlatModel, workers: int) -> tuple[list[Plain], str]:
    """(the translated gradients, for each worker its own; how long it took), or ([], why it runs without)."""
    began = time.perf_counter()
    fixed = (model.flat, task.data.x[0], task.data.y[0], *model.module.parameters())
    taken = {size for part in fixed for size in part.shape}
    sizes = [prime for prime in PRIMES if prime not in taken]
    samples = [_sample(task, model, *pair) for pair in (sizes[:2], (3, 5))]
    plain = plain_gradients(task, model)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's words to itself
            written = chain.gradients(task, model)
            made = [written] * workers if written else _by_torch(task, model, samples[0], workers)
            if not all(_same(made[0](*sample), plain(*sample), model.sizes) for sample in samples):
                return [], "compiled gradients differ from the others"
    except Exception as error:  # no compiler, or a model it cannot follow
        return [], _first_line(error)
    return made, f"compiled in {time.perf_counter() - began:.1f} s"


def translate_layers(task: Task, model: FlatModel) -> tuple[bool, str]:
    """(whether layers of the model run by C one client at a time, how long it took), or (False, why they do not)."""
    began = time.perf_counter()
    as_ever, made = model.replica(), model.replica()
    try:
        layers = install(made)
        if not layers:
            return False, NOTHING
        # Beside the initial model, whose biases may be zero: there ReLUs are at their edge, and some layers torch's.
        near = torch.randn(model.size, generator=torch.Generator().manual_seed(0)) * model.flat.abs().mean() / 10
        for n in (2, min(max(3, task.batch_size or 0), COMPARED)):
            batch = Batch(task.data.x[None, :n], task.data.y[None, :n], None)
            found = []
            for each in (made, as_ever):
                with torch.random.fork_rng(devices=[]):  # what is drawn, both draw
                    torch.manual_seed(0)
                    serial = Serial(task, each)
                    found.append(serial(serial.start(model.flat + near, 1), batch))
            if not _same(found[0], found[1], model.sizes):
                return False, "compiled gradients differ from the others"
        ran = {type(layer.layer).__name__ for layer in layers if layer.ran}
    except Exception as error:
        return False, _first_line(error)
    finally:
        release(made)
    if not ran:
        return (
            False,
            f"the model runs its {type(layers[0].layer).__name__} in a way, or at a size, that C is not used for",
        )
    return True, f"{' and '.join(sorted(ran))} compiled in {time.perf_counter() - began:.1f} s"


def install(model: FlatModel) -> list[Layer]:
    """Have this model's layers run by C, where that was written for them."""
    if model.flat.dtype != torch.float32 or model.flat.device.type != "cpu":
        return []
    kinds: list[type[Layer]] = [recurrent.Compiled, convolution.Compiled, pooling.Compiled]
    return [layer for kind in kinds for layer in kind.all_of(model)]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


def _same(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], sizes: list[int]) -> bool:
    """The same losses, and gradients but for a few elements of a parameter: of many ReLUs one may be so near its edge
    that a sum in another order puts it on the other side.
    """
    (g, loss), (other, value) = got, want
    near = partial(torch.allclose, rtol=1e-3, atol=1e-5, equal_nan=True)
    return near(loss, value) and all(
        _nearly(mine, theirs) or near(mine, theirs)
        for mine, theirs in zip(g.split_with_sizes(sizes, 1), other.split_with_sizes(sizes, 1), strict=True)
    )


def _nearly(mine: Tensor, theirs: Tensor) -> bool:
    apart, length = (torch.linalg.vector_norm(rows, dim=1) for rows in (mine - theirs, theirs))
    return bool((torch.isfinite(length) & (apart <= 3e-2 * length)).all())


class Graph(nn.Module):
    """A function as the module that torch's compiler asks for."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = source

    def forward(self, y: Tensor, x: Tensor, target: Tensor, share: Tensor) -> Any:
        return self.source(y, x, target, share)


def _by_torch(task: Task, model: FlatModel, sample: tuple[Tensor, ...], copies: int) -> list[Plain]:
    from torch._inductor import aoti_compile_and_package  # heavy imports, for those who compile
    from torch._inductor.package.package import load_package
    from torch.export import Dim, export
    from torch.fx.experimental.proxy_tensor import make_fx

    plain_layers, outputs = lockstep.chain(model.module), outputs_of(model)

    def total(y: Tensor, x: Tensor, target: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        loss = mean(losses_of(task, outputs(y, x), target), share)
        return loss.sum(), loss[:, None]

    clients, batch = Dim("clients", min=2, max=MOST), Dim("batch", min=2, max=MOST)
    free = {name: {0: clients} if name == "y" else {0: clients, 1: batch} for name in ("y", "x", "target", "share")}
    # Operations on tensors alone: no vmap, no autograd.
    by_hand = plain_layers is not None and lockstep.is_cross_entropy(task.loss)
    source = plain_gradients(task, model) if by_hand else grad(total, has_aux=True)
    plain = make_fx(source, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*sample)
    text = f"{plain.code} {[(part.shape, part.dtype, part.device) for part in sample]}"
    holds = any(node.op == "get_attr" for node in plain.graph.nodes)  # constants, which are not in the text
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "gradients.pt2"
        if text in TRANSLATED:
            package.write_bytes(TRANSLATED[text])
        else:
            program = export(Graph(plain), sample, dynamic_shapes=free)
            aoti_compile_and_package(program, package_path=str(package))
            if not holds:
                TRANSLATED[text] = package.read_bytes()
        runs = [load_package(package, run_single_threaded=True).loader.run for _ in range(copies)]
    return [_call(run, plain_gradients(task, model.replica())) for run in runs]  # each worker alone with its module


def _call(run: Any, otherwise: Plain) -> Plain:
    @lru_cache(maxsize=64)
    def full(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(shape, 1 / shape[1], dtype=dtype, device=device)

    def gradients(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        if min(x.shape[:2]) < 2:
            return otherwise(y, x, target, share)
        share = full(x.shape[:2], y.dtype, y.device) if share is None else share.to(y.dtype)
        g, loss = run([y.contiguous(), x.contiguous(), target.contiguous(), share.contiguous()])
        return g, loss

    return gradients


def _sample(task: Task, model: FlatModel, clients: int, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    index = torch.arange(clients * batch, device=model.flat.device).view(clients, batch) % len(task.data.x)
    points = model.flat * torch.linspace(0.5, 1.0, clients).to(model.flat)[:, None]
    share = torch.rand(clients, batch, generator=torch.Generator().manual_seed(0)).to(points)
    return points, task.data.x[index], task.data.y[index], share
