"""What the data are and one live line per run; silent where the output is no terminal, but for what -v asks for."""

from __future__ import annotations

from typing import Any

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
        eta = f", {task.time_remaining:.0f} s left" if task.time_remaining else ""
        return Text(f"{task.finished_speed or task.speed or 0.0:6.1f} rounds/s{eta}", "dim")


class Watching(Progress):
    """Shows the rows of a study's runs as they come."""

    def __init__(self, study: Study, console: Console, verbose: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.fields[state]}"), _Pace(),
            console=console, auto_refresh=console.is_terminal, disable=not console.is_terminal,
        )  # fmt: skip
        self.study, self.verbose = study, verbose
        self.lines: dict[tuple[str, int], TaskID] = {}
        self.best: dict[tuple[str, int], float] = {}
        self.described: set[str] = set()
        self.begun = False
        self.has_kernels = False  # a run would be faster with --compile

    def began(self, config: dict[str, Any]) -> None:
        """Say once what the data are and, with -v, once per algorithm what was chosen."""
        wanted = self.verbose or self.console.is_terminal
        if wanted and not self.begun and "data" in config:  # missing in run directories of earlier versions
            head = f"{config['task']}: {config['data']}"
            self.console.print(head, style="dim", soft_wrap=True, highlight=False, markup=False)
        self.begun = True
        self.has_kernels |= HINT in config.get("engine_reason", "")
        deadline, seconds = config.get("world", {}).get("deadline"), config.get("deadline_seconds")
        if isinstance(deadline, str) and (said := f"seed {config['seed']}: {deadline}") not in self.described:
            self.described.add(said)
            text = f"The deadline of seed {config['seed']} is {seconds:.4g} simulated seconds ({deadline} of FedAvg's)."
            self.console.print(text, style="dim", soft_wrap=True, highlight=False)
        if self.verbose and config["algorithm"] not in self.described:
            self.described.add(config["algorithm"])
            parameters = config["parameters"]
            client, server = _short(parameters["client"]), _short(parameters["server"])
            chosen = f"client {client}, server {server}, weights {parameters['weights']['name']}"
            self.console.print(
                f"{config['algorithm']}: {chosen}; batch {config['batch_size']}, budget {config['world']['budget']}; "
                f"engine {config['engine']} in chunks of {config['chunk']}: {config.get('engine_reason', '')}",
                style="dim",
                soft_wrap=True,
                highlight=False,
            )

    def price(self, algorithm: str, row: Row) -> None:
        """Say once per algorithm, after its first diagnosis, what one costs."""
        if not row.get("diagnostic_gradients") or (said := f"diagnosis of {algorithm}") in self.described:
            return
        self.described.add(said)
        training = row["gradients"] / row["round"]
        text = f"A {said} takes {row['diagnostic_gradients']:,} gradients, a round of its training {training:,.0f}."
        self.console.print(text, style="dim", soft_wrap=True, highlight=False, markup=False)

    def row(self, algorithm: str, seed: int, row: Row) -> None:
        """Take in a history row."""
        self.price(algorithm, row)
        key = (algorithm, seed)
        if key not in self.lines:
            name = f"{algorithm} #{seed}" if len(self.study.seeds) > 1 else algorithm
            self.lines[key] = self.add_task(name, total=self.study.sim_seconds or self.study.rounds, state="")
        if row["accuracy"] is not None:
            self.best[key] = max(row["accuracy"], self.best.get(key, 0.0))
        score = f"{row['accuracy']:.3f}" if row["accuracy"] is not None else "  -  "
        best = f"best {self.best[key]:.3f}" if key in self.best else ""
        missing = "".join(f"  {row[name]} {name}" for name in ("dropped", "late", "lost") if row.get(name))
        end = self.study.sim_seconds
        place = f"{row['round']:>4}/{self.study.rounds}" if end is None else f"{row['sim_seconds']:,.0f}/{end:g} s"
        state = f"{place} {score} {best} {amount(row, 'megabytes'):8.1f} MB{missing}"
        self.update(self.lines[key], completed=row["round" if end is None else "sim_seconds"], state=state)


def _short(values: dict[str, Any]) -> str:
    rest = {k: v for k, v in values.items() if k != "name" and v not in (None, False, 0.0)}
    settings = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in rest.items())
    return f"{values['name']}({', '.join(settings)})"
