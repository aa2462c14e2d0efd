"""One round of federated learning, from top to bottom.

    the server plans, picks a cohort, and asks what each may spend      invite, make_plan
    it sends the model, and what rules broadcast                        gather, broadcast
    clients train on their own data, in lockstep or one by one          visit, local_update
    what they report arrives as weighted sums                           client.report
    the server steps; only then do clients' memories change             server_step

Everything a user adds is a `Rule` whose hooks are called from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import wire
from .algorithm import Algorithm, At, Plan
from .client import arrive, naming, report, survey
from .data.batches import Batch, Batches
from .engine.local import Engine, Worker
from .job import Job, Message, State
from .wire import Part, Slots
from .world import Ask, Ints


@torch.no_grad()
def one_round(job: Job, state: State, engine: Engine) -> tuple[State, dict[str, Any]]:
    """Play round `state.round + 1`: the new state, and its history row."""
    algorithm = job.algorithm
    total, at, plan = gather(job, state, engine, visit)
    new = server_step(job, state, total, at)
    row: dict[str, Any] = {"train_loss": total.mean_loss(), **new.totals}
    row |= {"clients": len(total.clients), "dropped": len(total.dropped)}
    row |= plan.columns() if algorithm.hooks("plan") else {}
    if total.clients:
        row |= algorithm.client.report(total.reports(algorithm).of(algorithm.client))
    for rule in algorithm.hooks("report") if total.clients else ():
        row |= rule.report(new.rules[rule.slot], total.reports(algorithm).of(rule), at.of(rule))
    return new, row


def invite(job: Job, state: State) -> tuple[Plan, Ints, Ints]:
    """What the next round asks for, who takes part, and the steps each of them does."""
    data, t = job.task.data, state.round + 1
    plan = make_plan(job, state, t)
    cohort = job.world.who(t, len(data), job.seed, data.sizes)
    ask = Ask(job.seed, t, cohort, data.sizes(cohort), plan.batch_size)
    steps = job.world.steps(ask, plan.steps(ask.samples) if plan.steps else None)
    return plan, cohort[steps > 0], steps[steps > 0]


@torch.no_grad()
def gather(job: Job, state: State, engine: Engine, do: Callable[..., Part]) -> tuple[Part, At, Plan]:
    """What the cohort of the next round reports when its clients do this: `visit`, or what a diagnosis watches."""
    algorithm = job.algorithm
    plan, cohort, steps = invite(job, state)
    message, at = broadcast(job, state, state.round + 1, len(cohort), plan)
    total = Part()
    if algorithm.hooks("survey"):  # a first exchange in the same round
        surveyed = engine.reduce(survey, message, cohort, steps, state.memories)
        at.surveyed_all = message.at["surveyed_all"] = surveyed.means(algorithm)
        wire.count_second_download(total, surveyed, message.at["surveyed_all"], len(cohort))
    total.add(engine.reduce(do, message, cohort, steps, state.memories))
    return total, at, plan


def make_plan(job: Job, state: State, t: int) -> Plan:
    """What the server asks of the clients in this round."""
    client = job.algorithm.client
    assert isinstance(client.lr, int | float)
    plan = Plan(float(client.lr), job.batch_size)
    at = At(state.x, state.x0, t, job.rounds, len(job.task.data), optimizer=client)
    for rule in job.algorithm.hooks("plan"):
        plan = rule.plan(plan, state.rules[rule.slot], at.of(rule))
    return plan


def broadcast(job: Job, state: State, t: int, cohort: int, plan: Plan) -> tuple[Message, At]:
    """The message to the cohort, and the server's own view of the round."""
    population = len(job.task.data)
    shared: dict[str, Any] = {
        "x": state.x, "x0": state.x0, "round": t, "rounds": job.rounds, "population": population,
        "cohort": cohort, "fraction": cohort / population, "expected_steps": job.world.expected,
        "client_lr": plan.lr, "mean_samples": len(job.task.data.x) / population,
    }  # fmt: skip
    at = At(**shared)
    shared["sent_all"] = {r.slot: r.broadcast(state.rules[r.slot], at.of(r)) for r in job.algorithm.rules}
    return Message(job, shared, state.buffers, plan.batch_size), at


