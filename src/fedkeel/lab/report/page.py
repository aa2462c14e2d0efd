"""One page about runs: their data as one JSON document, and the HTML file that holds it and needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...run.history import History
from ...task import Task
from ...version import __version__
from ..stats import amount, columns, number, shared_rounds
from ..trackers import settings
from . import captions, replay, verdict
from .runs import Group, Ran, Reader, all_runs, not_started

TUNED = ("lr", "epochs", "batch_size", "h", "phi")
SPREAD = ("lr_min", "lr_median", "lr_max", "skipped")
STEPS = {"lr_min", "lr_median", "lr_max"}
AXIS_COLUMNS = ("round", "gradients", "bytes_down", "bytes_up", "sim_seconds")
PAGE = [Path(__file__).with_name(f"page.{kind}") for kind in ("html", "js", "css")]
POINTS = 400  # per curve; a screen shows no more
AXES = ("round", "gradients", "megabytes", "sim_seconds")

Document = dict[str, Any]


def document(
    groups: Sequence[Group],
    replays: bool = True,
    waiting: Sequence[verdict.Planned] = (),
    task: Task | None = None,
) -> Document:
    """Everything the page shows. Without `replays` the panels about clients say that they come later.

    waiting: runs that are planned and have not started; there is no verdict before they have ended. task: of runs
    whose configuration does not name it.
    """
    names = sorted({str(run.config["task"]) for run in all_runs(groups)})
    if len(names) > 1:
        raise InputError(f"These runs are of different tasks ({', '.join(names)}); make a report for each.")
    compared = verdict.compare(groups)
    said, ready = verdict.in_words(compared), verdict.comparable(groups, waiting)
    if not ready:
        said |= verdict.standing(groups, waiting)
    said["warnings"] += _unequal(groups)
    later = {"why": "Shown when all runs have ended."}
    clients = replay.panels(list(groups), task) if replays else dict.fromkeys(replay.PANELS, later)
    if replays and not ready and len(groups) > 1:
        clients["accuracies"] = {"why": "Shown when the models of all arms have trained for equally many rounds."}
    machines = (settings(run.environment) for run in all_runs(groups))
    return {
        "title": f"fedkeel: {names[0]}",
        "task": names[0],
        "data": next((run.config["data"] for run in all_runs(groups) if "data" in run.config), ""),
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "fedkeel": __version__,
        "metric": compared.metric,
        "target": compared.target if compared.unreached is None else compared.unreached,
        "counted": compared.target is not None,  # costs are those to the target
        "verdict": said,
        "drawn": "" if (drawn := captions.tested(compared.arms)) == captions.WHOLE else f" {drawn}",
        "table": verdict.table(compared),
        "versus": verdict.versus(compared) if ready else [],
        "arms": [_arm(group) for group in groups],
        **_columns(groups),
        "clients": clients,
        "configuration": _configuration(groups),
        "environment": list({str(known): known for known in machines if known}.values()),
        "runs": list(chain.from_iterable(map(_progress, groups))),
        "waiting": len(waiting),
    }


def _unequal(groups: Sequence[Group]) -> list[str]:
    """Settings apart from the algorithm in which arms differ: then not only the algorithm is compared."""
    lines = []
    names = ("cohort", "budget", "expected_steps", "sampler", "rounds", "batch_size", "dtype", "target", "eval_samples",
             "eval_every", "fleet", "deadline", "late", "invite", "sim_seconds")  # fmt: skip
    for name in names:
        values = [g.runs[0].config["world"].get(name, g.runs[0].config.get(name)) for g in groups]
        if len({json.dumps(value, sort_keys=True) for value in values}) > 1:
            each = ", ".join(f"{value} in {group.name}" for group, value in zip(groups, values, strict=True))
            lines.append(f"The arms differ in more than the algorithm: {name} is {each}.")
    return lines


def _arm(group: Group) -> Document:
    """Curves of every column: over the seeds that have ended, and one by one of those on their way."""
    found = columns(run.history for run in group.runs)

    def curves(runs: Sequence[Ran]) -> Document:
        return {name: made for name in found if (made := curve([run.history for run in runs], name))}

    running = [{"seed": run.config["seed"], "curves": curves([run])} for run in group.runs if not run.complete]
    ended = group.complete
    return {"name": group.name, "seeds": len(ended), "curves": curves(ended), "running": running}


def curve(histories: Sequence[History], column: str) -> dict[str, list[float | None]] | None:
    """Mean, least and largest value over seeds, at rounds for which every seed has one; None without any.

    >>> curve([History([{"round": 0, "h": 1}, {"round": 1, "h": 3}]), History([{"round": 1, "h": 5}])], "h")["mean"]
    [4.0]
    """
    shared = shared_rounds(histories, column)
    if not shared:
        return None
    spread = np.linspace(0, len(shared) - 1, min(POINTS, len(shared))).round()  # with the first and the last
    rounds = list(shared)
    kept = [shared[rounds[int(i)]] for i in spread]
    made = {axis: [_short([number(amount(row, axis)) for row in rows]) for rows in kept] for axis in AXES}
    if all(value is None for value in made["sim_seconds"]):
        del made["sim_seconds"]
    found = [[float(row[column]) for row in rows] for rows in kept]
    made["mean"] = [_short(values) for values in found]
    if len(histories) > 1:
        made |= {"low": [_short(values, min) for values in found], "high": [_short(values, max) for values in found]}
    return made


def _short(values: Sequence[float | None], take: Callable[[list[float]], float] = statistics.mean) -> float | None:
    """The mean (or what `take` takes) to six digits; None where one of them is missing."""
    known = [value for value in values if value is not None]
    return float(f"{take(known):.6g}") if len(known) == len(values) else None


def _columns(groups: Sequence[Group]) -> Document:
    """Which columns are drawn in which part of the page, and the values of those that have nothing to draw.

    columns: those that change over rounds. constant: those that do not, or have a single round, with a value for each
    arm. same: those that are one number in all arms. Every number of the histories is in one of them.
    """
    found = columns(run.history for run in all_runs(groups))
    free = [name for name in found if name not in (*verdict.METRICS, *AXIS_COLUMNS)]
    fixed = {name: values for name in free if (values := _constant(groups, name)) is not None}
    if not fixed.keys() >= STEPS:  # drawn together
        fixed = {name: values for name, values in fixed.items() if name not in STEPS}
    same = {n: v[0] for n, v in fixed.items() if len(set(v)) == 1}
    constant = {name: values for name, values in fixed.items() if name not in same}
    drawn = [name for name in found if name not in fixed]
    scores = [n for n in verdict.METRICS if n in drawn] + [n for n in drawn if n.startswith(("accuracy_", "loss_"))]
    kinds = {"scores": scores, "tuned": [n for n in TUNED if n in drawn], "spread": [n for n in SPREAD if n in drawn]}
    kinds["more"] = [n for n in drawn if n not in {*AXIS_COLUMNS, *chain.from_iterable(kinds.values())}]
    return {"columns": kinds, "constant": constant, "same": same}


def _constant(groups: Sequence[Group], name: str) -> list[float | None] | None:
    """A column's value for each arm (mean over seeds) where no run has two; None where one has, so that it is drawn.

    Row 0 is before the first round; where a column goes on after it, what it says there is not looked at.
    """
    means: list[float | None] = []
    for group in groups:
        values: list[float] = []
        for run in group.runs:
            known = [(row["round"], v) for row in run.history if (v := number(row.get(name))) is not None]
            later = {v for t, v in known if t > 0} or {v for _, v in known}
            if len(later) > 1:
                return None
            values += later
        means.append(statistics.mean(values) if values else None)
    return means


def _configuration(groups: Sequence[Group]) -> Document:
    """What all runs share, and what is an arm's own."""
    flat = [settings(group.runs[0].config) for group in groups]
    flat = [{n: v for n, v in one.items() if n not in ("seed", "algorithm", "fedkeel")} for one in flat]
    shared = {n: v for n, v in flat[0].items() if all(one.get(n) == v for one in flat)}
    own = [{n: v for n, v in one.items() if n not in shared} for one in flat]
    return {
        "shared": shared,
        "arms": [
            {"name": group.name, "algorithm": group.runs[0].name,
             "seeds": [run.config["seed"] for run in group.runs], "place": str(group.runs[0].place), "own": values}
            for group, values in zip(groups, own, strict=True)
        ],
    }  # fmt: skip


