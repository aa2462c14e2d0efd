"""`Rule`: both halves of a method in one class, and what its formulas may read.

    Me      on clients: a rule's own view of a group of clients, read-only
    End     on clients: the result of the local steps
    Up      from clients: what a rule sends up and keeps
    View    on the server: a rule's own view of a round, read-only

Vectors that all clients share are `[params]`, per-client ones `[clients, params]`, per-client scalars `[clients, 1]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import wraps
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from .errors import InputError, brief
from .messages import Facts, Plan, Update

if TYPE_CHECKING:
    from .aggregate import Reports
    from .algorithm import Algorithm
    from .data.batches import Batch
    from .engine.worker import Site
    from .optim import Optimizer
    from .task import Task
    from .world import Ints, World

Value = TypeVar("Value")
Tensors = dict[str, Tensor]
Losses = Callable[[Tensor | None, Tensor, Tensor], Tensor]  # (z, output, target) -> a loss per sample
Objective = Callable[[Tensor, "Batch"], tuple[Tensor, Tensor]]  # (y, batch) -> g, value
Walk = Callable[[Tensor], "End"]  # y -> End; moves y in place


@dataclass(frozen=True)
class Me:
    """What a rule may read while a group of clients trains. Its tensors are the rule's own; `notes` may be written to,
    in place.
    """

    x: Tensor  # the model the clients received
    facts: Facts
    steps: Tensor  # J_i: the true steps of each client in this round
    samples: Tensor  # n_i: the samples each client holds
    first: Tensor  # 1 where this is the client's first participation, else 0
    lr: Tensor  # the rate of the plan
    site: Site  # more from the worker: other gradients, representations, the initial model
    expected: Tensor | None = None  # the steps the server expects; None if unknown
    valued: bool = False  # the client optimizer reads the objective's value, so penalties have to be added to it
    sent: Tensors = field(default_factory=dict)  # what this rule's server half sent, and the means of its survey
    memory: Tensors = field(default_factory=dict)  # what this rule's clients remember
    notes: Tensors = field(default_factory=dict)  # what `start` returned

    def head(self, n: int) -> Me:
        """The view of the first n clients: the others have spent their budget."""
        return replace(
            self,
            steps=self.steps[:n],
            samples=self.samples[:n],
            first=self.first[:n],
            lr=self.lr[:n],
            expected=None if self.expected is None else self.expected[:n],
            memory={name: rows[:n] for name, rows in self.memory.items()},
            notes={name: rows[:n] for name, rows in self.notes.items()},
        )


@dataclass(frozen=True)
class End:
    """The result of the local steps: the state of the client optimizer, its rates and losses."""

    client: Optimizer
    state: Tensors  # of the optimizer
    lr: Tensor  # the rate of each client's last step
    lr_sum: Tensor  # the sum of rates over the steps done
    loss_sum: Tensor  # the sum of the losses
    last: Tensor | None  # each client's last gradient, if a rule wraps the walk
    moved: Tensor | None = None  # y - x, the update itself; known to `finish`


@dataclass(frozen=True)
class Up:
    """What a rule sends up for each client of a group, and what they keep.

    mean, weighted: vectors of which the server reads the plain mean, or the mean under the algorithm's weights.
    derived: vectors the server could rebuild from the update and scalars: averaged plainly, but not counted as sent.
    memory: the clients' new memory. cover: 1 for each element of the update that counts, else 0.

    >>> Up(mean={"dc": torch.zeros(2, 3)}).memory
    {}
    """

    mean: Tensors = field(default_factory=dict)
    weighted: Tensors = field(default_factory=dict)
    derived: Tensors = field(default_factory=dict)
    scalars: Tensors = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)
    cover: Tensor | None = None


@dataclass(frozen=True)
class View:
    """What a rule may read on the server in one round."""

    x: Tensor  # the model before this round's step
    x0: Tensor  # the initial model
    facts: Facts
    lr: float  # the clients' rate in this round
    fraction: float  # clients invited, or in `serve` those that reported, over the population
    answers: Tensors = field(default_factory=dict)  # the weighted means of this rule's survey


class Rule:
    """Both halves of a method. Every method is optional; the round calls those a rule defines.

    On the server:

        init(x, lr)                   the server's tensors before round 1, by name
        plan(plan, server, facts)     the round's rate, epochs and batch size (one rule at most)
        send(server, view)            what is sent beside the model: vectors [params], scalars without dimension
        screen(updates, server)       changes or drops clients' updates before any is summed (one rule at most)
        serve(server, up, view)       the server's new tensors and the update to use: `up.delta`, or another (one rule)
        models(x, server)             the models to evaluate by name, "" the main one (one rule at most)
        report(server, up, view)      columns for the history

    On clients, each for a whole group:

        remember(me)                  a client's memory at its first participation
        survey(me)                    a first exchange in the same round; its weighted means come back in `me.sent`
        start(me)                     notes for the round
        gradient(g, y, me)            corrects a gradient at y, which need not be the clients' current point
        penalty(y, me)                the function whose derivative `gradient` adds, if there is one; SPS counts it
        finish(y, end, me)            what is sent up, and the new memory

    and four that wrap a function, like middleware; the first rule of an algorithm is the innermost:

        loss(f, me, z, output, target)     f(z, output, target) -> losses of the samples [clients, batch]
        objective(f, me, y, batch)         f(y, batch) -> gradient, value; its default calls `gradient` and `penalty`
        step(go, me, y, batch)             go(y, batch) moves y by one step -> gradient, value
        walk(go, me, y)                    go(y) does all local steps -> End

    Two tensors may be written to, in place: the g of `gradient`, and those of `me.notes`. A rule that keeps g must copy
    it, since the next step overwrites it. The next rule may change the returned tensor, so return g or a new tensor,
    never one of me.memory or me.sent.

    >>> class SignSGD(Rule):
    ...     def gradient(self, g, y, me):
    ...         return g.sign()
    >>> SignSGD().slot, SignSGD().defines("gradient"), SignSGD().linear
    ('signsgd', True, False)
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_misspelt(cls)
        for name, method in list(vars(cls).items()):
            if name in RETURNS and isinstance(method, FunctionType):
                setattr(cls, name, checked(name, method))

    represents: ClassVar[bool] = False  # `loss` reads z, the model's representation of each sample
    keeps_linear: ClassVar[bool] = False  # although it acts on local steps, updates stay linear in the gradients

    def init(self, x: Tensor, lr: float) -> Tensors:
        return {}

    def plan(self, plan: Plan, server: Tensors, facts: Facts) -> Plan:
        return plan

    def send(self, server: Tensors, view: View) -> Tensors:
        return {}

    def screen(self, updates: Iterator[Update], server: Tensors) -> Iterator[Update]:
        return updates

    def serve(self, server: Tensors, up: Reports, view: View) -> tuple[Tensors, Tensor]:
        return server, up.delta

    def models(self, x: Tensor, server: Tensors) -> Tensors:
        return {"": x}

    def report(self, server: Tensors, up: Reports, view: View) -> dict[str, float]:
        return {}

    def remember(self, me: Me) -> Tensors:
        return {}

    def survey(self, me: Me) -> Tensors:
        return {}

    def start(self, me: Me) -> Tensors:
        return {}

    def gradient(self, g: Tensor, y: Tensor, me: Me) -> Tensor:
        return g

    def penalty(self, y: Tensor, me: Me) -> Tensor:
        return y.new_zeros((len(y), 1))

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        return Up()

    def loss(self, f: Losses, me: Me, z: Tensor | None, output: Tensor, target: Tensor) -> Tensor:
        return f(z, output, target)

    def objective(self, f: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        g, value = f(y, batch)
        corrected = self.gradient(g, y, me)
        if corrected.shape != y.shape:  # it would be broadcast, and other clients' gradients with it
            raise wrong_shape(self, y, corrected)
        return corrected, value + self.penalty(y, me) if me.valued else value

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return go(y, batch)

    def walk(self, go: Walk, me: Me, y: Tensor) -> End:
        return go(y)

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        """Fill in the parameters that depend on the task or the world."""
        return self

    @property
    def slot(self) -> str:
        """The name under which this rule's tensors are kept."""
        return type(self).__name__.lower()

    @property
    def linear(self) -> bool:
        """Whether a client's update stays a fixed linear combination of its gradients: FedNova's norm exists then."""
        return self.keeps_linear or not any(map(self.defines, ("loss", "objective", "gradient", "step")))

    def defines(self, name: str) -> bool:
        """Whether this rule overrides the method of this name."""
        return getattr(type(self), name) is not getattr(Rule, name)

    def parameters(self) -> dict[str, Any]:
        """Name and values, for configurations and tables."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else dict(vars(self))
        return {"name": self.slot} | {k: "a Python function" if callable(v) else v for k, v in values.items()}

    def __repr__(self) -> str:
        values = {k: v for k, v in self.parameters().items() if k != "name"}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in values.items())})"


METHODS = (
    "init", "plan", "send", "screen", "serve", "models", "report", "remember", "survey", "start", "gradient", "penalty",
    "finish", "loss", "objective", "step", "walk", "resolve",
)  # fmt: skip


RETURNS: dict[str, tuple[type, str]] = {
    "init": (dict, "tensors by name"), "plan": (Plan, "a Plan"), "send": (dict, "tensors by name"),
    "serve": (tuple, "two values: what the server keeps, and the update"), "models": (dict, "models by name"),
    "report": (dict, "numbers by column"), "remember": (dict, "tensors by name"), "survey": (dict, "tensors by name"),
    "start": (dict, "tensors by name"), "finish": (Up, "an Up"), "walk": (End, "the End that go(y) returns"),
}  # fmt: skip  # what methods that are called once a round or a visit give


def checked(name: str, method: Callable[..., Value]) -> Callable[..., Value]:
    """The method of a rule, which says so where it returns nothing of its kind.

    >>> class Forgets(Rule):
    ...     def finish(self, y, end, me):
    ...         Up()
    >>> Forgets().finish(None, None, None)
    Traceback (most recent call last):
    TypeError: Forgets.finish must return an Up. Got None instead.
    """
    kind, must = RETURNS[name]

    @wraps(method)
    def call(self: Rule, *given: Any) -> Value:
        value = method(self, *given)
        if not isinstance(value, kind) or (isinstance(value, tuple) and len(value) != 2):
            raise TypeError(f"{type(self).__name__}.{name} must return {must}. Got {shown(value)} instead.")
        return value

    return call


def wrong_shape(rule: Rule, y: Tensor, got: object) -> TypeError:
    """The error for a `gradient` that does not return a tensor of g's shape, which is y's."""
    must = f"{type(rule).__name__}.gradient must return a tensor of g's shape, {tuple(y.shape)}"
    return TypeError(f"{must}. Got {shown(got)} instead.")


def shown(value: object) -> str:
    """A value in an error, tensors by their shapes.

    >>> shown((torch.zeros(3), {"c": torch.zeros(2, 3)}, 5))
    "(a tensor of (3,), {'c': a tensor of (2, 3)}, 5)"
    """
    if isinstance(value, Tensor):
        return f"a tensor of {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{brief(key)}: {shown(one)}' for key, one in value.items())}}}"
    return brief(value)


def refuse_misspelt(kind: type[Rule]) -> None:
    """Refuse a rule with a method that is almost called like one that a round calls, and that it does not use itself.

    >>> class Signs(Rule):
    ...     def gradiant(self, g, y, me):
    ...         return g.sign()
    Traceback (most recent call last):
    fedkeel.errors.InputError: No round calls Signs.gradiant. Did you mean 'gradient'? A helper may be called _gradiant.
    """
    own = {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}
    used = {name for method in own.values() for name in _names_in(method.__code__)}
    for name in own.keys() - used - set(dir(Rule)):
        near = [] if name.startswith("_") else get_close_matches(name, METHODS, n=1, cutoff=0.8)
        if near:
            raise InputError(
                f"No round calls {kind.__name__}.{name}. Did you mean '{near[0]}'? A helper may be called _{name}."
            )


def _names_in(code: CodeType) -> set[str]:
    """The names of attributes and functions that this code uses, also inside of its lambdas and functions."""
    inner = (_names_in(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)


def remembered(rule: Rule, me: Me, seen: Ints) -> Tensors:
    """The memory of a rule's clients; `remember` gives it to those that take part for the first time."""
    rows = {name: kept.to(me.x.device) for name, kept in me.memory.items()}
    if rule.defines("remember") and not seen.all():
        for name, value in rule.remember(me).items():
            if seen.any():
                rows[name] = torch.where(me.first.bool(), value, rows.get(name, value)).expand(len(seen), -1)
            else:  # much faster than `where`, and also a copy: rules may write to their memory
                rows[name] = value.expand(len(seen), -1).clone()
    return rows
