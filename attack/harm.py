"""Damage every file of run directories, in many ways, and see what the commands make of it.

A command must say so in one line, or give what it gives for the undamaged directory: the same model bits and the same
output. A traceback, a hang or another result with exit code 0 is a failure.
"""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from mutate import damage
from play import Ended, bits, here

RUN = ["synthetic:users=6", "--cohort", "3", "--budget", "4:8", "--checkpoint-every", "3", "--rounds", "12"]
UNREAD = ("history.csv", ".fedkeel.json", "environment.json", "report.html")  # no result is taken from them


@dataclass
class Counts:
    """What became of the damage to files of one name in one kind of directory."""

    kind: str
    file: str
    cases: int = 0
    refused: int = 0
    same: int = 0  # not read, or mended
    failures: list[str] = field(default_factory=list)


def prepare(folder: Path) -> None:
    """A stopped run, a finished one and a comparison, each with a twin of another seed."""
    for seed in ("0", "1"):
        place = folder / f"seed-{seed}"
        single = ["run", RUN[0], "scaffold", *RUN[1:], "--seed", seed]
        _must(here([*single, "--out", str(place / "finished")]))
        _must(here(["run", RUN[0], "fedavg", "gel", *RUN[1:], "--seeds", "2", "--out", str(place / "comparison")]))
        _must(here(["report", str(place / "comparison"), "--out", str(place / "comparison" / "report.html")]))
        stop_at_eight([*single, "--out", str(place / "stopped")])


def stop_at_eight(words: list[str]) -> None:
    """Run a command whose run is stopped after round 8, as by the live page."""
    import fedkeel.run.log as log

    add = log.Log.add

    def and_stop(self: log.Log, row: dict[str, object], *rest: object) -> None:
        add(self, row, *rest)  # type: ignore[arg-type]
        if row["round"] == 8 and self.folder is not None:
            (self.folder / "stop").touch()

    log.Log.add = and_stop  # type: ignore[method-assign, assignment]
    try:
        assert here(words).code == 130
    finally:
        log.Log.add = add  # type: ignore[method-assign]


def _must(ended: Ended) -> None:
    assert ended.code == 0, ended.err


COMMANDS = {
    "stopped": [["resume", "DIR", "--json"]],
    "finished": [["resume", "DIR", "--json"], ["report", "DIR"]],
    "comparison": [["compare", "DIR"], ["report", "DIR"], ["resume", "DIR", "--json"]],
}


def harm(kind: str, cases: int, folder: Path, seed: int = 0) -> list[Counts]:
    """Damage the files of every name in this kind of directory `cases` times; a comparison has many of one name."""
    whole, twin, place = folder / "seed-0" / kind, folder / "seed-1" / kind, folder / "place"
    files: dict[str, list[str]] = {}
    for file in sorted(file for file in whole.rglob("*") if file.is_file()):
        files.setdefault(file.name, []).append(str(file.relative_to(whole)))
    wanted = {}
    for words in COMMANDS[kind]:
        _copy(whole, place)
        wanted[words[0]] = _outcome(_play(words, place), place)
    draw = random.Random(f"{kind} {seed}")
    found = []
    for file_name, names in files.items():
        counts = Counts(kind, file_name)
        for _ in range(cases):
            name, words = draw.choice(names), draw.choice(COMMANDS[kind])
            _copy(whole, place)
            other = twin / name
            way = damage(place / name, draw, other if other.exists() else None)
            counts.cases += 1
            keep = (place / name).read_bytes() if (place / name).is_file() else b""
            ended = _play(words, place)
            if ended.crashed or ended.hung:
                counts.failures.append(f"{way}, {words[0]}: {ended.err[-400:]}")
                _keep(keep, folder, counts)
            elif ended.code in (1, 2):
                counts.refused += 1
                if len([line for line in ended.err.strip().splitlines() if "warning" not in line]) != 1:
                    counts.failures.append(f"{way}, {words[0]}: not one line: {ended.err[:400]}")
            elif ended.code == 0 and (_excused(name, way, words) or _outcome(ended, place) == wanted[words[0]]):
                counts.same += 1
            else:
                counts.failures.append(f"{way}, {words[0]}: exit code {ended.code}, another result without a word")
                _keep(keep, folder, counts)
        found.append(counts)
    return found


def _excused(name: str, way: str, words: list[str]) -> bool:
    """Nothing is read from this file, or the report says that a run without an outcome has not ended."""
    unended = Path(name).name == "outcome.json" and way == "removed" and words[0] == "report"
    return unended or Path(name).name in UNREAD


def _keep(content: bytes, folder: Path, counts: Counts) -> None:
    """Keep what failed, to look at it."""
    (folder / f"failed-{counts.kind}-{counts.file}-{len(counts.failures)}").write_bytes(content)


def _copy(whole: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole, place)


def _play(words: list[str], place: Path) -> Ended:
    return here([str(place) if word == "DIR" else word for word in words])


def _outcome(ended: Ended, place: Path) -> object:
    """What must not change: models and histories, what a command prints, the page that `report` writes."""
    assert ended.code == 0, ended.err
    page = place / "report.html"
    written = re.sub(r'"made": ?"[^"]*"', "", page.read_text(errors="replace")) if page.exists() else ""
    kept = bits(place) if ended.out.startswith("{") else {}  # resume; the others read no models
    return kept, re.sub(r'"wall_seconds": [^,}]*', "", ended.out), written
