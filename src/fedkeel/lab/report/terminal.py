"""Curves and tables for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...run.history import History
from ..compare import has_time, mean_curve
from ..stats import Arm, window
from . import captions
from .verdict import METRICS, metric_of

COLOURS = (
    "cyan", "magenta", "yellow", "green", "red", "blue", "bright_cyan", "bright_magenta", "bright_yellow", "white",
)  # fmt: skip
WIDE, FULL = 80, 105  # columns of a terminal that has room for costs; for intervals and last rounds, too
CLIENTS = 21  # columns that the accuracies of clients take


def colour(number: int) -> str:
    """The colour of an arm, the same in table and curve."""
    return COLOURS[number % len(COLOURS)]


def draw(curves: Mapping[str, Sequence[History]], target: float | None = None, console: Console | None = None) -> None:
    """Mean accuracy (loss, where there is no accuracy) over rounds or simulated seconds, in braille dots."""
    console = console or Console()
    width, height = max(30, min(console.width, 110) - 9), 14
    lines = {name: points for name, histories in curves.items() if (points := mean_curve(histories))}
    if not lines:
        return
    xs, ys = zip(*chain.from_iterable(lines.values()), strict=True)
    ys += () if target is None else (target,)
    low, high, far = min(ys), max(ys), max(*xs, 1)
    high = high if high > low else low + 1
    cells: dict[tuple[int, int], tuple[int, str]] = {}

    def dot(x: float, y: float, style: str) -> None:
        column, row = round(x / far * (width * 2 - 1)), round((high - y) / (high - low) * (height * 4 - 1))
        bit = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))[row % 4][column % 2]
        bits, _ = cells.get((row // 4, column // 2), (0, ""))
        cells[row // 4, column // 2] = (bits | bit, style)

    if target is not None:
        for x in range(0, width * 2, 4):
            dot(x / (width * 2 - 1) * far, target, "dim")
    for number, points in enumerate(lines.values()):
        for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[-1]], strict=True):
            parts = max(1, round((x1 - x0) / far * width * 2), round(abs(y1 - y0) / (high - low) * height * 4))
            for i in range(parts):
                dot(x0 + (x1 - x0) * i / parts, y0 + (y1 - y0) * i / parts, colour(number))
    for row in range(height):
        value = high - (high - low) * (row * 4 + 1.5) / (height * 4 - 1)
        text = Text(f"{value:7.3f} ", style="dim")
        for column in range(width):
            bits, style = cells.get((row, column), (0, ""))
            text.append(chr(0x2800 + bits), style)
        console.print(text)
    start, end = ("0 s", f"{far:,.0f} s") if all(map(has_time, curves.values())) else ("round 0", f"{far:>6.0f}")
    console.print(Text(" " * 8 + f"{start}{end:>{max(1, width - len(start))}}", style="dim"))
    for number, name in enumerate(lines):
        console.print(Text("        ■ ", style=colour(number)) + Text(name))


def table(
    arms: Sequence[Arm], target: float | None, rounds: int, console: Console, sim_seconds: float | None = None
) -> None:
    """The comparison: how fast, how far, at what price; the first arm is what the others are measured by.

    sim_seconds: the simulated time after which the runs ended, if it was not by their rounds.
    """
    seeds = len(arms[0].histories)
    metric = metric_of(chain.from_iterable(arm.histories for arm in arms))
    arms = [replace(arm, metric=metric) for arm in arms]
    by_client = captions.has_clients(arms)
    costs = target is not None and console.width >= WIDE
    full = console.width >= FULL + (CLIENTS if by_client else 0)
    timed = all(arm.timed for arm in arms)
    in_all = timed and all(arm.never for arm in arms)  # else there are seconds to the target
    scored = metric == "accuracy"
    averaged = window(rounds) if scored and full and window(rounds) > 1 else 0  # of one round, it is the last accuracy
    averaged = 0 if timed else averaged  # there is no room for it, and rounds are of different length
    averaged = averaged if any(arm.lasts(averaged) for arm in arms) else 0
    levels = any(arm.histories[0].last("flops") is not None for arm in arms)
    sized = scored and levels  # what a part buys
    columns: dict[str, list[str]] = {}
    if target is not None:
        columns[f"to {target:g}: rounds" if costs else f"to {target:g}"] = [arm.rounds_text() for arm in arms]
        if timed and not in_all:
            columns["seconds"] = [arm.cost_text("sim_seconds", "{:,.1f}") for arm in arms]
        gains = ["", *(str(arm.speedup(arms[0])) for arm in arms[1:])]
        columns["speed-up"] = gains if full else [gain.partition(" [")[0] for gain in gains]
    if costs:
        columns["gradients"] = [arm.cost_text("gradients", "{:,.0f}") for arm in arms]
        columns["MB"] = [arm.cost_text("megabytes", "{:,.1f}") for arm in arms]
    if averaged:
        lasts = [[] if arm.diverged else arm.lasts(averaged) for arm in arms]
        columns[f"last {averaged}"] = [f"{statistics.mean(values):.4f}" if values else "-" for values in lasts]
    if in_all:
        columns["seconds in all"] = [_mean_last(arm, "sim_seconds", "{:,.1f}") for arm in arms]
    end = "at the end" if scored else f"{METRICS[metric]} at the end"
    columns[end] = [arm.final_text() for arm in arms]
    if by_client:
        columns |= {name: [_mean_last(arm, column) for arm in arms] for column, name in captions.CLIENT_HEADS.items()}
    if sized:
        for name, cost, unit in (("per MB", "bytes", 1e6), ("per TFLOP", "flops", 1e12)):
            shares = [arm.per(cost, unit) for arm in arms]
            columns[name] = ["-" if share is None else f"{share:,.3g}" for share in shares]
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    view.add_column("", width=1)
    view.add_column("algorithm", overflow="fold", min_width=16 if costs else 12)
    for name in columns:
        view.add_column(name, justify="right", no_wrap=True)
    for number, arm in enumerate(arms):
        cells = (Text(values[number]) for values in columns.values())
        view.add_row(Text("■", style=colour(number)), Text(arm.name), *cells)
    console.print(view)
    ended = f"{rounds} round{'s' if rounds != 1 else ''}" if sim_seconds is None else f"{sim_seconds:g} simulated s"
    after = f"{captions.measured(arms, metric)}, at the end after {ended}"
    notes = [f"{after}, as means over {seeds} seeds with 95 % intervals (±)" if seeds > 1 else f"{after}, of one seed"]
    notes += captions.base_rate(arms) if scored else []
    if averaged:
        notes.append(f"'last {averaged}' is the mean accuracy {_over_last(arms, averaged)}")
    if target is not None and any(arm.missed < seeds for arm in arms):
        spent = "Rounds, gradients and MB are means of" if costs else "Rounds are the mean of"
        notes.append(f"{spent} what it took to reach {target:g}")
        if timed:
            notes.append("Seconds are simulated, by the fleet's devices, and so is the speed-up")
    if target is not None and full and any(arm.speedup(arms[0]).ranged for arm in arms[1:]):
        notes.append("[ ] is the 95 % interval of the speed-up, from a bootstrap over pairs of seeds")
    if sized:
        notes.append("'per MB' and 'per TFLOP' divide the accuracy at the end by all traffic and all work on gradients")
    if in_all:
        notes.append("Seconds are simulated, by the fleet's devices, and those of the whole run")
    if timed:
        notes.append("Late and lost clients, of those invited: " + ", ".join(map(_missing, arms)))
    notes += captions.marks(arms)
    console.print(Text(". ".join(notes) + ".", style="dim"), soft_wrap=True)


def clients(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """The table of clients by name: their test rows, and the accuracy of every algorithm."""
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for place, name in enumerate(heads):
        view.add_column(Text(name), overflow="fold", justify="right" if place else "left")
    for row in rows:
        view.add_row(*map(Text, row))
    console.print(view)
    console.print(Text(captions.CLIENTS_ARE, style="dim"), soft_wrap=True)


def _over_last(arms: Sequence[Arm], n: int) -> str:
    late = chain.from_iterable(history[-n:] for arm in arms for history in arm.histories)
    gaps = any(row["accuracy"] is None for row in late)
    return f"over those of the last {n} rounds that were evaluated" if gaps else f"over the last {n} rounds"


def _mean_last(arm: Arm, column: str, style: str = "{:.4f}") -> str:
    mean = arm.mean_last(column)
    return "-" if mean is None else style.format(mean)


def _missing(arm: Arm) -> str:
    """How many percent of the clients that were invited were late, and lost."""
    counts = dict.fromkeys(("clients", "dropped", "late", "lost"), 0)
    for row in chain.from_iterable(arm.histories):
        counts = {name: number + row[name] for name, number in counts.items()}
    late, lost = (100 * counts[name] / max(1, sum(counts.values())) for name in ("late", "lost"))
    return f"{late:.0f} % and {lost:.0f} % in {arm.name}"


def ranks(share: Mapping[str, Mapping[str, float]], console: Console) -> None:
    """How often each algorithm is best, and among the best two, across tasks."""
    view = Table("algorithm", "tasks", "best", "best two", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name, got in sorted(share.items(), key=lambda item: (-item[1]["top1"], -item[1]["top2"])):
        shares = [f"{got[top]:.0%}" if got["tasks"] > 1 else "-" for top in ("top1", "top2")]
        view.add_row(Text(name), f"{got['tasks']}", *shares)
    console.print(view)
    text = "Share of tasks in which an algorithm has the best (one of the two best) mean accuracies at the end."
    console.print(Text(f"{text} Equal ones share a place.", style="dim"))
