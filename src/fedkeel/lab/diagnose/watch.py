"""What is run beside a round: exact gradients at a point; the round once more, watched; what a method remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ... import rules
from ...aggregate import Uniform, collect
from ...algorithm import Algorithm
from ...data.batches import Batch
from ...engine import Engine
from ...engine.worker import Worker
from ...local import arrive, train_clients
from ...messages import Broadcast, Memory, Update, Work
from ...optim import SGD, Adaptive, Optimizer
from ...round import Job, State
from ...rule import End, Me, Objective, Rule, Tensors, Up
from ...rules import GHBM, FedADC, FedCM, FedHBM, LocalGHBM, Mime, MimeLite
from ...rules.heavy_ball import scaling
from ...survey import survey
from ...tables import nearest
from ...world import Ints
from .measures import Slope, at_least

EVERYBODY = 100  # up to so many clients, all of them give the true gradient; with more, those of the cohort


class Field:
    """The true gradient wherever it is asked for, by the plain loss: no rule adds to it."""

    def __init__(self, job: Job, state: State, engine: Engine, broadcast: Broadcast, cohort: Ints) -> None:
        self.engine, self.population, self.spent = engine, len(job.task.data), 0
        all_of_them = self.population <= EVERYBODY
        self.clients = np.arange(self.population) if all_of_them else cohort
        own = any(isinstance(rule, FedHBM | LocalGHBM) for rule in job.algorithm.rules)  # each client has its own tau
        self.recent = recent_clients(job, state.round + 1, cohort) if all_of_them and not own else None
        self.plain = replace(job.algorithm, rules=())
        self.broadcast = replace(broadcast, slots={})

    def at(self, point: Tensor) -> Slope:
        """Exact gradients there: one pass over the data of these clients."""
        once = np.ones(len(self.clients), dtype=np.int64)
        work = Work(self.broadcast.version, self.clients, once)
        do = partial(slopes, self.plain, self.recent)
        total = collect(self.engine.run(do, replace(self.broadcast, x=point), work, Uniform()), Uniform())
        self.spent += total.counts["gradients"]
        names = ("mean", "square", "recent", "samples")
        mean, square, lately, samples = (total.sums["", name, "mean"] for name in names)
        recent = None if self.recent is None else lately / samples[1]
        return Slope(mean / samples[0], float(square / samples[0]), recent)


def recent_clients(job: Job, t: int, cohort: Ints) -> Ints:
    """S_tau, who was invited in rounds t - tau + 1 to t (lemma 4.7); tau is GHBM's, 1 for methods without one."""
    data = job.task.data
    tau = max((getattr(rule, "tau", None) or 1 for rule in job.algorithm.rules), default=1)
    before = [job.world.who(k, len(data), job.seed, data.sizes) for k in range(max(1, t - tau + 1), t)]
    return np.unique(np.concatenate([cohort, *before]))


def slopes(
    plain: Algorithm, recent: Ints | None, worker: Worker, broadcast: Broadcast, work: Work, memory: Memory
) -> Update:
    """A group of clients gives its exact gradients at `x`, by samples, and does not train."""
    group = arrive(plain, worker, broadcast, work, memory, [])
    g, n = group.site.full_gradient(broadcast.x).double(), group.me.samples.double()
    lately = torch.from_numpy(np.isin(work.clients, [] if recent is None else recent)).to(n)[:, None] * n
    rows = {"mean": n * g, "square": n * g.square().sum(1, keepdim=True), "recent": lately * g}
    rows["samples"] = torch.cat([n, lately], 1)
    counts, none = {"gradients": int(group.site.extra_gradients.sum())}, work.clients[:0]
    return Update(work.version, work.clients, none, n, group.me.steps, None, n, mean={"": rows}, counts=counts)


@dataclass(frozen=True, repr=False)
class Path(Rule):
    """Notes where clients are after every local step, as the last rule; moves nothing."""

    anchor: Tensor

    keeps_linear: ClassVar[bool] = True

    def start(self, me: Me) -> Tensors:
        return {"path": me.x.new_zeros((len(me.steps), *self.anchor.shape))}

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        found = go(y, batch)
        me.notes["path"][:, batch.step] = y
        return found

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        done = torch.arange(len(self.anchor), device=me.steps.device) < me.steps
        off = (me.notes["path"] - self.anchor) * done[:, :, None]  # theta_i^j - theta^j for j <= J_i, 0 beyond
        pulled = (me.samples / me.steps)[:, :, None] * off
        # as scalars, because a shadow sequence may go to infinity where the client itself does not
        return Up(scalars={"apart": off.square().sum((1, 2))[:, None] / me.steps, "off": pulled.flatten(1)})


def client_memory(rule: Rule, me: Me) -> Tensor | None:
    """The momentum that a rule's clients start the round with, as a gradient of any length; None without one."""
    known = nearest(CLIENT_MEMORY, type(rule))
    return known(rule, me) if known else None


