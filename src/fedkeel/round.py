"""One round of federated learning, from top to bottom.

    the server plans, picks clients and sets their steps                     invite
    with devices, the clock says who reports in time                         world/clock.py
    where a rule asks for it, a first exchange in the same round             survey.py
    clients train; the pace says whose updates the server waits for          pace.py, local.py
    the server steps; only then do clients' memories change                  serve

Everything a user adds is a `Rule` whose methods are called from here and from `local.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .aggregate import Reports, Sums, collect
from .algorithm import Algorithm
from .engine import Available, Engine
from .errors import InputError
from .messages import Broadcast, Facts, Flights, Plan, Slots, Work, flatten
from .pace import Synchronous
from .rule import View, returned
from .survey import survey
from .task import Task
from .world import Ask, Ints, World
from .world.clock import Clock

COUNTED = ("gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes")


@dataclass(frozen=True)
class Job:
    """What a run fixes before its first round; every value of the algorithm is resolved."""

    task: Task
    algorithm: Algorithm
    world: World
    rounds: int
    seed: int
    batch_size: int | None
    clock: Clock | None = None  # with a fleet, or an asynchronous pace
    here: Available | None = None  # on real devices: who can be asked now; None means everybody

    def cast(self, dtype: torch.dtype, device: str) -> Job:
        """The same job with its data in `dtype` on `device`."""
        return replace(self, task=self.task.cast(dtype, device))

    def work(self, plan: Plan, version: int, clients: Ints) -> Work:
        """What these clients are asked to do; without those that have no budget in this round."""
        world, capacity, t = self.world, self.algorithm.capacity, version + 1
        ask = Ask(self.seed, t, clients, self.task.data.sizes(clients), plan.batch_size)
        steps = world.steps(ask, plan.steps(ask.samples))
        clients, steps = clients[steps > 0], steps[steps > 0]
        levels = None if capacity is None else capacity.of(clients, self.seed, t, len(self.task.data))
        expected = None if world.expected is None else np.full(len(clients), world.expected, dtype=np.int64)
        if world.deadline is not None and expected is None:  # what a client could do without it
            expected = steps
        return Work(version, clients, steps, expected, levels)


@dataclass(frozen=True)
class State:
    """What changes from round to round on the server, as data. A checkpoint is this and the clients' memories."""

    x: Tensor
    x0: Tensor
    buffers: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rules: Slots
    round: int = 0
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    sim_seconds: float = 0.0
    flights: Flights = field(default_factory=Flights)  # what is under way in an asynchronous run

    def is_finite(self) -> bool:
        """Whether every number is finite, in the model, the optimizer and every rule."""
        tensors = [self.x, *self.buffers.values(), *self.optimizer.values(), *flatten(self.rules).values()]
        total = float(torch.stack([one.sum().to(self.x) for one in tensors]).sum())  # one pass, and one wait
        return math.isfinite(total) or all(bool(torch.isfinite(one).all()) for one in tensors)  # it may overflow

    def spend(self, counts: dict[str, int]) -> State:
        """The state with these gradients and bytes counted."""
        return replace(self, totals={name: before + counts.get(name, 0) for name, before in self.totals.items()})


def first_state(job: Job, x: Tensor, buffers: dict[str, Tensor]) -> State:
    """The state before round 1."""
    algorithm = job.algorithm
    assert isinstance(algorithm.client.lr, int | float)
    lr = algorithm.client.lr
    rules = {slot: returned(rule, "init", rule.init(x, lr)) for slot, rule in algorithm.slots.items()}
    counted = COUNTED if algorithm.capacity is None else (*COUNTED, "flops")
    optimizer = algorithm.server.init(x, x.new_tensor(algorithm.server.lr))
    return State(x, x, buffers, optimizer, rules, totals=dict.fromkeys(counted, 0))


@torch.no_grad()
def one_round(
    job: Job, state: State, engine: Engine, watch: Callable[[int, Sums], None] | None = None
) -> tuple[State, dict[str, Any]]:
    """Run round `state.round + 1`: the new state and its history row. watch: called with the round and its sums."""
    broadcast, work, absent = invite(job, state)
    if job.algorithm.hooks["survey"]:
        broadcast, cost = survey(job.algorithm, engine, broadcast, work)
        state = state.spend(cost)
    found = job.algorithm.pace.gather(job, state, engine, broadcast, work)
    total = collect(chain(found.parts, [absent]), job.algorithm.weighing)
    new, row = serve(job, found.state, broadcast, total)
    if is_enough(job, total):
        for version, clients in found.reported.items():
            engine.commit(version, np.intersect1d(clients, total.clients).tolist())
    for version in found.over:
        engine.discard(version)
    if watch is not None:
        watch(new.round, total)
    return new, row


