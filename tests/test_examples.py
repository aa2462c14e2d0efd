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


def test_the_example_on_worth_has_every_hospital_alone_federated_and_pooled(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(next(path for path in EXAMPLES if path.stem == "worth_it")), run_name="__main__")
    _, heads, *hospitals, mean = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heads == ["hospital", "test", "rows", "alone", "federated", "pooled"]
    assert [name for name, *_ in hospitals] == list("ABCDE")
    assert 150 < sum(int(rows) for _, rows, *_ in hospitals) <= 180  # a fifth of 900
    columns = [[float(value) for value in column] for column in list(zip(*hospitals, strict=True))[2:]]
    assert [float(value) for value in mean[1:]] == pytest.approx([sum(c) / 5 for c in columns], abs=1e-3)
    assert all(0.7 < value <= 1 for column in columns for value in column)
    assert columns[0] != columns[1] != columns[2]
