"""What a comparison says: the summary of its arms, the papers' metrics, ranks across tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ..run.history import History
from .diagnose import means
from .stats import Arm, amount, at_time, interval, shared_rounds, window


def beyond(history: History, base: History, target: float) -> float | None:
    """Accuracy above the target in the round in which the baseline reaches it (the GEL papers' metric).

    None where the baseline does not reach it, or this run was not evaluated then.

    >>> base, faster = (History({"round": t, "accuracy": t / n} for t in range(6)) for n in (10, 8))
    >>> beyond(faster, base, 0.4)
    0.09999999999999998
    """
    row = base.reaching(target)
    then = None if row is None else next((r["accuracy"] for r in history if r["round"] == row["round"]), None)
    return None if then is None else then - target


def equal_rounds(arm: Arm, base: Arm) -> list[float] | None:
    """Per seed, accuracy less the baseline's in the last round both have evaluated; None where a seed diverged.

    Where both have simulated seconds: at the time at which the first of the two ends.

    >>> base, arm = (Arm("", None, [History([{"round": 9, "accuracy": a}])], ["done"]) for a in (0.5, 0.75))
    >>> equal_rounds(arm, base), equal_rounds(base, arm)
    ([0.25], [-0.25])
    """
    if arm.diverged or base.diverged or len(arm.histories) != len(base.histories):
        return None
    differences = []
    for mine, other in zip(arm.histories, base.histories, strict=True):
        if arm.timed and base.timed:
            end = min(history[-1]["sim_seconds"] for history in (mine, other))
            own, theirs = (at_time(history, "accuracy", end) for history in (mine, other))
            if own is None or theirs is None:
                return None
            differences.append(own - theirs)
            continue
        shared = shared_rounds([mine, other], "accuracy")
        if not shared:
            return None
        one, two = shared[max(shared)]
        differences.append(one["accuracy"] - two["accuracy"])
    return differences


def cost_to_quality(arm: Arm, base: Arm, n: int) -> dict[str, Any] | None:
    """What it costs to be as good as the baseline ends (GHBM paper, appendix C.3); None where a seed diverged.

    The quality is the baseline's mean accuracy of the last n rounds, over its seeds. With r the first round at which
    a seed of the arm has it and T the rounds of the run, a cost is (cost of the whole run) r / T, the baseline's with
    r = T. As in the paper r = T also for a seed that does not get there: with `reached` below the number of seeds, the
    reduction 1 - (mean cost of the arm) / (mean cost of the baseline) is too large.
    """
    values = base.lasts(n)
    if arm.diverged or base.diverged or not values:
        return None
    quality = statistics.mean(values)
    rows = [history.reaching(quality) for history in arm.histories]
    rounds = [None if row is None else row["round"] for row in rows]
    metrics = {"quality": quality, "reached": sum(row is not None for row in rows), "rounds": rounds}
    for column in ("bytes", "gradients", "wall_seconds"):
        own = statistics.mean(
            amount(history[-1], column) * (1 if row is None or arm is base else row["round"] / history[-1]["round"])
            for row, history in zip(rows, arm.histories, strict=True)
        )
        whole = statistics.mean(amount(history[-1], column) for history in base.histories)
        metrics |= {column: own, f"{column}_reduction": 1 - own / whole if whole else None}
    return metrics


def top_share(tasks: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    """Over tasks (accuracy by algorithm), how often an algorithm is best and among the best two (the DeltaSGD paper).

    A share is of the tasks in which the algorithm was run; None (diverged) is never best; equals share a place. Fewer
    than two tasks give no ranks: the result is empty.

    >>> top_share([{"fedavg": 0.8, "gel": 0.9, "sps": None}, {"fedavg": 0.7, "gel": 0.7}])["fedavg"]
    {'tasks': 2, 'top1': 0.5, 'top2': 1.0}
    """
    places: dict[str, list[float]] = {}
    for scores in tasks if len(tasks) > 1 else ():
        known = [score for score in scores.values() if score is not None]
        for name, score in scores.items():
            place = math.inf if score is None else 1 + sum(other > score for other in known)
            places.setdefault(name, []).append(place)

    def share(got: list[float], best: int) -> float:
        return sum(place <= best for place in got) / len(got)

    return {n: {"tasks": len(got), "top1": share(got, 1), "top2": share(got, 2)} for n, got in places.items()}


def score(arm: Arm) -> float | None:
    """What an arm is ranked by across tasks: its mean last accuracy; None where a seed diverged."""
    return statistics.mean(arm.finals.values()) if arm.sound else None


def mean_curve(histories: Sequence[History]) -> list[tuple[float, float]]:
    """(round, mean accuracy over seeds) of rounds every seed has evaluated; the loss where there is no accuracy.

    Of runs with simulated seconds, their mean instead of the round.
    """
    column = "accuracy" if any(h.last("accuracy") is not None for h in histories) else "loss"
    x = "sim_seconds" if has_time(histories) else "round"
    shared = shared_rounds(histories, column).values()
    return [(statistics.mean(r[x] for r in rows), statistics.mean(r[column] for r in rows)) for rows in shared]


def has_time(histories: Sequence[History]) -> bool:
    """Whether all of these runs have simulated seconds."""
    return Arm("", None, histories, []).timed


def summary(arms: Sequence[Arm], target: float | None) -> dict[str, Any]:
    """What `summary.json` says; lists have one entry per seed, the first arm is the baseline of all others."""
    n = window(max(history[-1]["round"] for history in chain.from_iterable(arm.histories for arm in arms)))
    entries = [_entry(arm, arms[0], n) for arm in arms]
    return {"target": target, "baseline": arms[0].name, "last_n": n, "arms": entries}


def _entry(arm: Arm, base: Arm, n: int) -> dict[str, Any]:
    gain, per_flop, why = arm.speedup(base), arm.per("flops", 1e12), means(arm.histories)

    def spread(name: str, values: list[float] | None) -> dict[str, Any]:
        mean = statistics.mean(values) if values else None
        return {name: values, f"{name}_mean": mean, f"{name}_95": interval(values or [])}

    def spent(column: str) -> list[Any]:
        return [None if row is None else amount(row, column) for row in arm.reached]

    pairs, target = zip(arm.histories, base.histories, strict=True), arm.target
    return {
        "algorithm": arm.name,
        "status": list(arm.statuses),
        "rounds_to_target": spent("round"),
        "gradients_to_target": spent("gradients"),
        "bytes_to_target": spent("bytes"),
        **({"sim_seconds_to_target": spent("sim_seconds")} if arm.timed else {}),
        "speedup": gain.value,
        "speedup_95": None if gain.low is None else [gain.low, gain.high],
        "speedup_more_than": gain.more_than,
        "speedup_less_than": gain.less_than,
        **spread("final_accuracy", list(arm.finals.values())),
        **spread("last_n_accuracy", arm.lasts(n)),
        "beyond_target": None if target is None else [beyond(own, other, target) for own, other in pairs],
        **spread("difference", equal_rounds(arm, base)),
        "cost_to_baseline_quality": cost_to_quality(arm, base, n),
        **({"accuracy_per_MB": arm.per("bytes", 1e6), "accuracy_per_TFLOP": per_flop} if per_flop is not None else {}),
        **({"diagnosis": why} if why else {}),
    }
