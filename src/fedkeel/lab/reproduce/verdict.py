"""Whether a claim of a paper reproduces. The rule was written before the studies were run, but for what has a date.

Seed i of one arm is paired with seed i of the other. The gain of an arm over another is, seed by seed,

    a cost (rounds, gradients, samples, megabytes)    (other - arm) / mean of arm; its mean is R_other / R_arm - 1
    an accuracy                                       arm - other, in percentage points

and its interval is Student's 95 % interval of the mean over seeds. A claim "better" is

    reproduced        the interval is above zero, and the gain is at least half of the paper's
                      (where the paper prints no figure: the interval is above zero)
    direction only    the gain is above zero otherwise
    not reproduced    otherwise, or a seed of the arm diverged or did not reach the target

and a claim "no worse", with the margin the file states,

    reproduced        the interval is above -margin
    direction only    the gain is above -margin otherwise
    not reproduced    otherwise, or a seed of the arm diverged or did not reach the target

With one seed there is a gain and no verdict. Where the best value of the other arm's grid is at the grid's edge after
three extensions, the other arm may be better than it was seen to be: the verdict is "direction only" at most. On a
stand-in, and in studies of our own, the same rule says "seen", "direction only" or "not seen": a stand-in says nothing
about the paper's claim. A seed of the other arm that misses the target counts with the cost of all its rounds, which
is less than the truth: the gain is "at least" that; "at most", where the arm itself misses it; and unknown, where both
do. Where the other arm missed the target in every seed in which the arm did, or where all rounds are within the margin
of a "no worse", the claim is "undecided": rounds were too few, and a control that got no further is not compared. (Both
were added on 2026-11-18, after the runs of GEL with Adam.) A seed that diverges has the accuracy of its last model. The
accuracy of the last rounds is a mean over 100 of them, but at most a quarter of the run; in studies by simulated time,
over the last quarter of the time (since 2026-11-18; before, over rounds there as well). A table is summarised by how
many of its claims hold, that is, are reproduced (or are seen). Control arms are reported beside a claim and do not
change its verdict.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...run.history import History
from ..stats import BySeed, Gain, amount, late_mean, mean_of
from .plan import COSTS, Claim, Panel

if TYPE_CHECKING:
    from .carry_out import Measured

REPRODUCED, DIRECTION, NOT, UNDECIDED = "reproduced", "direction only", "not reproduced", "undecided"
SEEN = {REPRODUCED: "seen", NOT: "not seen"}  # the words for what is not a paper's


@dataclass(frozen=True)
class Judged:
    """A claim with what came out, as the data of the page have it; a gain is its value, low and high."""

    text: str
    paper: float | None
    metric: str
    gain: Sequence[float]
    control: str | None
    over_control: Sequence[float] | None
    verdict: str | None  # None with one seed
    note: str = ""
    bound: str | None = ""  # "at least" or "at most", where an arm missed the target; None where both did
    bound_over_control: str | None = ""


def judge(measured: Measured) -> list[Judged]:
    """Every claim of a panel of whose arms there are runs with the same seeds."""
    panel = measured.panel
    judged = []
    for claim in panel.claims:
        metric, edge = claim.metric or panel.metric, measured.edges.get(claim.than, [])
        own = gain(metric, *(per_seed(measured, name, metric) for name in (claim.arm, claim.than)))
        if own is None:
            continue
        broke = any(runs.diverged for runs in measured.arms[claim.arm].values())
        lost, too = (missed(measured, name, metric) for name in (claim.arm, claim.than))
        control_lost = set() if claim.control is None else missed(measured, claim.control, metric)
        paper, against = paper_gain(panel, claim), None
        if claim.control and not lost & control_lost >= set(panel.seeds):
            against = gain(metric, *(per_seed(measured, name, metric) for name in (claim.arm, claim.control)))
        said = None if own.low is None else verdict(own, paper, claim.margin, broke or bool(lost), bool(edge))
        if said is not None and lost and not broke and lost <= too | _within(measured, claim, metric):
            said = UNDECIDED
        if panel.heading in ("stand-in", "ours") and said is not None:
            said = SEEN.get(said, said)
        seeds = len(per_seed(measured, claim.arm, metric).keys() & per_seed(measured, claim.than, metric).keys())
        notes = [f"{claim.than} is on the edge of its grid ({', '.join(edge)})"] if edge else []
        notes += [f"{claim.arm} missed the target {_times(len(lost))}, {claim.than} {_times(len(too))}"] if lost else []
        notes += [f"{seeds} of {len(panel.seeds)} seeds so far"] if 1 < seeds < len(panel.seeds) else []
        over, bounds = None if against is None else _ends(against), (bound(lost, too), bound(lost, control_lost))
        text, note = claim_text(claim, metric), "; ".join(notes)
        judged.append(Judged(text, paper, metric, _ends(own), claim.control, over, said, note, *bounds))
    return judged


def bound(lost: set[int], too: set[int]) -> str | None:
    """What a gain is where seeds of the arm (lost) or of the other (too) missed the target; None where it is unknown.

    >>> bound(set(), {3}), bound({3}, set()), bound({3}, {3})
    ('at least', 'at most', None)
    """
    if lost and too:
        return None
    return "at most" if lost else "at least" if too else ""


def _within(measured: Measured, claim: Claim, metric: str) -> set[int]:
    """Seeds in which all rounds cost no more than the other arm and the margin of a "no worse"."""
    if claim.margin is None or metric not in COSTS:
        return set()
    own, other = (per_seed(measured, name, metric) for name in (claim.arm, claim.than))
    return {seed for seed in own if seed in other and own[seed] <= (1 + claim.margin) * other[seed]}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ends(gain: Gain) -> list[float]:
    """The value, and the ends of its interval where there is one."""
    return [part for part in (gain.value, gain.low, gain.high) if part is not None]


def claim_text(claim: Claim, metric: str) -> str:
    """A claim in words."""
    cost = metric in COSTS
    if claim.margin is not None:
        room = f"{claim.margin:.0%} {metric}" if cost else f"{claim.margin:g} points"
        return f"{claim.arm} is no worse than {claim.than} (within {room})"
    how = f"needs fewer {metric}" if cost else "is more accurate"
    return f"{claim.arm} {how} than {claim.than}"


def verdict(
    own: Gain, paper: float | None, margin: float | None = None, broke: bool = False, edge: bool = False
) -> str:
    """The rule.

    >>> verdict(Gain(0.3, 0.1, 0.5), paper=0.4), verdict(Gain(0.3, -0.1, 0.7), paper=0.4)
    ('reproduced', 'direction only')
    """
    line = 0.0 if margin is None else -margin
    if broke or own.value is None or not own.value > line:
        return NOT
    large = margin is not None or paper is None or own.value >= paper / 2
    return REPRODUCED if own.low is not None and own.low > line and large and not edge else DIRECTION


def counted(verdicts: Sequence[str | None]) -> str:
    """How many claims hold, or are seen where they are not a paper's.

    >>> counted(["reproduced", "direction only", "reproduced", None]), counted(["seen", "not seen"])
    ('2 of 3 claims hold, 1 direction only; 1 with one seed', '1 of 2 claims seen')
    """
    known = Counter(one for one in verdicts if one is not None)
    single = len(verdicts) - known.total()
    parts = []
    if known:
        held = known[REPRODUCED] + known[SEEN[REPRODUCED]]
        some = "".join(f", {known[one]} {one}" for one in (DIRECTION, UNDECIDED) if known[one])
        word = "seen" if known.keys() & set(SEEN.values()) else "hold"
        parts.append(f"{held} of {known.total()} claims {word}{some}")
    parts += [f"{single} with one seed"] if single else []
    return "; ".join(parts) or "nothing is claimed"


def gain(metric: str, arm: BySeed, other: BySeed) -> Gain | None:
    """By how much an arm is better than another, over the seeds that both have; None where they share none.

    >>> gain("rounds", {0: 100, 1: 100}, {0: 150, 1: 150}).value, gain("accuracy", {0: 80.0}, {0: 79.0, 1: 80.0}).value
    (0.5, 1.0)
    """
    shared = [seed for seed in arm if seed in other]
    if not shared:
        return None
    sign = -1 if metric in COSTS else 1
    scale = max(statistics.mean(arm[s] for s in shared), 1e-9) if metric in COSTS else 1.0
    return mean_of([sign * (arm[s] - other[s]) / scale for s in shared])


def paper_gain(panel: Panel, claim: Claim) -> float | None:
    """The paper's gain: as the file states it, or from the paper's figures; None where there is none."""
    if claim.gain is not None or (claim.metric or panel.metric) != panel.metric:
        return claim.gain
    arm, other = (number(panel.paper.get(name)) for name in (claim.arm, claim.than))
    both = None if arm is None or other is None else gain(panel.metric, {0: arm}, {0: other})
    return None if both is None else both.value


def number(figure: Any) -> float | None:
    """A printed figure as a number: what was not reached counts as far as it was run.

    >>> number(148), number("1500+"), number("x"), number(None)
    (148.0, 1500.0, None, None)
    """
    found = re.match(r"\d+(\.\d+)?", str(figure))
    return float(found.group()) if found else None


def per_seed(measured: Measured, arm: str, metric: str) -> dict[int, float]:
    """An arm's figure for every seed that all its algorithms have; of a grid the mean over its algorithms."""
    if arm not in measured.arms or not can_measure(measured, metric):
        return {}
    found: dict[int, list[float]] = {}
    for runs in measured.arms[arm].values():
        for seed, history in zip(runs.seeds, runs.histories, strict=True):
            found.setdefault(seed, []).append(_figure(measured, arm, metric, history))
    whole = len(measured.arms[arm])
    return {seed: statistics.mean(values) for seed, values in found.items() if len(values) == whole}


