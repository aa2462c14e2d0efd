"""Checks that make an algorithm trustworthy, for your own `Rule` as for ours.

Each takes an algorithm (an `Algorithm`, or its text) and raises an AssertionError that says what went wrong:

    check_modes_agree   serial and batched compute the same gradients, step by step
    check_workers       the number of workers changes no bit
    check_resume        stopping, saving and resuming changes no bit
    check_knobs         every hyper-parameter changes the result
    check_neutral       a neutral setting changes no bit
    check_gradient      a rule's gradient is the slope of its penalty
    check_bytes         the bytes reported are those of really serialized messages
    check_seeds         two seeds differ in every random choice; two algorithms with one seed share them
    check_all           all of these that need nothing else

`quadratics` is the task on which theory is exact, `toy` a small classification task with unequal clients.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from . import recipes, wire
from .algorithm import Algorithm
from .data import FederatedData
from .data.batches import Batch
from .engine import Do
from .engine.threads import Local
from .errors import InputError
from .messages import Broadcast, Facts, Memory, Update, Work, flatten
from .pace import Synchronous
from .rule import Me, Objective, Rule
from .run.training import Run, resume, train
from .task import Task, cross_entropy
from .toys import Stairs, quadratics, toy, toy_exits, toy_world  # noqa: F401 - also for users of the checks
from .world import World

MODES = ("serial", "batched")
CAUSES = (
    "usual causes: random numbers that are not drawn by me.site.generators, or a formula that works across clients "
    "in place of each row's last axis"
)
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True, repr=False)
class Witness(Rule):
    """Records the gradients and budgets of clients, and changes nothing."""

    gradients: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)  # by round, client and step
    budgets: dict[tuple[int, int], int] = field(default_factory=dict)  # by round and client

    keeps_linear: ClassVar[bool] = True

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        g, value = go(y, batch)
        t = me.facts.round
        for client, row, steps in zip(me.site.clients, g, me.steps, strict=False):
            self.gradients[t, int(client), batch.step] = row.clone()
            self.budgets[t, int(client)] = int(steps)
        return g, value


def witnessed(algorithm: Algorithm | str) -> tuple[Algorithm, Witness]:
    """The algorithm with a witness as its last rule.

    >>> algorithm, witness = witnessed("fedavg")
    >>> _ = train(quadratics([1.0], [3.0]), algorithm, rounds=1)
    >>> witness.gradients[1, 0, 0]
    tensor([-3.])
    """
    known, witness = _algorithm(algorithm), Witness()
    return replace(known, rules=[*known.rules, witness]), witness


def check_modes_agree(algorithm: Algorithm | str, task: Task | None = None, world: World | None = None) -> None:
    """Serial is the oracle of batched: the same gradients at every step, to 1e-5 in float32 and 1e-10 in float64.

    >>> check_modes_agree("fedprox+gel")
    """
    for dtype, tolerance in TOLERANCES.items():
        seen = []
        for mode in MODES:
            spied, witness = witnessed(algorithm)
            run = _run(spied, task, world, engine=Local(mode, chunk=3), rounds=2, dtype=dtype)
            assert run.config["engine"] == mode, f"cannot run {mode}: {run.config['engine_reason']}"
            seen.append(witness.gradients)
        serial, batched = seen
        assert serial.keys() == batched.keys(), "serial and batched do not train the same clients for the same steps"
        scale = max(float(g.norm()) for g in serial.values())
        for (t, client, k), g in serial.items():
            off = float((g - batched[t, client, k]).norm()) / scale
            where = f"round {t}, client {client}, step {k + 1}, {dtype}"
            differ = f"serial and batched gradients differ by {off:.1e} > {tolerance:.0e} ({where})"
            assert off <= tolerance, f"{differ}; {CAUSES}"


def check_workers(
    algorithm: Algorithm | str, mode: str = "batched", task: Task | None = None, world: World | None = None
) -> None:
    """One worker and two give the same bits.

    >>> check_workers("fedavgm", "serial")
    """
    one, two = (_run(algorithm, task, world, engine=Local(mode, workers, chunk=2)) for workers in (1, 2))
    _same_run(one, two, "with one worker and with two")


def check_resume(
    algorithm: Algorithm | str, mode: str = "batched", task: Task | None = None, world: World | None = None
) -> None:
    """Half a run, saved and resumed, ends in the same bits as the whole: model, server state, memories, history.

    >>> check_resume("fedyogi", "serial")
    """
    task, world = task or toy(), world or toy_world()
    engine = Local(mode, chunk=3)
    straight = _run(algorithm, task, world, engine=engine)
    with tempfile.TemporaryDirectory() as folder:
        _run(algorithm, task, world, engine=engine, stop_after=2).save(folder)
        resumed = resume(folder, task, _algorithm(algorithm), world)
    _same_run(straight, resumed, "straight through and resumed half-way")


def check_knobs(
    algorithm: Algorithm | str,
    others: Mapping[str, Any] | None = None,
    skip: Collection[str] = (),
    task: Task | None = None,
    world: World | None = None,
    rounds: int = 2,
) -> None:
    """Every hyper-parameter of every part changes the result, on its own.

    Numbers and switches are changed by themselves; `others` has another value by "part.name" (a rule's part is its
    slot), for a text or None, or for a number that acts at some values only; `skip` names parameters that have no
    effect here. A value that is refused is not dead.

    >>> check_knobs("fedprox:clip=0.1")
    """
    known = _algorithm(algorithm)
    others = {"client.clip": 1e-3, "server.clip": 1e-3} | dict(others or {})
    base = _run(known, task, world, rounds=rounds, dtype=torch.float64).params
    for parameter, changed in _variants(known.resolve(task or toy(), world or toy_world()), others):
        if parameter not in skip:
            moved = not torch.equal(base, _run(changed, task, world, rounds=rounds, dtype=torch.float64).params)
            assert moved, (
                f"{parameter} is a dead parameter: another value gives the same bits. Where it acts at some values "
                f"only, give one of them, others={{'{parameter}': VALUE}}; where it cannot act here, leave it out, "
                f"skip=['{parameter}']"
            )


def check_neutral(
    algorithm: Algorithm | str, neutral: Mapping[str, Any], task: Task | None = None, world: World | None = None
) -> None:
    """With these values of their parameters rules change no bit: the model is that of the algorithm without them.

    >>> check_neutral("fedprox+gel:steps=5", {"mu": 0})
    """
    known = _algorithm(algorithm)
    changed = {rule.slot: _neutral(rule, neutral) for rule in known.rules if neutral.keys() & _names(rule)}
    missing = neutral.keys() - {name for rule in known.rules for name in _names(rule)}
    assert not missing, f"no rule has a parameter {', '.join(sorted(missing))}; parameters are fields of a dataclass"
    off = replace(known, rules=[changed.get(rule.slot, rule) for rule in known.rules])
    without = replace(known, rules=[rule for rule in known.rules if rule.slot not in changed])
    for mode in MODES:
        one, other = (_run(each, task, world, engine=Local(mode, chunk=3)).params for each in (off, without))
        values = ", ".join(f"{name}={value}" for name, value in neutral.items())
        assert torch.equal(one, other), f"with {values} the model is not that without {', '.join(changed)} ({mode})"


def check_gradient(
    rule: Rule,
    penalty: Callable[[Tensor, Me], Tensor] | None = None,
    prepare: Callable[[Me], Me] = lambda me: me,
    clients: int = 3,
    size: int = 4,
) -> None:
    """What a rule adds to the gradient is the slope of its penalty, by central differences in float64.

    penalty: `penalty(y, me) -> [clients, 1]`; default the rule's own. prepare: gives the view with what the formula
    reads (sent, memory, steps...), where that is more than the received model.

    >>> from fedkeel import Proximal
    >>> check_gradient(Proximal(0.5), lambda y, me: 0.25 * ((y - me.x) ** 2).sum(1, keepdim=True))
    """
    value = penalty or (rule.penalty if rule.defines("penalty") else None)
    assert value is not None, f"{rule.slot} has no penalty; give one"
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((size,), (clients, size)))
    column = y.new_ones(clients, 1)
    nowhere: Any = SimpleNamespace(is_own=lambda y: False)  # such a rule must not need the worker
    me = prepare(Me(x, Facts(), column, column, column, column, nowhere))
    me = replace(me, notes=rule.start(me))  # as a round does
    term, step = rule.gradient(torch.zeros_like(y), y.clone(), me), 1e-5
    slope = torch.empty_like(y)
    for i in range(size):
        move = torch.zeros_like(y)
        move[:, i] = step
        ahead, behind = value(y + move, me), value(y - move, me)
        slope[:, i] = ((ahead - behind) / (2 * step))[:, 0]
    off = float((term - slope).abs().max() / slope.abs().max().clamp(min=1))
    assert off < 1e-8, f"{rule.slot} adds a gradient that is not the slope of its penalty (off by {off:.1e})"


def check_bytes(
    algorithm: Algorithm | str, mode: str = "serial", task: Task | None = None, world: World | None = None
) -> None:
    """`bytes_down` and `bytes_up` are the tensor payload of the messages, serialized; every message is counted.

    >>> check_bytes("fedavg")
    """
    engine = Tapped(mode, workers=1)
    synchronous = replace(_algorithm(algorithm), pace=Synchronous())  # a pace changes when messages are sent
    run = _run(synchronous, task, world, engine=engine)
    down = up = 0
    for before, row in zip(run.history, run.history[1:], strict=False):
        t, clients = row["round"], row["clients"] + row["dropped"]
        down, up = down + engine.down.get(t, 0), up + engine.up.get(t, 0)
        for name, real in (("bytes_down", down), ("bytes_up", up)):
            counted = row[name]
            assert counted == real, f"{name} is {counted} after round {t}; the messages' tensors have {real} bytes"
        grown = row["overhead_bytes"] > before["overhead_bytes"]
        assert grown or not clients, f"round {t} has no overhead_bytes, but every message has a header"


def check_seeds(algorithm: Algorithm | str, other: Algorithm | str = "fedavg") -> None:
    """Two seeds differ in initial model, cohorts, budgets and batches; with one seed `other` shares all four.

    >>> check_seeds("fedavgcm+gel")
    """
    ours, theirs = choices(algorithm, seed=0), choices(other, seed=0)
    elsewhere = choices(algorithm, seed=1)
    for name, chosen in ours.items():
        # A method may compute more gradients, also of all its data; they must include the batches of plain FedAvg.
        same = all(batch in chosen for batch in theirs[name]) if name == "batches" else chosen == theirs[name]
        assert same, f"two algorithms with one seed differ in {name}"
        assert chosen != elsewhere[name], f"two seeds have the same {name}"


def choices(algorithm: Algorithm | str, seed: int) -> dict[str, Any]:
    """Every random choice of a short run: initial model, cohorts, budgets, batches.

    >>> sorted(choices("fedavg", seed=0))
    ['batches', 'budgets', 'cohorts', 'initial model']
    """
    plain, batches = toy(), []
    numbers = torch.arange(len(plain.data.y))
    numbered = FederatedData(plain.data.x, numbers, plain.data.offsets, test=(plain.data.x[:1], numbers[:1]))

    def loss(output: Tensor, number: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            batches.append(number.tolist())
        return cross_entropy(output, number % 3)

    def wide() -> nn.Module:
        return nn.Linear(4, len(numbered.x))

    spied, witness = witnessed(algorithm)
    task = replace(plain, data=numbered, loss=loss, model=wide)
    run = _run(spied, task, engine=Local("serial", workers=1), seed=seed)
    cohorts = sorted({(t, client) for t, client, _ in witness.gradients})
    return {
        "initial model": run.state.x0.tolist(),
        "cohorts": cohorts,
        "budgets": [witness.budgets[place] for place in cohorts],
        "batches": batches,
    }


def check_all(
    algorithm: Algorithm | str,
    others: Mapping[str, Any] | None = None,
    skip: Collection[str] = (),
    neutral: Mapping[str, Any] | None = None,
) -> None:
    """Every check but `check_gradient`, which needs the rule's penalty, in both modes.

    `others` and `skip` are those of `check_knobs`; `neutral` is that of `check_neutral`, which needs it.

    >>> check_all("fedprox", neutral={"mu": 0})
    """
    if neutral is not None:
        check_neutral(algorithm, neutral)
    check_modes_agree(algorithm)
    check_seeds(algorithm)
    check_knobs(algorithm, others, skip)
    for mode in MODES:
        check_workers(algorithm, mode)
        check_resume(algorithm, mode)
        check_bytes(algorithm, mode)


@dataclass(frozen=True)
class Tapped(Local):
    """The local engine, with messages that are serialized and read back; counts their bytes."""

    down: dict[int, int] = field(default_factory=dict)  # bytes by round, all clients
    up: dict[int, int] = field(default_factory=dict)

    def start(self, *given: Any) -> Any:
        engine: Any = super().start(*given)
        run = engine.run
        engine.run = lambda do, *more: run(partial(self.read, do), *more)
        return engine

    def read(self, do: Do, worker: Any, broadcast: Broadcast, work: Work, memory: Memory) -> Update:
        """Call `do` on messages that were serialized and read back."""
        received: Broadcast = wire.from_bytes(wire.to_bytes(broadcast))
        update: Update = wire.from_bytes(wire.to_bytes(do(worker, received, work, memory)))
        t, clients = broadcast.facts.round, len(work.clients)
        sent = [*flatten(update.mean).values(), *flatten(update.weighted).values()]
        if update.delta is not None:  # in a survey clients do not train, and the model is not sent twice
            floating = [b for b in received.buffers.values() if b.is_floating_point()]
            vectors = [received.x, *floating, *(v for v in flatten(received.slots).values() if v.ndim)]
            vectors += flatten(received.answers).values()
            self.down[t] = self.down.get(t, 0) + clients * sum(v.nbytes for v in vectors)
            sent += [update.delta, *(rows for rows in update.buffers.values() if rows.is_floating_point())]
        self.up[t] = self.up.get(t, 0) + clients * sum(rows[0].nbytes for rows in sent)
        return update


def _algorithm(algorithm: Algorithm | str) -> Algorithm:
    return recipes.algorithm(algorithm) if isinstance(algorithm, str) else algorithm


def _names(rule: Rule) -> set[str]:
    """The parameters of a rule."""
    return {f.name for f in fields(rule)} if is_dataclass(rule) else set()


def _neutral(rule: Rule, values: Mapping[str, Any]) -> Rule:
    """The rule with those of these values that are its own."""
    own: Any = rule
    changed: Rule = replace(own, **{name: values[name] for name in values.keys() & _names(rule)})
    return changed


def _run(
    algorithm: Algorithm | str, task: Task | None = None, world: World | None = None, rounds: int = 4, **settings: Any
) -> Run:
    return train(task or toy(), algorithm, world or toy_world(), rounds, **settings)


def _same_run(one: Run, two: Run, how: str) -> None:
    left, right = _tensors(one), _tensors(two)
    assert left.keys() == right.keys(), f"{how} the state has other parts: {sorted(left.keys() ^ right.keys())}"
    for name, value in left.items():
        assert torch.equal(value, right[name]), f"{how} {name} differs"
    rows, others = ([{**row, "wall_seconds": 0} for row in run.history] for run in (one, two))
    assert rows == others, f"{how} the history differs"


def _tensors(run: Run) -> dict[str, Tensor]:
    state = run.state
    seen = run.memories.read(np.arange(run.memories.population)).slots
    slots = {"buffers": state.buffers, "server optimizer": state.optimizer, **state.rules}
    slots |= {f"memory of {slot}": tables for slot, tables in seen.items()}
    return {"the model": state.x, "the initial model": state.x0, **flatten(slots)}


def _variants(algorithm: Algorithm, others: Mapping[str, Any]) -> Iterator[tuple[str, Algorithm]]:
    """(parameter, the algorithm with another value of it), for every parameter that may be set."""
    parts: dict[str, Any] = {name: getattr(algorithm, name) for name in ("client", "server", "weights")}
    parts |= {rule.slot: rule for rule in algorithm.rules if is_dataclass(rule)}
    for part, value in parts.items():
        for name in [f.name for f in fields(value)]:
            parameter = f"{part}.{name}"
            try:
                changed = replace(value, **{name: _other(parameter, getattr(value, name), others)})
                if part in ("client", "server", "weights"):
                    whole: dict[str, Any] = {part: changed}
                else:
                    whole = {"rules": [changed if rule is value else rule for rule in algorithm.rules]}
                yield parameter, replace(algorithm, **whole)
            except InputError:
                continue


def _other(parameter: str, value: Any, others: Mapping[str, Any]) -> Any:
    if parameter in others:
        return others[parameter]
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float), f"{parameter} is {value!r}: give another value for it in others"
    if isinstance(value, int):
        return value + 1
    return value * 0.5 if value else 0.1
