"""The gradients of a chain of plain layers, written out in C for the sizes it has (`chain.c`).

On models this small, asking torch for one operation after the other takes longer than doing them. A C compiler takes
less than a second for a small perceptron, and longer for deeper ones.
"""

from __future__ import annotations

import ctypes
from itertools import accumulate

import torch
from torch import Tensor, nn

from ...flat import FlatModel
from ...task import Task
from ..gradients import lockstep
from ..gradients.lockstep import Plain, plain_gradients
from .native import LOOSE, addresses, build, written

REAL = {torch.float32: "float", torch.float64: "double"}
ELEMENTWISE: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh_", nn.Sigmoid: "sigmoid"}
LARGEST = 2**21  # parameters times samples up to about which C is ahead of torch's products (docs/speed.md)
CALL = """
_Bool gradients(const real *y, const real *x, const int64_t *label, const real *share, real *g, real *loss, real *room,
                int64_t clients, int64_t n) {{
    for (int64_t c = 0; c < clients; c++) {{
        {body}
        y += {size}, g += {size}, x += n * {inputs}, label += n, share += share ? n : 0, loss++;
    }}
    return 1;
}}
"""


def fits(task: Task, model: FlatModel) -> bool:
    """Whether C can be written for this model: a chain from plain numbers to classes, on a CPU."""
    x, y, flat = task.data.x, task.data.y, model.flat
    chain = lockstep.chain(model.module)
    if chain is None or not lockstep.is_cross_entropy(task.loss) or y.dtype != torch.int64 or y.ndim != 1:
        return False
    if flat.dtype not in REAL or x.dtype != flat.dtype or flat.device.type != "cpu":
        return False
    _, kept = chain.forward(flat[None], x[None, :2])
    inputs = [before for layer, (before, _) in zip(chain.layers, kept, strict=True) if isinstance(layer, nn.Linear)]
    return all(before.ndim == 3 for before in inputs)


def gradients(task: Task, model: FlatModel) -> Plain:
    """The clients' gradients by compiled C, for a model that `fits`."""
    x, flat = task.data.x, model.flat
    chain = lockstep.chain(model.module)
    assert chain is not None
    scores, _ = chain.forward(flat[None], x[None, :2])
    inputs, real = x[0].numel(), flat.dtype
    text, room = source(chain.layers, inputs, real)
    run, otherwise = build(text, LOOSE).gradients, plain_gradients(task, model)
    run.argtypes, run.restype = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 2, ctypes.c_bool

    def takes(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> bool:
        """C looks at no type and no shape; what a task or a rule changed on the way is torch's to do, or to refuse."""
        clients, batch = target.shape
        typed = y.dtype == x.dtype == real and target.dtype == torch.int64
        shaped = (
            y.shape == (clients, flat.numel()) and x.shape[:2] == target.shape and x.numel() == inputs * target.numel()
        )
        return typed and shaped and (share is None or share.shape == target.shape) and batch * flat.numel() <= LARGEST

    def native(y: Tensor, x: Tensor, target: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        if not takes(y, x, target, share):
            return otherwise(y, x, target, share)
        clients, batch = target.shape
        y, x, target = y.contiguous(), x.contiguous(), target.contiguous()
        share = None if share is None else share.to(real).contiguous()
        g, loss, scratch = torch.empty_like(y), y.new_empty(clients, 1), y.new_empty(batch * room)
        if not run(*addresses(y, x, target, share, g, loss, scratch), clients, batch):
            raise IndexError(f"a label is none of the {scores.shape[-1]} classes that the model has scores for")
        return g, loss

    return native


def source(layers: list[nn.Module], inputs: int, dtype: torch.dtype) -> tuple[str, int]:
    """(the C of a chain for samples of so many numbers, for how many numbers per sample it needs room)."""
    forth: list[str] = []
    back: list[str] = []
    widths: dict[str, int] = {}  # of what is kept on the way: outputs h, and derivatives d by those of linear layers
    now, width, size, d = "x", inputs, 0, ""
    for k, layer in enumerate(layers):
        before = now
        if isinstance(layer, nn.Linear):
            sizes, width = f"n, {layer.in_features}, {layer.out_features}", layer.out_features
            w, b, size = size, size + layer.weight.numel(), size + sum(p.numel() for p in layer.parameters())
            y, g = (f"{at} + {w}, {f'{at} + {b}' if b < size else 0}" for at in "yg")
            now, own = f"h{k}", f"d{k}"
            widths |= {now: width, own: width}
            forth.append(f"linear({sizes}, {y}, {before}, {now});")
            further = [f"linear_by_input({sizes}, y + {w}, {own}, {d});"] if d else []  # not needed by the data
            back = [f"linear_by_weights({sizes}, {before}, {own}, {g});", *further, *back]
            d = own
        elif type(layer) in ELEMENTWISE:
            name, now = ELEMENTWISE[type(layer)], f"h{k}"
            widths[now] = width
            forth.append(f"{name}(n * {width}, {before}, {now});")
            back = [f"{name}_back(n * {width}, {now}, {d});", *back] if d else back
    loss = f"if (!cross_entropy(n, {width}, label, share, {now}, {d}, loss)) return 0;"
    *starts, room = accumulate([0, *widths.values()])
    kept = [f"real *{name} = room + n * {start};" for name, start in zip(widths, starts, strict=True)]
    call = CALL.format(body="\n        ".join([*kept, *forth, loss, *back]), size=size, inputs=inputs)
    return f"typedef {REAL[dtype]} real;\n{written('chain.c')}{call}", room
