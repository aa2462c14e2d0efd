"""Recurrent networks that also run along the client axis: the LSTM as matrix products."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FedkeelError, check, is_count

aten = torch.ops.aten


class LSTM(nn.Module):
    """`nn.LSTM(batch_first=True)` with the same parameter names, that runs under `vmap`; gives the outputs alone.

        (i, f, g, o) = W_ih x_t + W_hh h_{t-1} + b;    c_t = s(f) c_{t-1} + s(i) tanh(g);    h_t = s(o) tanh(c_t)

    `biases=1` leaves out the second bias, as TensorFlow's layer does. In: `[batch, time, features]`.

    >>> LSTM(8, 16, layers=2)(torch.zeros(4, 10, 8)).shape
    torch.Size([4, 10, 16])
    """

    client_axis = True

    def __init__(self, features: int, hidden: int, layers: int = 1, biases: int = 2) -> None:
        super().__init__()
        for name, value in (("features", features), ("hidden", hidden), ("layers", layers)):
            check(is_count(value), self, name, "an integer >= 1", value)
        check(biases in (1, 2), self, "biases", "1 or 2", biases)
        self.layers, self.biases = layers, biases
        bound = 1 / math.sqrt(hidden)
        for name, shape in self._shapes(features, hidden).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def _shapes(self, features: int, hidden: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(self.layers):
            shapes[f"weight_ih_l{layer}"] = (4 * hidden, hidden if layer else features)
            shapes[f"weight_hh_l{layer}"] = (4 * hidden, hidden)
            shapes |= {f"{name}_l{layer}": (4 * hidden,) for name in ("bias_ih", "bias_hh")[: self.biases]}
        return shapes

    def forward(self, x: Tensor) -> Tensor:
        if _has_a_kernel(x) and self._fits(x):
            return self._by_torch(x)
        x = x.transpose(0, 1)  # time first: a step reads one contiguous block
        for layer in range(self.layers):
            bias = self._own("bias_ih", layer)
            if self.biases == 2:
                bias = bias + self._own("bias_hh", layer)
            # one product for the inputs of all steps; only W_hh h depends on the previous step
            gates = nn.functional.linear(x, self._own("weight_ih", layer), bias)
            x = _recur(gates[:, None], self._own("weight_hh", layer)[None])[0][:, 0]
        return x.transpose(0, 1)

    def _fits(self, x: Tensor) -> bool:
        """Whether shapes and dtypes fit: the kernel does not check them and would read out of bounds."""
        if x.ndim != 3 or not x.numel():
            return False
        for name, shape in self._shapes(x.shape[-1], self._own("weight_hh", 0).shape[-1]).items():
            own: Tensor = getattr(self, name)
            if own.shape != shape or own.dtype != x.dtype or own.device != x.device:
                return False
        return True

    def _by_torch(self, x: Tensor) -> Tensor:
        """Run torch's own kernel, which has no client axis."""
        parameters = []
        for layer in range(self.layers):
            bias = self._own("bias_ih", layer)
            other = self._own("bias_hh", layer) if self.biases == 2 else torch.zeros_like(bias)
            parameters += [self._own("weight_ih", layer), self._own("weight_hh", layer), bias, other]
        zeros = x.new_zeros(self.layers, len(x), parameters[1].shape[1])
        biased, dropout, both_ways, batch_first = True, 0.0, False, True
        outputs: Tensor = torch.lstm(
            x, (zeros, zeros), parameters, biased, self.layers, dropout, self.training, both_ways, batch_first
        )[0]
        return outputs

    def _own(self, name: str, layer: int) -> Tensor:
        value: Tensor = getattr(self, f"{name}_l{layer}")
        return value


class _Recurrence(torch.autograd.Function):
    """Outputs `[time, n, batch, hidden]` from the gates' inputs `[time, n, batch, 4 hidden]` and W_hh `[n, ...]`.

    Written by hand for speed: the gradient of W_hh is one product at the end where autograd would add it up step by
    step, every step writes into its place in one large tensor, and clients along `vmap` become the axis n.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, across = weight.shape[-1], weight.transpose(1, 2)
        gates, cells = inputs.new_empty(inputs.shape), inputs.new_empty(*inputs.shape[:-1], hidden)
        outputs = torch.empty_like(cells)
        cell, output = None, None
        parts = (inputs, gates, gates[..., : 2 * hidden], *torch.split(gates, hidden, -1), cells, outputs)
        for entering, total, both, i, f, g, o, new, out in zip(*(part.unbind(0) for part in parts), strict=True):
            if output is None:
                total.copy_(entering)
            else:
                torch.baddbmm(entering, output, across, out=total)
            both.sigmoid_(), g.tanh_(), o.sigmoid_()
            torch.mul(i, g, out=new)
            cell = new if cell is None else new.addcmul_(f, cell)
            output = torch.tanh(cell, out=out).mul_(o)
        return outputs, cells, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # no zeros for outputs that need no gradient
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None]:
        if torch.is_grad_enabled():  # with create_graph, the in-place writes below would silently give wrong values
            raise FedkeelError("fedkeel's LSTM has first derivatives only; use nn.LSTM where a second one is needed.")
        if slope is None:
            return None, None
        weight, outputs, cells, gates = ctx.saved_tensors
        hidden = weight.shape[-1]
        i, f, g, o = torch.split(gates, hidden, -1)
        # The factors that need no other step: d cell / d output, and d gate inputs / d (cell, cell, cell, output)
        bent, slopes = cells.tanh(), torch.empty_like(gates)
        to_cell = aten.tanh_backward(o, bent)
        di, df, dg, do = torch.split(slopes, hidden, -1)
        through_sigmoid, through_tanh = aten.sigmoid_backward.grad_input, aten.tanh_backward.grad_input
        through_sigmoid(g, i, grad_input=di)
        through_sigmoid(cells[:-1], f[1:], grad_input=df[1:])
        through_tanh(i, g, grad_input=dg)
        through_sigmoid(bent, o, grad_input=do)
        df[0] = 0
        by_cell = slopes.view(*slopes.shape[:-1], 4, hidden)[..., :3, :]
        dh, dc = slope[-1], to_cell[-1] * slope[-1]
        for t in range(len(slope) - 1, -1, -1):
            by_cell[t].mul_(dc[..., None, :])
            do[t].mul_(dh)
            if t > 0:
                dh = torch.baddbmm(slope[t - 1], slopes[t], weight)
                dc.mul_(f[t]).addcmul_(dh, to_cell[t - 1])
        left, right = (v.transpose(0, 1).flatten(1, 2) for v in (slopes[1:], outputs[:-1]))
        return slopes, left.transpose(1, 2) @ right

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], inputs: Tensor, weight: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        clients = info.batch_size
        inputs = inputs.expand(clients, -1, -1, -1, -1) if in_dims[0] is None else inputs.movedim(in_dims[0], 0)
        weight = weight.expand(clients, -1, -1, -1) if in_dims[1] is None else weight.movedim(in_dims[1], 0)
        found = _recur(inputs.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1))
        return tuple(value.view(len(value), clients, -1, *value.shape[2:]) for value in found), (1, 1, 1)


def _has_a_kernel(x: Tensor) -> bool:
    """Whether torch runs all steps in one kernel here; otherwise it loops over steps, as we do."""
    tracing = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    plain = not tracing and not torch._C._are_functorch_transforms_active()
    return plain and x.device.type == "cpu" and x.dtype == torch.float32 and torch._C._has_mkldnn


def _recur(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = _Recurrence.apply(inputs, weight)  # type: ignore[no-untyped-call]
    return found