def is_enough(job: Job, total: Sums) -> bool:
    """Whether so many clients reported that the server makes a step: else the round changes no model and no memory."""
    return len(total.clients) >= max(job.world.min_clients, job.algorithm.weighing.least())


def invite(job: Job, state: State) -> tuple[Broadcast, Work, Sums]:
    """The broadcast of the next round, clients with their steps and, where time has a say, those that will not report.

    A buffered pace says itself when its clients report.
    """
    data, world = job.task.data, job.world
    algorithm, pace = job.algorithm, job.algorithm.pace
    population = len(data)
    facts = Facts(state.round + 1, job.rounds, population, world.size(population), len(data.x) / population)
    assert isinstance(algorithm.client.lr, int | float)
    plan = Plan(float(algorithm.client.lr), job.batch_size)
    for rule in algorithm.hooks["plan"]:
        plan = returned(rule, "plan", rule.plan(plan, state.rules[rule.slot], facts))

    work = job.work(plan, state.round, pace.whom(job, state))
    goal = len(work.clients) if world.invite == 1 else min(len(work.clients), world.size(population))
    facts = replace(facts, cohort=pace.participation(goal))
    view = View(state.x, state.x0, facts, plan.lr, facts.fraction)
    slots = {slot: returned(rule, "send", rule.send(state.rules[slot], view)) for slot, rule in algorithm.slots.items()}
    broadcast = Broadcast(state.round, plan, facts, state.x, state.buffers, slots)
    if job.clock is None or not isinstance(pace, Synchronous):
        return broadcast, work, Sums()
    return broadcast, *job.clock.attend(broadcast, work, goal, state.sim_seconds)


def serve(job: Job, state: State, broadcast: Broadcast, total: Sums) -> tuple[State, dict[str, Any]]:
    """Aggregate, let rules act, and step: the new state and its history row."""
    algorithm = job.algorithm
    now = state.sim_seconds if total.until is None else total.until
    state = replace(state.spend(total.counts), round=broadcast.facts.round, sim_seconds=now)
    row: dict[str, Any] = {"train_loss": total.mean_loss(), **state.totals}
    row |= {"clients": len(total.clients), "dropped": len(total.dropped)}
    if job.clock is not None and job.clock.shown:
        row |= {"sim_seconds": now}
    if (job.clock is not None and job.clock.shown) or total.late or total.lost:
        row |= {"late": len(total.late), "lost": len(total.lost)}
    row |= broadcast.plan.columns() if algorithm.hooks["plan"] else {}
    if not is_enough(job, total):
        return state, row

    up = Reports.of_all(total, algorithm.weighing)
    view = View(state.x, state.x0, broadcast.facts, broadcast.plan.lr, len(total.clients) / broadcast.facts.population)
    views = {slot: replace(view, answers=broadcast.answers.get(slot, {})) for slot in algorithm.slots}
    rules: Slots = {}
    delta = up.delta
    for slot, rule in algorithm.slots.items():  # all see the same mean; one rule may replace the update
        rules[slot], wanted = returned(rule, "serve", rule.serve(state.rules[slot], up.of(slot), views[slot]))
        if wanted is not up.delta and delta is not up.delta:
            raise InputError(f"{slot} and a rule before it each replace the server's update; use one of them.")
        delta = delta if wanted is up.delta else wanted
    x, optimizer = state.x.clone(), {name: value.clone() for name, value in state.optimizer.items()}
    algorithm.server.apply(x, -delta, optimizer, torch.as_tensor(algorithm.server.lr, dtype=x.dtype, device=x.device))

    if algorithm.client.finds_rate:
        row |= algorithm.client.report(up.of(algorithm.client.slot))
    for rule in algorithm.hooks["report"]:
        row |= returned(rule, "report", rule.report(rules[rule.slot], up.of(rule.slot), views[rule.slot]))
    averaged = state.buffers and algorithm.buffers == "average"
    buffers = up.buffers(state.buffers, algorithm.weighing) if averaged else state.buffers
    return replace(state, x=x, buffers=buffers, optimizer=optimizer, rules=rules), row
