"""Fleets in the terminal: who is how fast, how long a round takes, and who would be late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...messages import Broadcast, Work
from ...run.dry_run import asked_of_all, first_clock, with_budget
from ...run.facts import are_cut
from ...task import Task
from ...world import World
from ...world.clock import Clock
from ...world.devices import FIGURES, FLEETS, SOURCES, Fleet, Floats

SHARES = (0, 10, 50, 80, 90, 99, 100)
BARS, WIDE = 12, 46
NAMED = 10  # clients that a deadline cuts


def names(console: Console) -> None:
    """The named fleets with their figures."""
    view = _table("fleet", *(figure.name for figure in FIGURES))
    for name, fleet in FLEETS.items():
        view.add_row(name, *(str(getattr(fleet, figure.name)) for figure in FIGURES))
    console.print(view)
    text = (
        "seconds: per gradient of one sample; down, up: Mbit/s; latency: seconds. Each can be changed, for example "
        "phones:dropout=0. fedkeel world show FLEET shows one, with sources."
    )
    console.print(Text(text, style="dim"), soft_wrap=True)


def devices(world: World, clients: int, seed: int, console: Console) -> None:
    """A fleet's figures with their sources, and the devices that are drawn for so many clients."""
    fleet = world.fleet
    assert fleet is not None and not isinstance(fleet, str)
    name = str(fleet).partition(":")[0]
    if isinstance(fleet, Fleet):
        view = _table("figure", "value", "source")
        for figure in ("distribution", *(one.name for one in FIGURES)):
            value, known = getattr(fleet, figure), FLEETS.get(name)
            source = SOURCES.get(name, {}).get(figure, "") if known and getattr(known, figure) == value else "as given"
            view.add_row(figure, str(value), Text(source))
        console.print(view)
    profiles = fleet.profiles(clients, seed)
    view = _table(f"{clients:,} clients", "fastest", *(f"{share} %" for share in SHARES[1:-1]), "slowest")
    columns = {
        "seconds per sample": profiles.seconds,
        "seconds to receive 1 MB": 1e6 / profiles.down,
        "seconds to send 1 MB": 1e6 / profiles.up,
    }
    for title, column in columns.items():
        view.add_row(title, *(f"{value:.3g}" for value in np.percentile(column, SHARES)))
    console.print(view)
    text = f"So many percent of the clients are as fast as this, or faster. Drawn with seed {seed}."
    console.print(Text(text, style="dim"), soft_wrap=True)


def rounds(world: World, task: Task, seed: int, console: Console) -> None:
    """How long FedAvg's round takes each client, and who would be late."""
    world = with_budget(world, task)
    clock = first_clock(task, replace(world, deadline=world.deadline or "p100"), seed, task.batch_size)
    work, broadcast = asked_of_all(task, world, seed, task.batch_size)
    free = replace(clock, deadline=None)
    seconds = free.trips(broadcast, work).seconds
    console.print(Text(f"\nA round of FedAvg on {task.name}, budget {world.budget}:", style="bold"))
    view = _table("seconds", "fastest", *(f"{share} %" for share in SHARES[1:-1]), "slowest")
    view.add_row("until the update is in", *(f"{value:.3g}" for value in np.percentile(seconds, SHARES)))
    console.print(view)
    _bars(seconds, None if world.deadline is None else clock.deadline, console)
    if world.deadline is not None:
        _late(clock, broadcast, work, task.data.client_ids, console)


def _bars(seconds: Floats, deadline: float | None, console: Console) -> None:
    """Clients by the seconds they take, on a scale of equal ratios."""
    edges = np.geomspace(seconds.min(), seconds.max() * (1 + 1e-12), BARS + 1)
    counts = np.histogram(seconds, edges)[0] if seconds.max() > seconds.min() else np.array([len(seconds)])
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        style = "red" if deadline is not None and low >= deadline else "cyan"
        bar = "\N{BLACK SQUARE}" * round(WIDE * count / counts.max())
        console.print(Text(f"{low:>9.3g} to {high:<9.3g} ") + Text(bar, style=style) + Text(f" {count:,}", style="dim"))


def _late(clock: Clock, broadcast: Broadcast, work: Work, names: NDArray[Any], console: Console) -> None:
    done = clock.trips(broadcast, work).steps
    everybody, all_, none = len(done), int((done == work.steps).sum()), int((done == 0).sum())
    some = everybody - all_ - none
    whole, part, nothing = (f"{count / everybody:.1%}" for count in (all_, some, none))
    parts = f"{whole} of the clients do all of their steps, {part} some, {nothing} none"
    console.print(Text(f"With a deadline of {clock.deadline:.4g} seconds {parts}."), soft_wrap=True)
    cut = are_cut(clock, broadcast, work)
    order = np.argsort(done / work.steps, kind="stable")
    slowest = work.clients[order[cut[order]]]
    if len(slowest):
        some_of = "The clients that are cut" if len(slowest) <= NAMED else f"The {NAMED} clients that are cut most"
        listed = ", ".join(str(names[client]) for client in slowest[:NAMED])
        console.print(Text(f"{some_of}, the slowest first: {listed}.", style="dim"), soft_wrap=True)


def _table(*names: str) -> Table:
    return Table(*names, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
