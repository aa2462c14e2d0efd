"""Progress of a whole study: one line for all that is left, with the time it still takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich import progress
from rich.console import Console

from ...run.history import Row
from .estimate import Left
from .record import Wanted


class Progress:
    """Shows how far a study is; where the output is no terminal, a line for every run that ends."""

    def __init__(self, left: Sequence[Left], console: Console) -> None:
        self.console, self.began = console, time.monotonic()
        self.panels = {one.panel.folder: one for one in left}
        # Estimated seconds: of every run, and of the rounds that it has done.
        self.runs = {run.place: one.seconds_of(run) for one in left for run in one.runs}
        self.expected = {_line(run): run.place for one in left for run in one.runs if not _tunes(run)}
        self.spent: dict[Path, float] = {}
        self.ended: set[Path] = set()
        columns = [progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=24)]
        columns.append(progress.TextColumn("{task.fields[state]}"))
        self.bar = progress.Progress(*columns, console=console, disable=not console.is_terminal)
        self.line = self.bar.add_task("", total=max(self.total, 1e-9), state="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    @property
    def total(self) -> float:
        return sum(self.runs.values())

    @property
    def done(self) -> float:
        return sum(self.spent.values())

    def row(self, wanted: Wanted, row: Row) -> None:
        """Take in a row of a run; of runs side by side, now and then the newest."""
        one = self.panels[wanted.place.parts[0]]
        if wanted.place not in self.runs:  # an extension of a grid, or its best, for which another cell was expected
            if not _tunes(wanted) and _line(wanted) in self.expected:
                del self.runs[self.expected.pop(_line(wanted))]
            self.runs[wanted.place] = one.seconds_of(wanted)
        self.spent[wanted.place] = one.seconds_of(wanted, row["round"])
        text = f"{wanted.text} #{wanted.seed}, round {row['round']}/{one.rounds_of(wanted)}, {self._left()}"
        self.bar.update(self.line, total=self.total, completed=self.done, description=one.panel.name, state=text)
        if wanted.place not in self.ended and wanted.study.ends(row["round"], row.get("sim_seconds", 0.0)):
            self.ended.add(wanted.place)
            if not self.console.is_terminal:
                self.console.print(f"{one.panel.name}: {text}", soft_wrap=True, highlight=False)

    def _left(self) -> str:
        """The time the whole study still takes: the estimate, corrected by how long its part so far really took."""
        elapsed = time.monotonic() - self.began
        pace = elapsed / self.done if self.done > 1 else 1.0
        return f"{timedelta(seconds=round(max(0.0, self.total - self.done) * pace))} left of the study"


def _tunes(wanted: Wanted) -> bool:
    """Whether a run is one of a grid."""
    return "tuning" in wanted.place.parts


def _line(wanted: Wanted) -> tuple[str, str, int]:
    """What a reported run stands for: the panel, the arm, the seed."""
    return wanted.place.parts[0], wanted.arm, wanted.seed
