from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel import legal
from fedkeel.conformance import toy, toy_world
from fedkeel.recipes import OPTIMIZERS
from fedkeel.rules import RULES


def refusal(make: Any) -> str | None:
    """The message with which this is refused, or None."""
    try:
        fk.algorithm(make) if isinstance(make, str) else make()
    except fk.InputError as error:
        return str(error)
    return None


def test_every_part_has_an_entry_of_its_own() -> None:
    assert set(legal.REASONS) == {*RULES.values(), *OPTIMIZERS.values()}


WITHOUT_VECTORS = {fk.Proximal, fk.Guess, fk.Schedule, fk.SelfDistillation, fk.Fathom, fk.OwnClasses}


@pytest.mark.parametrize("kind", [kind for kind in RULES.values() if kind not in {*WITHOUT_VECTORS, fk.Guard}])
def test_rules_with_vectors_of_the_whole_model_are_refused_with_levels(kind: Any) -> None:
    why = refusal(lambda: fk.Algorithm(rules=[kind()], capacity=fk.Widths()))
    assert why is not None
    assert "keeps or sends vectors of the whole model" in why


@pytest.mark.parametrize("kind", sorted(WITHOUT_VECTORS, key=str))
def test_rules_without_go_with_levels(kind: Any) -> None:
    fk.Algorithm(client=fk.SGD(momentum=0.9), rules=[kind()], capacity=fk.Exits())


class Recalls(fk.Rule):
    def remember(self, me: Any) -> Any:
        return {"x": me.x}


class Bends(fk.Rule):
    def gradient(self, g: Any, y: Any, me: Any) -> Any:
        return g.sign()


class Wraps(fk.Rule):
    def objective(self, f: Any, me: Any, y: Any, batch: Any) -> Any:
        return f(y, batch)


class SendingProximal(fk.Proximal):
    def send(self, server: Any, view: Any) -> Any:
        return server


def test_a_users_own_rule_is_judged_by_its_hooks() -> None:
    assert fk.Algorithm(rules=[Bends()], capacity=fk.Widths()).rules
    for rule in (Recalls(), SendingProximal()):
        why = refusal(lambda rule=rule: fk.Algorithm(rules=[rule], capacity=fk.Widths()))
        assert why is not None
        assert f"{rule.slot} keeps or sends" in why


def test_a_users_own_rule_may_get_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(legal.REASONS, Recalls, legal.Reasons(numbers_only=True))
    refused = legal.Reasons(refuses=lambda rule, algorithm: "Use Recalls.")
    warned = legal.Reasons(warns=lambda rule, algorithm, participation, steps: f"C={participation}, J={steps}")
    monkeypatch.setitem(legal.REASONS, Bends, refused)
    assert refusal(lambda: fk.Algorithm(rules=[Recalls()], capacity=fk.Widths())) is None
    assert refusal(lambda: fk.Algorithm(rules=[Bends()])) == "Use Recalls."
    monkeypatch.setitem(legal.REASONS, Bends, warned)
    assert legal.warnings_of(fk.Algorithm(rules=[Bends()]), 0.5, 3) == ["C=0.5, J=3"]


def test_a_users_own_rule_without_entries_is_legal_fits_and_warns_of_nothing() -> None:
    algorithm = fk.Algorithm(rules=[Bends()])
    legal.refuse_illegal(algorithm)
    legal.check_fit(algorithm, toy(), toy_world())
    assert legal.warnings_of(algorithm, 1.0, 10) == []


CORRECTING = ["scaffold", "fedcm:weights=uniform", "fedadc:weights=uniform", "mimelite", "feddyn", "adabest"]


@pytest.mark.parametrize("mime", ["mime", "mimemom"])
@pytest.mark.parametrize("other", CORRECTING)
def test_mime_stands_before_rules_whose_correction_it_would_cancel(mime: str, other: str) -> None:
    other = "scaffold:option=1" if (other, mime) == ("scaffold", "mimemom") else other  # else it sees the momentum
    why = refusal(f"{other}+{mime}")
    assert why is not None
    assert why.endswith(f"Put {mime} first: use {mime}+{other.partition(':')[0]}.")
    assert refusal(f"{mime}+{other}") is None


@pytest.mark.parametrize("other", ["fedprox:weights=uniform", "ghbm:weights=uniform", "fedhbm:weights=uniform"])
def test_mime_goes_after_rules_that_leave_the_gradient_at_x_alone(other: str) -> None:
    assert refusal(f"{other}+mime") is None


def test_two_rules_that_replace_the_update_are_refused_in_either_order() -> None:
    names = [f"{kind.__name__.lower()}:weights=uniform" for kind in legal.REPLACES_DELTA]
    for one in names:
        for two in names:
            why = refusal(f"{one}+{two}")
            assert why is not None
            assert "appears twice" in why if one == two else "each replace the server's update; use one of them" in why


class Plans(fk.Rule):
    def plan(self, plan: Any, server: Any, facts: Any) -> Any:
        return plan


class Evaluates(fk.Rule):
    def models(self, *given: Any) -> Any:
        return {}


class Covers(fk.OwnClasses):
    """Another slot, the same `finish`."""


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([Plans(), fk.Schedule()], "plans and schedule each set the rate of a round"),
        ([Evaluates(), fk.FedDyn()], "evaluates and feddyn each choose the model to evaluate"),
        ([Covers(), fk.OwnClasses()], "covers and ownclasses each choose the elements that count"),
        ([Bends(), Bends()], "'bends' appears twice"),
    ],
)
def test_what_one_rule_may_do_is_refused_to_two(rules: list[Any], why: str) -> None:
    assert why in (refusal(lambda: fk.Algorithm(rules=rules)) or "")


