"""Every setting is described once, in `RunConfig`; keywords, flags, files and resumed runs follow."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.lab.study import Study
from fedkeel.run.config import RunConfig
from fedkeel.settings import VERSION_0_1, settings
from fedkeel.world import World

TASK = "synthetic:users=5"
NEW_LINE = '    patience: int = setting(3, integer(), "an example of a setting", "N")\n'

# What a user sees of the new setting, in a copy of the package that has one more line.
SCRIPT = """
import contextlib, inspect, io, json, shutil, sys
from pathlib import Path
import fedkeel as fk
from fedkeel.cli import main
from fedkeel.lab.reproduce import plan

def command(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        assert main(list(map(str, words))) == 0
    return out.getvalue()

def patience(folder):
    return json.loads((folder / "config.json").read_text()).get("patience")

def refused(**settings):
    try:
        fk.train(task, "fedavg", rounds=1, **settings)
    except fk.InputError as error:
        return str(error)

if __name__ == "__main__":
    out = Path(sys.argv[1])
    task, small = fk.tasks.get("synthetic:users=5"), ["--rounds", 2, "--cohort", 2]
    seen = {"package": fk.__file__, "error": refused(patience=0)}
    seen["default"] = inspect.signature(fk.train).parameters["patience"].default
    seen["documented"] = "patience: an example of a setting; default 3" in fk.train.__doc__
    for name in ("run", "sweep"):
        seen[f"{name} help"] = "--patience N" in command(name, "--help")
    command("run", "synthetic:users=5", "fedavg", *small, "--patience", 4, "--out", out / "one")
    command("run", "synthetic:users=5", "fedavg", "gel", *small, "--patience", 5, "--out", out / "many")
    grid = ["--grid", "lr=0.1,0.2", "--jobs", 1]
    command("sweep", "synthetic:users=5", "fedavg", *grid, *small, "--patience", 6, "--out", out / "sweep")
    command("run", "--config", out / "many" / "config.json", "--out", out / "again")
    shutil.rmtree(out / "many" / "gel")
    command("resume", out / "many")
    fk.train(task, "fedavg", rounds=4, patience=7, stop_after=2, checkpoint=out / "stopped")
    seen["resumed"] = fk.resume(out / "stopped").config["patience"]
    fk.train(task, "fedavg", rounds=4, checkpoint=out / "old")
    known = json.loads((out / "old" / "config.json").read_text())
    del known["patience"], known["sha256"]  # as an earlier version would have written it
    (out / "old" / "config.json").write_text(json.dumps(known))
    for name in (".fedkeel.json", "outcome.json"):
        (out / "old" / name).unlink()
    seen["old"] = fk.resume(out / "old").status
    command("run", "--config", out / "old" / "config.json", "--out", out / "new")
    panel = {"name": "p", "task": "synthetic", "arms": {"a": "fedavg"}, "seeds": [0, 2], "target": 0.5, "patience": 8}
    about = {"title": "", "paper": "", "what": "", "panel": [panel]}
    seen["panel"] = plan.read("x", about).panels[0].plain()["patience"]
    seen["files"] = {str(f.parent.relative_to(out)): patience(f.parent) for f in out.rglob("config.json")}
    print(json.dumps(seen))
"""


@pytest.mark.extra  # slow
def test_a_new_setting_is_one_line(tmp_path: Path) -> None:
    package = Path(fk.__file__).parent
    copy = tmp_path / "src" / "fedkeel"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    config = copy / "run" / "config.py"
    before, first, after = config.read_text().partition("    rounds: int = setting(")
    config.write_text(before + NEW_LINE + first + after)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src")}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert Path(seen.pop("package")).parent == copy
    assert seen == {
        "error": "The 'patience' parameter of train must be an integer in [1, 1e9]. Got 0 instead.",
        "default": 3, "documented": True, "run help": True, "sweep help": True, "resumed": 7, "old": "done", "panel": 8,
        "files": {
            "one": 4, "many": 5, "many/fedavg/seed-0": 5, "many/gel/seed-0": 5,
            "again": 5, "again/fedavg/seed-0": 5, "again/gel/seed-0": 5,
            "sweep": 6, "sweep/fedavg_lr=0.1/seed-0": 6, "sweep/fedavg_lr=0.2/seed-0": 6,
            "stopped": 7, "old": None, "new": 3,
        },
    }  # fmt: skip


def test_every_setting_is_a_documented_keyword_and_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    parameters = inspect.signature(fk.train).parameters
    assert list(parameters)[:5] == ["task", "algorithm", "world", "rounds", "seed"]
    for name, one in settings(RunConfig).items():
        keyword = one.keyword or name
        assert parameters[keyword].default == one.default
        assert f"{keyword}: {one.text}" in str(fk.train.__doc__)
    for command in ("run", "sweep"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert flags >= {"--" + name.replace("_", "-") for owner in (RunConfig, World) for name in settings(owner)}


def test_every_setting_is_in_the_configuration_of_a_run_and_of_a_comparison() -> None:
    run = fk.train(fk.tasks.get(TASK), "fedavg", rounds=1).config
    assert set(settings(RunConfig)) - set(run) == {"lr"}  # `parameters` has the rate
    study = Study(TASK, ["fedavg"], seeds=[3], rounds=7, eval_samples=2)
    assert study.run_config(3) == RunConfig(rounds=7, eval_samples=2, seed=3)
    assert Study.from_config(study.config()).plain() == study.plain()


@pytest.mark.parametrize(
    ("name", "nearest"), [("evry", "every"), ("batchsize", "batch_size"), ("chekpoint", "checkpoint")]
)
def test_an_unknown_keyword_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(fk.InputError, match=f"Unknown keyword of train '{name}'. Did you mean '{nearest}'?"):
        fk.train(fk.tasks.get(TASK), "fedavg", rounds=1, **{name: 1})


def test_rate_target_and_compile_are_keywords_of_train_as_they_are_flags(tmp_path: Path) -> None:
    words = ["--lr", "0.03", "--target", "0.4", "--no-compile", "--dtype", "float64", "--rounds", "2"]
    assert main(["run", TASK, "fedavg", *words, "--out", str(tmp_path)]) == 0
    chosen = {"lr": 0.03, "target": 0.4, "compile": False, "dtype": torch.float64, "rounds": 2}
    run = fk.train(fk.tasks.get(TASK), "fedavg", **chosen)
    assert run.config == fk.load(tmp_path).config
    assert torch.equal(run.params, fk.load(tmp_path).params)


@pytest.mark.parametrize("name", VERSION_0_1)
def test_a_file_without_a_setting_of_the_first_version_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    run = fk.train(fk.tasks.get(TASK), "fedavg", rounds=2, stop_after=1)
    del run.config[name]
    with pytest.raises(fk.InputError, match=f"^The configuration has no '{name}'.$"):
        RunConfig.from_config(run.config)
    (tmp_path / "config.json").write_text(json.dumps(run.config))
    assert main(["run", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "d")]) == 2
    assert not (tmp_path / "d").exists()


def test_a_finished_run_of_the_first_version_is_read_without_what_came_later(tmp_path: Path) -> None:
    task = fk.tasks.get(TASK)
    whole = fk.train(task, "fedavg", rounds=4, compile=False, checkpoint=tmp_path, every=2)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("device", "compile", "eval_samples", "diagnose", "engine_reason", "sha256"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in (".fedkeel.json", "outcome.json"):
        (tmp_path / name).unlink()
    assert RunConfig.from_config(config).compile is False
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert torch.equal(fk.resume(tmp_path, task).params, whole.params)
    assert fk.load(tmp_path, task).status == "done"
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before  # read, not trained again