def server_memory(server: Optimizer, state: Tensors) -> Tensor | None:
    """The momentum in the server optimizer's state, as a gradient of any length; None without one."""
    if isinstance(server, SGD):
        return -state["v"] if server.momentum else None
    return state["m"] if isinstance(server, Adaptive) and server.beta1 else None


def _anchor(rule: LocalGHBM | FedHBM, me: Me) -> Tensor | None:
    known = 1 - me.first if isinstance(rule, FedHBM) and rule.first == "none" else 1.0
    return known * scaling(rule.scale, me) * (me.memory["anchor"] - me.x) if rule.beta else None


# Every rule of ours has an entry, so that none is forgotten: None for those that remember no gradient.
CLIENT_MEMORY: dict[type[Rule], Callable[[Any, Me], Tensor | None] | None] = {
    **dict.fromkeys((rules.Proximal, rules.Guess, rules.Scaffold, rules.FedDyn, rules.AdaBest), None),
    **dict.fromkeys((rules.Contrastive, rules.Fathom, rules.Schedule, rules.OwnClasses), None),
    **dict.fromkeys((rules.SelfDistillation, rules.Guard), None),
    GHBM: lambda rule, me: -me.sent["M"] if me.sent else None,
    **dict.fromkeys((LocalGHBM, FedHBM), _anchor),
    FedCM: lambda rule, me: me.sent.get("D"),
    **dict.fromkeys((FedADC, Mime, MimeLite), lambda rule, me: me.sent.get("m")),
}


def witness(
    algorithm: Algorithm, anchor: Tensor, worker: Worker, broadcast: Broadcast, work: Work, memory: Memory
) -> Update:
    """The same training once more, and where it went, seen from `anchor`, `[longest, params]`; not kept."""
    order = np.argsort(-work.steps, kind="stable")
    group = arrive(algorithm, worker, broadcast, work.rows(order), memory.rows(order), [])
    pairs = zip(group.rules, group.views, strict=True)
    held = [m.expand_as(group.site.y) for rule, me in pairs if (m := client_memory(rule, me)) is not None]
    total = torch.stack(held).sum(0)[torch.from_numpy(np.argsort(order))] if held else None
    watched = replace(algorithm, rules=[*algorithm.rules, Path(anchor)])
    update = train_clients(watched, worker, broadcast, work, memory)
    kept = {} if total is None else {"": {"memory": total[torch.from_numpy(np.isin(work.clients, update.clients))]}}
    return replace(update, memory={}, mean=kept)


@dataclass(frozen=True)
class Seen:
    """A watched round: a row per client whose update is finite, and how far from the anchor they were on average."""

    rows: dict[str, Tensor]
    off: Tensor  # sum_i (n_i / J_i) (theta_i^j - theta^j), `[longest, params]`
    gradients: int

    @property
    def p(self) -> Tensor:
        """p_i = n_i / sum n."""
        return self.rows["samples"] / self.rows["samples"].sum()

    @property
    def drift(self) -> float:
        """The client drift (GHBM, definition 3.1): sum_i p_i (1 / J_i) sum_j ||theta_i^j - theta^j||^2."""
        return float((self.p * self.rows["apart"]).sum())

    @property
    def spread(self) -> float:
        """The part of the drift in which clients differ from each other; the rest is a movement common to all.

            sum_ij (p_i / J_i) ||theta_i^j - mean_j||^2 = drift - sum_j ||pulled_j||^2 / c_j

        pulled_j = sum_i (p_i / J_i) (theta_i^j - theta^j); c_j sums p_i / J_i over the clients that do step j.
        """
        steps = self.rows["steps"]
        c = ((torch.arange(len(self.off), device=steps.device) < steps) * self.p / steps).sum(0)
        pulled = (self.off / self.rows["samples"].sum())[c > 0]
        return at_least(self.drift - float((pulled.square().sum(1) / c[c > 0]).sum()), 0.0)

    @property
    def remembered(self) -> Tensor | None:
        """The clients' mean memory, of methods whose clients have one."""
        return (self.p * self.rows["memory"]).sum(0) if "memory" in self.rows else None


def replay(job: Job, engine: Engine, broadcast: Broadcast, work: Work, anchor: Tensor) -> Seen:
    """The next round, watched; nothing of it is kept in the state."""
    spent: dict[str, int] = {}
    if job.algorithm.hooks["survey"]:
        broadcast, spent = survey(job.algorithm, engine, broadcast, work)
    gradients, off = spent.get("gradients", 0), torch.zeros(anchor.shape, dtype=torch.float64)
    parts: dict[str, list[Tensor]] = {}
    for update in engine.run(partial(witness, job.algorithm, anchor), broadcast, work):
        assert isinstance(update, Update) and update.delta is not None
        gradients += update.counts["gradients"]
        rows = {"samples": update.samples, "steps": update.steps, "update": update.delta}
        rows |= {"apart": update.scalars["path"]["apart"]} | update.mean.get("", {})
        for name, value in rows.items():
            parts.setdefault(name, []).append(value.double())
        off += update.scalars["path"]["off"].sum(0).view(anchor.shape).double().cpu()
    return Seen({name: torch.cat(values) for name, values in parts.items()}, off, gradients)
