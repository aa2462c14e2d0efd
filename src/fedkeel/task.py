"""A task: a model, a loss, and data that belong to clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import draws, grammar
from .data import FederatedData
from .data.augment import Augment
from .errors import InputError, brief, check, reason
from .flat import FlatModel, seeded
from .inputs import Logits, adapt, logits_of
from .pretrained import load_into
from .ranges import COUNT, NUMBER, RATE, Range, keep
from .world import Budget

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], float]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy, one value per sample.

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([0])).shape
    torch.Size([1])
    """
    return nn.functional.cross_entropy(output, target, reduction="none")


def _of(tensor: Tensor) -> str:
    """Shape and type of a tensor."""
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _advice(output: Tensor, y: Tensor) -> str:
    """What to do where outputs and targets of classification do not fit; empty where they may."""
    if output.ndim == y.ndim == 2 and output.shape[1] > 1 == y.shape[1] and not y.is_floating_point():
        return f"Targets are {_of(y)}: give one label per sample, y.squeeze(1)."
    scores = output.ndim == y.ndim + 1
    if scores and not y.is_floating_point() and output.shape[1] == 1:
        return (
            "The model has one output and the targets are integers: give it an output per class, or use float targets "
            "and a loss for one output, such as binary_cross_entropy_with_logits."
        )
    if scores and y.is_floating_point() and output.shape[1] > 1:
        return (
            "The model has several outputs and y holds floats, one per sample: give integer labels (y.astype(int)) to "
            "classify, or a model with one output and a loss for numbers to predict them."
        )
    return ""


class Spec(str):
    """A task's name on the command line, with the objects it was made of: replacing one makes it another task."""

    parts: tuple[Any, ...] = ()


