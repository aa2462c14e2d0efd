"""The pages that the site adds to the docs folder (docs/hooks.py), as far as they can be made without mkdocs."""

from __future__ import annotations

import runpy
import shlex
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedkeel as fk
from fedkeel import recipes
from fedkeel.cli import parser
from fedkeel.notation import UNSET

ROOT = Path(__file__).resolve().parents[1]
HOOKS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "hooks.py"))


def page_of(name: str) -> str:
    return HOOKS["algorithm_page"](name, HOOKS["studies_by_name"]().get(name, []))


@cache
def task_of(name: str) -> fk.Task:
    return fk.tasks.get(name)


def command_of(name: str) -> str:
    return HOOKS["command"](name, name if name in recipes.RECIPES else f"fedavg+{name}")


@pytest.mark.parametrize("name", recipes.KNOWN)
def test_what_an_algorithms_page_tries_compares_different_algorithms_that_run_there(name: str) -> None:
    arguments = parser().parse_args(shlex.split(command_of(name))[1:])
    algorithms = [fk.algorithm(text) for text in arguments.algorithms]
    assert any(name in text for text in arguments.algorithms)
    assert len({str(one.parameters()) for one in algorithms}) == len(algorithms) >= 2
    if arguments.task != "fmnist":  # which has to be downloaded
        world = fk.World(arguments.cohort or 20, fk.UniformSteps(4, 13), expected_steps=18)
        assert all(fk.train(task_of(arguments.task), one, world, rounds=1).status == "done" for one in algorithms)


def test_ghbm_pushes_in_the_rounds_that_its_page_tries() -> None:
    arguments = parser().parse_args(shlex.split(command_of("ghbm"))[1:])
    (rule,) = fk.algorithm(arguments.algorithms[1]).rules
    assert rule.resolve(fk.algorithm("ghbm"), fk.tasks.synthetic(), fk.World(cohort=20)).tau < arguments.rounds


def test_every_key_without_a_value_says_what_it_becomes() -> None:
    unset = {key for recipe in recipes.KNOWN.values() for key, value in recipe.keys.items() if value is None}
    assert unset == set(UNSET)
    assert "| `tau` | round(1/C)" in page_of("ghbm")


def test_every_key_says_what_it_may_be_in_the_words_of_its_refusal() -> None:
    assert "| `tau` | round(1/C), C the share of clients in a round | an integer in [1, 1e9], or left" in page_of(
        "ghbm"
    )
    assert "| `scale` | `participation` | participation or elapsed |" in page_of("fedhbm")
    assert "| `mask` | `True` | true or false |" in page_of("heterofl")
    for name, recipe in recipes.KNOWN.items():
        text = name if name in recipes.RECIPES else f"fedavg+{name}"
        assert all(HOOKS["allowed"](text, key) for key in recipe.keys), name


def test_results_on_a_page_are_verdicts_on_its_own_algorithm_or_a_summary_where_there_are_none() -> None:
    text = page_of("fedbuff").partition("## Results")[2]
    assert "Synthetic, phones: FedBuff is more accurate than FedAvg (`fedbuff" in text
    assert "    - Our own studies: " not in text  # counts the claims about other algorithms, too
    assert "FedBuff+GEL" not in text and "`fedavg:lr=" not in text
    assert "Synthetic, phones: FedBuff+GEL is more accurate than FedBuff, momentum (`fedbuff" in page_of("gel")
    assert "    - Not run: " in page_of("heterofl").partition("## Results")[2]
    assert "cifar10-small, alpha 0 (a stand-in): FedHBM is more accurate than FedAvg (`fedhbm" in page_of("fedhbm")


def test_pages_of_methods_without_a_rate_link_the_study_of_them() -> None:
    for name in ("deltasgd", "fathom"):
        assert "(../results/no-tuning.md)" in page_of(name)


def test_a_link_to_a_source_file_becomes_its_name_once() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="own-rule.md"))
    files = SimpleNamespace(get_file_from_path=lambda place: True if place == "round.md" else None)
    shown = "[examples/own_rule.py](../examples/own_rule.py), [their README](../src/README.md), [a round](round.md), "
    expected = "`examples/own_rule.py`, their README (`src/README.md`), [a round](round.md), "
    shown, expected = f"{shown}[changes](../CHANGELOG.md)", f"{expected}[changes](changelog.md)"
    assert HOOKS["on_page_markdown"](shown, page, None, files) == expected
