"""One round of federated learning, from top to bottom.

    rules may plan the round: its rate, steps and batch size       make_plan
    the server picks a cohort, and what each client may spend      one_round
    it sends the model, and what rules broadcast                   Message
    clients train on their own data, in lockstep or one by one     visit, local_update
    what they report arrives as weighted sums                      report
    the server steps; only then do clients' memories change        server_step

Everything a user adds is a `Rule` whose hooks are called from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import wire
from .algorithm import Algorithm, At, Plan, Rows
from .data.batches import Batch, Batches
from .engine.local import Engine, Worker
from .errors import ClientError, FedkeelError
from .memory import Memories
from .task import Task
from .weights import lengths
from .wire import Part, Slots, Upload
from .world import Ask, Ints, World

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

    def cast(self, dtype: torch.dtype, device: str) -> Job:
        """The same job with its data in `dtype` on `device`."""
        return replace(self, task=self.task.cast(dtype, device))


@dataclass
class State:
    """What changes from round to round, as data. A checkpoint is this and the configuration."""

    x: Tensor
    x0: Tensor
    buffers: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rules: Slots
    memories: Memories
    round: int = 0
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


@dataclass
class Message:
    """What every client of the cohort receives."""

    job: Job
    at: dict[str, Any]  # the fields of `At` that all clients share
    buffers: dict[str, Tensor]
    batch_size: int | None


def first_state(job: Job, x: Tensor, buffers: dict[str, Tensor]) -> State:
    """The state before round 1."""
    at = At(x=x, x0=x, rounds=job.rounds, population=len(job.task.data), optimizer=job.algorithm.client)
    rules = {rule.slot: rule.server_init(x, at.of(rule)) for rule in job.algorithm.rules}
    return State(x, x, buffers, job.algorithm.server.init(x), rules, Memories(len(job.task.data)))


@torch.no_grad()
def one_round(job: Job, state: State, engine: Engine) -> tuple[State, dict[str, Any]]:
    """Play round `state.round + 1`: the new state, and its history row."""
    algorithm, data, t = job.algorithm, job.task.data, state.round + 1
    plan = make_plan(job, state, t)
    cohort = job.world.who(t, len(data), job.seed, data.sizes)
    ask = Ask(job.seed, t, cohort, data.sizes(cohort), plan.batch_size)
    steps = job.world.steps(ask, plan.steps(ask.samples) if plan.steps else None)
    cohort, steps = cohort[steps > 0], steps[steps > 0]

    message, at = broadcast(job, state, t, len(cohort), plan)
    total = Part()
    wire.count_download(total, message.at["sent_all"], state.x, state.buffers, len(cohort))
    if algorithm.hooks("survey"):  # a first exchange in the same round
        surveyed = engine.reduce(survey, message, cohort, steps, state.memories)
        at.surveyed_all = message.at["surveyed_all"] = surveyed.means(algorithm)
        wire.count_second_download(total, surveyed, message.at["surveyed_all"], len(cohort))
    total.add(engine.reduce(visit, message, cohort, steps, state.memories))

    new = server_step(job, state, total, at)
    row: dict[str, Any] = {"train_loss": total.mean_loss(), **new.totals}
    row |= {"clients": len(total.clients), "dropped": len(total.dropped)}
    row |= plan.columns() if algorithm.hooks("plan") else {}
    if total.clients:
        row |= algorithm.client.report(total.reports(algorithm).of(algorithm.client))
    for rule in algorithm.hooks("report") if total.clients else ():
        row |= rule.report(new.rules[rule.slot], total.reports(algorithm).of(rule), at.of(rule))
    return new, row


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
    shared["sent_all"] = {rule.slot: rule.send(state.rules[rule.slot], at.of(rule)) for rule in job.algorithm.rules}
    return Message(job, shared, state.buffers, plan.batch_size), at


@torch.no_grad()
def survey(worker: Worker, message: Message, clients: Ints, steps: Ints, memory: Slots, seen: Ints) -> Part:
    """The first of two exchanges, for rules that ask for one: nobody trains yet."""
    order, weights = np.argsort(-steps, kind="stable"), message.job.algorithm.weighing
    at, _, _ = arrive(worker, message, clients, steps, memory, seen, order)
    asked = {rule.slot: rule.survey(at.of(rule)) for rule in message.job.algorithm.hooks("survey")}
    back = torch.from_numpy(np.argsort(order))
    answers = {(slot, name): value[back] for slot, values in asked.items() for name, value in values.items()}
    part = Part(clients=clients.tolist(), samples=[at.samples[back]], steps=[at.steps[back]])
    part.norms = [torch.ones_like(at.steps)]
    part.sum_up(answers, weights.each(part.samples[0], part.norms[0]))
    part.count("gradients", int(at.scalars["extra_gradients"].sum()))
    part.count("samples", int(at.scalars["extra_samples"].sum()))
    wire.count_answers(part, answers, len(clients))
    return part


@torch.no_grad()
def visit(worker: Worker, message: Message, clients: Ints, steps: Ints, memory: Slots, seen: Ints) -> Part:
    """A group of clients in lockstep (one client in serial mode): train, then report."""
    order = np.argsort(-steps, kind="stable")  # the longest budgets first
    at, y, batches = arrive(worker, message, clients, steps, memory, seen, order)
    try:
        local_update(at, y, batches, worker.gradients, message.job.algorithm)
        part = report(at, y, np.argsort(order), worker, message.job.algorithm)
    except FedkeelError:
        raise
    except Exception as error:
        who = f"client {clients[0]}" if len(clients) == 1 else f"one of the clients {clients.tolist()}"
        raise ClientError(f"Round {at.round}, {who}, step {at.k + 1}: {type(error).__name__}: {error}") from error
    part.count("gradients", int(steps.sum()) + int(at.scalars["extra_gradients"].sum()))
    part.count("samples", int((steps[order] * batches.widths).sum()) + int(at.scalars["extra_samples"].sum()))
    return part


def arrive(
    worker: Worker, message: Message, clients: Ints, steps: Ints, memory: Slots, seen: Ints, order: Ints
) -> tuple[At, Tensor, Batches]:
    """What formulas may read on these clients, their models `[clients, params]`, and the batches they will see."""
    job, clients, steps, seen = message.job, clients[order], steps[order], seen[order]
    worker.load(message.buffers, message.at["round"], clients)
    y = worker.gradients.start(message.at["x"], len(clients))
    data, size = job.task.data, message.batch_size
    batches = Batches(data, clients, steps, size, job.seed, message.at["round"], job.task.augment)

    at, column = At(**message.at, optimizer=job.algorithm.client, clients=clients), y.new_zeros((len(y), 1))
    own = {"steps": steps, "samples": job.task.data.sizes(clients), "first": 1 - seen}
    scalars = {name: torch.from_numpy(value[:, None]).to(column) for name, value in own.items()}
    scalars |= {name: column.clone() for name in ("lr_sum", "loss_sum", "extra_gradients", "extra_samples")}
    at.scalars, at.state = Rows(scalars | {"lr": column + at.client_lr}), Rows(job.algorithm.client.init(y))
    worker.lend(at, batches, job.algorithm)
    for rule in job.algorithm.rules:
        rows = {name: kept[torch.from_numpy(order)].to(y.device) for name, kept in memory.get(rule.slot, {}).items()}
        if rule.defines("client_init") and not seen.all():
            for name, value in rule.client_init(at.x, at.of(rule)).items():
                rows[name] = torch.where(at.first.bool(), value, rows.get(name, value)).expand(len(y), -1)
        at.memory_all[rule.slot], at.scratch_all[rule.slot] = Rows(rows), Rows({})
    return at, y, batches


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
    active = len(y)
    for rule in algorithm.hooks("start"):
        rule.start(y, at.of(rule))
    for k in range(batches.longest):
        if (staying := batches.active(k)) < active:  # who has spent its budget has left
            active = staying
            at.head(active)
        at.k = k
        g, at.loss = gradients(y[:active], batches.at(k, active))
        for rule in correct:
            g = rule.gradient(g, y[:active], at.of(rule))
        at.g = g
        algorithm.client.step(y[:active], g, at.state, at)
        for rule in push:
            rule.after_step(y[:active], at.of(rule))
        at.lr_sum.add_(at.lr)
        at.scalars["loss_sum"].add_(at.loss)
        if last is not None:  # for those who leave now, this was the last gradient
            staying = batches.active(k + 1)
            last[staying:active] = g[staying:active]
    at.g = last
    at.head(len(y))
    for rule in extra:  # GEL guesses the steps nobody had budget for
        rule.extra(y, at.of(rule))


def report(at: At, y: Tensor, back: Ints, worker: Worker, algorithm: Algorithm) -> Part:
    """Updates and what rules add, summed in cohort order; a client with a non-finite one is dropped."""
    update, finished = y - at.x, {rule.slot: rule.finish(y, at.of(rule)) for rule in algorithm.rules}
    if said := algorithm.client.scalars(at.state, at):
        finished[algorithm.client.slot] = Upload(scalars=said), {}
    sums = {("", "update"): update}
    sums |= {(slot, name): v for slot, (up, _) in finished.items() for name, v in (up.vectors | up.derived).items()}
    finite = torch.stack([torch.isfinite(value).all(1) for value in sums.values()]).all(0).cpu().numpy()[back]
    finite &= all(bool(torch.isfinite(buffer).all()) for buffer in worker.float_buffers().values())
    assert at.clients is not None
    cohort, rows = at.clients[back], torch.from_numpy(back[finite]).to(y.device)
    part = Part(clients=cohort[finite].tolist(), dropped=cohort[~finite].tolist())
    wire.count_upload(part, update, finished, worker.float_buffers(), algorithm.weighing.needs_norm, len(cohort))
    if not part.clients:
        return part

    samples, steps = at.samples[rows], at.steps[rows]
    norms = torch.ones_like(steps)
    if algorithm.weighing.needs_norm:
        norms = lengths(algorithm.client, algorithm.rules, steps, float(at.lr[0]), at.expected_steps).to(steps)
    part.samples, part.steps, part.norms = [samples], [steps], [norms]
    part.losses = [at.scalars["loss_sum"][rows] / steps]
    part.scalars = [{slot: {k: v[rows] for k, v in up.scalars.items()} for slot, (up, _) in finished.items()}]
    part.sum_up({key: value[rows] for key, value in sums.items()}, algorithm.weighing.each(samples, norms))
    worker.sum_buffers(part, samples)
    kept = {slot: {name: v[rows] for name, v in memory.items()} for slot, (_, memory) in finished.items() if memory}
    part.memory = [(cohort[finite], kept)] if kept else []
    return part


def server_step(job: Job, state: State, part: Part, at: At) -> State:
    """Rules, then the server optimizer; memories are written only now that the round is accepted."""
    algorithm = job.algorithm
    totals = {name: state.totals[name] + part.counts.get(name, 0) for name in COUNTED}
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