@dataclass(frozen=True, repr=False)
class Task:
    """A model, a loss and federated data, with the settings its paper uses.

    model: a function without arguments that makes an `nn.Module`, called once under the run's seed.
    loss: `loss(output, target)`, one value per sample. batch_size: None means all local data.
    metric: `metric(outputs, targets)` on the whole test set in place of accuracy. target: the accuracy that
    comparisons count rounds to. augment: changes the inputs of every training batch, such as `CropFlip()`. exits: makes
    the model with early exits that algorithms with levels train in place of `model`. pretrained: a safetensors file
    with the `state_dict` that every run starts from, such as the `model.safetensors` of another run. client_test: the
    share of every client's samples that are kept to test the model on each client (`train(client_test=)` goes first).

    >>> data = FederatedData.from_arrays(torch.randn(8, 3), [0, 1] * 4, clients=[0, 0, 0, 0, 1, 1, 1, 1])
    >>> Task(model=lambda: nn.Linear(3, 2), loss=cross_entropy, data=data).batch_size
    20
    """

    model: Callable[[], nn.Module]
    loss: Loss
    data: FederatedData
    name: str | None = None
    batch_size: int | None = 20
    lr: float | None = None
    budget: Budget | None = None
    metric: Metric | None = None
    target: float | None = None
    augment: Augment | None = None
    exits: Callable[[], nn.Module] | None = None
    pretrained: str | os.PathLike[str] | None = None
    client_test: float = 0.0
    spec: str | None = None  # how the command line names it; None for a task made of Python objects

    def __post_init__(self) -> None:
        makes = callable(self.model) and not isinstance(self.model, nn.Module)  # every run makes a fresh model
        check(makes, self, "model", "a function that makes an nn.Module, such as lambda: MyModel()", self.model)
        must = "a function (output, target) -> one value per sample, such as fk.cross_entropy"
        check(callable(self.loss) and not isinstance(self.loss, type), self, "loss", must, self.loss)
        made = "a FederatedData, made by from_arrays, from_torch, from_huggingface, from_csv or from_folder"
        check(isinstance(self.data, FederatedData), self, "data", made, type(self.data).__name__)
        if self.batch_size is not None:
            keep(self, COUNT, "batch_size")
        keep(self, RATE, "lr")
        keep(self, NUMBER, "target")
        keep(self, Range(0, 0.9), "client_test")
        good = self.augment is None or callable(self.augment)
        check(good, self, "augment", "a function (x, generators) -> x", self.augment)
        good = self.metric is None or callable(self.metric)
        check(good, self, "metric", "a function (outputs, targets) -> a number", self.metric)
        self._keep_name_of_these_parts()
        self._name_start()

    def _keep_name_of_these_parts(self) -> None:
        parts = (self.model, self.loss, self.data, self.metric, self.augment, self.exits)
        if isinstance(self.spec, Spec):
            if any(mine is not named for mine, named in zip(parts, self.spec.parts, strict=True)):
                object.__setattr__(self, "spec", None)
        elif self.spec is not None:
            spec = Spec(self.spec)
            spec.parts = parts
            object.__setattr__(self, "spec", spec)

    def _name_start(self) -> None:
        """Keep the file of the pretrained model with its whole path, in the name as well."""
        if self.pretrained is not None:
            good = isinstance(self.pretrained, str | os.PathLike)
            check(good, self, "pretrained", "the path of a safetensors file", self.pretrained)
            object.__setattr__(self, "pretrained", os.path.abspath(os.path.expanduser(self.pretrained)))
        if self.spec is None or (self.pretrained is None and "pretrained" not in self.spec):
            return
        name, values = grammar.parse(self.spec)[0]
        if values.get("pretrained") == self.pretrained:
            return
        values = {key: value for key, value in values.items() if key != "pretrained"}
        if self.pretrained is not None:
            path = str(self.pretrained)
            if "," in path or "+" in path or path != path.strip():
                raise InputError(f"A task's name cannot hold the path {path!r}; use one without ',' and '+'.")
            values["pretrained"] = path
        spec = Spec(grammar.write([(name, values)]))
        spec.parts = getattr(self.spec, "parts", ())
        object.__setattr__(self, "spec", spec)

    def __repr__(self) -> str:
        return f"<Task {self.title}: {self.data!r}>"

    @property
    def title(self) -> str:
        """Its name in configurations, tables and reports."""
        return self.spec or self.name or "unnamed"

    def cast(self, dtype: torch.dtype, device: str) -> Task:
        """The same task with its data in `dtype` on `device`."""
        return self._with(self.data.cast(dtype, device))

    def tested_on(self, samples: int | None) -> Task:
        """The same task, evaluated on a fixed draw of the test samples; None keeps them all."""
        return self if samples is None else self._with(self.data.tested_on(samples))

    def held_out(self, share: float, part: str = "validation") -> Task:
        """The same task with this share of every client's samples kept for another use, the same ones in every run."""
        if share == 0 or (part == "client_test" and self.data.client_test is not None):
            return self
        given = grammar.parse(self.spec)[0][1].get("seed", 0) if self.spec is not None else 0
        return self._with(self.data.held_out(share, int(given), part))

    def placed(self, client: int, population: int) -> Task:
        """The same task on a device: its samples are those of one client; see `FederatedData.placed`."""
        return self._with(self.data.placed(client, population))

    def of_sizes(self, sizes: Sequence[int]) -> Task:
        """The same task on a server whose clients keep their samples; see `FederatedData.of_sizes`."""
        return self._with(self.data.of_sizes(sizes))

    def _with(self, data: FederatedData) -> Task:
        same = replace(self, data=data)
        object.__setattr__(same, "spec", self.spec)  # the name does not depend on dtype, device or held-out samples
        return same

    def make(self, torch_seed: int) -> nn.Module:
        """A fresh model under a torch seed; with several inputs, one that takes packed samples."""
        return adapt(seeded(torch_seed, self.model), self.data.inputs)

    def adopt(self, seed: int, dtype: torch.dtype, device: str) -> FlatModel:
        """Make the model under the seed, flatten it, and check that it fits the loss and the data."""
        module = self.make(draws.torch_seed(seed, "init"))
        if self.pretrained is not None:
            load_into(module, Path(self.pretrained))
        model = FlatModel(module, dtype, device)
        self._try(model)
        return model

    @torch.no_grad()
    def _try(self, model: FlatModel) -> None:
        x, y = self.data.x[:2], self.data.y[:2]
        was, state = model.module.training, model.buffers()
        model.module.eval()
        try:
            output: Any = model.module(x)
        except Exception as error:  # torch's message alone does not name the batch
            remedy = " Give floating-point inputs: x.float() / 255." if x.dtype == torch.uint8 else ""
            raise InputError(f"The model fails on a batch {_of(x)}: {reason(error)}.{remedy}") from error
        if not isinstance(output, Tensor) and isinstance(logits_of(output), Tensor):
            output = logits_of(output)
            model.module.register_forward_hook(Logits())
        if not isinstance(output, Tensor):
            kind = type(output).__name__
            raise InputError(f"The model must return one tensor, not a {kind}; return the part that the loss needs.")
        if output.ndim == 0 or len(output) != len(x):
            raise InputError(f"The model must return one row per sample; on {_of(x)} it returns {_of(output)}.")
        if classes := self.classes(output):
            for name, labels in (("y", self.data.y), ("test y", self.data.test[1] if self.data.test else y)):
                low, high = int(labels.min()), int(labels.max())
                if low < 0 or high >= classes:
                    remedy = f" Subtract 1: {name} - 1." if (low, high) == (1, classes) else ""
                    raise InputError(
                        f"{name} has labels {low}..{high}; the model has outputs for 0..{classes - 1}.{remedy}"
                    )
        self._try_loss(output, y)
        model.module.train(was)
        model.load(model.flat.clone(), state)

    def _try_loss(self, output: Tensor, y: Tensor) -> None:
        """Refuse a loss that fails on these outputs and targets, or gives no value per sample."""
        advice = _advice(output, y)
        over_classes = self.loss is cross_entropy or isinstance(self.loss, nn.CrossEntropyLoss)
        if over_classes and advice:  # with one output cross-entropy is always 0, and training would change nothing
            raise InputError(advice)
        try:
            value: Any = self.loss(output, y)
        except Exception as error:  # of the user's function
            where = f"The loss fails on outputs {_of(output)} and targets {_of(y)}"
            raise InputError(f"{where}: {reason(error)}. {advice}".rstrip()) from error
        if isinstance(value, Tensor) and value.shape == y.shape[:1]:
            return
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        per_sample = f"The loss must give one value per sample, shape ({len(y)},) here; got {shape}"
        if output.ndim == y.ndim + 1 and output.shape[1] == 1:
            raise InputError(f"{per_sample}. Outputs are {_of(output)}, targets {_of(y)}: let the model squeeze(1).")
        raise InputError(f"{per_sample}. With torch losses use reduction='none' and average what is left per sample.")

    def accuracy(self, output: Tensor, target: Tensor) -> float | None:
        """The task's metric; else, for integer targets, the share that is right: by the largest score per class, or by
        the sign where there is one score; else None.

        >>> data = FederatedData.from_arrays(torch.zeros(2, 1), [0, 1], clients=[0, 1])
        >>> Task(lambda: nn.Linear(1, 1), cross_entropy, data).accuracy(torch.tensor([[-2.0], [3.0]]), data.y)
        1.0
        """
        if self.metric is not None:
            return float(self.metric(output, target))
        right = self.right(output, target)
        return None if right is None else float(right.double().mean())

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:
        """Which targets are predicted, see `accuracy`; None where this is not classification."""
        if target.is_floating_point():
            return None
        if output.ndim == target.ndim + 1 and output.shape[1] > 1:
            return output.argmax(1) == target
        if output.numel() == target.numel():
            return (output.view(target.shape) > 0) == (target > 0)
        return None

    def classes(self, output: Tensor) -> int:
        """The number of classes when this is plain classification (integer labels, scores per class), else 0."""
        plain = not self.data.y.is_floating_point() and self.data.y.ndim == 1 and output.ndim == 2
        return output.shape[1] if plain and output.shape[1] > 1 else 0


def check_task(owner: str, task: Any) -> None:
    """Refuse what is no task: in Python a task's name is not one.

    >>> check_task("train", "digits")
    Traceback (most recent call last):
    fedkeel.errors.InputError: The 'task' parameter of train must be a Task, such as fk.tasks.get('digits'). Got \
'digits' instead.
    """
    example = f"fk.tasks.get({brief(task)})" if isinstance(task, str) else "fk.tasks.synthetic()"
    check(isinstance(task, Task), owner, "task", f"a Task, such as {example}", task)
