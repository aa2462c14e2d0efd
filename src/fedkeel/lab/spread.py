"""Whole runs spread over a cluster: each of them in one process of Ray, in the directory it would have here.

The machines of the cluster must see the same file system. A run whose process dies is continued from its checkpoint by
another one, as `fedkeel resume` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engine.packing import Packed, pack, unpack
from ..engine.places import place_of
from ..engine.ray import STORE, Cluster, Ray
from ..errors import FedkeelError, InputError, one_line
from ..run.folder import HISTORY
from ..run.history import Row
from .study import Study, one_run

Item = tuple[str, int, str]  # algorithm, seed, folder
Tell = Callable[[Item, str], Any]  # called with each run that has ended, and how it ended
Watch = Callable[[str, int, Row], Any]  # sees (algorithm, seed, row)
TRIES = 3  # processes that may die before a run is given up
PAUSE = 1.0  # seconds between two looks at the histories


def is_spread(engine: str) -> bool:
    """Whether runs with this engine are spread over a cluster, if there are several."""
    return engine.partition(":")[0] == "ray"


def run_all(
    study: Study, todo: Sequence[Item], tell: Tell = lambda item, status: None, watch: Watch | None = None
) -> None:
    """Carry out these runs side by side, each with one worker; watch sees the newest row of each."""
    if study.track:
        raise InputError("Runs that are spread over a cluster send nothing to trackers; leave out --track.")
    here = replace(study, engine=mode_of(study), workers=1)
    todo = [(text, seed, str(Path(folder).resolve())) for text, seed, folder in todo]
    jobs = [(one_study, here, item) for item in todo]

    def look(index: int) -> None:
        text, seed, folder = todo[index]
        if watch is not None and (row := newest_row(Path(folder))) is not None:
            watch(text, seed, row)

    def end(index: int, status: str) -> None:
        look(index)
        tell(todo[index], status)

    carry_out(study.engine, jobs, end, look, [f"{text}, seed {seed}" for text, seed, _ in todo])


def mode_of(study: Study) -> str:
    """The mode of the local engine that each run has on its machine."""
    place = place_of(study.engine)
    assert isinstance(place, Ray)
    return place.mode


def one_study(study: Study, item: Item) -> str:
    """What a process of the cluster does; gives how the run ended."""
    text, seed, folder = item
    return one_run(study, study.made_task(), text, seed, Path(folder), lambda *row: None)[1]


def newest_row(folder: Path) -> Row | None:
    """The last row of a run's history, which a process elsewhere may be writing."""
    with suppress(OSError, ValueError):
        lines = (folder / HISTORY).read_text(encoding="utf-8").splitlines()
        return dict(json.loads(lines[-1])) if lines else None
    return None


def carry_out(
    engine: str,
    jobs: Sequence[tuple[Any, ...]],
    end: Callable[[int, str], None],
    look: Callable[[int], None],
    names: Sequence[str],
) -> None:
    """Call `job[0](*job[1:])` for all jobs on the cluster that the engine names, one job per core at a time."""
    with connected(engine) as (ray, place):
        remote = ray.remote(do).options(num_cpus=1, num_gpus=place.gpus_per_worker, max_retries=TRIES - 1)
        left = {remote.remote(pack(job)): index for index, job in enumerate(jobs)}
        try:
            while left:
                ready, _ = ray.wait(list(left), timeout=PAUSE)
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
        kind, text = ray.get(ref)
    except ray.exceptions.RayError as error:
        raise FedkeelError(f"{name}: its process died {TRIES} times: {one_line(error)[-300:]}") from error
    if kind == "stopped":  # by a file `stop` in its folder: the other runs are not wanted either
        raise KeyboardInterrupt
    if kind != "ended":
        raise (InputError if kind == "input" else FedkeelError)(f"{name}: {text}")
    return str(text)


def do(packed: Packed) -> tuple[str, str]:
    """A job in a process of the cluster: (what happened, what it says)."""
    try:
        function, *arguments = unpack(packed)
        return "ended", str(function(*arguments))
    except KeyboardInterrupt:
        return "stopped", ""
    except (FedkeelError, OSError) as error:
        return "input" if isinstance(error, InputError) else "failed", str(error)
