"""A short part of the fuzz of all readers of data sets, in make test-all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ATTACK = Path(__file__).parents[1] / "attack"


@pytest.mark.extra  # slow
def test_damaged_files_of_every_format_are_read_or_refused_in_one_line(tmp_path):
    command = [sys.executable, str(ATTACK / "run.py"), "--only", "read", "--cases", "7", "--seconds", "1200"]
    command += ["--keep", str(tmp_path / "work"), "--json", str(tmp_path / "counts.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "counts.json").read_text())
    assert all(row["cases"] == 7 and row["accepted"] + row["refused"] == 7 for row in rows if not row["skipped"])
    assert sum(row["cases"] for row in rows) > 150 and sum(row["refused"] for row in rows) > 50
