"""What the server of a deployment takes from a device, on updates that no network has seen."""

from __future__ import annotations

import functools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.engine.flower.disk import NONE, Disk
from fedkeel.engine.flower.orders import Order
from fedkeel.engine.flower.replies import Expected, Refused
from fedkeel.local import train_clients
from fedkeel.messages import Broadcast, Facts, Memory, Plan, Update, Work
from fedkeel.run.training import prepare
from fedkeel.wire import from_bytes, to_bytes

STEPS = 5


@functools.cache
def one_update(text: str, steps: int = STEPS) -> tuple[Update, Expected]:
    """An honest update of client 2 from version 7, and what the server expects of it."""
    world = fk.World(cohort="all", budget=fk.FixedSteps(STEPS), expected_steps=9)
    job = prepare(fk.tasks.get("synthetic:users=4"), fk.algorithm(text), world, 10, 0, None)
    job = job.cast(torch.float32, "cpu")
    model = job.task.adopt(0, torch.float32, "cpu")
    engine = fk.Local("serial", workers=1).start(job.task, model, 0)
    broadcast = Broadcast(7, Plan(float(job.algorithm.client.lr), 5), Facts(8, 10, 4, 4, 20.0), model.flat.clone())
    slots = {slot: rule.init(broadcast.x, 0.01) for slot, rule in job.algorithm.slots.items()}
    broadcast = replace(broadcast, slots={name: values for name, values in slots.items() if values})
    work = Work(7, np.array([2]), np.array([steps]), np.array([9]))
    do, nothing = partial(train_clients, job.algorithm), Memory({}, np.zeros(1, dtype=np.int64))
    try:
        made = do(engine.all[0], broadcast, replace(work, steps=np.array([1])), nothing)
        update = from_bytes(to_bytes(do(engine.all[0], broadcast, work, nothing)))
    finally:
        engine.close()
    samples = int(job.task.data.sizes([2])[0])
    expected = Expected(replace(made, memory={}), job.algorithm, broadcast, work, samples)
    return replace(update, memory={}), expected


@pytest.mark.parametrize("text", ["fedavg", "scaffold", "fednova:momentum=0.9", "fedprox+gel", "fedhbm:beta=0.5"])
def test_an_honest_update_is_accepted_with_the_bytes_that_it_cost(text: str) -> None:
    update, expected = one_update(text)
    accepted = expected.accept(update)
    assert torch.equal(accepted.delta, update.delta)
    assert accepted.counts["bytes_down"] >= 4 * len(expected.broadcast.x)
    assert accepted.counts["gradients"] == STEPS


def nan(update: Update) -> Update:
    delta = update.delta.clone()
    delta[0, 3] = torch.nan
    return replace(update, delta=delta)


def infinite_loss(update: Update) -> Update:
    return replace(update, losses=torch.full_like(update.losses, torch.inf))


BAD: dict[str, tuple[Any, str]] = {
    "nan": (nan, "NaN"),
    "infinite loss": (infinite_loss, "losses has NaN or infinite"),
    "wrong length": (lambda u: replace(u, delta=u.delta[:, :-1]), "delta is"),
    "a shape that would broadcast": (lambda u: replace(u, delta=u.delta[:, :1]), "delta is"),
    "other type": (lambda u: replace(u, delta=u.delta.double()), "delta is"),
    "no update": (lambda u: replace(u, delta=None), "lacks"),
    "more than was asked for": (lambda u: replace(u, mean={"x": {"y": u.delta}}), "which nobody sends"),
    "memory": (lambda u: replace(u, memory={"x": {"y": u.delta}}), "which nobody sends"),
    "negative samples": (lambda u: replace(u, samples=-u.samples), "samples"),
    "too many samples": (lambda u: replace(u, samples=10 * u.samples), "samples"),
    "too many steps": (lambda u: replace(u, steps=u.steps + 1), "steps"),
    "fewer steps without a deadline": (lambda u: replace(u, steps=u.steps - 1), "steps"),
    "no steps": (lambda u: replace(u, steps=0 * u.steps), "steps"),
    "old version": (lambda u: replace(u, version=6), "version 6"),
    "another client": (lambda u: replace(u, clients=np.array([1])), "names the clients"),
    "two clients": (lambda u: replace(u, clients=np.array([1, 2])), "not one number"),
    "negative count": (lambda u: replace(u, counts={"gradients": -1, "samples": 5}), "counts"),
    "a count that is no number": (lambda u: replace(u, counts={"gradients": "7", "samples": 5}), "counts"),
    "other counts": (lambda u: replace(u, counts={"bytes_up": 0}), "counts"),
    "slots that are no tensors": (lambda u: replace(u, scalars={"a": 5}), "fields"),
    "a level": (lambda u: replace(u, level=2), "level"),
    "no message": (lambda u: {"delta": u.delta}, "not an Update"),
    "another message": (lambda u: Work(7, u.clients, u.clients), "not an Update"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_update_is_refused_with_its_reason(name: str) -> None:
    change, why = BAD[name]
    update, expected = one_update("fedavg")
    with pytest.raises(Refused, match=why):
        expected.accept(change(update))


def test_a_norm_that_the_steps_do_not_give_is_refused() -> None:
    update, expected = one_update("fednova:momentum=0.9")
    with pytest.raises(Refused, match="norm"):
        expected.accept(replace(update, norms=update.norms / 1000))


def test_a_device_may_stop_early_where_there_is_a_deadline() -> None:
    update, expected = one_update("fedavg")
    assert replace(expected, may_stop=True).accept(replace(update, steps=update.steps - 2)).steps == STEPS - 2


def test_a_device_that_found_nan_itself_counts_as_dropped() -> None:
    update, expected = one_update("fedavg")
    empty = replace(update.rows(np.array([False])), dropped=np.array([2]))
    accepted = expected.accept(empty)
    assert accepted.dropped.tolist() == [2] and not len(accepted.clients)
    assert accepted.counts["bytes_up"] == expected.accept(update).counts["bytes_up"]


def test_a_damaged_memory_counts_as_none(tmp_path) -> None:
    disk = Disk(tmp_path / "client-0")
    assert disk.read(3) is None
    disk.write(3, {"scaffold": {"ci": torch.ones(1, 4)}})
    assert disk.read(3)["scaffold"]["ci"].sum() == 4
    file = tmp_path / "client-0" / "3.safetensors"
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    assert disk.read(3) is None


def test_a_memory_of_a_version_that_was_not_accepted_is_removed(tmp_path) -> None:
    disk = Disk(tmp_path / "client-0")
    for version in (3, 5):
        disk.write(version, {"scaffold": {"ci": torch.full((1, 4), float(version))}})
    assert disk.read(3)["scaffold"]["ci"][0, 0] == 3
    assert disk.read(5) is None and disk.read(NONE) is None
    assert not list(disk.folder.iterdir())


@pytest.mark.parametrize(
    "change", [{"client": "../../elsewhere"}, {"training": "../x"}, {"do": "delete"}, {"dtype": "load"}, {"seed": 0.5}]
)
def test_an_order_that_is_none_is_refused_by_the_device(change: dict[str, Any]) -> None:
    good = Order("train", "a1", 3, 10, -1, 0, "float32")
    assert Order.read(good.text()) == good
    with pytest.raises(fk.InputError, match="no order"):
        Order.read(replace(good, **change).text())
