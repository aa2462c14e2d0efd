"""Curves of comparisons as figures for papers (matplotlib, the extra `plot`): PDF, PNG or SVG."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import InputError, check, unknown
from ...files import writing
from ...run.history import History
from ..stats import Arm, amount, columns, number, shared_rounds, t975
from . import captions
from .heatmap import figures
from .runs import all_runs
from .verdict import METRICS

X = {"rounds": "communication rounds", "gradients": "gradients computed", "MB": "MB sent", "seconds": "seconds"}
KINDS = ("pdf", "png", "svg")
# Okabe and Ito's colours, which people with colour-blindness can tell apart; without yellow, which is pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Every arm has a dash of its own, so that equal curves show each other; eight, because seven colours repeat.
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1.4, 2)), (0, (2.6, 1.4)), (0, (6, 2, 1.4, 2, 1.4, 2)), (0, (9, 3)),
    (0, (3, 1.4, 1.4, 1.4)),
)  # fmt: skip
BANDS = ("95", "minmax", "none")  # the interval of the mean, the lowest and the highest seed, nothing
STYLE = {
    "font.size": 9, "axes.labelsize": 9, "legend.fontsize": 8, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.linewidth": 0.7,
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedkeel",
}  # fmt: skip
POINTS = 1000  # of a curve
PANEL = (4.6, 3.1)  # inches
TITLE = 64  # characters above a panel


def save(comparisons: Sequence[Any], file: Path, x: str = "rounds", y: str | None = None, band: str = BANDS[0]) -> None:
    """Write the curves of comparisons, a panel for each, as a picture of the kind that the file's name ends in."""
    kind = file.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise InputError(f"A figure is written as .pdf, .png or .svg. Got {file.name!r} instead.")
    try:
        with writing(file) as beside:
            _write(comparisons, beside, kind, x, y, band)
    except OSError as error:
        raise InputError(f"Cannot write {file}: {error.strerror}.") from error


def as_svg(comparisons: Sequence[Any], x: str = "rounds", y: str | None = None) -> str:
    """The same as the text of an SVG element."""
    out = io.BytesIO()
    _write(comparisons, out, "svg", x, y, BANDS[0])
    text = out.getvalue().decode()
    return text[text.index("<svg") :]


def _write(comparisons: Sequence[Any], out: IO[bytes] | Path, kind: str, x: str, y: str | None, band: str) -> None:
    if x not in X:
        raise unknown("x of a figure", str(x), X)
    check(band in BANDS, "a figure", "band", f"one of {', '.join(BANDS)}", band)
    kinds = figures()
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}  # the same curves give the same file
    with importlib.import_module("matplotlib").rc_context(STYLE):
        figure = kinds.Figure(figsize=(PANEL[0] * len(comparisons), PANEL[1]), layout="constrained")
        panels = figure.subplots(1, len(comparisons), squeeze=False)[0]
        names: dict[str, Any] = {}
        for comparison, axes in zip(comparisons, panels, strict=True):
            _panel(comparison, axes, x, y, band, names)
            axes.set_title(shortened(comparison.title, TITLE), fontsize=9)
        across = max(1, min(len(names), int(PANEL[0] * len(comparisons) * 15 / (max(map(len, names)) + 8))))
        figure.legend(names.values(), names, loc="outside lower center", ncols=across, frameon=False, handlelength=3.2)
        figure.savefig(out, format=kind, dpi=300, metadata=undated.get(kind))


def _panel(comparison: Any, axes: Any, x: str, y: str | None, band: str, names: dict[str, Any]) -> None:
    """One comparison's curves; `names` collects a line for each name of the legend, the same in all panels."""
    known = columns(run.history for run in all_runs(comparison.groups))
    column = comparison.numbers.metric if y is None else y
    check(column in known, "a figure", "y", f"a column of the histories: {', '.join(known)}", y)
    simulated = all(number(run.history[-1].get("sim_seconds")) is not None for run in all_runs(comparison.groups))
    axis = {"rounds": "round", "MB": "megabytes", "seconds": "sim_seconds" if simulated else "wall_seconds"}.get(x, x)
    for group in comparison.groups:
        points = curves([run.history for run in group.complete], column, axis)
        if points is None:
            continue
        place = list(names).index(group.name) if group.name in names else len(names)
        look = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
        xs, values = points
        (line,) = axes.plot(xs, values.mean(1), linewidth=1.3, marker="o" if len(xs) == 1 else None, **look)
        names.setdefault(group.name, line)
        if (ends := band_of(values, band)) is not None:
            if column == "accuracy" and 0 <= values.min() <= values.max() <= 1:  # an interval may leave the range
                ends = ends[0].clip(0, 1), ends[1].clip(0, 1)
            faint = min(0.14, 0.3 / len(comparison.groups))
            axes.fill_between(xs, *ends, color=look["color"], alpha=faint, linewidth=0)
    target = comparison.target if column == "accuracy" else None
    if target is not None:
        axes.axhline(target, color="#777777", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.9)
        above = {"xytext": (3, 2), "textcoords": "offset points", "ha": "left", "fontsize": 7, "color": "#555555"}
        axes.annotate(f"target {target:g}", (0, target), xycoords=axes.get_yaxis_transform(), **above)
    axes.margins(x=0.01)
    seconds = "simulated seconds" if simulated else "seconds of computing"
    axes.set_xlabel(seconds if x == "seconds" else X[x])
    what = _what(column, comparison.arms)
    axes.set_ylabel(what, fontsize=8 if "\n" in what else 9)
    axes.xaxis.set_major_formatter(_short)  # matplotlib makes a formatter of a function


