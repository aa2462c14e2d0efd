"""A client's work, from top to bottom: `train_clients`, a function of its arguments and nothing else.

    a group of clients is set up, the longest budgets first             arrive
    local steps until every budget is spent                             take_steps
    a step: gradient, the rules' corrections, the client optimizer      one_step
    the update, a row per client                                        report

Rules see the group through `Me` and act at four places, each a function they may wrap: `loss`, `objective`, `step` and
`walk` (see `rule.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .aggregate import are_finite
from .blame import naming_the_client, naming_the_rule
from .engine.worker import Site, Worker
from .messages import Broadcast, Memory, Slots, Update, Work, select, take_rows
from .optim import Optimizer
from .response import lengths
from .rule import End, Me, Objective, Rule, Tensors, Up, Walk, remembered
from .world import Ints

if TYPE_CHECKING:
    from .algorithm import Algorithm

SENT = ("mean", "weighted", "derived", "scalars")  # the fields that `Up` and `Update` share: per rule, a row per client


@dataclass(frozen=True)
class Group:
    """Clients that train together, the longest budgets first, and each rule's view of them."""

    client: Optimizer
    rules: Sequence[Rule]
    views: Sequence[Me]  # one for each rule
    me: Me  # what all of them share
    site: Site

    def acting(self, *names: str) -> list[tuple[Rule, Me]]:
        """The rules that define one of these methods, with their views."""
        pairs = zip(self.rules, self.views, strict=True)
        return [(rule, me) for rule, me in pairs if any(map(rule.defines, names))]

    def head(self, n: int) -> Group:
        """The first n clients: the others have spent their budget."""
        return replace(self, views=[me.head(n) for me in self.views])


@torch.no_grad()
def train_clients(algorithm: Algorithm, worker: Worker, broadcast: Broadcast, work: Work, memory: Memory) -> Update:
    """Train a group of clients in lockstep (one client in serial mode) and return their update."""
    with naming_the_client(broadcast, work) as sites:
        order = np.argsort(-work.steps, kind="stable")
        group = arrive(algorithm, worker, broadcast, work.rows(order), memory.rows(order), sites)
        go: Walk = partial(take_steps, group)
        for rule, me in group.acting("walk"):
            go = partial(rule.walk, go, me)
        with naming_the_rule(group):
            end = go(group.site.y)
        return report(algorithm, group, work, end, np.argsort(order))


def arrive(
    algorithm: Algorithm, worker: Worker, broadcast: Broadcast, work: Work, memory: Memory, sites: list[Site]
) -> Group:
    """Set up the clients with the model they received, and each rule's view of them."""
    site = Site(worker, broadcast, work)
    sites.append(site)
    per_client = [work.steps, site.batches.sizes, 1 - memory.seen]
    steps, samples, first = (torch.from_numpy(values[:, None]).to(site.y) for values in per_client)
    expected = None if work.expected is None else torch.from_numpy(work.expected[:, None]).to(site.y)
    lr, valued = torch.full_like(steps, broadcast.plan.lr), algorithm.client.reads_value
    me = Me(broadcast.x, broadcast.facts, steps, samples, first, lr, site, expected, valued)
    views = []
    for slot, rule in algorithm.slots.items():
        sent = broadcast.slots.get(slot, {}) | broadcast.answers.get(slot, {})
        own = replace(me, sent=sent, memory=memory.slots.get(slot, {}))
        own = replace(own, memory=remembered(rule, own, memory.seen))
        views.append(replace(own, notes=rule.start(own)))
    return Group(algorithm.client, algorithm.rules, views, me, site)


