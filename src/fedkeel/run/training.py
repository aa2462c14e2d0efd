"""`train`, `resume`, `load`, and the `Run` they give."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from .. import legal, recipes
from ..algorithm import Algorithm
from ..engine import Engine, Place, Remote
from ..engine.memory import Memories
from ..engine.places import MUST, is_place, moved, place_of
from ..engine.threads import one_thread
from ..errors import InputError, StabilityWarning, brief, check, counted
from ..files import plain
from ..flat import FlatModel
from ..pace import Buffered
from ..ranges import COUNT
from ..round import Job, State, first_state, one_round
from ..settings import check_keywords, takes_settings
from ..task import Task, check_task
from ..world import Ask, Epochs, World
from .callbacks import Callback, check_callbacks, naming, notify
from .checkpoint import Identity, ended, has_state, identity_of, load_model, newest_state, read_config, read_run
from .config import RunConfig, algorithm_of, check_start, configuration, parts_of, task_of, world_of
from .dry_run import first_clock, first_row, reached, timed, with_budget
from .evaluation import evaluate
from .folder import HISTORY, check_own, locked
from .history import COLUMNS, History, lines
from .log import Log, write_run
from .norms import NormWatch
from .signals import finishing_the_round

NO_TEST = (
    "The data have no test set, so the history has no test loss and no accuracy; hold out a share of every client's "
    "data (--client-test 0.2, in Python client_test=0.2), or give test data (test=0.2 of the task csv, in Python "
    "test=(inputs, targets))."
)


@dataclass(repr=False)
class Run:
    """What training gives: history, model, and how it ended.

    status is "done", "stopped" (by `stop_after` or a callback; can be resumed) or "diverged".
    """

    config: dict[str, Any]
    history: History
    status: str
    state: State
    flat: FlatModel
    memories: Memories  # what clients remember
    identity: Identity  # what its checkpoints are bound to

    def __repr__(self) -> str:
        accuracy = self.history.last("accuracy")
        reached = "" if accuracy is None else f", accuracy {accuracy:.4f}"
        ended = f"{self.status} after {counted(self.state.round, 'round')}{reached}"
        return f"<Run of {self.config['algorithm']} on {self.config['task']}, seed {self.config['seed']}: {ended}>"

    @property
    def params(self) -> Tensor:
        """The flat vector of trainable parameters, in `model.parameters()` order."""
        return self.state.x

    def model(self) -> nn.Module:
        """The trained model, with its buffers, in evaluation mode."""
        replica = self.flat.replica()
        replica.load(self.state.x, self.state.buffers)
        return replica.give_back().eval()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the run directory; a run with rounds left can be resumed from it."""
        path = Path(folder)
        with locked(path):
            write_run(path, self)
        return path

    def plot(self) -> None:
        """Draw the accuracy curve in the terminal."""
        from ..lab.report.terminal import draw

        draw({self.config["algorithm"]: [self.history]}, self.config["target"])


