from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel import notation
from fedkeel.advice import ADVICE
from fedkeel.capacity import CAPACITIES
from fedkeel.explain import _formulas, _optimizer, _weighing, explain, explained, reference
from fedkeel.legal import REPLACES_DELTA
from fedkeel.recipes import KNOWN, OPTIMIZERS, RECIPES
from fedkeel.robust import AGGREGATIONS
from fedkeel.rules import RULES
from fedkeel.tables import nearest

PLACES = {"plan", "send", "start", "loss", "gradient", "step", "walk", "finish", "serve"}
NO_PAPER = {fk.Schedule, fk.Guard, fk.SGD}  # plain parts, which nobody cites
EXIT_RULES = {fk.SelfDistillation: fk.Exits()}  # rules that need a capacity


def formulas(rule: Any) -> dict[str, str]:
    """A rule's lines in an algorithm that may have it."""
    client = fk.SGD(momentum=0.9) if isinstance(rule, fk.Guess) else fk.SGD()
    algorithm = fk.Algorithm(client=client, rules=[rule], capacity=EXIT_RULES.get(type(rule)))
    given = explained(rule).formulas
    return given(rule, algorithm) if callable(given) else given


@pytest.mark.parametrize("kind", RULES.values())
def test_every_rule_has_an_entry_of_its_own_with_lines_at_known_places(kind: Any) -> None:
    entry = notation.EXPLAINED[kind]
    assert entry.reference or kind in NO_PAPER
    lines = formulas(kind())
    assert lines
    assert set(lines) <= PLACES


@pytest.mark.parametrize("kind", OPTIMIZERS.values())
def test_every_optimizer_has_an_entry_of_its_own(kind: Any) -> None:
    entry = notation.OPTIMIZERS_EXPLAINED[kind]
    assert entry.reference or kind in NO_PAPER
    assert "y <- y" in "\n".join(entry.lines(kind().for_clients(), False))
    if not kind.finds_rate:
        assert "Delta" in "\n".join(entry.lines(kind().for_server(), True))


@pytest.mark.parametrize("kind", AGGREGATIONS.values())
def test_all_weights_have_an_entry_of_their_own(kind: Any) -> None:
    assert notation.WEIGHTS_EXPLAINED[kind](kind()).startswith("Delta = ")


@pytest.mark.parametrize("kind", CAPACITIES.values())
def test_every_capacity_has_an_entry_of_its_own(kind: Any) -> None:
    assert notation.EXPLAINED[kind].reference
    assert {"send", "serve"} <= set(_formulas(kind(), fk.Algorithm())) <= PLACES


def test_no_table_has_an_entry_for_a_class_that_is_gone() -> None:
    assert set(notation.EXPLAINED) == {*RULES.values(), fk.Widths.__base__, *CAPACITIES.values()}
    assert set(notation.OPTIMIZERS_EXPLAINED) == set(OPTIMIZERS.values())
    assert set(notation.WEIGHTS_EXPLAINED) == set(AGGREGATIONS.values())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_prints_its_lines_and_whom_to_cite(name: str) -> None:
    text, algorithm = explain(name), fk.algorithm(name)
    parts = [*algorithm.rules, algorithm.capacity, algorithm.client, algorithm.server]
    cited = set("\n".join([RECIPES[name].reference, *(reference(type(part)) for part in parts)]).splitlines()) - {""}
    assert {line.removeprefix("  cite: ") for line in text.splitlines() if line.startswith("  cite: ")} == cited
    assert cited or name == "fedavgcm"
    for rule in algorithm.rules:
        given = explained(rule).formulas
        boxes = given(rule, algorithm) if callable(given) else given
        assert all(f"      {line}\n" in text for box in boxes.values() for line in box.splitlines())
        names = (*explained(rule).server, *explained(rule).client) if explained(rule).stateful(rule) else ()
        assert all(f"{name} ({rule.slot})" in text for name in names)


@pytest.mark.parametrize("kind", RULES.values())
def test_a_rule_names_what_it_keeps_on_clients_if_it_remembers_something(kind: Any) -> None:
    rule = kind()
    assert bool(explained(rule).client) == rule.defines("remember")


def test_the_rules_that_print_another_delta_are_those_known_to_replace_it() -> None:
    printed = {kind for kind in RULES.values() if "\nDelta <- " in formulas(kind()).get("serve", "")}
    assert printed == set(REPLACES_DELTA)


