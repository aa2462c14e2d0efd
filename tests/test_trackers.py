"""Trackers: the protocol, and what the real libraries have afterwards."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.conformance import toy, toy_world
from fedkeel.run.history import Row

MODULES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


class Notes:
    """A tracker of one's own."""

    def __init__(self, stop_at: int | None = None, fail_at: int | None = None) -> None:
        self.told: list[Any] = []
        self.stop_at, self.fail_at = stop_at, fail_at

    def begin(self, config: dict[str, Any]) -> None:
        self.told.append(config["algorithm"])

    def __call__(self, row: Row) -> bool:
        self.told.append(row["round"])
        if row["round"] == self.fail_at:
            raise RuntimeError("the tracker's server is gone")
        return row["round"] == self.stop_at

    def end(self, status: str) -> None:
        self.told.append(status)


def test_a_tracker_hears_the_beginning_every_row_and_the_end() -> None:
    notes, plain = Notes(), []
    fk.train(toy(), "fedavg", toy_world(), 2, callbacks=[notes, plain.append])
    assert notes.told == ["fedavg", 0, 1, 2, "done"]
    assert [row["round"] for row in plain] == [0, 1, 2]


def test_a_run_that_stops_diverges_or_fails_says_so_at_the_end() -> None:
    stopped, diverged, failed = Notes(stop_at=1), Notes(), Notes(fail_at=1)
    fk.train(toy(), "fedavg", toy_world(), 3, callbacks=[stopped])
    assert stopped.told == ["fedavg", 0, 1, "stopped"]
    fk.train(toy(), "fedavg:lr=1e38", toy_world(), 3, callbacks=[diverged])
    assert diverged.told[-1] == "diverged"
    with pytest.raises(RuntimeError, match="server is gone"):
        fk.train(toy(), "fedavg", toy_world(), 3, callbacks=[failed])
    assert failed.told == ["fedavg", 0, 1, "failed"]


@pytest.mark.parametrize("name", MODULES)
def test_without_its_library_the_command_is_named(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(fk.MissingExtra, match=rf'pip install "{name}'):
        getattr(fk.trackers, name)(tmp_path)


def test_an_unknown_tracker_is_refused_before_anything_is_written(tmp_path: Path, capsys: Any) -> None:
    words = ["run", "synthetic", "fedavg", "--track", "tensorbord", "--out", str(tmp_path / "d")]
    assert main(words) == 2
    assert "Did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_tensorboard_has_every_row_of_every_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ["run", "synthetic:users=5", "fedavg", "gel", "--rounds", "3", "--out", str(tmp_path / "d")]
    assert main([*words, "--track", f"tensorboard:{tmp_path / 'board'}"]) == 0
    for arm in ("fedavg", "gel"):
        events = EventAccumulator(str(tmp_path / "board" / arm / "seed-0"))
        events.Reload()
        rows = [
            json.loads(line) for line in (tmp_path / "d" / arm / "seed-0" / "history.jsonl").read_text().splitlines()
        ]
        seen = [(event.step, event.value) for event in events.Scalars("accuracy")]
        assert [step for step, _ in seen] == [0, 1, 2, 3]
        assert [value for _, value in seen] == pytest.approx([row["accuracy"] for row in rows])
        assert "status/text_summary" in events.Tags()["tensors"]


@pytest.mark.filterwarnings("ignore")  # the library's own, about its own dependencies
def test_mlflow_has_settings_rows_and_how_it_ended(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow = pytest.importorskip("mlflow", reason="mlflow is an extra")
        pytest.importorskip("alembic", reason="mlflow's database needs alembic")
    run = fk.train(toy(), "fedavg", toy_world(), 2, callbacks=[fk.trackers.mlflow(tmp_path)])
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    place = client.get_experiment_by_name("fedkeel")
    (seen,) = client.search_runs([place.experiment_id])
    assert seen.info.status == "FINISHED" and seen.info.run_name == "fedavg seed 0"
    assert seen.data.params["rounds"] == "2" and seen.data.tags["fedkeel.status"] == "done"
    values = client.get_metric_history(seen.info.run_id, "loss")
    assert [(v.step, v.value) for v in values] == [(row["round"], row["loss"]) for row in run.history]


@pytest.mark.filterwarnings("ignore")  # the library's own, about its own dependencies
def test_wandb_writes_offline_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("wandb", reason="wandb is an extra")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    fk.train(toy(), "fedavg", toy_world(), 2, callbacks=[fk.trackers.wandb(tmp_path / "w")])
    (written,) = (tmp_path / "w" / "wandb").glob("offline-run-*/run-*.wandb")
    data = written.read_bytes()
    assert b"accuracy" in data and b"fedavg seed 0" in data


def test_a_run_directory_has_its_history_as_a_table_too(tmp_path: Path) -> None:
    run = fk.train(toy(), "fedavg", toy_world(), 3, eval_every=2, checkpoint=tmp_path)
    with open(tmp_path / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(run.history[0])
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[1]["accuracy"] == "" and float(rows[2]["loss"]) == run.history[2]["loss"]
