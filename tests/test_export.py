"""Exported models: the same outputs, from raw inputs, without fedkeel and without pickle."""

from __future__ import annotations

import csv
import io
import json
import runpy
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.lab import export
from fedkeel.lab.export import Complete, raw_inputs

CSV = "site,age,sex,ill\n" + "".join(
    f"{'AB'[row % 2]},{'' if row == 3 else 20 + row},{('f', 'm')[row % 3 == 0]},{('no', 'yes')[row % 4 > 1]}\n"
    for row in range(40)
)


@pytest.fixture
def hearts(tmp_path):
    """The directory of a run on a table."""
    (tmp_path / "hearts.csv").write_text(CSV)
    task = f"csv:file={tmp_path}/hearts.csv,client=site,target=ill"
    run = ["run", task, "fedavg", "--rounds", "3", "--validation", "0.2", "--client-test", "0.2"]
    assert main([*run, "--out", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def test_a_model_with_its_preparation_gives_the_scores_of_the_model_on_prepared_inputs(hearts):
    run = fk.load(hearts)
    task = fk.tasks.get(run.config["task"])
    data = task.held_out(0.2, "client_test").held_out(0.2).data
    whole = Complete(run.model(), data, torch.float32)
    assert torch.equal(whole(*raw_inputs(data)), run.model()(data.x[:4].float()))


def test_scaled_pictures_go_in_raw():
    task = fk.tasks.digits()
    model = task.model()
    (raw,) = raw_inputs(task.data)
    assert float(raw.max()) == 16
    assert torch.allclose(Complete(model, task.data, torch.float32)(raw), model(task.data.x[:4]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "--out", "x"], "nowhere"),
        (["both", "--out", "x"], "both holds 2 runs; name one of them, such as"),
        (["run", "--out", "full"], "full is not empty"),
        (["full", "--out", "x"], "There is no run with a history in full."),
        (["run/fedavg/seed-0", "--out", "x"], "not the directory of a run or of a comparison; run is."),
        (["python", "--out", "x"], "in Python: fk.export(DIR, OUT, task=task)."),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(hearts, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    assert main(["run", "digits", "fedavg", "fedprox", "--rounds", "1", "--out", "both"]) == 0
    fk.train(replace(fk.tasks.digits(), spec=None), "fedavg", rounds=1, checkpoint="python")
    capsys.readouterr()
    assert main(["export", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_without_onnx_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", "x", "--to", "onnx", "--out", str(tmp_path / "o")]) == 1
    assert 'pip install "onnx>=1.16"' in capsys.readouterr().err


@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("scores", "classes", "lines"),
    [
        ([[0.0, 0.0], [0.0, 1.0]], ["a,b", "c"], ["prediction,probability", '"a,b",0.5000', "c,0.7311"]),
        ([[0.0, 0.0], [0.0, 1.0]], None, ["prediction,probability", "0,0.5000", "1,0.7311"]),
        ([1.5, -2.0], None, ["1.5", "-2.0"]),
    ],
)
def test_predictions_have_probabilities_and_unknown_texts_are_said(
    tmp_path, monkeypatch, capsys, to, scores, classes, lines
):
    session = SimpleNamespace(run=lambda names, inputs: [np.array(scores)])
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=lambda *_, **__: session))
    loaded = SimpleNamespace(module=lambda: lambda rows: torch.tensor(scores))
    monkeypatch.setattr(torch.export, "load", lambda file: loaded)
    columns = [{"name": "ward", "values": ["heart", "lung"]}]
    (tmp_path / "about.json").write_text(json.dumps({"preparation": {"columns": columns}, "classes": classes}))
    (tmp_path / "rows.csv").write_text("ward,age\n?,1\noncology,2\n")
    script = Path(export.__file__).with_name(f"predict_{to}.py.txt").read_text()
    (tmp_path / "predict.py").write_text(script)
    monkeypatch.setattr(sys, "argv", ["predict.py", str(tmp_path / "rows.csv")])
    runpy.run_path(str(tmp_path / "predict.py"), run_name="__main__")
    said = capsys.readouterr()
    assert said.out.splitlines() == lines
    assert said.err == "row 2: ward 'oncology' was not in the training data; it is treated as blank\n"


@pytest.mark.extra
@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_an_exported_table_predicts_raw_rows_without_fedkeel(hearts, tmp_path, to):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    assert main(["export", str(hearts), "--to", to, "--out", str(tmp_path / "out")]) == 0
    (tmp_path / "rows.csv").write_text("sex, age\nf, 30\nm ,\nx,25\n")
    code = (
        "import sys, runpy; sys.modules['fedkeel'] = None; sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out" / "predict.py"), str(tmp_path / "rows.csv")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == "row 3: sex 'x' was not in the training data; it is treated as blank\n"
    run = fk.load(hearts)
    data = fk.tasks.get(run.config["task"]).held_out(0.2, "client_test").held_out(0.2).data
    raw = data.table.preparation.encode({"sex": ["f", "m", "x"], "age": ["30", "", "25"]})
    shares, best = run.model()(data.table.preparation.inputs(raw).float()).softmax(1).max(1)
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [line["prediction"] for line in lines] == [data.class_names[number] for number in best]
    assert [float(line["probability"]) for line in lines] == pytest.approx(shares.tolist(), abs=1e-4)
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about["classes"] == ["no", "yes"] and about["run"]["algorithm"] == "fedavg"
    assert about["run"]["task"] == "csv:file=hearts.csv,client=site,target=ill"
    help_ = subprocess.run([*command[:-1], "--help"], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert help_.stdout.startswith("usage: python predict.py rows.csv\n") and not help_.stderr
    read = fk.FederatedData.from_preparation(tmp_path / "out" / "about.json")
    assert read.preparation == data.preparation and read.class_names == ["no", "yes"]
    (tmp_path / "rows.csv").write_text("sex,age\nf,30\nm,old\n")
    failed = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert failed.returncode == 1 and failed.stderr == f"{command[-1]}: row 2, column 'age': 'old' is not a number\n"
    for text, said in (
        ("sex\nf\n", "it has no column 'age'"),
        ("sex,age\nf\n", "row 1 has no value for the column 'age'"),
        ("sex;age\nf;30\n", "it has semicolons between the values; save it with commas"),
        ("", "the file is empty"),
        ("sex,age\n", "it has no rows below the line with the names of its columns"),
    ):
        (tmp_path / "rows.csv").write_text(text)
        failed = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
        assert failed.returncode == 1 and failed.stderr == f"{command[-1]}: {said}\n"


@pytest.mark.extra
def test_the_example_of_the_documentation_feeds_the_bare_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(
        f"{'AB'[i % 2]},{30 + i},{('heart', 'lung')[i % 3 == 0]},{80 + i},{('no', 'yes')[i > 20]}\n" for i in range(40)
    )
    (tmp_path / "patients.csv").write_text("hospital,age,ward,glucose,readmitted\n" + rows)
    task = fk.tasks.get("csv:file=patients.csv,client=hospital,target=readmitted")
    run = fk.train(task, "fedavg", rounds=2)
    fk.export(run, "readmitted")
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text(encoding="utf-8")
    found: dict = {}
    exec(page.split("```python\n")[1].split("```")[0], found)
    about = task.data.table.preparation
    inputs = about.inputs(about.encode({"age": ["71"], "ward": ["surgery"], "glucose": [""]}))
    assert inputs[0, 1:].tolist() == [0, 0, 0]  # neither ward, and the mean
    assert torch.allclose(found["scores"], run.model()(inputs.float()))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Embedding(4, 2)

    def forward(self, a, b):
        return {"logits": self.a(a) + self.b(b)}


@pytest.mark.extra
def test_a_model_with_several_inputs_is_exported_with_them_and_nothing_is_pickled(tmp_path):
    inputs = {"a": torch.randn(20, 3), "b": torch.arange(20) % 4}
    data = fk.FederatedData.from_arrays(inputs, torch.arange(20) % 2, clients=torch.arange(20) % 5)
    task = fk.Task(Two, fk.cross_entropy, data)
    run = fk.train(task, "fedavg", rounds=2)
    fk.export(run, tmp_path / "out", task=task)
    loaded = torch.export.load(tmp_path / "out" / "model.pt2").module()
    assert torch.allclose(loaded(inputs["a"], inputs["b"]), run.model()(**inputs)["logits"])
    with zipfile.ZipFile(tmp_path / "out" / "model.pt2") as archive:
        assert not any(archive.read(name) for name in archive.namelist() if name.endswith((".pt", ".pkl")))
        weights = json.loads(archive.read("model/data/weights/model_weights_config.json"))
    assert not any(one["use_pickle"] for one in weights["config"].values())