def _progress(group: Group) -> list[Document]:
    """How far each run is, for the live page."""
    lines = []
    for run in group.runs:
        row = run.history[-1]
        scores = [value for r in run.history if (value := number(r.get("accuracy"))) is not None]
        wall, limit = number(row.get("wall_seconds")), number(run.config.get("sim_seconds"))
        pace = row["round"] / wall if wall else None
        done = row["round"] / run.config["rounds"] if limit is None else min(1.0, row["sim_seconds"] / limit)
        lines.append({
            "name": group.name, "seed": run.config["seed"], "status": run.status, "round": row["round"],
            "rounds": run.config["rounds"], "accuracy": scores[-1] if scores else None,
            "best": max(scores, default=None), "megabytes": amount(row, "megabytes"),
            "pace": pace, "left": wall * (1 - done) / done if wall and done else None, "done": done,
            **({} if (now := number(row.get("sim_seconds"))) is None else {"sim_seconds": now, "limit": limit}),
            **{name: sum(int(number(r.get(name)) or 0) for r in run.history) for name in ("dropped", "late", "lost")},
        })  # fmt: skip
    return lines


def as_json(made: Document) -> str:
    """JSON that stays data inside an HTML page, whatever a name in it looks like.

    Numbers that JSON does not know become null.

    >>> as_json({"name": "</script>", "loss": [float("nan"), 1.5]})
    '{"name": "\\\\u003c/script\\\\u003e", "loss": [null, 1.5]}'
    """
    text = json.dumps(json.loads(json.dumps(made), parse_constant=lambda name: None))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def as_html(made: Document, live: bool = False) -> str:
    """The page, whole: style, script and data inside. Only our own script may run in it, and nothing is fetched."""
    page, script, style = (file.read_text(encoding="utf-8") for file in PAGE)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'"
    parts = {
        "policy": policy + ("; connect-src 'self'" if live else ""),
        "title": html.escape(made["title"]),
        "style": style,
        "script": script,
        "data": as_json({**made, "live": live}),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)


def read(folders: Sequence[Path]) -> Document:
    """The document of these runs.

    >>> import tempfile, fedkeel as fk
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = fk.train(fk.tasks.synthetic(users=5), "fedavg", rounds=2, checkpoint=folder)
    ...     read([Path(folder)])["arms"][0]["name"]
    'fedavg'
    """
    groups = Reader().read(folders)
    if not groups:
        raise InputError(f"There is no run with a history in {', '.join(map(str, folders))}.")
    return document(groups, waiting=not_started(folders))
