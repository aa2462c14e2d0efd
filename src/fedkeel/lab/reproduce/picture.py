"""The curves of a panel as SVG: test accuracy over rounds or simulated time, mean over the seeds an arm has."""

from __future__ import annotations

import statistics
from html import escape

from ..stats import at_time, shared_rounds
from .carry_out import Measured
from .plan import Panel

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LEGEND = 800, 320, 48, 14, 36, 270
COLOURS = ("#1f6fb4", "#d1495b", "#2e933c", "#8a5fbf", "#e08e0b", "#4a4a4a", "#17a2a2", "#b5651d")  # then dashed
TIMES = 50  # points of a curve over simulated time
Point = tuple[float, float]


def curves(measured: Measured) -> str | None:
    """An SVG document; None where no arm has two evaluated rounds."""
    drawn = {name: points for name in measured.arms if len(points := _mean(measured, name)) > 1}
    if not drawn:
        return None
    every = [value for points in drawn.values() for value in points]
    last = max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    low, high = max(0.0, low - 0.02), min(1.0, high + 0.02)
    right = WIDTH - LEGEND

    def at(point: Point) -> str:
        x = LEFT + (right - LEFT) * point[0] / last
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (point[1] - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        level = low + share * (high - low)
        (x, y), (end, _), (below, _) = (at(p).split(",") for p in ((0.0, level), (last, level), (share * last, low)))
        parts.append(f'<line x1="{x}" y1="{y}" x2="{end}" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y}" dy="4" text-anchor="end" fill="#444">{100 * level:.0f}</text>')
        parts.append(f'<text x="{below}" y="{HEIGHT - 18}" text-anchor="middle" fill="#444">{share * last:.0f}</text>')
    middle, title = (LEFT + right) / 2, axis(measured.panel)
    parts.append(f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle" fill="#444">{title}</text>')
    if measured.panel.target is not None and low < measured.panel.target < high:
        both = " ".join(at((x, measured.panel.target)) for x in (0.0, last))
        parts.append(f'<polyline points="{both}" stroke="#888888" stroke-dasharray="2 3"/>')
    for place, (name, points) in enumerate(drawn.items()):
        height = TOP + 10 + 18 * place
        look = f'stroke="{COLOURS[place % len(COLOURS)]}" stroke-width="1.6" fill="none"'
        look += ' stroke-dasharray="6 3"' if place >= len(COLOURS) else ""
        parts.append(f'<polyline {look} points="{" ".join(map(at, points))}"/>')
        parts.append(f'<line x1="{right + 14}" y1="{height}" x2="{right + 38}" y2="{height}" {look}/>')
        parts.append(f'<text x="{right + 44}" y="{height + 4}" fill="#222">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def axis(panel: Panel) -> str:
    """What the curves of a panel are drawn over."""
    return "round" if panel.sim_seconds is None else "simulated seconds"


def _mean(measured: Measured, name: str) -> list[Point]:
    histories, end = measured.histories(name), measured.panel.sim_seconds
    if end is not None:  # rounds of asynchronous runs differ from seed to seed
        points = []
        for time in (end * part / TIMES for part in range(TIMES + 1)):
            values = [at_time(history, "accuracy", time) for history in histories]
            points.append((time, statistics.mean(value for value in values if value is not None)))
        return points
    # Of the last rounds, which are all evaluated, a point is the mean since the one before it: single rounds jump.
    every = measured.panel.eval_every if isinstance(measured.panel.eval_every, int) else 1
    means: dict[int, list[float]] = {}
    for r, rows in shared_rounds(histories, "accuracy").items():
        means.setdefault(min(-(-r // every) * every, measured.panel.rounds), []).append(
            statistics.mean(row["accuracy"] for row in rows)
        )
    return [(float(r), statistics.mean(values)) for r, values in means.items()]