@dataclass(frozen=True, repr=False)
class Halved(fk.Rule):
    """A user's own rule, of which nobody has written what to print."""

    def gradient(self, g: Any, y: Any, me: Any) -> Any:
        return g / 2


def test_a_users_own_rule_is_explained_as_nothing_but_its_name() -> None:
    mine, plain = (explain(fk.Algorithm(rules=rules)) for rules in ([Halved()], []))
    assert mine.splitlines()[0] == "sgd+halved"
    assert mine.splitlines()[1:] == plain.splitlines()[1:]


def test_a_users_own_rule_is_explained_by_the_entry_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = notation.Explained("Me 2026", {"gradient": "g <- g / 2"}, client=("half",))
    monkeypatch.setitem(notation.EXPLAINED, Halved, entry)
    text = explain(fk.Algorithm(rules=[Halved()]))
    assert "      g <- g / 2\n" in text
    assert "half (halved)" in text
    assert "  cite: Me 2026" in text


def test_a_class_made_at_run_time_is_explained_as_its_ancestor() -> None:
    kind = type("Nearer", (fk.Proximal,), {})
    assert explained(kind(0.1)) is notation.EXPLAINED[fk.Proximal]
    assert nearest(notation.OPTIMIZERS_EXPLAINED, type("Mine", (fk.SPS,), {})) is notation.OPTIMIZERS_EXPLAINED[fk.SPS]


def test_optimizers_and_weights_without_an_entry_are_named() -> None:
    @dataclass(frozen=True)
    class Signs(fk.SGD.__base__):  # type: ignore[misc, name-defined]
        def step(self, *given: Any) -> None: ...

    @dataclass(frozen=True)
    class Equal(fk.Uniform.__base__):  # type: ignore[misc, name-defined]
        def each(self, samples: Any, norm: Any) -> Any:
            return torch.ones_like(samples)

        def scale(self, samples: Any, norms: Any, steps: Any) -> Any:
            return torch.ones(()) / len(samples)

    assert _optimizer(Signs(), server=False) == ["      y <- a step of Signs"]
    assert _weighing(fk.Algorithm(weights=Equal())) == "Delta = the mean of Delta_i, weighted by Equal"


def test_an_algorithm_made_by_name_is_explained_as_that_name() -> None:
    assert explain(fk.algorithm("fedprox:mu=0.5")) == explain("fedprox:mu=0.5")


def test_a_replaced_delta_is_printed_after_the_rules_that_see_the_mean() -> None:
    text = explain("feddyn+fedcm:weights=uniform")
    assert re.search(r"h <- h .*\n +D <- -Delta\n +Delta <- Delta - h / alpha_feddyn\n +x <- x", text)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [(fk.Mime(0.9), True), (fk.Mime(0.0), False), (fk.MimeLite(0.9), True), (fk.MimeLite(0.0), False)],
)
def test_mime_keeps_a_momentum_only_if_it_has_one(rule: Any, kept: bool) -> None:
    text = explain(fk.Algorithm(rules=[rule], weights="uniform"))
    assert (f"m ({rule.slot})" in text) == kept
    assert ("prints 3x" in text) == (kept and isinstance(rule, fk.Mime))


def test_both_papers_of_gel_are_cited_with_their_own_titles():
    lines = [line for line in explain("gel").splitlines() if line.startswith("  cite:")]
    assert any("Dhasade" in line and "You can boost federated learning for free" in line for line in lines)
    assert any("Boukhari" in line and "Boosting resource-constrained" in line for line in lines)


def test_ghbm_says_what_tau_is():
    assert "tau = round(1/C) by default" in explain("ghbm")
    assert "      tau = 7" in explain("ghbm:tau=7").splitlines()


def test_every_name_has_advice_which_explain_prints() -> None:
    assert set(ADVICE) == set(KNOWN)
    for name, (use, avoid) in ADVICE.items():
        assert use and avoid and not use.endswith(".") and not avoid.endswith("."), name
        for mentioned in re.findall(r"as for (\w+)", f"{use} {avoid}"):
            assert mentioned in ADVICE
    printed = explain("scaffold+fedprox")
    assert f"use scaffold when {ADVICE['scaffold'].use}" in printed and f"not when {ADVICE['fedprox'].avoid}" in printed


def test_defaults_that_are_not_the_papers_text_are_named() -> None:
    text = explain("fedhbm+fathom:lr=0.1")
    assert "where the defaults are not the paper's text:" in text
    assert "(scale=elapsed)" in text and "(steps=floor)" in text and "(eq12=paper)" in text
    assert "first_step=eta0" in explain("deltasgd") and "not the paper's text" not in explain("fedprox")


