"""Why does a method win or fail? Measures of one round, taken beside the training and never in it.

The round is replayed from counted randomness on the same state, so the training does not change by a bit. Means over
clients weigh by samples, p_i = n_i / sum n: one yardstick for all methods, the papers' where clients hold equally many.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...engine import Engine
from ...messages import Plan
from ...response import coefficients
from ...round import Job, State, invite
from .measures import COLUMNS, alignment, bound, means, momentum_error, shadow_sequence
from .watch import Field, Seen, replay, server_memory

__all__ = ["COLUMNS", "alignment", "bound", "diagnose", "means", "momentum_error"]


@torch.no_grad()
def diagnose(job: Job, state: State, engine: Engine) -> dict[str, float | None]:
    """The columns of round `state.round + 1`, before it is played; None where a measure has no meaning."""
    algorithm, (broadcast, work, _) = job.algorithm, invite(job, state)
    if len(work.clients) == 0:
        return dict.fromkeys(COLUMNS) | {"diagnostic_gradients": 0}
    longest, plan = int(work.steps.max()), broadcast.plan
    field = Field(job, state, engine, broadcast, work.clients)
    here, shadow = field.at(state.x), None
    if not algorithm.client.finds_rate:  # where clients each find their rate, the shadow sequence has none
        shadow = shadow_sequence(state.x, here.mean, lambda y: field.at(y).mean, algorithm.client, plan.lr, longest)
    anchor = state.x.expand(longest, -1) if shadow is None else shadow
    seen = replay(job, engine, broadcast, work, anchor)
    found: dict[str, Any] = here.columns() | {"diagnostic_gradients": field.spent + seen.gradients}
    if len(seen.p):
        found |= {"drift": None if shadow is None else seen.drift, "spread": seen.spread}
        found |= combination(job, plan, seen)
        memory = server_memory(algorithm.server, state.optimizer) if seen.remembered is None else seen.remembered
        found |= {} if memory is None else momentum_error(memory.double(), here.mean)
    # JSON has no infinity
    return {name: None if (value := found.get(name)) is None or not math.isfinite(value) else value for name in COLUMNS}


def combination(job: Job, plan: Plan, seen: Seen) -> dict[str, float | None]:
    """How the cohort's updates are put together: of which gradients, and how well they agree."""
    algorithm, samples, steps = job.algorithm, seen.rows["samples"], seen.rows["steps"]
    found: dict[str, float | None] = {}
    norms = torch.ones_like(samples)
    # Only where an update is a fixed combination of its client's gradients, as GEL's theorem 2 asks (clipping aside).
    if algorithm.client.linear and all(rule.linear for rule in algorithm.rules):
        a = coefficients(algorithm.client, algorithm.rules, steps, plan.lr, job.world.expected).to(samples)
        norms = a.sum(1, keepdim=True)
        found |= bound(a, samples, steps, algorithm.weighing)
    return found | alignment(seen.rows["update"], algorithm.weighing.each(samples, norms))