def _what(column: str, arms: Sequence[Arm]) -> str:
    """A column at its axis; in a second line, that only some of the test samples were drawn."""
    name, drawn = METRICS.get(column, column.replace("_", " ")), captions.tested(arms)
    on_test = column in ("accuracy", "loss") and drawn != captions.WHOLE
    return f"{name}\n{drawn}" if on_test else name


def shortened(text: str, most: int) -> str:
    """
    >>> shortened("csv:file=patients.csv", 12)
    'csv:file=pa…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _short(value: float, place: int | None = None) -> str:
    """A number at a tick of the axis.

    >>> _short(0.25), _short(2500), _short(25000), _short(2.5e6)
    ('0.25', '2500', '25k', '2.5M')
    """
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def curves(histories: Sequence[History], column: str, axis: str) -> tuple[Any, Any] | None:
    """(cost, values by seed) at rounds for which every seed has a value; None where there is nothing to draw.

    The cost is the mean over seeds. Over simulated seconds, seeds are compared at equal times: a value is that of the
    last evaluation until then.

    >>> rows = [History([{"round": 0, "accuracy": a}, {"round": 1, "accuracy": a + 0.5}]) for a in (0.1, 0.2)]
    >>> [values.round(3).tolist() for values in curves(rows, "accuracy", "round")]
    [[0.0, 1.0], [[0.1, 0.2], [0.6, 0.7]]]
    """
    if axis == "sim_seconds":
        return _over_time(histories, column)
    shared = list(shared_rounds(histories, column).values())
    kept = [shared[int(i)] for i in np.linspace(0, len(shared) - 1, min(POINTS, len(shared))).round()]
    costs = [[number(amount(row, axis)) for row in rows] for rows in kept]
    known = [k for k, some in enumerate(costs) if None not in some]
    if not known:
        return None
    xs = np.array([costs[k] for k in known], dtype=np.float64).mean(1)
    return xs, np.array([[row[column] for row in kept[k]] for k in known], dtype=np.float64)


def _over_time(histories: Sequence[History], column: str) -> tuple[Any, Any] | None:
    """The same at equal distances in simulated time, from the first to the last time that all seeds have reached."""
    known = [[row for row in history if number(row.get(column)) is not None] for history in histories]
    if not all(known):
        return None
    times = [np.array([row["sim_seconds"] for row in rows], dtype=np.float64) for rows in known]
    last = min(float(history[-1]["sim_seconds"]) for history in histories)
    xs = np.linspace(max(float(own[0]) for own in times), last, POINTS)
    values = np.empty((POINTS, len(known)))
    for place, (rows, own) in enumerate(zip(known, times, strict=True)):
        scores = np.array([row[column] for row in rows], dtype=np.float64)
        values[:, place] = scores[np.searchsorted(own, xs, side="right") - 1]
    return xs, values


def band_of(values: Any, kind: str) -> tuple[Any, Any] | None:
    """The ends of a band of this kind around the mean over seeds; None where there is none, as of one seed.

    >>> values = np.array([[0.1, 0.2, 0.3]])
    >>> [ends.round(3).tolist() for kind in BANDS[:2] for ends in band_of(values, kind)], band_of(values, "none")
    ([[-0.048], [0.448], [0.1], [0.3]], None)
    """
    n = values.shape[1]
    if n < 2 or kind == "none":
        return None
    if kind == "minmax":
        return values.min(1), values.max(1)
    mean, half = values.mean(1), t975(n - 1) * values.std(1, ddof=1) / math.sqrt(n)
    return mean - half, mean + half
