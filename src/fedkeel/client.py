"""A client's side of a round, before and after the local loop: arriving, answering a survey, reporting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import wire
from .algorithm import Algorithm, At, Rows
from .data.batches import Batches
from .engine.local import Lent, Worker
from .errors import ClientError, FedkeelError
from .job import Message
from .weights import lengths
from .wire import Part, Slots, Upload
from .world import Ints


@contextmanager
def naming(message: Message, clients: Ints) -> Iterator[list[At]]:
    """What fails in a model, a loss or a rule says in which round, on which client and at which step."""
    where: list[At] = []
    try:
        yield where
    except FedkeelError:
        raise
    except Exception as error:
        who = f"client {clients[0]}" if len(clients) == 1 else f"one of the clients {clients.tolist()}"
        step = f", step {where[0].k + 1}" if where else ""
        told = f"Round {message.at['round']}, {who}{step}: {type(error).__name__}: {error}"
        raise ClientError(told) from error


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
    at.lender = lent = Lent(worker, batches, job.algorithm)
    worker.gradients.terms, worker.gradients.outcome = lent.loss_terms(at), lent.outcome(at)
    pick = choice(order)
    for rule in job.algorithm.rules:
        rows = {name: kept[pick].to(y.device) for name, kept in memory.get(rule.slot, {}).items()}
        if rule.defines("client_init") and not seen.all():
            for name, value in rule.client_init(at.x, at.of(rule)).items():
                if seen.any():
                    rows[name] = torch.where(at.first.bool(), value, rows.get(name, value)).expand(len(y), -1)
                else:  # much faster than a choice, and like one a copy: rules may write to what they remember
                    rows[name] = value.expand(len(y), -1).clone()
        at.memory_all[rule.slot], at.scratch_all[rule.slot] = Rows(rows), Rows({})
    return at, y, batches


def choice(rows: Ints, of: int | None = None, device: torch.device | None = None) -> Tensor | slice:
    """These rows as an index; a slice, for which nothing is copied, where they are all there are, in their order.

    >>> choice(np.array([0, 1, 2]), 3), choice(np.array([0, 2]), 3)
    (slice(None, None, None), tensor([0, 2]))
    """
    same = len(rows) == (len(rows) if of is None else of) and bool((rows == np.arange(len(rows))).all())
    return slice(None) if same else torch.from_numpy(rows).to(device)


def are_finite(values: Sequence[Tensor]) -> NDArray[np.bool_]:
    """Which clients' rows, of all of these `[clients, ...]`, have no infinite and no undefined element.

    A finite sum shows it in one walk through memory; a sum that is not may only be too large, and is looked into.

    >>> are_finite([torch.tensor([[3e38, 3e38], [1.0, torch.nan]]), torch.zeros(2, 1)])
    array([ True, False])
    """
    found = torch.stack([torch.isfinite(rows.sum(1)) for rows in values]).all(0).cpu()
    if not found.all():
        found = torch.stack([torch.isfinite(rows).all(1) for rows in values]).all(0).cpu()
    clean: NDArray[np.bool_] = found.numpy()
    return clean


@torch.no_grad()
def survey(worker: Worker, message: Message, clients: Ints, steps: Ints, memory: Slots, seen: Ints) -> Part:
    """The first of two exchanges, for rules that ask for one: nobody trains yet."""
    order, weights = np.argsort(-steps, kind="stable"), message.job.algorithm.weighing
    with naming(message, clients):
        at, _, _ = arrive(worker, message, clients, steps, memory, seen, order)
        asked = {rule.slot: rule.survey(at.of(rule)) for rule in message.job.algorithm.hooks("survey")}
    back = torch.from_numpy(np.argsort(order))
    answers = {(slot, name, "weighted"): value[back] for slot, of in asked.items() for name, value in of.items()}
    part = Part(clients=clients.tolist(), samples=[at.samples[back]], steps=[at.steps[back]])
    part.norms = [torch.ones_like(at.steps)]
    part.sum_up(answers, weights.each(part.samples[0], part.norms[0]))
    part.count("gradients", int(at.scalars["extra_gradients"].sum()))
    part.count("samples", int(at.scalars["extra_samples"].sum()))
    wire.count_answers(part, answers, len(clients))
    return part


def report(at: At, y: Tensor, back: Ints, worker: Worker, algorithm: Algorithm) -> Part:
    """Updates and what rules add, summed in cohort order; a client with a non-finite one is dropped."""
    update = at.moved = y - at.x
    finished = {rule.slot: rule.finish(y, at.of(rule)) for rule in algorithm.rules}
    if said := algorithm.client.scalars(at.state, at):
        finished[algorithm.client.slot] = Upload(scalars=said), {}
    covers = next((rule.covers(at.of(rule)) for rule in algorithm.hooks("covers")), None)
    if covers is not None:
        update = update * covers
    sums = {("", "update", "weighted"): update}
    for rule in algorithm.rules:
        up, _ = finished[rule.slot]
        sums |= {(rule.slot, name, how): v for name, v in (up.vectors | up.derived).items() for how in rule.averages}
    finite = are_finite(list({id(value): value for value in sums.values()}.values()))[back]
    finite &= all(bool(torch.isfinite(buffer).all()) for buffer in worker.float_buffers().values())
    assert at.clients is not None
    cohort, rows = at.clients[back], choice(back[finite], len(back), y.device)
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
    if covers is not None:
        mass = algorithm.weighing.each(samples, torch.ones_like(samples))
        part.put(*wire.COVERED, (mass * covers[rows]).sum(0))
    worker.sum_buffers(part, samples)
    own = torch.from_numpy(back[finite]).to(y.device)
    remembered = {v.untyped_storage().data_ptr() for memory in at.memory_all.values() for v in memory.full.values()}

    def keep(value: Tensor) -> Tensor:
        """A copy, since it may lie where the next client trains; but what was this client's memory is its own."""
        return value[rows] if value.untyped_storage().data_ptr() in remembered else value.index_select(0, own)

    new = {slot: memory for slot, (_, memory) in finished.items() if memory}
    kept = {slot: {name: keep(value) for name, value in memory.items()} for slot, memory in new.items()}
    part.memory = [(cohort[finite], kept)] if kept else []
    return part
