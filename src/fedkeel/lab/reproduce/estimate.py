"""How much work is left in a study, and how long it takes here, from a short probe of every task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...run import training
from ...task import Task
from .carry_out import Place, all_runs
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

    def seconds_of(self, wanted: Wanted, rounds: int | None = None) -> float:
        """How long a run takes, or its first rounds."""
        study = wanted.study
        rounds = study.rounds if rounds is None else rounds
        evaluations = sum(study.evaluates(t) for t in range(rounds + 1))
        return rounds * self.round_seconds + evaluations * self.evaluation_seconds

    @property
    def seconds(self) -> float:
        return sum(map(self.seconds_of, self.runs))


def left(plan: Plan, place: Place, compile: bool) -> list[Left]:
    """Of every panel what is left. Refuses what cannot run here, such as a task without its data."""
    return [_left(panel, place, compile) for panel in plan.panels]


def _left(panel: Panel, place: Place, compile: bool) -> Left:
    wanted = [run.compiled(compile) for run in all_runs(panel)]
    todo = [run for run in wanted if place.known(run) is None]
    if not todo:
        return Left(panel, [], len(wanted), 0, 0.0, 0.0)
    task = todo[0].study.made_task()
    todo[0].study.check(task)
    steps, round_seconds, evaluation_seconds = _probe(todo[0], task)
    rounds = sum(run.study.rounds for run in todo)
    return Left(panel, todo, len(wanted) - len(todo), round(steps * rounds), round_seconds, evaluation_seconds)


def _probe(wanted: Wanted, task: Task) -> tuple[float, float, float]:
    """Local steps of a round, its seconds, and the seconds of an evaluation; the first round is warm-up."""
    study = replace(wanted.study, rounds=PROBED, eval_every=PROBED, eval_last=None, target=None)
    times = [time.perf_counter()]
    settings = study.run_config(wanted.seed).keywords() | {"engine": study.local()}
    settings["callbacks"] = [lambda row: times.append(time.perf_counter())]
    run = training.train(task, study.algorithm(wanted.text), study.world, **settings)
    # times: start, round 0 (an evaluation), round 1, ..., the last (a round and an evaluation)
    per_round = (times[-2] - times[2]) / (PROBED - 2)
    evaluation = max(0.0, times[-1] - times[-2] - per_round)
    return run.history[-1]["gradients"] / run.history[-1]["round"], per_round, evaluation
