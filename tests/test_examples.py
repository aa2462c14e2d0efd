"""Every example runs, is short, and says what it promises."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


EXTRA = {"own_huggingface"}  # make test installs nothing for them
CASES = [pytest.param(path, id=path.stem, marks=[pytest.mark.extra] if path.stem in EXTRA else []) for path in EXAMPLES]


@pytest.mark.parametrize("example", CASES)
def test_an_example_runs_and_is_short(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        runpy.run_path(str(example), run_name="__main__")
    except SystemExit:  # an extra is not installed
        assert "pip install" in capsys.readouterr().out
        return
    out = capsys.readouterr().out
    assert out
    assert "False" not in out
    assert len(example.read_text().splitlines()) < 60
