"""An algorithm is optimizers + rules + weights, and a capacity where devices differ in size.

`Rule` holds both halves of a method in one class; `At` is what its formulas may read; `Algorithm` puts the
parts together and refuses combinations that make no sense.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from .errors import InputError, check
from .optim import SGD, Optimizer
from .weights import WEIGHTS, Samples, Weights
from .wire import Reports, Slots, Upload

if TYPE_CHECKING:
    from .capacity import Capacity
    from .data.batches import Batch
    from .task import Task
    from .world import Ints, World


@dataclass(frozen=True)
class Plan:
    """What the server asks of the clients in one round; a rule's `plan` changes it.

    steps: from the samples clients hold to the steps asked of them; None leaves that to the world's budget.
    epochs: what those steps mean, for the history.

    >>> Plan(lr=0.1, batch_size=20).columns()
    {'lr': 0.1, 'batch_size': 20}
    """

    lr: float
    batch_size: int | None = None
    epochs: float | None = None
    steps: Callable[[Ints], Ints] | None = None

    def columns(self) -> dict[str, Any]:
        """For the history of a run whose rules plan."""
        epochs = {} if self.epochs is None else {"epochs": self.epochs}
        return {"lr": self.lr, **epochs, "batch_size": self.batch_size}


Memory = dict[str, Tensor]  # what a rule keeps on a client between rounds: `[clients, width]` by name


class Rows(dict[str, Tensor]):
    """Per-client tensors `[clients, ...]` of which the first n rows are in view.

    Clients that have spent their budget leave the view; what was written while in view is kept in `full`.

    >>> rows = Rows({"a": torch.zeros(3, 1)})
    >>> rows.head(2)
    >>> rows["a"] = torch.ones(2, 1)
    >>> rows.head(3)
    >>> rows["a"].flatten().tolist()
    [1.0, 1.0, 0.0]
    """

    def __init__(self, full: Mapping[str, Tensor]) -> None:
        super().__init__(full)
        self.full = dict(full)

    def head(self, n: int) -> None:
        """Show the first n rows."""
        for name, shown in self.items():
            full = self.full.setdefault(name, shown)
            if full.data_ptr() != shown.data_ptr():
                full[: len(shown)] = shown
        for name, full in self.full.items():
            self[name] = full[:n]


class Lender(Protocol):
    """What an engine lends to formulas while a group of clients trains."""

    algorithm: Algorithm

    @property
    def batch(self) -> Batch: ...
    def raw_gradient(self, at: At, point: Tensor) -> Tensor: ...
    def full_gradient(self, at: At, point: Tensor) -> Tensor: ...
    def represent(self, point: Tensor) -> Tensor: ...
    def draw_model(self, at: At) -> Tensor: ...
    def owned(self, at: At) -> Tensor: ...
    def class_rows(self) -> Tensor: ...


@dataclass
class At:
    """What a formula may need at one moment, and nothing else.

    Vectors that all clients share are `[params]`, per-client ones `[clients, params]`, per-client scalars
    `[clients, 1]`. `sent`, `surveyed`, `memory` and `scratch` are the calling rule's own.
    """

    x: Tensor  # the model the clients received; on the server, the model before this round's step
    x0: Tensor  # the initial model
    round: int = 1
    rounds: int = 1
    population: int = 1  # registered clients
    cohort: int = 1  # clients of this round
    rates: Tensor | None = None  # server: the server's rate
    delta: Tensor | None = None  # server: the aggregated update
    fraction: float = 1.0  # cohort (server: clients that reported) over population
    client_lr: float = 1.0  # the clients' rate in this round
    mean_samples: float = 1.0  # samples per registered client

    # on clients
    optimizer: Optimizer = field(default_factory=SGD)
    expected_steps: int | None = None
    clients: Ints | None = None
    k: int = 0
    g: Tensor | None = None  # the corrected gradient of this step; after the loop each client's last
    loss: Tensor | None = None
    moved: Tensor | None = None  # after the loop: y - x, the update itself, which nobody changes
    scalars: Rows = field(default_factory=lambda: Rows({}))
    state: Rows = field(default_factory=lambda: Rows({}))
    sent_all: Slots = field(default_factory=dict)
    surveyed_all: Slots = field(default_factory=dict)
    memory_all: dict[str, Rows] = field(default_factory=dict)
    scratch_all: dict[str, Rows] = field(default_factory=dict)
    lender: Lender | None = None
    slot: str = ""

    def of(self, rule: Rule) -> At:
        """The same moment, seen by this rule."""
        self.slot = rule.slot
        return self

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Ask rules about another point amid a formula: whose formula it is, and all notes, stay as they are."""
        slot, notes = self.slot, {rule: dict(rows) for rule, rows in self.scratch_all.items()}
        yield
        self.slot = slot
        for rule, rows in self.scratch_all.items():
            rows.clear()
            rows.update(notes[rule])

    def raw_gradient(self, point: Tensor) -> Tensor:
        """The gradient at other points `[clients, params]` on this step's batch, dropout replayed; counted."""
        assert self.lender is not None
        return self.lender.raw_gradient(self, point)

    def gradient(self, point: Tensor) -> Tensor:
        """The same, then every rule's `gradient`."""
        assert self.lender is not None
        g = self.raw_gradient(point)
        with self.aside():
            for rule in self.lender.algorithm.hooks("gradient"):
                g = rule.gradient(g, point, self.of(rule))
        return g

    def penalty(self, point: Tensor) -> Tensor:
        """What rules add to the loss there, `[clients, 1]`."""
        assert self.lender is not None
        total = point.new_zeros((len(point), 1))
        with self.aside():
            for rule in self.lender.algorithm.hooks("penalty"):
                total = total + rule.penalty(point, self.of(rule))
        return total

    def full_gradient(self, point: Tensor) -> Tensor:
        """The exact mean gradient over each client's data; counted."""
        assert self.lender is not None
        return self.lender.full_gradient(self, point)

    def represent(self, point: Tensor) -> Tensor:
        """This step's batch as other models represent it."""
        assert self.lender is not None
        return self.lender.represent(point)

    @property
    def batch(self) -> Batch:
        """This step's batch of every client in view."""
        assert self.lender is not None
        return self.lender.batch

    def draw_model(self) -> Tensor:
        """A fresh draw of the initialiser for each client, `[clients, params]`."""
        assert self.lender is not None
        return self.lender.draw_model(self)

    def owned(self) -> Tensor:
        """1 for each class a client has samples of, else 0: `[clients, classes]`."""
        assert self.lender is not None
        return self.lender.owned(self)

    def class_rows(self) -> Tensor:
        """For each parameter the class whose score it alone makes, or -1: `[params]`."""
        assert self.lender is not None
        return self.lender.class_rows()

    def head(self, n: int) -> None:
        """Keep the first n clients in view: the others have spent their budget."""
        for rows in (self.scalars, self.state, *self.memory_all.values(), *self.scratch_all.values()):
            rows.head(n)

    @property
    def lr(self) -> Tensor:
        """The rate of this step."""
        return self.scalars["lr"] if self.rates is None else self.rates

    @property
    def lr_sum(self) -> Tensor:
        """The sum of rates over the steps done."""
        return self.scalars["lr_sum"]

    @property
    def steps(self) -> Tensor:
        """J_i: the true steps of each client in this round."""
        return self.scalars["steps"]

    @property
    def samples(self) -> Tensor:
        """n_i: the samples each client holds."""
        return self.scalars["samples"]

    @property
    def first(self) -> Tensor:
        """1 where this is the client's first participation, else 0."""
        return self.scalars["first"]

    @property
    def sent(self) -> dict[str, Tensor]:
        """What this rule's server half broadcast."""
        return self.sent_all[self.slot]

    @property
    def surveyed(self) -> dict[str, Tensor]:
        """The weighted mean of what this rule's `survey` returned."""
        return self.surveyed_all[self.slot]

    @property
    def memory(self) -> Rows:
        """What this rule kept on the clients."""
        return self.memory_all[self.slot]

    @property
    def scratch(self) -> Rows:
        """This rule's notes for the round."""
        return self.scratch_all[self.slot]


