"""What a rule costs: algorithms against FedAvg on the workloads with real networks, each in a process of its own.

The speed of a shared machine wanders as much from one tenth of a second to the next as from one second to the next, so
what averages it out is the number of turns. They are short: a round of two clients per worker, in which the server's
part of a rule weighs more than in larger ones.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from cells import TURNS, Cell, in_turns
from workloads import WORKLOADS, store

from sections.common import arguments

# Every arm does the same number of gradient steps; what survey or extra gradients cost is part of a rule's price.
# A group's base comes first; GEL's clients have momentum, and so has its base. FedAvg itself shows what is noise.
GROUPS = (
    ("fedavgcm", "gel"),
    ("fedavg", "fedavg", "ghbm", "localghbm", "fedhbm"),
    ("fedavg", "scaffold", "feddyn", "fedprox", "mimelite", "deltasgd"),
)
NAMES = ("W2", "W3", "W4", "W5")
REPETITIONS, SECONDS, CAP = 3, 6.0, 300.0  # of rounds per arm; CAP: seconds it may take


def start(algorithm: str, workload: str, folder: Path, seconds: float) -> Cell:
    """This algorithm, on the way to its first round."""
    asked = {"--seconds": seconds, "--launched": time.time(), "--turns": TURNS, "--turn": 0}
    given = [workload, str(folder), *(str(text) for pair in asked.items() for text in pair)]
    return Cell(sys.executable, "drivers.fedkeel_rule", [*given, "--option", f"algorithm={algorithm}"], CAP)


def costs(workload: str, group: tuple[str, ...], folder: Path, seconds: float) -> list[list[float]]:
    """A round's length over that of the base's rounds just before and after, per turn, of every rule of the group."""
    found = dict(in_turns(start(algorithm, workload, folder, seconds) for algorithm in group))
    for place, cell in found.items():
        if "error" in cell:
            raise SystemExit(f"{workload}, {group[place]}: {cell['error']}")
    base, *others = (found[place]["lengths"] for place in range(len(group)))
    return [[2 * mine / (a + b) for mine, a, b in zip(other, base, base[1:], strict=False)] for other in others]


if __name__ == "__main__":
    given = arguments()
    rows = []
    for name in (n for n in NAMES if n in given.workloads):
        store(WORKLOADS[name], given.data)
        for group in GROUPS:
            repeated = [costs(name, group, given.data, SECONDS) for _ in range(REPETITIONS)]
            for rule, *turns in zip(group[1:], *repeated, strict=True):
                ratios = [statistics.median(each) for each in turns]
                rows.append({"workload": name, "rule": rule, "ratio": statistics.median(ratios), "ratios": ratios})
    print(json.dumps({"rows": rows}))