def test_the_control_of_a_guess_is_defined_where_it_is_used() -> None:
    assert "match-gel = E ||a_i with guesses||_1" in explain("fedavgcm:server_lr=match-gel")
    assert "(u + g) / u" in explain("fedavg:client=adam,lr=match-gel")
    assert "guesses" not in explain("fedavgcm").split("use fedavgcm")[0]


def test_control_variates_are_divided_by_the_sum_of_rates_where_rates_differ_between_steps() -> None:
    for text in ("deltasgd+scaffold", "scaffold:client=deltasgd"):
        assert "(x - y) / (sum of eta over the J_i steps)" in explain(text) and "J_i lr" not in explain(text)
    assert "(x - y) / (J_i lr)" in explain("scaffold")


def test_control_variates_that_the_server_works_out_are_not_sent() -> None:
    rebuilt = explain("scaffold:rebuild=true")
    assert "send c_i' - c_i" not in rebuilt and "2 down, 1 up" in rebuilt
    assert "c_i' - c_i = -Delta_i / (J_i lr) - c " in rebuilt
    assert "send c_i' - c_i" in explain("scaffold") and "worked out" not in explain("scaffold")


@pytest.mark.parametrize(
    ("text", "symbols", "gone"),
    [
        ("mime+scaffold", ["c_mime", "c_scaffold", "c_scaffold_i"], "c"),
        ("deltasgd+fedyogi", ["eps_client = 1e-08", "eps_server = 0.001"], "eps"),
        ("fedhbm+ghbm", ["beta_fedhbm = 1", "beta_ghbm = 0.9"], "beta"),
        ("fedhbm+fedavgm", ["beta_fedhbm = 1", "beta_server = 0.9"], "beta"),
        ("ghbm+fedbuff", ["tau_ghbm", "tau_pace_i", "the last tau_ghbm models"], "tau"),
        ("fedavgcm+gel+fedadam", ["c(q) v_client", "v_client = 0", "v_server starts"], "v"),
        ("mimemom+fedadam", ["beta m_mime", "beta1 m_server", "m_mime (mime)"], "m"),
    ],
)
def test_a_symbol_of_two_parts_gets_their_names(text: str, symbols: list[str], gone: str) -> None:
    printed = explain(text)
    formulas = printed.partition("\n\n")[2].partition("  sent per client")[0]
    assert all(symbol in formulas for symbol in symbols)
    assert not re.search(rf"(?<![\w']){gone}(?!\w)", formulas.partition("\n\n")[2])


@pytest.mark.parametrize(("name", "beta"), [("ghbm", 0.9), ("localghbm", 0.9), ("fedhbm", 1), ("ghbm:beta=0.5", 0.5)])
def test_the_weight_of_a_heavy_ball_is_printed_once_with_its_value(name: str, beta: float) -> None:
    assert explain(name).count(f"        beta = {beta:g}") == 1
    assert explain("ghbm:nesterov_push=true").count("beta = 0.9") == 1


def test_delta_sgd_says_what_its_first_step_does() -> None:
    grown, printed = explain("deltasgd"), explain("deltasgd:first_step=eta0,batch_mode=consecutive,momentum=0.5")
    assert "no y_last: eta' <- eta sqrt(1 + delta theta)" in grown and "g_last the gradient at y_last" in grown
    assert "no y_last: eta' <- eta, and theta stays" in printed and "g_last the last step's gradient" in printed
    assert "theta_0 = 1" in grown and "theta = " not in grown.replace("theta=", "")
    assert "momentum is ours" in printed and "momentum is ours" not in grown


def test_keys_without_a_value_are_not_part_of_the_full_name() -> None:
    for name in RECIPES:
        (full,) = (line.removeprefix("  in full: ") for line in explain(name).splitlines() if "in full: " in line)
        assert "=none" not in full.replace("first=none", "")
        assert fk.algorithm(full).parameters() == fk.algorithm(name).parameters()


def test_papers_are_cited_once_in_the_order_of_the_names() -> None:
    cited = [line for line in explain("fedhbm+fedadam").splitlines() if line.startswith("  cite: ")]
    assert [line.split()[1].strip(",") for line in cited] == ["Zaccone", "Reddi", "Kingma"]
    assert "Reddi" in explain(fk.Algorithm(server=fk.Adam(0.01)))
