"""Whether a claim of a paper reproduces. The rule was written before the studies were run and is not tuned to them.

Seed i of one arm is paired with seed i of the other. The gain of an arm over another is, seed by seed,

    a cost (rounds, gradients, samples, megabytes)    (other - arm) / mean of arm; its mean is R_other / R_arm - 1
    an accuracy                                       arm - other, in percentage points
    a rate that moves (lr)                            (arm - other) / mean of other

and its interval is Student's 95 % interval of the mean over seeds. A claim "better" is

    reproduced        the interval is above zero, and the gain is at least half of the paper's
                      (where the paper prints no figure: the interval is above zero)
    direction only    the gain is above zero otherwise
    not reproduced    otherwise, or a seed of the arm diverged or did not reach the target

and a claim "no worse", with the margin the file states,

    reproduced        the interval is above -margin
    direction only    the gain is above -margin otherwise
    not reproduced    otherwise, or a seed of the arm diverged or did not reach the target

A seed of the other arm that misses the target counts with the cost of all its rounds, which is less than the truth. A
seed that diverges has the accuracy of its last model. Of a table with several claims the weakest verdict is that of the
table. Control arms are reported beside a claim and do not change its verdict.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from ...run.history import History
from ..stats import Gain, amount, last_n, mean_of, window
from .plan import COSTS, Claim, Panel

if TYPE_CHECKING:
    from .carry_out import Measured

REPRODUCED, DIRECTION, NOT = "reproduced", "direction only", "not reproduced"
NOT_RUN, CANNOT = "not run", "could not run here"
WEAKEST_FIRST = (NOT, DIRECTION, REPRODUCED)


@dataclass(frozen=True)
class Judged:
    """A claim with what came out, as the data of the page have it; a gain is its value, low and high."""

    text: str
    paper: float | None
    metric: str
    gain: Sequence[float]
    control: str | None
    over_control: Sequence[float] | None
    verdict: str


def judge(measured: Measured) -> list[Judged]:
    """Every claim of a panel that was run."""
    panel = measured.panel
    judged = []
    for claim in panel.claims:
        metric = claim.metric or panel.metric
        arm, other = (per_seed(measured, name, metric) for name in (claim.arm, claim.than))
        broke = any(runs.diverged for runs in measured.arms[claim.arm].values())
        broke = broke or missed(measured, claim.arm, metric) > 0
        own, paper = gain(metric, arm, other), paper_gain(panel, claim)
        control = gain(metric, arm, per_seed(measured, claim.control, metric)) if claim.control else None
        against = None if control is None else astuple(control)[:3]
        said = verdict(own, paper, claim.margin, broke)
        judged.append(Judged(claim_text(claim, metric), paper, metric, astuple(own)[:3], claim.control, against, said))
    return judged


def claim_text(claim: Claim, metric: str) -> str:
    """A claim in words."""
    cost = metric in COSTS
    if claim.margin is not None:
        room = f"{claim.margin:.0%} {metric}" if cost else f"{claim.margin:g} points"
        return f"{claim.arm} is no worse than {claim.than} (within {room})"
    how = f"needs fewer {metric}" if cost else "ends with a higher rate" if metric == "lr" else "is more accurate"
    return f"{claim.arm} {how} than {claim.than}"


def verdict(own: Gain, paper: float | None, margin: float | None = None, broke: bool = False) -> str:
    """The rule.

    >>> verdict(Gain(0.3, 0.1, 0.5), paper=0.4), verdict(Gain(0.3, -0.1, 0.7), paper=0.4)
    ('reproduced', 'direction only')
    """
    line = 0.0 if margin is None else -margin
    if broke or own.value is None or not own.value > line:
        return NOT
    large = margin is not None or paper is None or own.value >= paper / 2
    return REPRODUCED if own.low is not None and own.low > line and large else DIRECTION


def overall(verdicts: Sequence[str]) -> str:
    """The weakest verdict, and how many there are of each.

    >>> overall(["reproduced", "direction only", "reproduced"])
    'direction only (3 claims: 2 reproduced, 1 direction only)'
    """
    counts = Counter(verdicts)
    weakest = next(one for one in WEAKEST_FIRST if counts[one])
    if len(verdicts) == 1:
        return weakest
    each = ", ".join(f"{counts[one]} {one}" for one in reversed(WEAKEST_FIRST) if counts[one])
    return f"{weakest} ({len(verdicts)} claims: {each})"


def gain(metric: str, arm: Sequence[float], other: Sequence[float]) -> Gain:
    """By how much an arm is better than another, with paired seeds.

    >>> gain("rounds", [100, 100], [150, 150]).value, gain("accuracy", [80.0, 82.0], [79.0, 80.0]).value
    (0.5, 1.5)
    """
    sign = -1 if metric in COSTS else 1
    scale = {"accuracy": 1.0, "last": 1.0, "lr": statistics.mean(other)}.get(metric, statistics.mean(arm))
    return mean_of([sign * (a - b) / max(scale, 1e-9) for a, b in zip(arm, other, strict=True)])


def paper_gain(panel: Panel, claim: Claim) -> float | None:
    """The paper's gain: as the file states it, or from the paper's figures; None where there is none."""
    if claim.gain is not None or (claim.metric or panel.metric) != panel.metric:
        return claim.gain
    arm, other = (number(panel.paper.get(name)) for name in (claim.arm, claim.than))
    return None if arm is None or other is None else gain(panel.metric, [arm], [other]).value


def number(figure: Any) -> float | None:
    """A printed figure as a number: what was not reached counts as far as it was run.

    >>> number(148), number("1500+"), number("x"), number(None)
    (148.0, 1500.0, None, None)
    """
    found = re.match(r"\d+(\.\d+)?", str(figure))
    return float(found.group()) if found else None


def per_seed(measured: Measured, arm: str, metric: str) -> list[float]:
    """An arm's figure for every seed; of a grid the mean over its algorithms."""
    columns = [[_figure(measured, arm, metric, h) for h in runs.histories] for runs in measured.arms[arm].values()]
    return [statistics.mean(values) for values in zip(*columns, strict=True)]


def missed(measured: Measured, arm: str, metric: str) -> int:
    """Seeds of an arm that did not reach the target; those of the arm that sets it are not counted."""
    if metric not in COSTS or arm == measured.panel.quality_of:
        return 0
    goal = _goal(measured)
    return sum(history.reaching(goal) is None for history in measured.histories(arm))


def _figure(measured: Measured, arm: str, metric: str, history: History) -> float:
    if metric == "accuracy":
        return 100 * float(history.last("accuracy") or 0.0)
    if metric == "last":
        return 100 * score(history)
    if metric == "lr":
        rates = [row["lr"] for row in history if row.get("lr") is not None]
        return float(rates[-1] / rates[0]) if rates else 1.0
    panel = measured.panel
    row = None if arm == panel.quality_of else history.reaching(_goal(measured))
    if row is None:  # all rounds, also those that a run which diverged did not do
        return float(amount(history[-1], metric) * panel.rounds / max(1, history[-1]["round"]))
    return float(amount(row, metric))


def _goal(measured: Measured) -> float:
    panel = measured.panel
    if panel.quality_of is None:
        assert panel.target is not None
        return panel.target
    return statistics.mean(map(score, measured.histories(panel.quality_of)))


def score(history: History) -> float:
    """Mean accuracy of the last rounds (100, but no more than a quarter of the run).

    >>> score(History({"round": t, "accuracy": t / 8} for t in range(9)))
    0.9375
    """
    late = last_n(history, window(history[-1]["round"]))
    return float(history.last("accuracy") or 0.0) if late is None else late
