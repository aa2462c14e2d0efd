"""A first exchange in a round, for rules that ask clients before training (Mime)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from .aggregate import answers, collect
from .algorithm import Algorithm
from .blame import naming_the_client
from .engine import Engine
from .engine.worker import Worker
from .local import arrive
from .messages import Broadcast, Memory, Update, Work, flatten, measure, take_rows


def survey(algorithm: Algorithm, engine: Engine, broadcast: Broadcast, work: Work) -> tuple[Broadcast, dict[str, int]]:
    """The broadcast with the weighted means of the clients' answers, and the cost of the exchange."""
    weights = algorithm.weighing
    total = collect(engine.run(partial(survey_clients, algorithm), broadcast, work, weights), weights)
    if not total.clients:
        return broadcast, total.counts
    broadcast = replace(broadcast, answers=answers(total, weights))
    payload, overhead = measure(flatten(broadcast.answers), ["round"])  # they go out in a second message
    back = {"bytes_down": payload * len(work.clients), "overhead_bytes": overhead * len(work.clients)}
    return broadcast, total.counts | {name: total.counts.get(name, 0) + number for name, number in back.items()}


@torch.no_grad()
def survey_clients(algorithm: Algorithm, worker: Worker, broadcast: Broadcast, work: Work, memory: Memory) -> Update:
    """The answers of a group of clients, which do not train."""
    with naming_the_client(broadcast, work) as sites:
        order = np.argsort(-work.steps, kind="stable")
        group = arrive(algorithm, worker, broadcast, work.rows(order), memory.rows(order), sites)
        group.site.objective(group.site.y, group.rules, group.views)
        asked = {rule.slot: rule.survey(me) for rule, me in group.acting("survey")}
    site, back = group.site, torch.from_numpy(np.argsort(order))
    found = take_rows(asked, back)
    counts = {"gradients": int(site.extra_gradients.sum()), "samples": int(site.extra_samples.sum())}
    samples, steps = group.me.samples[back], group.me.steps[back]
    none = work.clients[:0]
    return Update(work.version, work.clients, none, samples, steps, None, steps, weighted=found, counts=counts)
