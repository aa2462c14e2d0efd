"""What the README prints runs as printed, and what it points to is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel import grammar, recipes
from fedkeel.cli import parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def own() -> dict[str, Any]:
    """The names the second block takes from the reader."""
    x, y = torch.randn(60, 3), torch.arange(60) % 2
    ids = [sample % 20 for sample in range(60)]
    return {"fk": fk, "x": x, "y": y, "ids": ids, "xt": x, "yt": y, "make_model": lambda: nn.Linear(3, 2)}


def test_the_first_two_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 3
    for block in BLOCKS[:2]:
        names = own()
        exec(re.sub(r"rounds=\d+", "rounds=2", block), names)
        assert names["run"].status == "done"
    assert (tmp_path / "runs" / "mine" / "config.json").exists()


def test_the_rule_in_the_readme_is_scaffold_bit_for_bit() -> None:
    names: dict[str, Any] = {"fk": fk}
    exec(BLOCKS[2], names)
    task, world = fk.tasks.digits(), fk.World(cohort=5)
    runs = [
        fk.train(task, fk.Algorithm(rules=[rule], weights="uniform"), world, rounds=5)
        for rule in (names["Scaffold"](), fk.Scaffold())
    ]
    assert torch.equal(runs[0].params, runs[1].params)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_can_be_read_and_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        generated = Path(link).parent.name == "algorithms" and Path(link).stem in recipes.KNOWN  # by docs/hooks.py
        assert link.startswith("http") or generated or (page.parent / link).exists(), link
    whole = re.sub(r"\\\n\s*", "", text)  # a command may go on in the next line
    commands = re.findall(r"^    fedkeel (.*)$", whole, re.MULTILINE)
    commands += re.findall(r"^\| `fedkeel ([^`]*)` \|", whole, re.MULTILINE)
    for command in commands:
        words = re.split(r"\s{3,}", command)[0]  # what stands behind it says what it does
        arguments = parser().parse_args(shlex.split(words))
        for name in getattr(arguments, "algorithms", []):
            fk.algorithm(name)
        if task := getattr(arguments, "task", None):
            assert grammar.parse(task)[0][0] in fk.tasks.TASKS
