"""Trackers: callbacks that pass a run's rows on to TensorBoard, MLflow or Weights & Biases.

A callback is called with every history row. `begin(config)` before the first and `end(status)` after the last are
optional; status is "done", "stopped", "diverged", or "failed" when an error ended the run. Nothing leaves the machine
unless the tracking library is configured to send it.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, is_number, unknown
from ..run.history import Row


def _load(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(extra, extra, "This tracker") from error


def numbers(row: Row) -> dict[str, float]:
    """What of a row can be drawn: its numbers, without the round.

    >>> numbers({"round": 3, "accuracy": 0.5, "loss": None, "clients": 4})
    {'accuracy': 0.5, 'clients': 4}
    """
    return {name: value for name, value in row.items() if name != "round" and is_number(value)}


def settings(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested configuration as one level of texts: JSON, texts without their quotes.

    >>> settings({"rounds": 5, "lr": None, "world": {"cohort": "all"}})
    {'rounds': '5', 'lr': 'null', 'world.cohort': 'all'}
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return flat


def title(config: dict[str, Any]) -> str:
    """The name of a run among others: its algorithm and seed."""
    return f"{config['algorithm']} seed {config['seed']}"


class TensorBoard:
    """Write event files for TensorBoard into a folder.

    fk.train(task, "gel", callbacks=[fk.trackers.tensorboard("runs/board")])
    """

    def __init__(self, folder: str | os.PathLike[str] = "tensorboard") -> None:
        self.folder = Path(folder)
        self.library = _load("torch.utils.tensorboard", "tensorboard")

    def begin(self, config: dict[str, Any]) -> None:
        self.writer = self.library.SummaryWriter(str(self.folder))
        self.writer.add_text("config", "\n".join(f"    {k}: {v}" for k, v in settings(config).items()))

    def __call__(self, row: Row) -> None:
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, row["round"])

    def end(self, status: str) -> None:
        self.writer.add_text("status", status)
        self.writer.close()


class MLflow:
    """Log to MLflow: a database file in a folder or, without one, where MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.library = _load("mlflow", "mlflow")
        self.folder = None if folder is None else Path(folder).resolve()

    def begin(self, config: dict[str, Any]) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        uri = None if self.folder is None else f"sqlite:///{self.folder / 'mlflow.db'}"
        # A client of our own: the library's current run and store are the user's.
        self.client = self.library.MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name("fedkeel")
        place = known.experiment_id if known is not None else self.client.create_experiment("fedkeel")
        self.run = self.client.create_run(place, run_name=title(config)).info.run_id
        for name, value in settings(config).items():
            self.client.log_param(self.run, name, value[:500])  # a longer one is refused by older servers

    def __call__(self, row: Row) -> None:
        for name, value in numbers(row).items():
            self.client.log_metric(self.run, name, value, step=row["round"])

    def end(self, status: str) -> None:
        self.client.set_tag(self.run, "fedkeel.status", status)
        self.client.set_terminated(self.run, {"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))


class Wandb:
    """Log to Weights & Biases; into a folder it writes offline (`wandb sync` sends it later, if you want)."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.library = _load("wandb", "wandb")
        self.folder = None if folder is None else Path(folder)

    def begin(self, config: dict[str, Any]) -> None:
        where: dict[str, Any] = {}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            where = {"mode": "offline", "dir": str(self.folder)}
        self.run = self.library.init(project="fedkeel", name=title(config), config=config, reinit="create_new", **where)

    def __call__(self, row: Row) -> None:
        self.run.log(numbers(row), step=row["round"])

    def end(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status in ("done", "stopped") else 1)


tensorboard, mlflow, wandb = TensorBoard, MLflow, Wandb  # named as the command names them
TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": Wandb}


def tracker(text: str, below: Path | None = None) -> Any:
    """The tracker of `NAME[:DIR]`; `below` is where in DIR this run goes, for trackers that give each run a folder.

    >>> tracker("tensorbord")
    Traceback (most recent call last):
    fedkeel.errors.InputError: Unknown tracker 'tensorbord'. Did you mean 'tensorboard'?
    """
    name, _, folder = text.partition(":")
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    if name == "tensorboard":
        return TensorBoard(Path(folder or "tensorboard") / (below or ""))
    return TRACKERS[name](folder or None)