def take_steps(group: Group, y: Tensor) -> End:
    """Do all local steps of the group; moves y in place."""
    batches, lr = group.site.batches, group.me.lr.clone()
    lr_sum, loss_sum = torch.zeros_like(lr), torch.zeros_like(lr)
    state = group.client.init(y, lr)
    last = torch.zeros_like(y) if group.acting("walk") else None
    # Clients that have spent their budget leave from the end; between two leavings the same functions serve every step.
    for active, steps in groupby(group.site.numbers(group.me.steps), batches.active.__getitem__):
        complete = active == len(y)
        now, rates = (y, lr) if complete else (y[:active], lr[:active])
        states = state if complete else {name: rows[:active] for name, rows in state.items()}
        go = one_step(group if complete else group.head(active), states, rates, now)
        for k in steps:
            g, _ = go(now, batches.at(k, active))
            lr_sum[:active].add_(rates)
            loss_sum[:active].add_(group.site.value)
        if last is not None:  # the clients that are done now have computed their last gradient
            leaving = slice(batches.active[k + 1], active)
            last[leaving] = g[leaving]
    return End(group.client, state, lr, lr_sum, loss_sum, last)


def one_step(group: Group, state: Tensors, lr: Tensor, y: Tensor) -> Objective:
    """go(y, batch): gradient -> rules' objectives -> clip, weight decay, client optimizer -> rules' steps."""
    f = group.site.objective(y, group.rules, group.views)
    for rule, me in group.acting("objective", "gradient", "penalty"):
        f = partial(rule.objective, f, me)
    go: Objective = partial(group.client.step, f, state, lr)
    for rule, me in group.acting("step"):
        go = partial(rule.step, go, me)
    return go


def report(algorithm: Algorithm, group: Group, work: Work, end: End, back: Ints) -> Update:
    """The update, a row per client in cohort order (`back`); clients with NaN or infinite values are dropped."""
    site, me = group.site, group.me
    y, client = site.y, group.client
    site.objective(y, group.rules, group.views)  # a rule may ask for full gradients, which are of all clients again
    delta = y - me.x
    end = replace(end, moved=delta)
    pairs = zip(algorithm.slots.items(), group.views, strict=True)
    ups = {slot: rule.finish(y, end, own) for (slot, rule), own in pairs}
    if client.finds_rate:
        ups[client.slot] = Up(scalars=client.scalars(end, me.steps))
    cover = next((up.cover for up in ups.values() if up.cover is not None), None)
    delta = delta if cover is None else delta * cover

    vectors = [delta]
    for up in ups.values():
        vectors += (up.mean | up.weighted | up.derived).values()
    finite = are_finite(list({id(rows): rows for rows in vectors}.values()))[back]
    buffers = site.worker.model.buffers() if site.worker.has_buffers else {}
    finite &= all(bool(torch.isfinite(value).all()) for value in buffers.values())
    rows = select(back[finite], len(back), y.device)
    norms = None
    if algorithm.weighing.needs_norm and finite.any():
        expected = None if me.expected is None else me.expected[rows]
        norms = lengths(client, group.rules, me.steps[rows], float(me.lr[0]), expected).to(me.steps)
    held: set[int] = set()
    for own in group.views:
        held |= {value.untyped_storage().data_ptr() for value in own.memory.values()}
    index = torch.from_numpy(back[finite]).to(y.device)

    def keep(value: Tensor) -> Tensor:
        """A copy, since the next client may reuse the storage; the clients' own memory is not copied."""
        return value[rows] if value.untyped_storage().data_ptr() in held else value.index_select(0, index)

    slots: dict[str, Slots] = {}
    for kind in SENT:
        slots[kind] = take_rows({slot: getattr(up, kind) for slot, up in ups.items() if getattr(up, kind)}, rows)
    steps = site.batches.steps
    return Update(
        work.version,
        work.clients[finite],
        work.clients[~finite],
        me.samples[rows],
        me.steps[rows],
        norms,
        end.loss_sum[rows] / me.steps[rows],
        delta[rows],
        **slots,
        memory={slot: {k: keep(v) for k, v in up.memory.items()} for slot, up in ups.items() if up.memory},
        buffers={name: value[None] for name, value in buffers.items()},
        counts={
            "gradients": int(steps.sum() + site.extra_gradients.sum()),
            "samples": int((steps * site.batches.widths).sum() + site.extra_samples.sum()),
        },
        cover=None if cover is None else cover[rows],
        level=None if work.levels is None else int(work.levels[0]),
    )
