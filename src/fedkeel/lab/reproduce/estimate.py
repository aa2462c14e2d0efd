"""How much work is left in a study, and how long it takes here, from a short probe of every task."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...run import training
from ...task import Task
from .carry_out import Measured, Place, all_runs, read
from .plan import Panel, Plan
from .record import Wanted

PROBED = 3  # rounds


@dataclass(frozen=True)
class Left:
    """What a panel has yet to run. Extensions of a grid are not known before it is tuned, and not counted."""

    panel: Panel
    runs: Sequence[Wanted]  # that are not known yet
    known: int
    steps: int  # local steps, of all clients
    round_seconds: float
    evaluation_seconds: float
    sim_round: float = 0.0  # simulated seconds of a round

    def rounds_of(self, wanted: Wanted) -> int:
        """The rounds of a run; of one that ends by the clock, estimated."""
        study = wanted.study
        return study.rounds if study.sim_seconds is None else math.ceil(study.sim_seconds / max(self.sim_round, 1e-9))

    def seconds_of(self, wanted: Wanted, rounds: int | None = None) -> float:
        """How long a run takes, or its first rounds."""
        rounds = self.rounds_of(wanted) if rounds is None else rounds
        ends = [t * self.sim_round for t in range(-1, rounds + 1)]
        evaluations = sum(wanted.study.evaluates(t, *ends[t : t + 2]) for t in range(rounds + 1))
        return rounds * self.round_seconds + evaluations * self.evaluation_seconds

    @property
    def seconds(self) -> float:
        return sum(map(self.seconds_of, self.runs))


def left(plan: Plan, place: Place, compile: bool) -> list[Left]:
    """Of every panel what is left. Refuses what cannot run here, such as a task without its data."""
    return [_left(measured, place, compile) for measured in read(plan, place)]


def _left(measured: Measured, place: Place, compile: bool) -> Left:
    panel = measured.panel
    wanted = [run.compiled(compile) for run in all_runs(panel, measured.choices)]
    todo = [run for run in wanted if place.known(run) is None]
    if not todo:
        return Left(panel, [], len(wanted), 0, 0.0, 0.0)
    task = todo[0].study.made_task()
    todo[0].study.check(task)
    steps, *seconds = _probe(todo[0], task)
    found = Left(panel, todo, len(wanted) - len(todo), 0, *seconds)
    return replace(found, steps=round(steps * sum(map(found.rounds_of, todo))))


def _probe(wanted: Wanted, task: Task) -> tuple[float, float, float, float]:
    """Local steps of a round, its seconds, those of an evaluation, and simulated ones; the first round is warm-up."""
    study = replace(wanted.study, rounds=PROBED, eval_every=PROBED, eval_last=None, target=None, sim_seconds=None)
    times = [time.perf_counter()]
    settings = study.run_config(wanted.seed).keywords() | {"engine": study.place()}
    settings["callbacks"] = [lambda row: times.append(time.perf_counter())]
    run = training.train(task, study.algorithm(wanted.text), study.world, **settings)
    # times: start, round 0 (an evaluation), round 1, ..., the last (a round and an evaluation)
    per_round = (times[-2] - times[2]) / (PROBED - 2)
    evaluation = max(0.0, times[-1] - times[-2] - per_round)
    last = run.history[-1]
    return last["gradients"] / PROBED, per_round, evaluation, last.get("sim_seconds", 0.0) / PROBED