def test_fednova_wants_updates_that_are_linear() -> None:
    assert "contrastive does not give" in (refusal("moon+fednova") or "")
    assert "bends does not give" in (refusal(lambda: fk.Algorithm(rules=[Bends()], weights="nova")) or "")
    assert "Adam does not give" in (refusal("fednova:client=adam") or "")
    assert refusal("fednova+fedprox+gel") is None


@pytest.mark.parametrize("rule", [Bends(), Wraps(), fk.Mime(), fk.Scaffold(), fk.FedCM(), fk.AdaBest()])
def test_sps_wants_gradients_that_belong_to_a_loss(rule: Any) -> None:
    why = refusal(lambda: fk.Algorithm(fk.SPS(), [rule]))
    assert why is not None
    assert "belongs to no loss" in why or "divides by the clients' rate" in why


@pytest.mark.parametrize("rule", [fk.Proximal(), fk.GHBM(), fk.LocalGHBM(), fk.FedHBM(), fk.Contrastive()])
def test_sps_goes_with_rules_that_leave_the_gradient_one_of_a_loss(rule: Any) -> None:
    assert refusal(lambda: fk.Algorithm(fk.SPS(), [rule])) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fathom:lr=0.9", r"'lr' parameter of Fathom must be in \[lr_min, lr_max\]. Got 0.9 instead"),
        ("gel", "give expected_steps"),
        ("moon", "Linear has no represent and no classify"),
    ],
)
def test_an_algorithm_that_does_not_fit_its_task_or_world_says_why(text: str, why: str) -> None:
    task, world = fk.tasks.synthetic(), fk.World(cohort=2, budget=fk.Epochs(1))
    algorithm = fk.algorithm(text)
    algorithm = replace(algorithm, client=replace(algorithm.client, lr=algorithm.client.lr or 0.01))
    with pytest.raises(fk.InputError, match=why):
        legal.check_fit(algorithm, task, world)
    with pytest.raises(fk.InputError, match=why):
        fk.train(task, text, world, rounds=1)


def test_a_mask_of_classes_wants_classes() -> None:
    data = fk.FederatedData.from_arrays(torch.zeros(4, 2), torch.zeros(4), clients=[0, 0, 1, 1])
    task = fk.Task(lambda: torch.nn.Linear(2, 1), lambda output, y: (output[:, 0] - y).square(), data)
    with pytest.raises(fk.InputError, match="use heterofl:mask=false"):
        legal.check_fit(fk.algorithm("heterofl"), task, fk.World(2))


def test_guesses_of_an_unknown_number_fit_where_devices_differ_in_size() -> None:
    world = fk.World(cohort=2, budget=fk.Epochs(1))
    legal.check_fit(fk.Algorithm(fk.SGD(0.1, momentum=0.9), [fk.Guess()], capacity=fk.Widths()), toy(), world)


def test_what_is_stable_is_not_warned_of() -> None:
    assert legal.warnings_of(fk.algorithm("ghbm+gel"), 0.1, 10) == []
    assert legal.warnings_of(fk.algorithm("fedhbm:beta=0.5"), 0.1, 10) == []


def test_every_warning_of_an_algorithm_is_given() -> None:
    both = legal.warnings_of(fk.algorithm("ghbm:server_lr=2+fedhbm:beta=9"), 1.0, 8)
    assert [text.split()[0] for text in both] == ["GHBM", "FedHBM"]
    (cyclic,) = legal.warnings_of(fk.algorithm("fedhbm:beta=1.08"), 0.1, 8)
    assert "k (1/C - 1)" in cyclic
    (unknown,) = legal.warnings_of(fk.algorithm("fedhbm"), 1.0, float("inf"))
    assert "= 1.718 >= 1" in unknown and "use beta=0.69 or less" in unknown
    assert legal.warnings_of(fk.algorithm("fedhbm:beta=0.69"), 1.0, float("inf")) == []
    (elapsed,) = legal.warnings_of(fk.algorithm("fedhbm:scale=elapsed"), 0.1, 8)
    assert "in two successive rounds has s = 1" in elapsed and elapsed.endswith("or beta=0.72 or less.")


@pytest.mark.parametrize("text", ["fedhbm:beta=9", "fedhbm:beta=1.2", "fedhbm:beta=9,scale=elapsed"])
@pytest.mark.parametrize("participation", [0.1, 0.3, 0.6, 1.0])
def test_the_beta_that_a_warning_of_fedhbm_proposes_is_not_warned_of(text: str, participation: float) -> None:
    for warning in legal.warnings_of(fk.algorithm(text), participation, 8):
        beta = warning.partition("beta=")[2].rpartition("beta=")[2].split()[0]
        scale = "elapsed" if "elapsed" in text else "participation"
        assert legal.warnings_of(fk.algorithm(f"fedhbm:beta={beta},scale={scale}"), participation, 8) == []


class Stacking(fk.Uniform):
    """Weights that want all updates at once."""

    stacks = True


def test_weights_that_compare_updates_are_refused_where_clients_train_parts_of_the_model() -> None:
    with pytest.raises(fk.InputError, match="updates of different size; use weights=samples"):
        fk.Algorithm(weights=Stacking(), capacity=fk.Widths())
