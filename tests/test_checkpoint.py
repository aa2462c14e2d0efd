"""Checkpoints: bound to their run, checked before they are used, and the one before is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

import fedkeel as fk
from fedkeel import files
from fedkeel.conformance import toy, toy_world
from fedkeel.run.checkpoint import identity_of

STATE, PREVIOUS = Path("checkpoint", "state.safetensors"), Path("checkpoint", "previous.safetensors")


def start(place: Path, seed: int = 0, stop_after: int | None = 8, algorithm: str = "scaffold") -> fk.Run:
    return fk.train(
        toy(), algorithm, toy_world(), 12, seed=seed, checkpoint=place, every=3, stop_after=stop_after, dtype="float64"
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    start(place / "a")
    start(place / "other-seed", seed=1)
    start(place / "other-rule", algorithm="feddyn")
    start(place / "whole", stop_after=None)
    return place


@pytest.fixture
def run(stopped, tmp_path):
    shutil.copytree(stopped / "a", tmp_path / "a")
    return tmp_path / "a"


def flip(file: Path, share: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    file.write_bytes(content)


def bare(history):
    return [{name: value for name, value in row.items() if name != "wall_seconds"} for row in history]


def ends_as_ever(run: Path, stopped: Path) -> None:
    whole, resumed = fk.load(stopped / "whole", toy()), fk.resume(run, toy())
    assert torch.equal(resumed.params, whole.params) and bare(resumed.history) == bare(whole.history)


def test_an_undamaged_run_goes_on_without_a_warning(run, stopped):
    ends_as_ever(run, stopped)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_a_flipped_bit_is_noticed_and_the_checkpoint_before_serves(run, stopped, share):
    flip(run / STATE, share)
    with pytest.warns(
        fk.StabilityWarning, match="state.safetensors.*goes on from the checkpoint before it, of round 6"
    ):
        ends_as_ever(run, stopped)


def test_a_kill_after_a_damaged_checkpoint_does_not_lose_the_one_before(run, stopped):
    flip(run / STATE, 0.5)
    with pytest.warns(fk.StabilityWarning, match="of round 6"):
        fk.resume(run, toy(), stop_after=7)  # not a round in which a checkpoint is due
    flip(run / STATE, 0.5)  # what the stop wrote
    with pytest.warns(fk.StabilityWarning, match="of round 6"):
        ends_as_ever(run, stopped)


def test_two_damaged_checkpoints_are_refused_and_nothing_changes(run):
    for file in (STATE, PREVIOUS):
        flip(run / file, 0.7)
    before = {f: f.read_bytes() for f in run.rglob("*") if f.is_file() and f.name != ".fedkeel.json"}
    with pytest.raises(fk.InputError, match="No whole checkpoint is left"):
        fk.resume(run, toy())
    assert before == {f: f.read_bytes() for f in run.rglob("*") if f.is_file() and f.name != ".fedkeel.json"}


@pytest.mark.parametrize(
    ("other", "file", "words"),
    [
        ("other-seed", "checkpoint/state.safetensors", "belongs to another run: its seed is 1, this run's is 0"),
        ("other-rule", "checkpoint/state.safetensors", "belongs to another run: its algorithm is 'feddyn"),
        ("other-seed", "config.json", "belongs to another run: its seed is 0, this run's is 1"),
    ],
)
def test_a_foreign_file_is_refused_with_the_difference_named(run, stopped, other, file, words):
    shutil.copy(stopped / other / file, run / file)
    with pytest.raises(fk.InputError, match=words):
        fk.resume(run, toy())


def test_other_data_are_refused(run):
    other = toy()
    other.data.x[3, 0] += 1
    with pytest.raises(fk.InputError, match="other data"):
        fk.resume(run, other)


def test_the_identity_of_data_sees_labels_sizes_and_the_test_set():
    data = toy().data
    known = identity_of(data)
    assert identity_of(toy().data) == known
    for change in ("y", "test"):
        other = toy().data
        (other.y if change == "y" else other.test[1])[0] += 1
        assert identity_of(other) != known
    other = toy().data
    other.offsets = other.offsets.copy()
    other.offsets[1] += 1
    assert identity_of(other) != known


def test_rows_after_the_checkpoint_are_cut_and_a_torn_line_is_mended(run, stopped):
    with open(run / "history.jsonl", "a") as file:
        file.write('{"round": 9, "loss": 1.0, "mine": true}\n{"round": 10, "lo')
    ends_as_ever(run, stopped)


def test_damage_to_rows_between_two_checkpoints_goes_back_to_the_first(run, stopped):
    rows = (run / "history.jsonl").read_text().splitlines()
    rows[7] = rows[7].replace('"clients": ', '"clients": 1')
    (run / "history.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.warns(fk.StabilityWarning, match="history.jsonl.*of round 6"):
        ends_as_ever(run, stopped)


def test_damage_to_older_rows_is_refused(run):
    rows = (run / "history.jsonl").read_text().splitlines()
    rows[2] = rows[2].replace('"clients": ', '"clients": 1')
    (run / "history.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(fk.InputError, match=r"history\.jsonl is damaged"):
        fk.resume(run, toy())


def test_a_history_without_its_checkpoint_is_refused(run):
    shutil.rmtree(run / "checkpoint")
    with pytest.raises(fk.InputError, match="history of 8 rounds, but its checkpoint is gone"):
        fk.resume(run, toy())


def test_a_checkpoint_of_version_0_1_is_refused_in_a_line(run):
    with safetensors.safe_open(run / STATE, "pt") as old:
        tensors = {name: old.get_tensor(name) for name in old.keys()}  # noqa: SIM118
    (run / PREVIOUS).unlink()
    save_file(tensors, run / STATE, {"fedkeel": json.dumps({"round": 8})})
    with pytest.raises(fk.InputError, match=r"0\.1"):
        fk.resume(run, toy())


def test_a_crash_between_two_renames_leaves_the_previous_checkpoint(run, stopped):
    (run / STATE).unlink()
    ends_as_ever(run, stopped)


@pytest.mark.parametrize("name", ["model.safetensors", "history.jsonl", "config.json", "outcome.json"])
def test_damage_to_a_finished_run_is_noticed(stopped, tmp_path, name):
    shutil.copytree(stopped / "whole", tmp_path / "whole")
    flip(tmp_path / "whole" / name, 0.6)
    with pytest.raises(fk.InputError, match=r"damaged|cannot be read|not there"):
        fk.load(tmp_path / "whole", toy())


def test_the_configuration_may_be_edited_in_a_copy(stopped, tmp_path):
    known = json.loads((stopped / "a" / "config.json").read_text())
    (tmp_path / "copy.json").write_text(json.dumps({**known, "rounds": 3}))
    assert files.read_json(tmp_path / "copy.json", edited=True)["rounds"] == 3
    with pytest.raises(fk.InputError, match="do not match their checksum"):
        files.read_json(tmp_path / "copy.json")


class Explodes(fk.Rule):
    """A rule whose own state becomes infinite in round 3 while the model stays finite."""

    def init(self, x, lr):
        return {"a": torch.ones(2)}

    def serve(self, server, up, view):
        return {"a": server["a"] / (0.0 if view.facts.round == 3 else 1.0)}, up.delta


def test_a_state_that_is_not_finite_ends_the_run_whatever_rule_it_is_in(tmp_path):
    run = fk.train(toy(), fk.Algorithm(rules=[Explodes()]), toy_world(), 6, checkpoint=tmp_path)
    assert (run.status, run.history[-1]["round"]) == ("diverged", 3)
    assert all(torch.isfinite(one).all() for one in load_file(tmp_path / "model.safetensors").values())
    assert fk.load(tmp_path, toy()).status == "diverged"