@takes_settings(RunConfig)
def train(
    task: Task,
    algorithm: Algorithm | str,
    world: World | None = None,
    rounds: int = RunConfig.rounds,
    seed: int = RunConfig.seed,
    *,
    dtype: torch.dtype | str = RunConfig.dtype,
    engine: str | Place = RunConfig.engine,
    checkpoint: str | os.PathLike[str] | None = None,
    stop_after: int | None = None,
    callbacks: Sequence[Callback] = (),
    started: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Run:
    """Train for `rounds` rounds.

    checkpoint: a run directory, written every `every` rounds and at the end; `resume` continues from it.
    stop_after: stop after this round, although more are planned. callbacks: called with every history row; a true
    answer stops the run; its `begin(config)` and `end(status)`, if it has them, are called too (see `fk.trackers`).
    started: called with the resolved configuration before round 1. engine: also a `Local` or a `Ray`. dtype: also
    torch's own.

    Settings, which are also flags of `fedkeel run` (`every` is `--checkpoint-every` there):

        SETTINGS

    >>> import fedkeel as fk
    >>> run = fk.train(fk.tasks.synthetic(), "fedavgcm+gel", rounds=2)
    >>> [row["round"] for row in run.history], run.status
    ([0, 1, 2], 'done')
    """
    _check_one_arm(algorithm, seed, settings)
    check_keywords(train, settings)
    check(stop_after is None or stop_after in COUNT, "train", "stop_after", str(COUNT), stop_after)
    check_callbacks(callbacks)
    _check_folder(checkpoint)
    algorithm = recipes.algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    place = place_of(engine) if isinstance(engine, str) else engine
    check_task("train", task)
    check(isinstance(algorithm, Algorithm), "train", "algorithm", "an Algorithm or its text", algorithm)
    check(world is None or isinstance(world, World), "train", "world", "a World", world)
    check(is_place(place), "train", "engine", f"{MUST} or a Local", engine)
    named = {"rounds": rounds, "seed": seed, "dtype": str(dtype).removeprefix("torch."), "engine": place.name}
    if isinstance(settings.get("device"), torch.device):
        settings["device"] = str(settings["device"])
    chosen = RunConfig.from_keywords({**named, **settings})
    if chosen.compile:
        place = cast(Place, replace(cast(Any, place), compile=True))
    seed, tested = chosen.seed, chosen.prepared(chosen.adjusted(task))
    if tested.data.test is None and tested.data.validation is None:
        warnings.warn(NO_TEST, StabilityWarning, stacklevel=2)
    with naming("Before round 1"):
        job = prepare(tested, algorithm, world or World(), chosen.rounds, seed, chosen.batch_size, chosen.torch_dtype)
        chosen.check_fit(job)
        data = identity_of(tested.data)
        job = job.cast(chosen.torch_dtype, chosen.device)
        model = job.task.adopt(seed, chosen.torch_dtype, chosen.device)
    folder = None if checkpoint is None else Path(checkpoint)
    with one_thread():
        with naming("Before round 1"):
            running = place.start(job.task, model, seed, job.algorithm.capacity, bool(job.algorithm.hooks["loss"]))
        with naming("Before round 1"), closed_on_failure(running):
            config = configuration(job, running, chosen, parts_of(job.task, model, data))
            if started is not None:
                started(config)
            state = first_state(job, model.flat.clone(), model.buffers())
            log = Log(folder, Identity(plain(config), data))
            job = timed(job, running, state)
        with nullcontext() if folder is None else locked(folder):
            return _play(job, model, running, state, History(), config, log, stop_after, callbacks)


@contextmanager
def closed_on_failure(engine: Engine) -> Iterator[None]:
    """Workers are not left behind where something fails before they are used."""
    try:
        yield
    except BaseException:
        engine.close()
        raise


def _check_one_arm(algorithm: Any, seed: Any, settings: dict[str, Any]) -> None:
    """Refuse several algorithms or seeds, which `fk.compare` takes."""
    if isinstance(algorithm, list | tuple):
        raise InputError(f"train takes one algorithm; for several use fk.compare(task, {brief(algorithm)}, world).")
    seeds = settings.get("seeds", seed)
    listed = isinstance(seeds, Iterable) and not isinstance(seeds, str)
    if listed or "seeds" in settings:
        use = f"fk.compare(task, [algorithm], world, seeds={brief(list(seeds) if listed else seeds)})"
        raise InputError(f"train takes one seed; for several use {use}.")


def _check_folder(checkpoint: Any) -> None:
    good = checkpoint is None or (isinstance(checkpoint, str | os.PathLike) and not Path(checkpoint).is_file())
    check(good, "train", "checkpoint", "the path of a directory, which need not exist", checkpoint)
    if checkpoint is not None:
        check_own(Path(checkpoint))


def prepare(
    task: Task,
    algorithm: Algorithm,
    world: World,
    rounds: int,
    seed: int,
    batch_size: int | None,
    dtype: torch.dtype = torch.float32,
) -> Job:
    """Fill in every default and refuse what cannot work, before any file is written."""
    world = with_budget(world, task)
    world.size(len(task.data))
    batch_size = batch_size if batch_size is not None else task.batch_size
    needed = world.fleet is not None or isinstance(algorithm.pace, Buffered)
    clock = first_clock(task, world, seed, batch_size, dtype) if needed else None
    done = reached(clock, task, world, seed, batch_size, dtype)
    task = task if algorithm.capacity is None else algorithm.capacity.adapt(task)
    if isinstance(world.budget, Epochs):  # refuses more steps than a round may have
        everybody = np.arange(len(task.data))
        world.budget.steps(Ask(seed, 1, everybody, task.data.sizes(everybody), batch_size))
    resolved = algorithm.resolve(task, world, done)
    steps = getattr(world.budget, "outcomes", [math.inf])[-1]
    participation = resolved.pace.participation(world.size(len(task.data))) / len(task.data)
    for warning in legal.warnings_of(resolved, participation, steps):
        warnings.warn(warning, StabilityWarning, stacklevel=3)  # points at the caller of train
    return Job(task, resolved, world, rounds, seed, batch_size, clock)


def _play(
    job: Job,
    model: FlatModel,
    engine: Engine,
    state: State,
    history: History,
    config: dict[str, Any],
    log: Log,
    stop_after: int | None,
    callbacks: Sequence[Callback],
) -> Run:
    """Run the remaining rounds."""
    chosen = RunConfig.from_config(config)
    began = time.perf_counter() - (history[-1]["wall_seconds"] if history else 0.0)

    def note(row: dict[str, Any], wanted: bool) -> bool:
        with naming(f"The evaluation after round {state.round}"):
            score = evaluate(job, state, engine, wanted)
        known = {"round": state.round, **score, **row, "wall_seconds": time.perf_counter() - began}
        history.append({name: known[name] for name in COLUMNS} | known)
        log.add(history[-1], state, engine.memories())
        answers = notify(callbacks, "__call__", history[-1], f"Round {state.round}", failed)
        return log.asked_to_stop() or any(answers)

    failed: list[Exception] = []  # errors of callbacks: the run is saved before the first one is raised
    watch = NormWatch.of(job.algorithm)
    status, how = "done", "failed"
    stop = False
    with finishing_the_round(log.folder is not None) as interrupted:
        try:
            log.open(history)
            notify(callbacks, "begin", config, "Before round 1", failed)
            if not history:
                stop = note(first_row(job, state), True)
            while not chosen.ends(state.round, state.sim_seconds) and status == "done":
                if stop or interrupted or failed or state.round == stop_after:
                    status = "stopped"
                    break
                with naming(f"Round {state.round + 1}"):
                    if isinstance(engine, Remote):
                        job = replace(job, here=engine.available())
                    measured = _diagnosed(job, state, engine, config)
                    new, row = one_round(job, state, engine, watch=watch)
                row |= measured
                if not new.is_finite() or (row["dropped"] and not row["clients"]):
                    # keep the last finite model; this round's updates are useless
                    now, status = new.sim_seconds, "diverged"
                    new = replace(state, round=new.round, totals=new.totals, sim_seconds=now)
                    row |= {"dropped": row["dropped"] + row["clients"], "clients": 0}
                due = chosen.evaluates(new.round, state.sim_seconds, new.sim_seconds)
                state = new
                stop = note(row, status == "diverged" or due)
            run = Run(config, history, status, state, model, engine.memories(), log.identity)
            log.close(run)
            how = "failed" if failed else status
        finally:
            engine.close()
            notify(callbacks, "end", how, "At the end", failed)
    if failed:
        raise failed[0]
    if interrupted and status == "stopped":
        raise KeyboardInterrupt
    return run


def _diagnosed(job: Job, state: State, engine: Engine, config: dict[str, Any]) -> dict[str, float | None]:
    every = config.get("diagnose")  # missing in run directories of earlier versions
    if every is None or (state.round + 1) % every:
        return {}
    from ..lab.diagnose import diagnose  # the core imports lab/ only on request

    return diagnose(job, state, engine)


def resume(
    folder: str | os.PathLike[str],
    task: Task | None = None,
    algorithm: Algorithm | None = None,
    world: World | None = None,
    stop_after: int | None = None,
    callbacks: Sequence[Callback] = (),
    workers: int | None = None,
    engine: str | Place | None = None,
) -> Run:
    """Continue a run from its directory, bit for bit as if it had never stopped; a finished run is just loaded.

    Bit for bit on the same kind of machine, with the same torch and, with compile=True, the same C compiler. A
    task, an algorithm or a world made of Python objects is not in the configuration and must be given again.
    engine: another place for its clients, such as "ray", with the same bits; needed for a run on devices, which are not
    in the configuration either.
    """
    check(stop_after is None or stop_after in COUNT, "resume", "stop_after", str(COUNT), stop_after)
    check_callbacks(callbacks)
    path = Path(folder)
    config = read_config(path)  # before a lock would make a directory
    task = task or task_of(config)
    if ended(path) is not None:  # before the lock, which marks a directory of version 0.1 as ours
        return load(path, task)
    with locked(path):
        if ended(path) is not None:  # by the process that held the lock
            return load(path, task)
        return _go_on(path, config, task, algorithm, world, stop_after, callbacks, workers, engine)


def _go_on(
    path: Path,
    config: dict[str, Any],
    task: Task,
    algorithm: Algorithm | None,
    world: World | None,
    stop_after: int | None,
    callbacks: Sequence[Callback],
    workers: int | None,
    elsewhere: str | Place | None,
) -> Run:
    """Continue a stopped run; the caller holds the lock of its directory."""
    chosen = RunConfig.from_config(config)
    check_start(config, task)
    tested = chosen.prepared(task)
    identity = Identity(config, identity_of(tested.data))
    algorithm, world = algorithm or algorithm_of(config), world or world_of(config)
    with naming("Before the run goes on"):
        job = prepare(tested, algorithm, world, chosen.rounds, chosen.seed, chosen.batch_size, chosen.torch_dtype)
        job = job.cast(chosen.torch_dtype, chosen.device)
        model = job.task.adopt(chosen.seed, chosen.torch_dtype, chosen.device)
    with one_thread():
        place = place_of(chosen.engine, workers, config["chunk"], chosen.compile, config.get("engine_reason"))
        place = place if elsewhere is None else moved(place, elsewhere)
        own_loss = bool(job.algorithm.hooks["loss"])
        engine = place.start(job.task, model, chosen.seed, job.algorithm.capacity, own_loss)
        with closed_on_failure(engine):
            state = first_state(job, model.flat.clone(), model.buffers())
            job = timed(job, engine, state)
            if has_state(path):
                state, memories, history = newest_state(path, identity, len(task.data), chosen.device, mend=True)
                engine.restore(memories)
                engine.hold(state.flights.updates.values())
            elif (rounds := lines(path / HISTORY) - 1) > chosen.checkpoint_every:
                raise InputError(f"{path} has a history of {rounds} rounds, but its checkpoint is gone.")
            else:  # killed before its first checkpoint
                history = History()
        return _play(job, model, engine, state, history, config, Log(path, identity), stop_after, callbacks)


def load(folder: str | os.PathLike[str], task: Task | None = None) -> Run:
    """Read a run directory back: history, model and how it ended."""
    path = Path(folder)
    known = read_run(path)
    config, chosen = known.config, RunConfig.from_config(known.config)
    task = task or task_of(config)
    check_start(config, task)
    tested = chosen.prepared(task)
    identity = Identity(config, identity_of(tested.data))
    if capacity := config["parameters"].get("capacity"):  # the model may be the one the task keeps for levels
        task = recipes.capacity(capacity).adapt(task)
    model = task.cast(chosen.torch_dtype, "cpu").adopt(chosen.seed, chosen.torch_dtype, "cpu")
    x0 = model.flat.clone()
    if has_state(path) and known.status == "stopped":  # the model may be older, from an earlier stop
        state, memories, history = newest_state(path, identity, len(task.data), "cpu")
        return Run(config, history, known.status, state, model, memories, identity)
    load_model(path, model)
    state = State(model.flat.clone(), x0, model.buffers(), {}, {}, known.history.last("round") or 0)
    return Run(config, known.history, known.status, state, model, Memories(len(task.data)), identity)
