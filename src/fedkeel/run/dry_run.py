"""What the clients of an algorithm evaluate and send, measured on two of them before round 1 and then forgotten.

The clock has to know it before clients train: by it, clients stop at a deadline, and updates arrive in their order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..aggregate import collect
from ..engine import Engine
from ..errors import InputError
from ..flat import FlatModel, seeded
from ..local import train_clients
from ..messages import Broadcast, Facts, Plan, Work, download, floating, measure
from ..pace import Synchronous
from ..round import Job, State, invite
from ..survey import survey
from ..task import Task
from ..world import Ask, Epochs, FixedSteps, Fleet, Ints, UniformSteps, World, percentile
from ..world.clock import ARRIVES, Clock, Price


def first_row(job: Job, state: State) -> dict[str, Any]:
    """The history row of the initial model."""
    timed = job.clock is not None and job.clock.shown
    row = {"train_loss": None, **state.totals, "clients": 0, "dropped": 0}
    return row | ({"sim_seconds": 0.0, "late": 0, "lost": 0} if timed else {})


def timed(job: Job, engine: Engine, state: State) -> Job:
    """The job with the price of its own algorithm on the clock, if it has one."""
    if job.clock is None:
        return job
    return replace(job, clock=replace(job.clock, price=price_of(job, engine, state)))


@torch.no_grad()
def price_of(job: Job, engine: Engine, state: State) -> Price:
    """Measured on clients with few and with many batches, for one step and for two."""
    plain = replace(job, clock=None, algorithm=replace(job.algorithm, pace=Synchronous()))
    plain = replace(plain, world=World(cohort=1, budget=FixedSteps(1), expected_steps=3))
    broadcast, work, _ = invite(plain, state)
    everybody = np.arange(len(job.task.data))
    sizes, batch = job.task.data.sizes(everybody), broadcast.plan.batch_size
    widths = sizes if batch is None else np.minimum(batch, sizes)
    batches = -(-sizes // widths)
    chosen = np.array([batches.argmin(), sizes.argmax()])
    rows, found = [], []
    for client, steps in ((chosen[0], 1), (chosen[0], 2), (chosen[1], 1)):
        counts = _counts(plain, engine, broadcast, replace(_alone(work, client), steps=np.array([steps])))
        width, held, whole = (int(column[client]) for column in (widths, sizes, batches))
        rows += [(steps, 1, whole), (steps * width, width, held)]
        found += [counts["gradients"], counts["samples"]]
    solution = np.linalg.lstsq(np.array(rows, dtype=np.float64), np.array(found, dtype=np.float64), rcond=None)[0]
    per_step, once, passes = (round(float(value), 6) for value in solution)
    down = download(broadcast)
    if work.levels is None:
        first = _survey(plain, engine, broadcast, work)
        up = counts["bytes_up"] - first[1], counts["overhead_bytes"] - down[1] - first[2]
        return Price(per_step, once, passes, (up,), survey=first)
    capacity = job.algorithm.capacity
    assert capacity is not None
    downs, ups, flops = [], [], []
    for level in range(len(capacity.shares)):
        spent = dict.fromkeys(counts, 0)  # of a level that no client has
        if capacity.wanted(level):
            spent = _counts(plain, engine, broadcast, replace(_alone(work, chosen[0]), levels=np.array([level])))
        downs.append((spent["bytes_down"], down[1]))
        ups.append((spent["bytes_up"], max(0, spent["overhead_bytes"] - down[1])))
        flops.append(spent["flops"] // max(1, spent["samples"]))
    return Price(per_step, once, passes, tuple(ups), tuple(downs), flops=tuple(flops))


def _alone(work: Work, client: int) -> Work:
    return replace(work.rows(slice(0, 1)), clients=np.array([client]))


def _counts(job: Job, engine: Engine, broadcast: Broadcast, work: Work) -> dict[str, int]:
    """What one client costs in a round; nothing of it is kept."""
    weights, counts = job.algorithm.weighing, {"gradients": 0, "samples": 0, "bytes_down": 0}
    if job.algorithm.hooks["survey"]:
        broadcast, counts = survey(job.algorithm, engine, broadcast, work)
    parts = engine.run(partial(train_clients, job.algorithm), broadcast, work, None if weights.stacks else weights)
    found = collect(parts, weights).counts
    engine.discard(work.version)
    return {name: number + counts.get(name, 0) for name, number in found.items()}


def _survey(job: Job, engine: Engine, broadcast: Broadcast, work: Work) -> tuple[int, int, int]:
    """Bytes down, up and overhead of one client's first exchange."""
    if not job.algorithm.hooks["survey"]:
        return 0, 0, 0
    _, spent = survey(job.algorithm, engine, broadcast, work)
    return spent["bytes_down"], spent["bytes_up"], spent["overhead_bytes"]


