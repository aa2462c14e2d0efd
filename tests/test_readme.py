"""What the README prints runs as printed, and what it points to is there."""

from __future__ import annotations

import inspect
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel import grammar, recipes
from fedkeel.cli import deploy, parser
from fedkeel.data import table
from fedkeel.engine.worker import Site
from fedkeel.rule import METHODS
from fedkeel.tasks import own

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
RULE_BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-rule.md").read_text(), re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readme_fits_on_a_screen_or_two_and_its_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(README.splitlines()) <= 72
    (block,) = BLOCKS
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(re.sub(r"rounds=\d+", "rounds=2", block), names)
    assert names["run"].status == "done"
    assert (tmp_path / "runs" / "mine" / "config.json").exists() and (tmp_path / "report.html").exists()


def test_the_numbers_of_the_readme_are_those_of_the_pages_it_names() -> None:
    speed = (ROOT / "docs" / "speed.md").read_text()
    plain = next(line for line in speed.splitlines() if line.startswith("| fedkeel |")).split("|")
    assert f"{float(plain[2].split()[0]):.0f} times the best naive loop" in README
    pages = (ROOT / "docs" / "results" / name / "table2.md" for name in ("gel", "gel-adam"))
    table = "".join(page.read_text() for page in pages)
    gains = re.findall(r"(\d+) % \[([-+\d.]+), ([-+\d.]+)\].*?paper: (\d+) %", README, re.DOTALL)
    assert len(gains) == 3
    for gain in gains:
        ours, low, high, papers = map(float, gain)
        claims = re.findall(r"\| \+([\d.]+) % \| \+([\d.]+) % \[([-+\d.]+), ([-+\d.]+)\]", table)
        found = [list(map(float, claim)) for claim in claims]
        assert any(max(abs(a - b) for a, b in zip(one, (papers, ours, low, high), strict=True)) <= 0.5 for one in found)


def test_the_rule_on_the_page_is_scaffold_bit_for_bit() -> None:
    names: dict[str, Any] = {"fk": fk}
    (block,) = [block for block in RULE_BLOCKS if "class Scaffold" in block]
    exec(block, names)
    task, world = fk.tasks.digits(), fk.World(cohort=5)
    runs = [fk.train(task, algorithm, world, rounds=5) for algorithm in (names["scaffold"], "scaffold")]
    assert torch.equal(runs[0].params, runs[1].params)


def test_the_page_on_rules_registers_its_example_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(recipes.RECIPES, "cautious", recipes.Recipe("replaced by the block"))  # and taken out again
    names: dict[str, Any] = {}
    (block,) = [block for block in RULE_BLOCKS if "recipes.RECIPES[" in block]
    for code in ((ROOT / "examples" / "own_rule.py").read_text(), block):
        exec(re.sub(r"rounds=\d+", "rounds=2", code), names)
    assert "cautious:caution=0.3 on synthetic: 2 rounds, seeds: 3" in repr(names["found"])
    assert fk.algorithm("cautious:caution=0.3").rules == (names["Cautious"](0.3),)
    with pytest.raises(fk.InputError, match="Unknown parameter of cautious 'cautio'"):
        fk.algorithm("cautious:cautio=1")


def test_the_checks_and_the_random_numbers_of_the_page_on_rules_work_as_printed() -> None:
    example = (ROOT / "examples" / "own_rule.py").read_text().partition("task, world")[0]  # its class
    names: dict[str, Any] = {}
    exec(example, names)
    for mark in ("class Noisy", "import check_all"):
        (block,) = [block for block in RULE_BLOCKS if mark in block]
        exec(block, names)
    names["check_all"](fk.Algorithm(rules=[names["Noisy"]()]))


def test_the_page_on_rules_has_every_field_that_a_rule_may_read_and_no_other() -> None:
    page = (ROOT / "docs" / "own-rule.md").read_text()
    for kind in (fk.Me, fk.End, fk.View):
        name = kind.__name__.lower()
        listed = re.findall(rf"^\| `{name}\.(\w+)` \|", page, re.MULTILINE)
        assert sorted(listed) == sorted(field.name for field in fields(kind))
    site = page.partition("| of `me.site` |")[2].partition("\n\n")[0]
    methods = re.findall(r"^\| `(\w+)\(", site, re.MULTILINE)
    assert len(methods) == 4 and all(callable(getattr(Site, method)) for method in methods)


def test_the_page_on_rules_lists_every_method_that_a_round_calls() -> None:
    table = (ROOT / "docs" / "own-rule.md").read_text().partition("| method | where |")[2].partition("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for cell in first for name in re.findall(r"`(\w+)[(`]", cell)]
    assert sorted(listed) == sorted(METHODS)


def test_the_tuning_on_the_page_on_comparing_runs_and_reports_other_seeds_than_it_tunes_by() -> None:
    page = (ROOT / "docs" / "comparing.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "fk.sweep(" in block]
    names: dict[str, Any] = {}
    exec(re.sub(r"rounds=\d+", "rounds=2", block), names)
    assert [arm.seeds for arm in names["comparison"].arms] == [[0, 1, 2]] * 2
    assert [one.spec.partition(":")[0] for one in names["tuned"]] == ["fedavg", "scaffold"]


def test_every_marker_of_the_site_that_includes_a_file_is_whole_and_names_one() -> None:
    lines = [line for page in PAGES for line in page.read_text().splitlines() if re.search(r"--\s*8", line)]
    assert len(lines) >= 4
    for line in lines:
        found = re.fullmatch(r'--8<-- "(.+)"', line)
        assert found and (ROOT / found[1]).exists(), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_can_be_read_and_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        # docs/hooks.py writes these
        generated = Path(link).parent.name == "algorithms" and Path(link).stem in (*recipes.KNOWN, "index")
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


def test_all_pages_and_helps_mean_the_same_columns_by_patients_csv() -> None:
    texts = [*(page.read_text() for page in PAGES), deploy.EXAMPLES, own.csv.__doc__ or ""]
    found = [task for text in texts for task in re.findall(r"csv:file=[^\s`']+", text)]
    assert len(found) >= 9
    for task in found:
        (_, keys), *_ = grammar.parse(task)
        assert (keys["file"], keys["client"], keys["target"]) == ("patients.csv", "hospital", "readmitted"), task
        assert keys.keys() <= {"file", "client", "target", "test"}, task  # so that one file is enough for all of them
    assert "drop=patient_id" in (ROOT / "docs" / "start.md").read_text()


@pytest.mark.parametrize("page", ["own-data.md", "tasks/csv.md"])
def test_the_pages_on_tables_list_every_word_that_counts_as_blank(page: str) -> None:
    words = re.findall(r"`([^`]+)`", re.search(r"\bblank.*", (ROOT / "docs" / page).read_text())[0])  # type: ignore[index]
    assert {word.lower() for word in words} == table.BLANKS - {""}


def test_the_page_on_tables_explains_every_key() -> None:
    page = (ROOT / "docs" / "tasks" / "csv.md").read_text()
    listed = re.search(r"\| Parameters \| (.*) \|", page)[1].split(", ")  # type: ignore[index]
    assert listed == list(inspect.signature(own.csv).parameters)
    for key in set(listed) - {"file", "target"}:  # of which the whole page is about
        assert re.search(rf"`(csv:[^`]*,)?{key}\b", page), key
