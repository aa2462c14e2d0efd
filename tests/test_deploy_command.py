"""`fedkeel deploy`, as far as it needs no Flower."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.deploy import App
from fedkeel.deploy.app import refuse, settings_of
from fedkeel.run.config import RunConfig
from fedkeel.world import World


def test_init_writes_an_app_whose_settings_are_those_of_a_run(tmp_path: Path) -> None:
    assert main(["deploy", "init", str(tmp_path / "Hearts 2"), "synthetic:users=3", "fedprox:mu=0.1+gel"]) == 0
    project = tomllib.loads((tmp_path / "Hearts 2" / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert project["project"]["name"] == "hearts-2" and config["algorithm"] == "fedprox:mu=0.1+gel"
    assert settings_of(config, RunConfig) == {"rounds": 10, "seed": 0, "eval_every": 1}
    assert World.from_parameters(settings_of(config, World)).cohort == "all"
    compile((tmp_path / "Hearts 2" / "app.py").read_text(), "app.py", "exec")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["synthetic", "fedavgg"], "fedavg"), (["sinthetic", "fedavg"], "synthetic")],
)
def test_init_refuses_names_that_do_not_exist(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "init", str(tmp_path / "app"), *words]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "app").exists()


def test_init_leaves_a_folder_with_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").touch()
    assert main(["deploy", "init", str(tmp_path), "synthetic", "fedavg"]) == 2
    assert "not empty" in capsys.readouterr().err and len(list(tmp_path.iterdir())) == 1


def test_without_flower_the_error_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("flwr", "flwr.app"):
        monkeypatch.setitem(sys.modules, name, None)
    main(["deploy", "init", str(tmp_path / "app"), "synthetic", "fedavg"])
    assert main(["deploy", "local", str(tmp_path / "app")]) == 1
    said = capsys.readouterr().err
    assert 'pip install "flwr' in said and "Logs and keys" not in said
    assert not (tmp_path / "app" / ".deploy").exists()
    with pytest.raises(fk.MissingExtra, match="flwr"):
        App(lambda node: fk.tasks.get("synthetic")).client()


def test_settings_of_a_simulation_are_refused() -> None:
    with pytest.raises(fk.InputError, match="validation"):
        settings_of({"validation": 0.1}, RunConfig)
    with pytest.raises(fk.InputError, match="buffered"):
        refuse(fk.algorithm("fedbuff"), World())
    with pytest.raises(fk.InputError, match="simulated"):
        refuse(fk.algorithm("fedavg"), World(fleet="phones"))


def test_init_refuses_an_algorithm_that_devices_do_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "init", str(tmp_path / "app"), "synthetic", "fedbuff"]) == 2
    assert "Devices train in rounds" in capsys.readouterr().err and not (tmp_path / "app").exists()


def test_init_says_how_many_rounds_there_are_and_where_to_change_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("site,a,ill\n" + "A,1,no\nA,2,yes\nB,3,no\nB,1,yes\n" * 3)
    for number, task in enumerate(("synthetic", f"csv:file={tmp_path / 't.csv'},client=site,target=ill")):
        assert main(["deploy", "init", str(tmp_path / str(number)), task, "fedavg"]) == 0
        assert "trains 10 rounds; change rounds in pyproject.toml" in capsys.readouterr().out
        settings = tomllib.loads((tmp_path / str(number) / "pyproject.toml").read_text())
        assert settings["tool"]["flwr"]["app"]["config"]["rounds"] == 10


def test_init_describes_test_rows_only_where_there_are_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("site,a,ill\n" + "A,1,no\nA,2,yes\nB,3,no\nB,1,yes\n" * 3)
    for test, has in (("0", False), ("0.4", True)):
        task = f"csv:file={tmp_path / 't.csv'},client=site,target=ill,test={test}"
        folder = tmp_path / test
        assert main(["deploy", "init", str(folder), task, "fedavg"]) == 0
        about = (folder / "data" / "README.md").read_text()
        assert (folder / "data" / "test.csv").exists() == has
        for text in (about, capsys.readouterr().out):
            assert ("test.csv" in text) == has
