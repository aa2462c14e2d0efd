"""Local steps that a deadline of the device ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.local import train_clients
from fedkeel.messages import Broadcast, Facts, Memory, Plan, Update, Work
from fedkeel.run.training import prepare


def trained(text: str, steps: list[int], stop_after: int | None = None, mode: str = "serial") -> Update:
    """Clients 0, 1, ... with these budgets, all of 12 expected; the time is up after `stop_after` steps."""
    world = fk.World(cohort="all", budget=fk.FixedSteps(20), expected_steps=12)
    job = prepare(fk.tasks.get("synthetic:users=4"), fk.algorithm(text), world, 10, 0, None, torch.float64)
    job = job.cast(torch.float64, "cpu")
    model = job.task.adopt(0, torch.float64, "cpu")
    engine = fk.Local(mode, workers=1).start(job.task, model, 0)
    asked = iter(range(1, 100))
    if stop_after is not None:
        engine.all[0].time_is_up = lambda: next(asked) >= stop_after
    broadcast = Broadcast(0, Plan(0.05, 5), Facts(1, 10, 4, 4, 20.0), model.flat.clone())
    clients = np.arange(len(steps))
    work = Work(0, clients, np.array(steps), np.full(len(steps), 12))
    nothing = Memory({}, np.zeros(len(steps), dtype=np.int64))
    try:
        update = partial(train_clients, job.algorithm)(engine.all[0], broadcast, work, nothing)
        return replace(update, delta=update.delta.clone())
    finally:
        engine.close()


@pytest.mark.parametrize("text", ["fedavg", "fedprox+gel", "fednova:momentum=0.9", "gel:client=adam", "feddyn"])
def test_a_client_whose_time_is_up_sends_what_a_smaller_budget_gives(text: str) -> None:
    cut, short = trained(text, [9], stop_after=4), trained(text, [4])
    assert cut.steps.tolist() == [[4.0]]
    assert torch.equal(cut.delta, short.delta) and torch.equal(cut.losses, short.losses)
    assert cut.counts == short.counts
    assert (cut.norms is None and short.norms is None) or torch.equal(cut.norms, short.norms)


def test_in_lockstep_only_those_that_still_train_are_cut() -> None:
    cut, short = (
        trained("gel:client=adam", [9, 2, 7], 4, "batched"),
        trained("gel:client=adam", [4, 2, 4], None, "batched"),
    )
    assert cut.steps.flatten().tolist() == [4.0, 2.0, 4.0]
    assert torch.equal(cut.delta, short.delta)


def test_a_client_that_is_done_is_not_asked_for_the_time() -> None:
    assert trained("fedavg", [3], stop_after=3).steps.tolist() == [[3.0]]