def can_measure(measured: Measured, metric: str) -> bool:
    """Whether the arm that sets the target has been run."""
    goal = measured.panel.quality_of
    return metric not in COSTS or goal is None or goal in measured.arms


def missed(measured: Measured, arm: str, metric: str) -> set[int]:
    """Seeds of an arm that did not reach the target; none of the arm that sets it."""
    if metric not in COSTS or arm == measured.panel.quality_of or not can_measure(measured, metric):
        return set()
    goal, found = _goal(measured), measured.arms.get(arm, {}).values()
    runs = chain.from_iterable(zip(one.seeds, one.histories, strict=True) for one in found)
    return {seed for seed, history in runs if history.reaching(goal) is None}


def _figure(measured: Measured, arm: str, metric: str, history: History) -> float:
    if metric == "accuracy":
        return 100 * float(history.last("accuracy") or 0.0)
    if metric == "last":
        return 100 * score(history, measured.panel.sim_seconds)
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


def score(history: History, sim_seconds: float | None = None) -> float:
    """Mean accuracy of the last rounds (100, but no more than a quarter of the run) or of the last quarter of the time.

    >>> score(History({"round": t, "accuracy": t / 8} for t in range(9)))
    0.9375
    >>> score(History({"round": t, "accuracy": t / 8, "sim_seconds": t**2} for t in range(9)), sim_seconds=64.0)
    0.9375
    """
    if sim_seconds is None:
        late = late_mean(history, "accuracy")
    else:
        first = 0.75 * sim_seconds
        found = [row["accuracy"] for row in history if row["sim_seconds"] > first and row["accuracy"] is not None]
        late = statistics.mean(found) if found else None
    return float(history.last("accuracy") or 0.0) if late is None else late
