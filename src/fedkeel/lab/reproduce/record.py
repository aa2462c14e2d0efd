"""A finished run as one small file: how it was made and what it gave, without its model.

The file has the rows that were evaluated and no more, one line of numbers per column; figures have six digits. Pages
are made from such records alone, whether a run has just ended or was read.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import plain, read_json, write_json
from ...run.checkpoint import environment
from ...run.history import History
from ..study import Study, folder_name
from .plan import Line

COLUMNS = (
    "round", "accuracy", "loss", "validation_accuracy", "validation_loss", "train_loss", "gradients", "samples",
    "bytes_down", "bytes_up", "lr", "epochs", "batch_size", "sim_seconds", "late", "lost",
)  # fmt: skip
PACKAGE = Path(__file__).parents[2]
FREE = ("checkpoint_every", "compile", "engine", "device")  # may differ: they change speed, or the last bits


@dataclass(frozen=True)
class Wanted:
    """A run that a study needs: one algorithm with one seed."""

    study: Study  # of this algorithm and this seed alone
    place: Path  # its folder below a study's, for its run directory and for its record
    arm: str  # the line of the panel that it belongs to

    @classmethod
    def of(cls, study: Study, below: Path, arm: Line) -> Wanted:
        """The run of a study of one. below: the folder of its panel or of the panel's tuning."""
        name = study.algorithms[0] if arm.budget is None else f"{study.algorithms[0]}+budget={arm.budget}"
        return cls(study, below / folder_name(name) / f"seed-{study.seeds[0]}", arm.name)

    @property
    def text(self) -> str:
        """Its algorithm."""
        return self.study.algorithms[0]

    @property
    def seed(self) -> int:
        return self.study.seeds[0]

    def settings(self) -> dict[str, Any]:
        """All that decides its outcome."""
        given: dict[str, Any] = plain(self.study.config())
        return {key: value for key, value in given.items() if key not in (*FREE, "fedkeel")}

    def compare(self, file: Path, known: dict[str, Any]) -> None:
        """Refuse what a file says of a run with other settings; an earlier version wrote fewer of them."""
        for name, value in self.settings().items():
            if known.get(name, value) != value:
                other = f"its {name} is {known[name]!r}, not {value!r}"
                raise InputError(f"{file} belongs to another run: {other}. Remove it to run again.")

    def on(self, compile: bool, device: str) -> Wanted:
        """The same run, with or without compiled kernels, on this device."""
        return replace(self, study=replace(self.study, compile=compile, device=device))


@dataclass(frozen=True)
class Record:
    """What a finished run gave."""

    history: History  # the evaluated rows
    status: str
    commit: str
    seconds: float
    compiled: bool | None  # whether it was trained by C kernels; None: an earlier version wrote the file

    @classmethod
    def of(cls, history: History, status: str, compiled: bool) -> Record:
        """Of a run that has just ended."""
        rows = [row for row in history if row["accuracy"] is not None or row["loss"] is not None]
        names = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
        kept = History({"accuracy": None, **{name: rounded(row.get(name)) for name in names}} for row in rows)
        return cls(kept, status, commit(), round(history[-1]["wall_seconds"], 1), compiled)

    def write(self, file: Path, wanted: Wanted) -> None:
        """Write the file."""
        names = [name for name in COLUMNS if name in self.history[0]]
        columns = {name: " ".join(_text(row[name]) for row in self.history) for name in names}
        where = environment()
        about = {"commit": self.commit, "status": self.status, "wall_seconds": self.seconds, "compile": self.compiled}
        about |= {"cores": where["cores"], "torch": where["torch"], "python": where["python"]}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"settings": wanted.settings(), **about, "history": columns})

    @classmethod
    def read(cls, file: Path, wanted: Wanted) -> Record | None:
        """The record of this run; None where there is none. Refuses one of another run."""
        if not file.exists():
            return None
        known = read_json(file)
        try:
            wanted.compare(file, known["settings"])
            columns = {name: [_value(text) for text in texts.split(" ")] for name, texts in known["history"].items()}
            rows = zip(*columns.values(), strict=True)
            history = History({"accuracy": None, **dict(zip(columns, row, strict=True))} for row in rows)
            return cls(history, known["status"], known["commit"], known["wall_seconds"], known.get("compile"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{file} is not the record of a run: {error}.") from error


def rounded(value: float | None) -> float | None:
    """Six digits; whole numbers stay as they are.

    >>> rounded(0.123456789), rounded(123456789)
    (0.123457, 123456789)
    """
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def _text(value: float | None) -> str:
    return "-" if value is None else repr(value)


def _value(text: str) -> float | None:
    if text == "-":
        return None
    return float(text) if any(letter in text for letter in ".einf") else int(text)


@cache
def commit(package: Path = PACKAGE) -> str:
    """The commit of the source, with a mark where the package differs from it; "unknown" outside a repository.

    Files elsewhere do not matter: a study writes its own records and pages into the checkout.
    """
    head, changed = (_git(package, *words) for words in (("rev-parse", "--short", "HEAD"), ("status", "--short", ".")))
    if head is None:
        return "unknown"
    return f"{head}-dirty" if changed else head


def _git(folder: Path, *words: str) -> str | None:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