NO_FLEET = Fleet(seconds=1.0, down=1e9, up=1e9, latency=0.0)  # the order of arrivals is that of the work


def first_clock(
    task: Task, world: World, seed: int, batch_size: int | None, dtype: torch.dtype = torch.float32
) -> Clock:
    """The clock of a world, with FedAvg's price and with the deadline in seconds."""
    fleet = world.fleet or NO_FLEET
    assert not isinstance(fleet, str)  # the world has read it
    profiles = fleet.profiles(len(task.data), seed)
    clock = Clock(profiles, Price(), task.data.sizes, seed, late=world.late, shown=world.fleet is not None)
    if world.deadline is None:
        return clock
    clock = replace(clock, price=price_of_fedavg(task, dtype))
    everybody, broadcast = asked_of_all(task, world, seed, batch_size, dtype)
    share = percentile(world.deadline)
    seconds = clock.trips(broadcast, everybody).seconds
    deadline = float(world.deadline if share is None else np.percentile(seconds, share))
    clock = replace(clock, deadline=deadline)
    done = clock.trips(broadcast, everybody).steps
    if not (done > 0 if world.late == "partial" else done == everybody.steps).any():
        what = "a single step" if world.late == "partial" else "all of its steps"
        least = everybody if world.late == "drop" else replace(everybody, steps=np.ones_like(everybody.steps))
        fastest = float(replace(clock, deadline=None).trips(broadcast, least).seconds.min())
        raise InputError(
            f"No client can do {what} and report within the deadline of {deadline:g} seconds; the fastest one needs "
            f"{fastest:.3g} seconds."
        )
    return clock


def with_budget(world: World, task: Task) -> World:
    """The world with a budget: its own, else the task's, whose draw a deadline replaces; else one epoch."""
    if world.budget is not None:
        return world
    budget = task.budget or Epochs(1)
    if world.deadline is not None and isinstance(budget, UniformSteps):
        budget = FixedSteps(budget.expected)
    return replace(world, budget=budget)


def price_of_fedavg(task: Task, dtype: torch.dtype) -> Price:
    """A model down, an update up, and a gradient for each step."""
    model = FlatModel(seeded(0, task.model), dtype)
    vectors = {"update": model.flat[None]} | {name: value[None] for name, value in floating(model.buffers()).items()}
    return Price(up=(measure(vectors, ["samples", "steps"], rows=True),))


def asked_of_all(
    task: Task, world: World, seed: int, batch_size: int | None, dtype: torch.dtype = torch.float32
) -> tuple[Work, Broadcast]:
    """What all clients would be asked to do in round 1, and FedAvg's message to them."""
    everybody, model = np.arange(len(task.data)), FlatModel(seeded(0, task.model), dtype)
    steps = world.steps(Ask(seed, 1, everybody, task.data.sizes(everybody), batch_size))
    taking = steps > 0
    expected = None if world.expected is None else np.full(int(taking.sum()), world.expected)
    work = Work(0, everybody[taking], steps[taking], steps[taking] if expected is None else expected)
    return work, Broadcast(0, Plan(0.0, batch_size), Facts(), model.flat, model.buffers())


def reached(
    clock: Clock | None, task: Task, world: World, seed: int, batch_size: int | None, dtype: torch.dtype
) -> tuple[Ints, Ints] | None:
    """(J_i, e_i) of all clients that report: steps done before the deadline, and steps expected; None without one."""
    if clock is None or clock.deadline is None:
        return None
    work, broadcast = asked_of_all(task, world, seed, batch_size, dtype)
    trips = replace(clock, profiles=replace(clock.profiles, dropout=0 * clock.profiles.dropout)).trips(broadcast, work)
    reports = trips.fate == ARRIVES
    assert work.expected is not None
    return trips.steps[reports], work.expected[reports]
