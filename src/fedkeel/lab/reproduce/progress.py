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
        self.counted: set[Path] = set()  # runs whose time is part of the total
        for one in left:
            self.counted |= {run.place for run in one.runs}
        self.panels = {one.panel.folder: one for one in left}
        self.total = sum(one.seconds for one in left)
        self.done = 0.0  # estimated seconds of the runs that have ended
        columns = [progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=24)]
        columns.append(progress.TextColumn("{task.fields[state]}"))
        self.bar = progress.Progress(*columns, console=console, disable=not console.is_terminal)
        self.line = self.bar.add_task("", total=max(self.total, 1e-9), state="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def row(self, wanted: Wanted, row: Row) -> None:
        """Take in a row of a run."""
        one = self.panels[wanted.place.parts[0]]
        if wanted.place not in self.counted:  # an extension of a grid
            self.counted.add(wanted.place)
            self.total += one.seconds_of(wanted)
        spent = self.done + one.seconds_of(wanted, row["round"])
        ended = wanted.study.ends(row["round"], row.get("sim_seconds", 0.0))
        text = f"{wanted.text} #{wanted.seed}, round {row['round']}/{one.rounds_of(wanted)}, {self._left(spent)}"
        self.bar.update(self.line, total=self.total, completed=spent, description=one.panel.name, state=text)
        if ended:
            self.done = spent
            if not self.console.is_terminal:
                self.console.print(f"{one.panel.name}: {text}", soft_wrap=True, highlight=False)

    def _left(self, spent: float) -> str:
        """The time the whole study still takes: the estimate, corrected by how long its part so far really took."""
        elapsed = time.monotonic() - self.began
        pace = elapsed / spent if spent > 1 else 1.0
        return f"{timedelta(seconds=round(max(0.0, self.total - spent) * pace))} left of the study"
