"""One live line per run; silent when nobody watches a terminal."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from ...engine.kernels import HINT
from ...run.history import Row
from ..stats import amount
from ..study import Study


class _Pace(ProgressColumn):
    """Rounds per second, and the time left."""

    def render(self, task: Task) -> Text:
        pace, left = task.fields["pace"], (task.total or 0) - task.completed
        eta = f", {left / pace:.0f} s left" if pace and not task.finished else ""
        return Text(f"{pace:6.1f} rounds/s{eta}", "dim")


class Watching:
    """Shows the rows of a study's runs as they come."""

    def __init__(self, study: Study, console: Console, verbose: bool) -> None:
        self.study, self.console, self.verbose = study, console, verbose
        self.live = console.is_terminal
        self.lines: dict[tuple[str, int], TaskID] = {}
        self.began_at: dict[tuple[str, int], tuple[float, int]] = {}
        self.best: dict[tuple[str, int], float] = {}
        self.described: set[str] = set()
        self.has_kernels = False  # a run would be faster with --compile
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.fields[state]}"), _Pace(),
            console=console, auto_refresh=self.live, disable=not self.live,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.progress.stop()

    def began(self, config: dict[str, Any]) -> None:
        """Say once per algorithm what was chosen."""
        self.has_kernels |= HINT in config.get("engine_reason", "")
        if self.verbose and config["algorithm"] not in self.described:
            self.described.add(config["algorithm"])
            client, server = config["parameters"]["client"], config["parameters"]["server"]
            chosen = (
                f"client {_short(client)}, server {_short(server)}, weights {config['parameters']['weights']['name']}"
            )
            self.console.print(
                f"{config['algorithm']}: {chosen}; batch {config['batch_size']}, budget {config['world']['budget']}; "
                f"engine {config['engine']} in chunks of {config['chunk']}: {config.get('engine_reason', '')}",
                style="dim",
                soft_wrap=True,
                highlight=False,
            )

    def row(self, algorithm: str, seed: int, row: Row) -> None:
        """Take in a history row."""
        key, now = (algorithm, seed), time.perf_counter()
        if key not in self.lines:
            name = f"{algorithm} #{seed}" if len(self.study.seeds) > 1 else algorithm
            self.lines[key] = self.progress.add_task(name, total=self.study.rounds, state="", pace=0.0)
            self.began_at[key] = (now, row["round"])
        if row["accuracy"] is not None:
            self.best[key] = max(row["accuracy"], self.best.get(key, 0.0))
        score = f"{row['accuracy']:.3f}" if row["accuracy"] is not None else "  -  "
        best = f"best {self.best[key]:.3f}" if key in self.best else ""
        dropped = f"  {row['dropped']} dropped" if row.get("dropped") else ""
        begin, start = self.began_at[key]
        pace = (row["round"] - start) / (now - begin) if now > begin else 0.0
        state = f"{row['round']:>4}/{self.study.rounds} {score} {best} {amount(row, 'megabytes'):8.1f} MB{dropped}"
        self.progress.update(self.lines[key], completed=row["round"], state=state, pace=pace)


def _short(values: dict[str, Any]) -> str:
    rest = {k: v for k, v in values.items() if k != "name" and v not in (None, False, 0.0)}
    settings = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in rest.items())
    return f"{values['name']}({', '.join(settings)})"
