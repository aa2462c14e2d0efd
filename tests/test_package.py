"""The wheel and the source archive build, hold what they should, and install into an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedkeel as fk

ROOT = Path(__file__).resolve().parents[1]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "FEDKEEL"))}


def call(*words: object, **more: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=CLEAN, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return str(done.stdout)


def test_version_change_log_and_citation_agree() -> None:
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert newest.split()[1] == fk.__version__
    assert f"version: {fk.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_file_of_the_package_that_is_not_python_is_named_as_package_data() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fedkeel"]
    package = ROOT / "src" / "fedkeel"
    listed: set[Path] = set()
    for pattern in named:
        found = set(package.glob(pattern))
        assert found, pattern
        listed |= found
    skipped = {".py", ".pyc"}
    assert {file for file in package.rglob("*") if file.is_file() and file.suffix not in skipped} == listed


@pytest.mark.extra
def test_wheel_and_source_archive_install_into_an_empty_environment_and_work(tmp_path: Path) -> None:
    copy = tmp_path / "copy"  # a build leaves files beside the sources
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name in files:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = [tmp_path / "venv" / "bin" / "pip", "--disable-pip-version-check", "-q"]
    call(*pip, "install", "setuptools>=77", "wheel")
    make = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    call(tmp_path / "venv" / "bin" / "python", "-c", make, cwd=copy)
    (archive,) = (copy / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as content:
        inside = {name.partition("/")[2] for name in content.getnames()}
    assert {name for name in files if name.startswith(("src/", "docs/", "examples/", "tests/"))} <= inside
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "Makefile"} <= inside
    wheels = []
    for place, source in (("direct", copy), ("from-sdist", archive)):
        call(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / place, source)
        wheels += [*(tmp_path / place).glob("*.whl")]
    names = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as content:
            names.append({name for name in content.namelist() if ".dist-info/" not in name})
    package = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    assert names[0] == names[1] == package
    call(*pip, "install", "--constraint", ROOT / "constraints.txt", wheels[0])
    command = tmp_path / "venv" / "bin" / "fedkeel"
    assert call(command, "--version") == f"fedkeel {fk.__version__}\n"
    call(command, "run", "digits", "fedavg", "scaffold", "--rounds", 2, "--out", tmp_path / "runs", cwd=tmp_path)
    call(command, "report", tmp_path / "runs", "--out", tmp_path / "report.html", cwd=tmp_path)
    call(command, "reproduce", "--list", cwd=tmp_path)
    kept = call(*pip, "list", "--format=freeze").lower()
    assert not {"pandas", "matplotlib", "ray", "flwr", "mkdocs"} & {line.partition("==")[0] for line in kept.split()}
