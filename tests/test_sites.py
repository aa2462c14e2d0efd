"""A table on the machines of its clients, as far as it needs no Flower: one preparation for all, a file for each."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel import FederatedData
from fedkeel.cli import main
from fedkeel.deploy.app import with_test_file
from fedkeel.deploy.sites import own_rows

WARDS = {"Aachen": "ab", "Bern": "ab", "Celle": "abc"}  # only Celle has ward c


def rows_of(hospital: str) -> list[str]:
    ages = ["" if place == 3 else str(30 + 7 * place % 40 + len(hospital)) for place in range(10)]
    wards = [WARDS[hospital][place % len(WARDS[hospital])] for place in range(10)]
    return [
        f"{hospital}-{n},{hospital},{age},{ward},{n / 7},{'ill' if n % 3 else 'well'}"
        for n, (age, ward) in enumerate(zip(ages, wards, strict=True))
    ]


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    file = tmp_path / "patients.csv"
    lines = [row for rows in zip(*map(rows_of, ("Celle", "Aachen", "Bern")), strict=True) for row in rows]
    file.write_text("\n".join(["patient_id,hospital,age,ward,dose,outcome", *lines]) + "\n")
    return file


def spec(patients: Path, **more: Any) -> str:
    added = "".join(f",{name}={value}" for name, value in more.items())
    return f"csv:file={patients},client=hospital,target=outcome,drop=patient_id{added}"


@pytest.fixture
def pooled(patients: Path) -> FederatedData:
    return FederatedData.from_csv(patients, "hospital", "outcome", drop=["patient_id"], verbose=False)


@pytest.fixture
def preparation(pooled: FederatedData, tmp_path: Path) -> Path:
    pooled.save_preparation(tmp_path / "preparation.json")
    return tmp_path / "preparation.json"


def write(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_preparation_comes_back_from_its_file_as_it_was(
    patients: Path, pooled: FederatedData, preparation: Path
) -> None:
    again = FederatedData.from_csv(patients, "hospital", preparation=preparation, verbose=False)
    assert again.preparation == pooled.preparation and again.class_names == ["ill", "well"]
    assert torch.equal(again.x, pooled.x) and torch.equal(again.y, pooled.y)
    assert again.client_ids.tolist() == ["Aachen", "Bern", "Celle"]


def test_a_site_with_its_own_file_has_the_inputs_that_it_has_in_the_pooled_file_bit_for_bit(
    pooled: FederatedData, preparation: Path, tmp_path: Path
) -> None:
    for number, hospital in enumerate(WARDS):
        # other columns than those of the preparation are not read, and their order does not matter
        rows = [",".join(reversed(row.split(",")[2:])) + ",x" for row in rows_of(hospital)]
        own = write(tmp_path / "own.csv", "outcome,dose,ward,age,nurse", *rows)
        data = FederatedData.from_csv(own, preparation=preparation, verbose=False)
        held = slice(*pooled.offsets[number : number + 2])
        assert torch.equal(data.x, pooled.x[held]) and torch.equal(data.y, pooled.y[held]) and len(data) == 1


def test_a_category_that_no_fitted_row_has_and_a_blank_are_0_in_all_its_columns(
    preparation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write(tmp_path / "own.csv", "age,ward,dose,outcome", "40,new,0,ill", ",,,well", "40,c,0,ill")
    data = FederatedData.from_csv(own, preparation=preparation)
    assert data.x[:, 1:4].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert data.x[1].tolist() == [0] * 5  # blank numbers are the mean
    assert "fitted elsewhere" in capsys.readouterr().err


def test_validation_rows_do_not_change_a_given_preparation(patients: Path, preparation: Path) -> None:
    data = FederatedData.from_csv(patients, "hospital", preparation=preparation, test=0.2, verbose=False)
    assert data.held_out(0.3).preparation == data.preparation
    fitted = FederatedData.from_csv(patients, "hospital", "outcome", verbose=False, drop=["patient_id"])
    assert fitted.held_out(0.3).preparation != fitted.preparation


@pytest.mark.parametrize(
    ("pooled_targets", "own_targets", "found"),
    [
        (["0.5", "2"], ["1", "2"], [1.0, 2.0]),  # numbers are predicted, although these are whole
        (["1", "2", "few", "many", "more"], ["2", "1"], [1, 0]),  # names of classes, although these are numbers
        (["0", "1", "2"], ["1", "0"], [1, 0]),
    ],
)
def test_targets_are_what_they_are_in_the_fitted_file(
    pooled_targets: list[str], own_targets: list[str], found: list[float], tmp_path: Path
) -> None:
    whole = write(tmp_path / "all.csv", "c,x,y", *(f"a,{n},{y}" for n, y in enumerate(pooled_targets)))
    FederatedData.from_csv(whole, "c", "y", verbose=False).save_preparation(tmp_path / "p.json")
    own = write(tmp_path / "own.csv", "x,y", *(f"1,{y}" for y in own_targets))
    data = FederatedData.from_csv(own, preparation=tmp_path / "p.json", verbose=False)
    server = FederatedData.from_preparation(tmp_path / "p.json")
    assert data.y.tolist() == found and data.y.dtype == server.y.dtype


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["age,dose,outcome", "1,2,ill"], "has no column 'ward'"),
        (["age,ward,dose", "1,a,2"], "has no column 'outcome'"),
        (["age,ward,dose,outcome", "old,a,2,ill"], "column 'age' has 'old', a number is needed as in training"),
        (["age,ward,dose,outcome", "1,a,2,dead"], "target 'dead' does not occur in the training data"),
        (["age,ward,dose,outcome", "1,a,2,"], "Line 2: the target column 'outcome' is blank"),
    ],
)
def test_a_file_that_does_not_fit_the_preparation_gets_one_line(
    lines: list[str], said: str, preparation: Path, tmp_path: Path
) -> None:
    own = write(tmp_path / "own.csv", *lines)
    with pytest.raises(fk.InputError) as error:
        FederatedData.from_csv(own, preparation=preparation)
    assert said in str(error.value) and "own.csv" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda known: known.clear(), "no columns and no target"),
        (lambda known: known.update(target=None), "no columns and no target"),
        (lambda known: known["columns"][0].update(deviation=0), "a deviation above 0"),
        (lambda known: known["columns"][0].update(mean=float("nan")), "needs a mean"),
        (lambda known: known["columns"][0].pop("mean"), "cannot be read as the preparation"),
        (lambda known: known["columns"][1].update(values=["b", "a"]), "sorted order"),
        (lambda known: known["columns"][1].update(name="age"), "each another one"),
        (lambda known: known["target"].update(classes="ill"), "sorted order"),
        (lambda known: known.update(scale=2), "true or false"),
        (lambda known: known.update(columns=[7]), "cannot be read as the preparation"),
    ],
)
def test_a_preparation_that_is_none_is_refused_by_its_name(change: Any, said: str, preparation: Path) -> None:
    known = json.loads(preparation.read_text())
    change(known["preparation"])
    preparation.write_text(json.dumps(known))
    with pytest.raises(fk.InputError, match=said) as error:
        FederatedData.from_preparation(preparation)
    assert "preparation.json" in str(error.value)


def test_what_a_preparation_fixes_cannot_be_given_beside_it(patients: Path, preparation: Path) -> None:
    with pytest.raises(fk.InputError, match="without target_column, drop"):
        FederatedData.from_csv(patients, preparation=preparation, drop=["age"])
    with pytest.raises(fk.InputError, match="needs client_column and target_column, or a preparation"):
        FederatedData.from_csv(patients)
    with pytest.raises(fk.InputError, match="no preparation of a table"):
        FederatedData.from_arrays([[0.0]], [0], clients=[0]).save_preparation(preparation)


def test_inputs_of_a_device_may_be_cast_after_it_has_its_place(preparation: Path) -> None:
    placed = FederatedData.from_preparation(preparation).placed(1, 3)
    assert placed.cast(torch.float32, "cpu").x.dtype == torch.float32


# fedkeel deploy init


def app_of(folder: Path) -> Any:
    """The function `task` of an app, without the part that needs Flower."""
    made: dict[str, Any] = {"__file__": str(folder / "app.py")}
    exec((folder / "app.py").read_text().split("app = App(task)")[0], made)
    return made["task"]


def test_init_of_a_table_writes_an_app_in_which_no_device_needs_the_rows_of_another(
    patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, folder = fk.tasks.get(spec(patients)), tmp_path / "hospitals"
    assert main(["deploy", "init", str(folder), spec(patients), "fedavg:lr=0.3"]) == 0
    said = capsys.readouterr().out
    patients.unlink()
    make = app_of(folder)
    for number, hospital in enumerate(("Aachen", "Bern", "Celle")):
        assert f"| {number}            | {hospital} " in said
        own = folder / "data" / f"client-{number}.csv"
        assert all(f",{hospital}," in row for row in own.read_text().splitlines()[1:])
        device = make({"partition-id": number, "file": str(own)})
        own.unlink()
        held = slice(*task.data.offsets[number : number + 2])
        assert torch.equal(device.data.x, task.data.x[held]) and torch.equal(device.data.y, task.data.y[held])
        assert device.spec is None and len(device.data) == 1
    server = make(None)
    assert server.data.test is None and not server.data.x.any()
    assert server.make(0).state_dict().keys() == task.make(0).state_dict().keys()
    server = with_test_file(server, str(folder / "data" / "test.csv"))
    assert torch.equal(server.data.test[0], task.data.test[0]) and torch.equal(server.data.test[1], task.data.test[1])


def test_init_of_a_table_waits_for_all_clients_and_sends_no_rows(patients: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hospitals"
    main(["deploy", "init", str(folder), spec(patients, hidden=4), "fedavg"])
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"]["nodes"] == 3 and app["fab-include"] == ["/*.py", "/preparation.json"]
    assert not any(str(patients) in (folder / name).read_text() for name in ("app.py", "pyproject.toml"))
    assert not any(hospital in (folder / "preparation.json").read_text() for hospital in WARDS)
    assert "/data/" in (folder / ".gitignore").read_text().split()
    assert oct((folder / "data").stat().st_mode & 0o777) == "0o700"
    assert next(app_of(folder)(None).make(0).parameters()).shape == (4, 5)


def test_a_test_file_of_the_task_is_that_of_the_trial(patients: Path, tmp_path: Path) -> None:
    test = write(tmp_path / "held.csv", "outcome,age,dose,ward,name", "ill,50,1,c,Ada", "well,,2,zz,Ann")
    task, folder = fk.tasks.get(spec(patients, test=test)), tmp_path / "hospitals"
    main(["deploy", "init", str(folder), spec(patients, test=test), "fedavg"])
    kept = folder / "data" / "test.csv"
    assert "Ada" not in kept.read_text()  # only what the model needs
    assert torch.equal(with_test_file(app_of(folder)(None), str(kept)).data.test[0], task.data.test[0])
    assert len((folder / "data" / "client-0.csv").read_text().splitlines()) == 11  # all rows train


def test_a_device_says_what_is_wrong_with_its_file_on_its_own_machine_alone(
    preparation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write(tmp_path / "own.csv", "age,ward,dose,outcome", "Ada Lovelace,a,2,ill")
    with pytest.raises(fk.InputError) as error:
        own_rows({"file": str(own)}, preparation)
    assert "Ada" not in str(error.value) and "SuperNode" in str(error.value)
    assert "column 'age' has 'Ada Lovelace'" in capsys.readouterr().err
    with pytest.raises(fk.InputError, match="file='/path/to/own"):
        own_rows({"partition-id": 0}, preparation)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("csv", "has no file, client and target"),
        ("csv:file=no.csv,client=a,target=b", "is not there"),
        ("pretrained", "leave it out here"),
    ],
)
def test_init_of_a_table_that_cannot_work_writes_nothing(
    task: str, said: str, patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = spec(patients, pretrained="start.safetensors") if task == "pretrained" else task
    assert main(["deploy", "init", str(tmp_path / "app"), task, "fedavg"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "app").exists()


def test_a_trial_starts_no_more_nodes_than_there_are_files(
    patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["deploy", "init", str(tmp_path / "app"), spec(patients), "fedavg"])
    assert main(["deploy", "local", str(tmp_path / "app"), "--nodes", "4"]) == 2
    assert "--nodes must be 1..3" in capsys.readouterr().err


def test_a_test_file_is_refused_where_the_task_has_its_own() -> None:
    with pytest.raises(fk.InputError, match="leave test-file empty"):
        with_test_file(fk.tasks.get("synthetic:users=3"), "test.csv")


def test_whole_numbers_that_are_classes_are_the_same_classes_on_every_site(patients: Path, tmp_path: Path) -> None:
    patients.write_text(patients.read_text().replace(",ill\n", ",-1\n").replace(",well\n", ",10\n"))
    task = fk.tasks.get(spec(patients, test=0))
    assert task.data.class_names == ["-1", "10"] and sorted(set(task.data.y.tolist())) == [0, 1]
    assert main(["deploy", "init", str(tmp_path / "hospitals"), spec(patients, test=0), "fedavg"]) == 0
    assert not (tmp_path / "hospitals/data/test.csv").exists()
    for number in range(3):
        node = {"file": str(tmp_path / f"hospitals/data/client-{number}.csv")}
        own = own_rows(node, tmp_path / "hospitals/preparation.json")
        begin, end = task.data.offsets[number : number + 2]
        assert torch.equal(own.y, task.data.y[begin:end]) and torch.equal(own.x, task.data.x[begin:end])
    strange = write(tmp_path / "strange.csv", "age,ward,dose,outcome", "1,a,2,3")
    with pytest.raises(fk.InputError, match="'3' does not occur in the training data"):
        FederatedData.from_csv(strange, preparation=tmp_path / "hospitals/preparation.json")
