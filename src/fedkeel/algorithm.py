"""An algorithm is optimizers + rules + weights, and a capacity where devices differ in size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .aggregate import WEIGHTS, Samples, Weights
from .errors import check
from .optim import SGD, Optimizer
from .pace import Buffered, Pace, Synchronous
from .rule import METHODS, Rule
from .settings import refuses_unknown

if TYPE_CHECKING:
    from .capacity import Capacity
    from .task import Task
    from .world import Ints, World

BUFFERS = ("average", "server")


@refuses_unknown(
    lr="client=fk.SGD(0.1)",
    server_lr="server=fk.SGD(0.1)",
    momentum="client=fk.SGD(0.1, momentum=0.9)",
    rule="rules=[...]",
)
@dataclass(frozen=True)
class Algorithm:
    """FedAvg is the empty `Algorithm()`; everything else is a part of it changed or added.

    buffers: "average" (floating ones by samples, integer ones from the first client) or "server" (clients'
    changes are dropped). pace: when the server steps; `Buffered(...)` is asynchronous.

    >>> Algorithm(client=SGD(0.01, momentum=0.9)).weights
    Samples()
    """

    client: Optimizer = field(default_factory=SGD)
    rules: Sequence[Rule] = ()
    server: Optimizer = field(default_factory=SGD)
    weights: Weights | str = field(default_factory=Samples)
    buffers: str = "average"
    capacity: Capacity | None = None  # sub-models for devices of different size
    pace: Pace = field(default_factory=Synchronous)
    spec: str | None = None  # the text it was made from
    slots: dict[str, Rule] = field(init=False, repr=False, compare=False)  # the rules by the name of their tensors
    weighing: Weights = field(init=False, repr=False, compare=False)  # the weights as an object
    hooks: dict[str, tuple[Rule, ...]] = field(init=False, repr=False, compare=False)  # by method, who defines it

    def __post_init__(self) -> None:
        from .legal import refuse_illegal  # the tables there name every rule, which are made of what is here

        known = isinstance(self.weights, Weights) or self.weights in WEIGHTS
        check(known, self, "weights", f"one of {', '.join(WEIGHTS)}", self.weights)
        check(self.buffers in BUFFERS, self, "buffers", f"one of {', '.join(BUFFERS)}", self.buffers)
        for name in ("client", "server"):
            part = getattr(self, name)
            check(isinstance(part, Optimizer), self, name, "an optimizer such as fk.SGD(0.01)", part)
        good = isinstance(self.rules, list | tuple) and all(isinstance(rule, Rule) for rule in self.rules)
        check(good, self, "rules", f"a list of rules{_instances(self.rules)}", self.rules)
        check(isinstance(self.pace, Pace), self, "pace", "fk.Buffered(...) or fk.Synchronous()", self.pace)
        object.__setattr__(self, "client", self.client.for_clients())
        object.__setattr__(self, "server", self.server.for_server())
        object.__setattr__(self, "rules", tuple(self.rules))
        weights = WEIGHTS[self.weights]() if isinstance(self.weights, str) else self.weights
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "weighing", weights)
        object.__setattr__(self, "slots", {rule.slot: rule for rule in self.rules})
        hooks = {name: tuple(rule for rule in self.rules if rule.defines(name)) for name in METHODS}
        object.__setattr__(self, "hooks", hooks)
        refuse_illegal(self)

    @property
    def title(self) -> str:
        """A name for people, made of the parts' names."""
        server = type(self.server).__name__.lower()
        rest = [] if server == "sgd" else [f"{server}-server"]
        return "+".join([type(self.client).__name__.lower(), *(rule.slot for rule in self.rules), *rest])

    def resolve(self, task: Task, world: World, reached: tuple[Ints, Ints] | None = None) -> Algorithm:
        """The same algorithm with every value filled in for this task and world; refuses what cannot work there.

        reached: with a deadline, the steps that all clients do and those that are expected of them.
        """
        from .legal import check_fit
        from .rules.guess import matched  # the control arm belongs to GEL

        client, server = self.client, self.server
        base = task.lr if task.lr is not None else 0.01
        if client.lr is None:
            client = replace(client, lr=base)
        if client.lr == "match-gel":
            client = replace(client, lr=base * matched(client, world, reached))
        if server.lr == "match-gel":
            server = replace(server, lr=matched(client, world, reached))
        known = replace(self, client=client, server=server, pace=self.pace.fitted(len(task.data)))
        check_fit(known, task, world)
        return replace(known, rules=[rule.resolve(known, task, world) for rule in self.rules])

    def parameters(self) -> dict[str, Any]:
        """Every value, for the configuration."""
        own = {} if self.capacity is None else {"capacity": self.capacity.parameters()}
        own |= {"pace": self.pace.parameters()} if isinstance(self.pace, Buffered) else {}
        return own | {
            "client": self.client.parameters(),
            "rules": [rule.parameters() for rule in self.rules],
            "server": self.server.parameters(),
            "weights": self.weighing.parameters(),
            "buffers": self.buffers,
        }


def _instances(rules: Any) -> str:
    """What to write where a list has classes of rules in the place of rules; else nothing."""
    classes = [one.__name__ for one in rules if isinstance(one, type)] if isinstance(rules, list | tuple) else []
    return f"; make an instance: {', '.join(f'{name}()' for name in classes)}" if classes else ""
