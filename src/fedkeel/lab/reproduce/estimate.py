"""How much work is left in a study, and how long it takes here, from a short probe of every arm."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...errors import InputError
from ...pace import Buffered
from ...run import training
from ...task import Task
from .carry_out import Measured, Place, all_runs, read
from .plan import Panel, Plan
from .record import Wanted

PROBED = 3  # rounds of a cohort, or as many times all clients that are under way


@dataclass(frozen=True)
class Cost:
    """What a round of an arm takes; the clients of a probe's first rounds do not count."""

    steps: float  # local steps, of all clients
    seconds: float
    evaluation: float  # seconds of one, beside those of a round
    simulated: float  # seconds of the clock, where there is one


@dataclass(frozen=True)
class Left:
    """What a panel has yet to run. Extensions of a grid are not known before it is tuned, and not counted."""

    panel: Panel
    runs: Sequence[Wanted]  # that are not known yet
    known: int
    costs: Mapping[str, Cost] = field(default_factory=dict)  # by arm, of those that have a run left or a grid to extend
    missing: str = ""  # why it cannot be run here; it then has no costs
    jobs: int = 1  # runs that go on at the same time

    def rounds_of(self, wanted: Wanted) -> int:
        """The rounds of a run; of one that ends by the clock, estimated."""
        study = wanted.study
        if study.sim_seconds is None:
            return study.rounds
        return math.ceil(study.sim_seconds / max(self.costs[wanted.arm].simulated, 1e-9))

    def seconds_of(self, wanted: Wanted, rounds: int | None = None) -> float:
        """How long a run takes, or its first rounds."""
        cost, rounds = self.costs[wanted.arm], self.rounds_of(wanted) if rounds is None else rounds
        ends = [t * cost.simulated for t in range(-1, rounds + 1)]
        evaluations = sum(wanted.study.evaluates(t, *ends[t : t + 2]) for t in range(rounds + 1))
        return rounds * cost.seconds + evaluations * cost.evaluation

    @property
    def seconds(self) -> float:
        """How long it takes until all have ended."""
        return sum(map(self.seconds_of, self.runs)) / min(self.jobs, max(1, len(self.runs)))

    @property
    def steps(self) -> int:
        """Local steps, of all clients."""
        return round(sum(self.costs[wanted.arm].steps * self.rounds_of(wanted) for wanted in self.runs))


def left(plan: Plan, place: Place, refuses: bool = True, jobs: int = 1) -> list[Left]:
    """Of every panel what is left. What cannot run here, such as a task without its data, is refused or noted."""
    return [_left(measured, place, refuses, jobs) for measured in read(plan, place)]


def _left(measured: Measured, place: Place, refuses: bool, jobs: int) -> Left:
    panel = measured.panel
    wanted = [run.on(place.compile, place.device) for run in all_runs(panel, measured.choices)]
    todo = [run for run in wanted if place.known(run) is None]
    found = Left(panel, todo, len(wanted) - len(todo), jobs=jobs)
    open_grids = {arm.name for arm in panel.arms.values() if arm.tuned} - set(measured.choices)  # may be extended
    first = {run.arm: run for run in reversed(wanted) if run in todo or run.arm in open_grids}
    if not first:
        return found
    try:
        task = next(iter(first.values())).study.made_task()
    except InputError as error:
        if refuses:
            raise
        return replace(found, missing=str(error))
    for run in first.values():
        run.study.check(task)
    workers = 1 if jobs > 1 else None
    return replace(found, costs={arm: _probe(run, task, workers) for arm, run in first.items()})


def _probe(wanted: Wanted, task: Task, workers: int | None) -> Cost:
    """The costs of a run, from its first rounds. Those of asynchronous runs begin with arrivals that are all early."""
    algorithm, rounds = wanted.study.algorithm(wanted.text), PROBED
    if isinstance(algorithm.pace, Buffered):
        rounds *= math.ceil(algorithm.pace.inflight / algorithm.pace.buffer)
    study = replace(wanted.study, rounds=rounds, eval_every=rounds, eval_last=None, target=None, sim_seconds=None)
    study = replace(study, workers=workers)
    ends: list[float] = []  # of round 0, which is an evaluation, ..., of the last round, which has another
    settings = study.run_config(wanted.seed).keywords() | {"engine": study.place()}
    settings["callbacks"] = [lambda row: ends.append(time.perf_counter())]
    history = training.train(task, algorithm, study.world, **settings).history
    last = len(history) - 1
    warm = last // 2
    seconds = (ends[last - 1] - ends[warm]) / max(1, last - 1 - warm)
    evaluation = max(0.0, ends[last] - ends[last - 1] - seconds)
    simulated = history[last].get("sim_seconds", 0.0) - history[warm].get("sim_seconds", 0.0)
    return Cost(history[last]["gradients"] / last, seconds, evaluation, simulated / (last - warm))
