"""What `--diagnose` found, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...run.history import History
from ..diagnose import COLUMNS, means


def diagnosis(arms: dict[str, Sequence[History]], console: Console) -> None:
    """A line for each measure, a column for each algorithm; nothing for runs without a diagnosis."""
    measured = {name: means(histories) for name, histories in arms.items()}
    if not any(measured.values()):
        return
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    view.add_column("diagnosis", no_wrap=True)
    for name in measured:
        view.add_column(Text(name), justify="right", overflow="fold")
    for column in COLUMNS:
        if any(column in values for values in measured.values()):
            cells = [f"{values[column]:.4g}" if column in values else "-" for values in measured.values()]
            view.add_row(column, *cells)
    console.print(view)
    console.print(Text("Means over diagnosed rounds and seeds; docs/diagnostics.md says what they mean.", style="dim"))
