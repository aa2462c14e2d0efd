"""The outcome of a sweep: a heat map of two keys, bars of one, a list of more; and how sure the best is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...errors import InputError, MissingExtra, is_number
from ..stats import interval
from ..sweep.grid import BY, LESS, Choice, Scored, written

BAR, LISTED = 40, 12  # characters of the longest bar, lines of the longest list


def draw(choice: Choice, console: Console) -> None:
    """Show all cells and the verdict."""
    keys = choice.grid.keys
    console.print(Text(f"{BY[choice.by]}, mean over seeds; * is the best", style="dim"))
    if len(keys) == 2 and not choice.grid.ranges:
        console.print(_map(choice))
    else:
        console.print(_list(choice))
    for line in verdict(choice):
        console.print(Text(line), soft_wrap=True)


def verdict(choice: Choice) -> list[str]:
    """The best cell, whether the runner-up differs clearly from it, and a warning at the edge of the grid."""
    best = choice.best
    if best is None or best.values is None:
        return [f"No cell has a number: {', '.join(sorted({one.word for one in choice.ranked}))}."]
    half = interval(best.values)
    style = ".1f" if choice.by == "test_rounds" else ".4f"
    lines = [f"Best: {best.arm.name}  {best.word}" + (f" ± {half:{style}} (95 %)" if half is not None else "")]
    if choice.runner_up is not None:
        answer = {
            True: "clearly different from the best (95 %)",
            False: "not clearly different from the best (95 %)",
            None: "with one seed there is no interval to compare it with the best",
        }[choice.told_apart]
        lines.append(f"Runner-up: {choice.runner_up.arm.name}  {choice.runner_up.word}, {answer}.")
    if choice.on_edge:
        lines.append(f"Warning: the best lies on the grid's edge in {', '.join(choice.on_edge)}; widen the grid.")
    if choice.by.startswith("test_"):
        lines.append("Chosen on test data: the best cell's test accuracy is too good. Report new seeds, or use --by.")
    return lines


def _order(value: Any) -> tuple[bool, Any, str]:
    """Sorts numbers by their size, then the rest."""
    return not is_number(value), value if is_number(value) else 0, str(value)


def _values(choice: Choice, place: int) -> list[Any]:
    return sorted(dict.fromkeys(one.cell[place] for one in choice.ranked), key=_order)


def _cell(choice: Choice, one: Scored | None) -> Text:
    """A cell's number on a blue that is the darker the better it is."""
    if one is None:
        return Text("")
    if one.mean is None:
        return Text(f"{one.word} ", style="dim")
    means = [other.mean for other in choice.ranked if other.mean is not None]
    share = (one.mean - min(means)) / ((max(means) - min(means)) or 1.0)
    heat = 1 - share if choice.by in LESS else share
    blue = f"rgb({round(235 - 205 * heat)},{round(243 - 143 * heat)},{round(250 - 60 * heat)})"
    mark = "*" if one is choice.best else " "
    return Text(f" {one.word}{mark}", style=f"{'white' if heat > 0.5 else 'black'} on {blue}")


def _map(choice: Choice) -> Table:
    rows, columns = _values(choice, 0), _values(choice, 1)
    at = {(written(one.cell[0]), written(one.cell[1])): one for one in choice.ranked}
    view = Table(box=None, padding=(0, 1, 0, 0))
    view.add_column(f"{choice.grid.keys[0]} \\ {choice.grid.keys[1]}", justify="right")
    for column in columns:
        view.add_column(written(column), justify="right", no_wrap=True)
    for row in rows:
        cells = (_cell(choice, at.get((written(row), written(column)))) for column in columns)
        view.add_row(Text(written(row), style="bold"), *cells)
    return view


def _list(choice: Choice) -> Table:
    """One cell below the other with its bar: of one key all in its order, of several keys the best."""
    keys = choice.grid.keys
    view = Table(*keys, "", "", box=None, padding=(0, 1, 0, 0))
    top = max(one.mean or 0.0 for one in choice.ranked) or 1.0
    shown = sorted(choice.ranked, key=lambda one: _order(one.cell[0])) if len(keys) == 1 else choice.ranked[:LISTED]
    for one in shown:
        bar = Text("█" * round(BAR * (one.mean or 0.0) / top), style="cyan")
        view.add_row(*(Text(written(value), style="bold") for value in one.cell), _cell(choice, one), bar)
    if len(shown) < len(choice.ranked):
        view.add_row(Text(f"and {len(choice.ranked) - len(shown)} more", style="dim"))
    return view


def save(choice: Choice, file: Path) -> None:
    """Write the heat map (one key: a line) as a picture."""
    figure = figures().Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    keys, means = choice.grid.keys, {tuple(map(written, one.cell)): one.mean for one in choice.ranked}
    first = _values(choice, 0)
    if len(keys) == 1:
        points = [(written(v), mean) for v in first if (mean := means[(written(v),)]) is not None]
        axes.plot([name for name, _ in points], [mean for _, mean in points], marker="o")
        axes.set(xlabel=keys[0], ylabel=BY[choice.by])
    else:
        second = _values(choice, 1)
        rows = [[means.get((written(a), written(b))) for b in second] for a in first]
        grid = np.array(rows, dtype=np.float64)  # None becomes nan, which is not drawn
        colours = "Blues_r" if choice.by in LESS else "Blues"
        figure.colorbar(axes.imshow(grid, aspect="auto", cmap=colours), ax=axes, label=BY[choice.by])
        axes.set(xlabel=keys[1], ylabel=keys[0])
        axes.set_xticks(range(len(second)), [written(v) for v in second])
        axes.set_yticks(range(len(first)), [written(v) for v in first])
    axes.set_title(choice.grid.base)
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot write {file}: {error}.") from error


def figures() -> Any:
    """matplotlib's figures; asked for before a sweep as well, so that a missing one is known before hours of work."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "Writing a picture") from error
