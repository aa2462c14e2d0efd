"""Kill runs, comparisons, sweeps and reproductions at random moments, go on, and compare every bit at the end."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from play import bits, command, play

from fedkeel.lab.reproduce import plan
from fedkeel.lab.reproduce.carry_out import Place, carry_out

TASK = ["synthetic:users=8", "--cohort", "4", "--budget", "4:8"]
PLAN = {
    "title": "a small study", "paper": "none", "what": "killed", "defaults": {},
    "panel": [{
        "name": "one", "task": "synthetic:users=8", "metric": "last", "rounds": 12, "seeds": [0, 2],
        "cohort": 4, "budget": "4:8", "arms": {"FedAvg": "fedavg", "SCAFFOLD": "scaffold"},
    }],
}  # fmt: skip


def reproduce(root: Path) -> int:
    made = plan.read("attack/kill", PLAN)
    for _ in carry_out(made, Place(made, root), lambda wanted, row: None):
        pass
    return 0


def begin(kind: str, out: Path) -> Callable[[], int]:
    """The command that begins, or begins again."""
    place = ["--out", str(out), "--checkpoint-every", "2"]
    if kind == "run":
        return command(["run", TASK[0], "scaffold", *TASK[1:], "--rounds", "40", "--overwrite", *place])
    if kind == "comparison":
        arms = ["fedavg", "ghbm:tau=2", "fedyogi"]
        return command(["run", TASK[0], *arms, *TASK[1:], "--rounds", "14", "--seeds", "2", "--overwrite", *place])
    if kind == "sweep":
        grid = ["--grid", "lr=0.01,0.1", "--rounds", "12", "--jobs", "2"]
        return command(["sweep", TASK[0], "feddyn", *TASK[1:], *grid, *place])
    return lambda: reproduce(out)


def go_on(kind: str, out: Path) -> Callable[[], int]:
    """The command that continues after a kill."""
    if kind in ("sweep", "reproduce") or not (out / "config.json").exists():
        return begin(kind, out)
    return command(["resume", str(out)])


@dataclass
class Counts:
    """What happened to one kind of command."""

    kind: str
    kills: int = 0
    whole: int = 0  # compared at the end
    failures: list[str] = field(default_factory=list)


SECONDS = {"run": 0.9, "comparison": 1.6, "sweep": 9.0, "reproduce": 1.6}  # within which a kill comes


def kill(kind: str, kills: int, folder: Path, seed: int = 0) -> Counts:
    """Kill this kind of command so many times; each time it ends by itself, compare it with one never killed."""
    draw = random.Random(f"{kind} {seed}")
    counts = Counts(kind)
    straight = folder / "straight"
    ended = play(begin(kind, straight), folder / "log")
    if ended.code != 0:
        counts.failures.append(f"the run that is not killed ended with {ended.code}: {ended.err[-300:]}")
        return counts
    wanted = bits(straight)
    while counts.kills < kills and len(counts.failures) < 10:
        out = folder / "killed"
        shutil.rmtree(out, ignore_errors=True)
        do = begin(kind, out)
        for _ in range(200):
            enough = counts.kills >= kills
            ended = play(do, folder / "log", None if enough else draw.uniform(0.0, SECONDS[kind]), draw.random() < 0.7)
            if ended.hung and not enough:
                counts.kills += 1
                do = go_on(kind, out)
                continue
            break
        counts.whole += 1
        if ended.code != 0:
            counts.failures.append(f"after kill {counts.kills} it ended with {ended.code}: {ended.err[-300:]}")
        elif (found := bits(out)) != wanted:
            differ = [name for name in wanted if found.get(name) != wanted[name]]
            counts.failures.append(f"after kill {counts.kills} {', '.join(differ)} differ")
        elif hidden := [str(f) for f in out.rglob(".*") if f.name != ".fedkeel.json"]:
            counts.failures.append(f"after kill {counts.kills} {hidden[0]} was left behind")
    return counts
