"""How fast and how large two checkouts of fedkeel are: before and after a change, on the workloads of this folder.

    python benchmarks/before_after.py OLD NEW [--workloads W1 W2 ...] [--seconds 3] [--passes 3] [--rule fedavg]

OLD and NEW are folders with src/fedkeel; the drivers, the models and the data are this folder's. Both run with torch
alone (compile=False), each in a process of its own. Both processes stay alive and take turns of a quarter of a second,
or of one round if that is longer, until each has played its seconds; a pass later the other one begins. So whatever
else the machine does hits them alike.

The speed of a pass is one over the median length of its rounds. The table has the median over passes of both speeds and
of their ratio new / old, with the smallest and the largest ratio; above 1 the new one is faster. Memory is the largest
resident size that a process had, the data included (median over passes). `--rule` takes any algorithm's text; its rate
is the workload's unless the text has one. Without it, this is FedAvg with momentum 0.9, as in docs/speed.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cells import DATA, TURNS, Cell, in_turns
from workloads import WORKLOADS, store

SIDES = ("old", "new")
TURN = 0.25  # seconds
HEADER = ("workload", "old rounds/s", "new rounds/s", "ratio", "min..max", "old MB", "new MB")
Pass = dict[str, dict[str, Any]]  # what came out, by side


def start(checkout: Path, workload: str, given: argparse.Namespace) -> Cell:
    """This checkout at this workload, on the way to its first round."""
    asked = {"--seconds": given.seconds, "--launched": time.time(), "--turns": TURNS, "--turn": TURN}
    options = ["compile=no", f"mode={given.mode}", *([f"rule={given.rule}"] if given.rule else [])]
    arguments = [workload, str(given.data), *(str(text) for pair in asked.items() for text in pair)]
    arguments += [text for option in options for text in ("--option", option)]
    return Cell(sys.executable, "drivers.fedkeel", arguments, given.cap, source=checkout.resolve() / "src")


def measure(workload: str, given: argparse.Namespace) -> list[Pass]:
    """Both checkouts in turns, pass by pass."""
    passes: list[Pass] = []
    for number in range(given.passes):
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        found = dict(in_turns(start(getattr(given, side), workload, given) for side in order))
        passes.append({order[place]: cell for place, cell in found.items()})
    return passes


def line(workload: str, passes: Sequence[Pass]) -> tuple[str, ...]:
    """A line of the table.

    >>> one = {"old": {"steps_per_s": 260.0, "own_peak_mb": 300}, "new": {"steps_per_s": 520.0, "own_peak_mb": 250}}
    >>> line("W1", [one])
    ('W1', '1', '2', '2.000', '2.000..2.000', '300', '250')
    """
    if errors := [f"{side}: {cell['error']}" for each in passes for side, cell in each.items() if "error" in cell]:
        return workload, errors[0]
    steps = WORKLOADS[workload].steps_per_round
    speeds = {side: statistics.median(each[side]["steps_per_s"] for each in passes) / steps for side in SIDES}
    ratios = [each["new"]["steps_per_s"] / each["old"]["steps_per_s"] for each in passes]
    sizes = [statistics.median(each[side]["own_peak_mb"] or 0 for each in passes) for side in SIDES]
    spread = f"{min(ratios):.3f}..{max(ratios):.3f}"
    shown = (f"{speeds['old']:.4g}", f"{speeds['new']:.4g}", f"{statistics.median(ratios):.3f}", spread)
    return workload, *shown, *(f"{size:.0f}" for size in sizes)


def show(cells: Sequence[str]) -> None:
    widths = [max(len(name), 12) for name in HEADER] if len(cells) == len(HEADER) else [len(text) for text in cells]
    print("  ".join(text.rjust(width) for text, width in zip(cells, widths, strict=True)), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of rounds after the first, per process and pass")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rule", help="an algorithm's text, such as scaffold; default FedAvg with momentum 0.9")
    parser.add_argument("--mode", default="auto", choices=("auto", "serial", "batched"))
    parser.add_argument("--cap", type=float, default=150.0, help="seconds after which a process is ended")
    parser.add_argument("--data", type=Path, default=DATA, help="where the random data are kept")
    given = parser.parse_args(arguments)
    for side in SIDES:
        if not (getattr(given, side) / "src" / "fedkeel").is_dir():
            parser.error(f"{getattr(given, side)} has no src/fedkeel")
    if given.passes < 1 or given.seconds <= 0:
        parser.error("--passes and --seconds must be positive")
    show(HEADER)
    for workload in given.workloads:
        store(WORKLOADS[workload], given.data)
        show(line(workload, measure(workload, given)))


if __name__ == "__main__":
    main()
