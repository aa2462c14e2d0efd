"""`make bench`: fedkeel, a naive loop and other frameworks side by side, then docs/speed.md and docs/speed.svg.

    python benchmarks/run.py [--workloads W1 W2] [--engines fedkeel pfl-2processes] [--passes 5] [--seconds 3]
    python benchmarks/run.py --render          # the page again from results.json, nothing is run

Engines take turns within a pass, second by second, so that a slow minute of the machine hits them all; what counts is
the ratio to the best naive loop of the same pass.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cells import DATA, HERE, TURNS, Cell, in_turns, install, python_of
from cells import run as run_cell
from engines import ENGINES, NAIVE, Engine, named
from render import write
from workloads import WORKLOADS, store

SECTIONS = {  # with their caps in seconds
    "scale": 300.0, "startup": 120.0, "crossover": 600.0, "layers": 120.0, "profile": 120.0, "rules": 5400.0,
}  # fmt: skip
CAP = 150.0  # seconds a cell may take, start-up included


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    model = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": model[0] if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory[0] / 2**20, 1) if memory else None,
        "system": platform.system() + " " + platform.release(),
        "python": platform.python_version(),
        "load_at_start": os.getloadavg()[0],
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def commit() -> str | None:
    """Which fedkeel this is; "+" where files differ from the commit."""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip() or None


def keep(results: dict[str, Any], file: Path) -> None:
    """Write what is known so far: a run that is ended on the way can still be rendered."""
    whole = file.with_suffix(".part")
    whole.write_text(json.dumps(results, indent=1) + "\n")
    whole.replace(file)


def start(engine: Engine, workload: str, given: argparse.Namespace) -> Cell:
    """This engine at this workload, on the way to its first round."""
    options = [text for key, value in engine.options.items() for text in ("--option", f"{key}={value}")]
    asked = {"--seconds": given.seconds, "--launched": time.time(), "--turns": TURNS}
    arguments = [workload, str(given.data), *(str(text) for pair in asked.items() for text in pair), *options]
    return Cell(python_of(engine.peer), f"drivers.{engine.driver}", arguments, given.cap)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All cells, pass by pass, then the sections."""
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(), "commit": commit(), "machine": machine(),
        "passes": given.passes, "seconds": given.seconds, "cells": [], "missing": {}, "sections": {},
    }  # fmt: skip
    if given.add:
        results = json.loads(given.results.read_text())
        if commit() != results["commit"]:
            some = "" if set(given.workloads) == set(WORKLOADS) else f" of {', '.join(given.workloads)}"
            results["commit"] = f"{results['commit']}; {', '.join(given.sections)}{some} at {commit()}"
    engines = [] if given.add else [ENGINES[name] for name in given.engines]
    for peer in sorted({engine.peer for engine in engines if engine.peer is not None}):
        if (problem := install(peer)) is not None:
            results["missing"][peer] = problem
            say(f"{peer}: {problem}")
    for name in given.workloads:
        store(WORKLOADS[name], given.data)
    for number in range(given.passes):
        turn = number % max(1, len(engines))  # another one begins, so that none is always measured behind the same one
        there = [e for e in engines[turn:] + engines[:turn] if e.peer not in results["missing"]]
        slow = [[e] for e in there if e.passes is not None and number < e.passes]
        for name in given.workloads:
            for group in ([e for e in there if e.passes is None], *slow):
                played = [e for e in group if name in e.workloads]
                for place, found in in_turns(start(engine, name, given) for engine in played):
                    engine = played[place]
                    results["cells"].append({"pass": number, "workload": name, "engine": engine.name, **found})
                    keep(results, given.results)
                    shown = found.get("error") or f"{found['steps_per_s']:.4g} steps/s"
                    say(f"pass {number + 1}/{given.passes}  {name}  {engine.name}: {shown}")
    for section in given.sections:
        say(f"section {section} ...")
        arguments = [str(given.data), "--seconds", str(given.seconds), "--workloads", *given.workloads]
        found = run_cell(sys.executable, f"sections.{section}", arguments, SECTIONS[section])
        if given.add and "rows" in found:  # what is not measured again stays
            found["rows"] = merged(results["sections"].get(section, {}).get("rows", []), found["rows"])
        results["sections"][section] = found
        keep(results, given.results)
        if "error" in results["sections"][section]:
            say(f"section {section}: {results['sections'][section]['error']}")
    return results


def merged(before: list[Any], now: list[Any]) -> list[Any]:
    """Rows of workloads that were not measured again, with those that were.

    >>> merged([{"workload": "W1"}, {"workload": "W2", "ratio": 2}], [{"workload": "W2", "ratio": 3}])
    [{'workload': 'W1'}, {'workload': 'W2', 'ratio': 3}]
    """
    again = {row["workload"] for row in now if "workload" in row}
    kept = [row for row in before if "workload" in row and row["workload"] not in again]
    return sorted([*kept, *now], key=lambda row: row["workload"]) if kept else now


def unknown(results: dict[str, Any]) -> list[str]:
    """Engines of this file that are not ours any more: what the others are may have changed with them.

    >>> unknown({"cells": [{"engine": "fedkeel"}, {"engine": "a former one"}]})
    ['a former one']
    """
    return sorted({cell["engine"] for cell in results["cells"]} - set(ENGINES))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--engines", nargs="+", type=named, choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of rounds after the first, per cell")
    parser.add_argument("--cap", type=float, default=CAP, help="seconds after which a cell is ended")
    parser.add_argument("--data", type=Path, default=DATA, help="where the random data are kept")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs", help="where speed.md and speed.svg go")
    parser.add_argument("--add", action="store_true", help="keep the cells of results.json, measure only --sections")
    parser.add_argument("--render", action="store_true", help="only write the page again")
    given = parser.parse_args(arguments)
    if given.passes < 1 or given.seconds <= 0 or given.cap <= 0:
        parser.error("--passes, --seconds and --cap must be positive")
    if (given.render or given.add) and not given.results.exists():
        parser.error(f"{given.results} is not there: run without --render and --add first")
    if (given.render or given.add) and (gone := unknown(json.loads(given.results.read_text()))):
        parser.error(f"{given.results} has engines that are no more ({', '.join(gone)}): measure again")
    if not given.render and not given.add and not set(NAIVE) & set(given.engines):
        say("without a naive loop there are no ratios")
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    if not given.render:
        given.results.parent.mkdir(parents=True, exist_ok=True)
        keep(measure(given), given.results)
    write(json.loads(given.results.read_text()), given.docs)
    print(f"{given.results}\n{given.docs / 'speed.md'}\n{given.docs / 'speed.svg'}")


if __name__ == "__main__":
    main()
