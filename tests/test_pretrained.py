"""Runs that start from the weights of a safetensors file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedkeel as fk

DIGITS = "digits"


@pytest.fixture
def start(tmp_path):
    """The model of a short run."""
    run = fk.train(fk.tasks.get(DIGITS), "fedavg", rounds=2, checkpoint=tmp_path / "before")
    return tmp_path / "before" / "model.safetensors", run


def test_a_run_starts_from_the_model_of_another(start, mode):
    file, before = start
    task = fk.tasks.get(f"{DIGITS}:pretrained={file}")
    assert task.spec == f"{DIGITS}:pretrained={file}"
    run = fk.train(task, "fedavg", rounds=1, seed=5, engine=mode)
    assert torch.equal(run.state.x0, before.params)
    assert run.history[0]["accuracy"] == before.history[-1]["accuracy"]
    assert run.config["rerunnable"]


def test_python_gives_it_to_any_task(start, small):
    file, before = start
    named = replace(fk.tasks.get(DIGITS), pretrained=file)
    assert named.spec == f"{DIGITS}:pretrained={file}"
    assert replace(named, pretrained=None).spec == DIGITS
    assert torch.equal(fk.train(named, "fedavg", rounds=1).state.x0, before.params)
    own = replace(small, pretrained=file)
    with pytest.raises(fk.InputError, match="does not fit the model"):
        fk.train(own, "fedavg", rounds=1)


def test_without_a_file_configuration_and_name_are_as_before():
    run = fk.train(fk.tasks.get(DIGITS), "fedavg", rounds=1)
    assert "pretrained" not in run.config and run.config["task"] == DIGITS


def test_resuming_changes_no_bit_and_refuses_another_file(start, tmp_path):
    file, _ = start
    task, folder = fk.tasks.get(f"{DIGITS}:pretrained={file}"), tmp_path / "run"
    whole = fk.train(task, "fedavg", rounds=4)
    fk.train(task, "fedavg", rounds=4, stop_after=2, checkpoint=folder)
    tensors = load_file(file)
    contents = file.read_bytes()
    save_file({name: value + 1 for name, value in tensors.items()}, file)
    with pytest.raises(fk.InputError, match=r"started from a file with the checksum .*; the task has .* checksum"):
        fk.resume(folder)
    with pytest.raises(fk.InputError, match="the task names no file"):
        fk.resume(folder, task=fk.tasks.get(DIGITS))
    file.unlink()
    with pytest.raises(fk.InputError, match="is not there"):
        fk.resume(folder)
    file.write_bytes(contents)
    assert torch.equal(fk.resume(folder).params, whole.params)
    assert torch.equal(fk.load(folder).params, whole.params)


def test_a_run_without_a_file_is_not_resumed_with_one(start, tmp_path):
    file, _ = start
    fk.train(fk.tasks.get(DIGITS), "fedavg", rounds=2, stop_after=1, checkpoint=tmp_path / "run")
    with pytest.raises(fk.InputError, match="started from no file; the task has"):
        fk.resume(tmp_path / "run", task=fk.tasks.get(f"{DIGITS}:pretrained={file}"))


def test_a_file_that_does_not_fit_is_refused_in_one_line(start, tmp_path):
    file, _ = start
    tensors = load_file(file)
    name, value = next(iter(tensors.items()))
    without = {key: one for key, one in tensors.items() if key != name}
    cases = {
        f"it has no tensor '{name}'": without,
        "which has no tensor 'more'": tensors | {"more": torch.zeros(1)},
        f"'{name}' is .* in the file and .* in the model": tensors | {name: torch.zeros(1, *value.shape)},
        f"values in '{name}' that are not finite": tensors | {name: value * float("nan")},
    }
    for why, content in cases.items():
        other = tmp_path / "other.safetensors"
        save_file(content, other)
        with pytest.raises(fk.InputError, match=why) as error:
            fk.train(fk.tasks.get(f"{DIGITS}:pretrained={other}"), "fedavg", rounds=1)
        assert "\n" not in str(error.value)


def test_what_is_no_safetensors_file_is_refused_and_not_run(tmp_path):
    file = tmp_path / "model.pt"
    torch.save({"weight": torch.zeros(1)}, file)  # a pickle
    for path, why in ((file, "cannot be read as safetensors"), (tmp_path / "none.safetensors", "is not there")):
        with pytest.raises(fk.InputError, match=why):
            fk.train(fk.tasks.get(f"{DIGITS}:pretrained={path}"), "fedavg", rounds=1)
    with pytest.raises(fk.InputError, match="'pretrained' parameter of Task must be the path"):
        fk.tasks.get(f"{DIGITS}:pretrained=5")
    with pytest.raises(fk.InputError, match="cannot hold the path"):
        replace(fk.tasks.get(DIGITS), pretrained=tmp_path / "a,b.safetensors")