@torch.no_grad()
def visit(worker: Worker, message: Message, clients: Ints, steps: Ints, memory: Slots, seen: Ints) -> Part:
    """A group of clients in lockstep (one client in serial mode): train, then report."""
    order = np.argsort(-steps, kind="stable")  # the longest budgets first
    with naming(message, clients) as where:
        at, y, batches = arrive(worker, message, clients, steps, memory, seen, order)
        where.append(at)
        local_update(at, y, batches, worker.gradients, message.job.algorithm)
        part = report(at, y, np.argsort(order), worker, message.job.algorithm)
    wire.count_download(part, message.at["sent_all"], message.at["x"], message.buffers, len(clients))
    part.count("gradients", int(steps.sum()) + int(at.scalars["extra_gradients"].sum()))
    part.count("samples", int((steps[order] * batches.widths).sum()) + int(at.scalars["extra_samples"].sum()))
    return part


def local_update(
    at: At,
    y: Tensor,
    batches: Batches,
    gradients: Callable[[Tensor, Batch], tuple[Tensor, Tensor]],
    algorithm: Algorithm,
) -> None:
    """The one local loop: moves y in place."""
    correct, push, extra = algorithm.hooks("gradient"), algorithm.hooks("after_step"), algorithm.hooks("extra")
    last = torch.zeros_like(y) if extra else None
    now, active = y, len(y)  # the models of those still in view
    for rule in algorithm.hooks("start"):
        rule.start(y, at.of(rule))
    for k in range(batches.longest):
        if (staying := batches.active(k)) < active:  # who has spent its budget has left
            now, active = y[:staying], staying
            at.head(active)
        at.k = k
        g, at.loss = gradients(now, batches.at(k, active))
        for rule in correct:
            g = rule.gradient(g, now, at.of(rule))
        at.g = g
        algorithm.client.step(now, g, at.state, at)
        for rule in push:
            rule.after_step(now, at.of(rule))
        at.lr_sum.add_(at.lr)
        at.scalars["loss_sum"].add_(at.loss)
        if last is not None:  # for those who leave now, this was the last gradient
            staying = batches.active(k + 1)
            last[staying:active] = g[staying:active]
    at.g = last
    at.head(len(y))
    for rule in extra:  # GEL guesses the steps nobody had budget for
        rule.extra(y, at.of(rule))


def server_step(job: Job, state: State, part: Part, at: At) -> State:
    """Rules, then the server optimizer; memories are written only now that the round is accepted."""
    algorithm = job.algorithm
    totals = {name: before + part.counts.get(name, 0) for name, before in state.totals.items()}
    if not part.clients:
        return replace(state, round=at.round, totals=totals)
    up = part.reports(algorithm)
    at.delta, at.fraction = up.update(), len(part.clients) / at.population
    rules = {r.slot: r.server_step(state.rules[r.slot], up.of(r), at.of(r)) for r in algorithm.rules}
    delta = at.delta
    for rule in algorithm.hooks("update"):
        delta = rule.update(delta, rules[rule.slot], at.of(rule))
    x, optimizer = state.x.clone(), {name: value.clone() for name, value in state.optimizer.items()}
    at.rates = torch.as_tensor(algorithm.server.lr, dtype=x.dtype, device=x.device)
    algorithm.server.step(x, -delta, optimizer, at)
    for clients, slots in part.memory:
        state.memories.write(clients, slots)
    buffers = up.buffers(state.buffers) if algorithm.buffers == "average" else state.buffers
    return State(x, state.x0, buffers, optimizer, rules, state.memories, at.round, totals)
