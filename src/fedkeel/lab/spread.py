"""Whole runs side by side, each in the directory it would have otherwise: in processes of this machine, or of a cluster
by Ray.

The machines of a cluster must see the same file system. A run whose process dies there is continued from its checkpoint
by another one, as `fedkeel resume` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..engine.packing import Packed, pack, unpack
from ..engine.places import place_of
from ..engine.ray import STORE, Cluster, Ray
from ..errors import FedkeelError, InputError, one_line
from ..run.folder import HISTORY
from ..run.history import Row
from ..task import Task
from . import processes
from .processes import End, Look, Stop, Work, do, outcome
from .study import Study, one_run

Item = tuple[str, int, str]  # algorithm, seed, folder
Tell = Callable[[Item, str], Any]  # called with each run that has ended, and how it ended
Watch = Callable[[str, int, Row], Any]  # sees (algorithm, seed, row)
TRIES = 3  # processes that may die before a run is given up


class Carry(Protocol):
    """Carries out jobs side by side, as `processes.carry_out` does with a number of processes."""

    def __call__(self, work: Work, jobs: Sequence[Any], end: End, look: Look, names: Sequence[str]) -> None: ...


def is_spread(engine: str) -> bool:
    """Whether runs with this engine are spread over a cluster, if there are several."""
    return engine.partition(":")[0] == "ray"


def by(engine: str | None, jobs: int, runs: int) -> Carry | None:
    """What carries out so many runs side by side: the cluster that an engine names, or so many processes; None where
    this process does, with all its cores.
    """
    if engine is not None and is_spread(engine):
        return partial(carry_out, engine)
    return partial(processes.carry_out, jobs) if min(jobs, runs) > 1 else None


@dataclass
class Runs:
    """The runs of a study in another process, one after the other; their task is made once."""

    study: Study
    task: Task | None = None

    def __call__(self, item: Item, stop: Stop) -> str:
        text, seed, folder = item
        self.task = self.task or self.study.made_task()
        return one_run(self.study, self.task, text, seed, Path(folder), stop)[1]


def run_all(
    study: Study,
    todo: Sequence[Item],
    jobs: int = 1,
    tell: Tell = lambda item, status: None,
    watch: Watch | None = None,
) -> None:
    """Carry out these runs side by side, each with one worker; watch sees the newest row of each."""
    if study.track:
        raise InputError("Runs side by side send nothing to trackers; leave out --track.")
    todo = [(text, seed, str(Path(folder).resolve())) for text, seed, folder in todo]

    def look(index: int) -> None:
        text, seed, folder = todo[index]
        if watch is not None and (row := newest_row(Path(folder))) is not None:
            watch(text, seed, row)

    def end(index: int, status: str) -> None:
        look(index)
        tell(todo[index], status)

    place, here = study.place(), replace(study, workers=1)
    if isinstance(place, Ray):  # each run has the local engine of its machine
        here = replace(here, engine=place.mode, elsewhere=None)
    carry = by(place.name, jobs, len(todo)) or partial(processes.carry_out, 1)
    carry(Runs(here), todo, end, look, [f"{text}, seed {seed}" for text, seed, _ in todo])


def newest_row(folder: Path) -> Row | None:
    """The last row of a run's history, which a process elsewhere may be writing."""
    with suppress(OSError, ValueError):
        lines = (folder / HISTORY).read_text(encoding="utf-8").splitlines()
        return dict(json.loads(lines[-1])) if lines else None
    return None


def carry_out(engine: str, work: Work, jobs: Sequence[Any], end: End, look: Look, names: Sequence[str]) -> None:
    """Call `work` for all jobs on the cluster that the engine names, one job per core at a time."""
    with connected(engine) as (ray, place):
        remote = ray.remote(_do).options(num_cpus=1, num_gpus=place.gpus_per_worker, max_retries=TRIES - 1)
        left = {remote.remote(pack((work, job))): index for index, job in enumerate(jobs)}
        try:
            while left:
                ready, _ = ray.wait(list(left), timeout=processes.PAUSE)
                for index in left.values():
                    look(index)
                for ref in ready:
                    index = left.pop(ref)
                    end(index, _outcome(ray, ref, names[index]))
        finally:
            for ref in left:
                ray.cancel(ref)


@contextmanager
def connected(engine: str) -> Iterator[tuple[Any, Ray]]:
    """Ray at the place that the engine names; inside, the same cluster serves again."""
    place = place_of(engine)
    assert isinstance(place, Ray)
    cluster = Cluster(place.address, place.workers, STORE)
    try:
        yield cluster.ray, place
    finally:
        cluster.close()


def _outcome(ray: Any, ref: Any, name: str) -> str:
    try:
        return outcome(ray.get(ref), name)
    except ray.exceptions.RayError as error:
        raise FedkeelError(f"{name}: its process died {TRIES} times: {one_line(error)[-300:]}") from error


def _do(packed: Packed) -> tuple[str, str]:
    """A job in a process of the cluster."""
    work, job = unpack(packed)
    return do(work, job, lambda *row: False)
