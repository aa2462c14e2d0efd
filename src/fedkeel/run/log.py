"""Writes a run's directory while the run goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.memory import Memories
from ..files import write_json, write_text, writing
from ..round import State
from . import checkpoint
from . import history as rows
from .checkpoint import Identity
from .folder import CONFIG, ENVIRONMENT, HISTORY, MODEL, OUTCOME, STOP, TABLE
from .history import History, Row, Written

if TYPE_CHECKING:
    from .training import Run


class Log:
    """The directory of a run; does nothing without one. The caller holds its lock."""

    def __init__(self, folder: Path | None, identity: Identity) -> None:
        self.folder, self.identity = folder, identity
        self.every: int = identity.config["checkpoint_every"]
        self.written = Written()

    def open(self, history: History) -> None:
        """Begin a new run in the place of an earlier one, or go on after these rows."""
        if self.folder is None:
            return
        if not history:
            (self.folder / OUTCOME).unlink(missing_ok=True)  # first: from here on the earlier run has not ended
            checkpoint.drop_state(self.folder)
            (self.folder / MODEL).unlink(missing_ok=True)
        write_json(self.folder / CONFIG, self.identity.config)
        write_json(self.folder / ENVIRONMENT, checkpoint.environment())
        text = history.text()
        write_text(self.folder / HISTORY, text)
        self.written = Written(text)
        self.asked_to_stop()  # an old request is ignored

    def asked_to_stop(self) -> bool:
        """Whether the directory has a file `stop`, which is removed."""
        if self.folder is None:
            return False
        try:
            (self.folder / STOP).unlink()
        except OSError:
            return False
        return True

    def add(self, row: Row, state: State, memories: Memories) -> None:
        """Append a row and, in some rounds, write a checkpoint."""
        if self.folder is None:
            return
        file, text = self.folder / HISTORY, rows.line(row)
        due = state.round > 0 and state.round % self.every == 0
        try:
            with open(file, "a", encoding="utf-8") as out:
                out.write(text)
                if due:
                    out.flush()
                    os.fsync(out.fileno())  # a checkpoint must never be ahead of the history
        except OSError as error:  # a full disk
            raise OSError(error.errno, error.strerror, str(file)) from error
        self.written.add(text)
        if due:
            checkpoint.save_state(self.folder, state, memories, self.identity, self.written.known())

    def close(self, run: Run) -> None:
        """Write how the run ended."""
        if self.folder is not None:
            write_run(self.folder, run)


def write_run(folder: Path, run: Run) -> None:
    """Write a whole run's directory; a run with rounds left can be resumed from it. The caller holds its lock."""
    text = run.history.text()
    write_json(folder / CONFIG, run.config)
    write_json(folder / ENVIRONMENT, checkpoint.environment())
    write_text(folder / HISTORY, text)
    with writing(folder / TABLE) as beside:
        run.history.to_csv(beside)
    model = checkpoint.save_model(folder, run.model())
    if run.status == "stopped":
        (folder / OUTCOME).unlink(missing_ok=True)
        checkpoint.save_state(folder, run.state, run.memories, run.identity, Written(text).known())
    else:
        checkpoint.save_outcome(folder, run.status, Written(text).known(), model)
        checkpoint.drop_state(folder)
