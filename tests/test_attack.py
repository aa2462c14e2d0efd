"""A short part of `make attack`, always on: kills, damaged files and random input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ATTACK = Path(__file__).parents[1] / "attack"


@pytest.mark.extra  # slow
@pytest.mark.parametrize(
    "words",
    [
        ["kill", "--kills", "8", "--kinds", "run", "comparison"],
        ["harm", "--damages", "5"],
        ["fuzz", "--cases", "15"],
    ],
    ids=["kill", "harm", "fuzz"],
)
def test_a_short_attack_fails_nowhere(tmp_path, words):
    command = [sys.executable, str(ATTACK / "run.py"), "--only", *words, "--keep", str(tmp_path / "work")]
    command += ["--json", str(tmp_path / "counts.json")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "110"})
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "counts.json").read_text())
    assert rows and all(not row["failures"] for row in rows)
    assert sum(row.get("kills", 0) + row.get("cases", 0) for row in rows) >= 8