class Rule:
    """Both halves of a method. Every hook is optional; the round calls those a rule defines.

    Server, then clients, then server, in the order of a round:

    server_init(x, at)          the server's slots before round 1
    plan(plan, server, at)      the round's rate, steps and batch size (one rule at most)
    send(server, at)            what is broadcast beside the model: vectors [params], scalars without dimension
    client_init(x, at)          a client's memory at its first participation
    survey(at)                  a first exchange in the same round; its weighted mean comes back as at.surveyed
    start(y, at)                moves the model before the first local step
    output(o, at)               changes the model's outputs [clients, batch, ...] before the loss sees them
    loss(z, at)                 adds to the loss of every sample, given the model's representations of the batch
    gradient(g, y, at)          corrects the gradient of every local step; may also be asked about another y (DeltaSGD)
    penalty(y, at)              what `gradient` is the derivative of, if it is one: SPS then sees the whole objective
    after_step(y, at)           moves the model after every local step
    extra(y, at)                moves the model after the last one
    covers(at)                  1 for each element of the clients' updates that counts, else 0 (one rule at most)
    finish(y, at)               what is uploaded, and the new memory
    server_step(server, up, at) the server's new slots
    update(delta, server, at)   changes the aggregated update (one rule at most)
    eval_params(x, server)      the models to evaluate by name, "" the main one (one rule at most)
    report(server, up, at)      columns for the history
    remembered(at)              for a diagnosis: the momentum clients start the round with, as a gradient of any length

    `gradient` may change g in place; who wants to keep g keeps a copy, as the next step overwrites it. What it returns
    may be changed by the next rule: g, or a tensor of its own, never one of at.memory or at.sent.
    `shadow(s)` is the linear part of `gradient` on FedNova's scalar; a rule without one (None) has no linear shadow.

    >>> class SignSGD(Rule):
    ...     def gradient(self, g, y, at):
    ...         return g.sign()
    >>> Algorithm(rules=[SignSGD()]).hooks("gradient")
    (SignSGD(),)
    """

    reference: ClassVar[str] = ""
    formulas: ClassVar[dict[str, str]] = {}  # for `explain`: by hook, as the paper prints them
    scalars_only: ClassVar[bool] = False  # what it sends and keeps has no element of the model: fit for sub-models
    averages: ClassVar[tuple[str, ...]] = ("mean", "weighted")  # of its uploads: those that `server_step` reads
    keeps: ClassVar[dict[str, Any]] = {}  # for `explain`: names kept on "server" and "client", a note on "traffic"

    def broadcast(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        """What `send` gives; it may leave out `at`, as most have no use for it."""
        short = len(inspect.signature(self.send).parameters) == 1
        return self.send(server) if short else self.send(server, at)  # type: ignore[call-arg]

    @property
    def slot(self) -> str:
        """The name under which this rule's tensors are kept."""
        return type(self).__name__.lower()

    def server_init(self, x: Tensor, at: At) -> dict[str, Tensor]:
        return {}

    def plan(self, plan: Plan, server: dict[str, Tensor], at: At) -> Plan:
        return plan

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return {}

    def client_init(self, x: Tensor, at: At) -> Memory:
        return {}

    def survey(self, at: At) -> dict[str, Tensor]:
        return {}

    def start(self, y: Tensor, at: At) -> None:
        return None

    def output(self, o: Tensor, at: At) -> Tensor:
        return o

    def loss(self, z: Tensor, at: At) -> Tensor | None:
        return None

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        return g

    def penalty(self, y: Tensor, at: At) -> Tensor:
        return y.new_zeros((len(y), 1))

    def after_step(self, y: Tensor, at: At) -> None:
        return None

    def extra(self, y: Tensor, at: At) -> None:
        return None

    def covers(self, at: At) -> Tensor:
        return torch.ones_like(at.x)

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        return Upload(), {}

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        return server

    def update(self, delta: Tensor, server: dict[str, Tensor], at: At) -> Tensor:
        return delta

    def eval_params(self, x: Tensor, server: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"": x}

    def report(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, float]:
        return {}

    def remembered(self, at: At) -> Tensor | None:
        return None

    def shadow(self, s: Tensor) -> Tensor | None:
        bends = any(map(self.defines, ("loss", "gradient", "after_step")))
        return None if bends else torch.zeros_like(s)

    def box(self, algorithm: Algorithm) -> dict[str, str]:
        """`formulas` as they read in this algorithm."""
        return self.formulas

    def refuse(self, algorithm: Algorithm) -> str | None:
        """Why this rule cannot be part of that algorithm, and what to use instead."""
        return None

    def resolve(self, algorithm: Algorithm, task: Task, world: World) -> Self:
        """Fill in what depends on the task or the world; refuse what cannot work there."""
        return self

    def warn(self, algorithm: Algorithm, participation: float, steps: float) -> str | None:
        """A word about settings that are legal and known to misbehave."""
        return None

    def defines(self, hook: str) -> bool:
        """Whether this rule has the hook."""
        return getattr(type(self), hook) is not getattr(Rule, hook)

    def parameters(self) -> dict[str, Any]:
        """Name and values, for configurations and tables."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else dict(vars(self))
        return {"name": self.slot} | values

    def __repr__(self) -> str:
        values = {k: v for k, v in self.parameters().items() if k != "name"}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in values.items())})"


BUFFERS = ("average", "server")
ONCE = {  # hooks that one rule of an algorithm may define, and what it then does
    "update": "replace the server's update",
    "plan": "set the rate of a round",
    "eval_params": "choose the model to evaluate",
    "covers": "choose the elements that count",
}
VECTORS = ("client_init", "survey", "send", "finish", "update", "eval_params")  # hooks that keep or send some


@dataclass(frozen=True)
class Algorithm:
    """FedAvg is the empty `Algorithm()`; everything else is a part of it changed or added.

    buffers: "average" (floating ones by samples, integer ones from the first client) or "server" (clients'
    changes are dropped).

    >>> Algorithm(client=SGD(0.01, momentum=0.9)).weights
    Samples()
    """

    client: Optimizer = field(default_factory=SGD)
    rules: Sequence[Rule] = ()
    server: Optimizer = field(default_factory=SGD)
    weights: Weights | str = field(default_factory=Samples)
    buffers: str = "average"
    capacity: Capacity | None = None  # sub-models for devices of different size
    spec: str | None = None  # the text it was made from

    def __post_init__(self) -> None:
        known = isinstance(self.weights, Weights) or self.weights in WEIGHTS
        check(known, self, "weights", f"one of {', '.join(WEIGHTS)}", self.weights)
        check(self.buffers in BUFFERS, self, "buffers", f"one of {', '.join(BUFFERS)}", self.buffers)
        for name in ("client", "server"):
            part = getattr(self, name)
            check(isinstance(part, Optimizer), self, name, "an optimizer such as fk.SGD(0.01)", part)
        good = isinstance(self.rules, list | tuple) and all(isinstance(rule, Rule) for rule in self.rules)
        check(good, self, "rules", "a list of rules", self.rules)
        for rule in self.rules:
            known = isinstance(rule.averages, tuple) and {"mean", "weighted"}.issuperset(rule.averages)
            check(known, rule, "averages", "a tuple of 'mean' and 'weighted', or of one", rule.averages)
        object.__setattr__(self, "client", self.client.for_clients())
        object.__setattr__(self, "server", self.server.for_server())
        object.__setattr__(self, "rules", tuple(self.rules))
        object.__setattr__(self, "weights", self.weighing)
        self._refuse_illegal()

    def hooks(self, name: str) -> tuple[Rule, ...]:
        """The rules that define this hook, in order."""
        return tuple(rule for rule in self.rules if rule.defines(name))

    @property
    def title(self) -> str:
        """A name for people, made of the parts' names."""
        server = type(self.server).__name__.lower()
        rest = [] if server == "sgd" else [f"{server}-server"]
        return "+".join([type(self.client).__name__.lower(), *(rule.slot for rule in self.rules), *rest])

    @property
    def weighing(self) -> Weights:
        """The weights as an object, when they were given by name."""
        return WEIGHTS[self.weights]() if isinstance(self.weights, str) else self.weights

    def resolve(self, task: Task, world: World) -> Algorithm:
        """The same algorithm with every value filled in for this task and world."""
        from .rules.guess import matched  # the control arm belongs to GEL

        client, server = self.client, self.server
        base = task.lr if task.lr is not None else 0.01
        if client.lr is None:
            client = replace(client, lr=base)
        if client.lr == "match-gel":
            client = replace(client, lr=base * matched(client, world))
        if server.lr == "match-gel":
            server = replace(server, lr=matched(client, world))
        known = replace(self, client=client, server=server)
        return replace(known, rules=[rule.resolve(known, task, world) for rule in self.rules])

    def parameters(self) -> dict[str, Any]:
        """Every value, for the configuration."""
        capacity = {} if self.capacity is None else {"capacity": self.capacity.parameters()}
        return capacity | {
            "client": self.client.parameters(),
            "rules": [rule.parameters() for rule in self.rules],
            "server": self.server.parameters(),
            "weights": self.weighing.parameters(),
            "buffers": self.buffers,
        }

    def _refuse_illegal(self) -> None:
        slots = [rule.slot for rule in self.rules]
        for slot in slots:
            if slots.count(slot) > 1:
                raise InputError(f"'{slot}' stands twice in one algorithm; each rule may be used once.")
        for hook, does in ONCE.items():
            several = [rule.slot for rule in self.hooks(hook)]
            if len(several) > 1:
                raise InputError(f"{' and '.join(several)} each {does}; use one of them.")
        if self.weighing.needs_norm:
            bent = [r.slot for r in self.rules if r.shadow(torch.zeros(1, 1)) is None]
            if not self.client.linear:
                bent.append(type(self.client).__name__)
            if bent:
                raise InputError(
                    f"FedNova's weights need updates that are a fixed combination of gradients, which {bent[0]} "
                    "does not give; use weights=samples or weights=uniform."
                )
        if self.capacity is not None:
            for rule in self.rules:
                if not rule.scalars_only and any(map(rule.defines, VECTORS)):
                    raise InputError(
                        f"{rule.slot} keeps or sends vectors of the whole model, which clients that train a part of it "
                        "have no rule for; use it without levels, or use fedprox, gel or a server optimizer with them."
                    )
        parts: list[Optimizer | Rule] = [self.client, *self.rules]
        for part in parts:
            if why := part.refuse(self):
                raise InputError(why)
