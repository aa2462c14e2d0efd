"""The checks themselves: each must catch the mistake it is there for."""

import threading
import warnings
from dataclasses import dataclass

import pytest
import torch

import fedkeel as fk
from fedkeel import conformance
from fedkeel.conformance import quadratics, toy, toy_world, witnessed
from fedkeel.engine import chunks
from fedkeel.messages import cost


@dataclass(frozen=True, repr=False)
class Anchor(fk.Rule):
    """A correct rule with every kind of state: pulls towards a running mean of clients' models, kept on both sides."""

    pull: float = 0.1
    keep: float = 0.5

    def init(self, x, lr):
        return {"mean": x.clone(), "rounds": x.new_zeros(())}

    def send(self, server, view):
        return {"mean": server["mean"], "rounds": server["rounds"]}

    def remember(self, me):
        return {"own": me.x.clone()}

    def gradient(self, g, y, me):
        return g + self.pull * (y - 0.5 * (me.sent["mean"] + me.memory["own"]))

    def finish(self, y, end, me):
        own = self.keep * me.memory["own"] + (1 - self.keep) * y
        return fk.Up(mean={"move": y - me.x}, scalars={"steps": me.steps}, memory={"own": own})

    def serve(self, server, up, view):
        return {"mean": server["mean"] + up.mean("move"), "rounds": server["rounds"] + 1}, up.delta


class OneRow(Anchor):
    """Wrong along the client axis: everybody is corrected by the first client's memory."""

    def gradient(self, g, y, me):
        return g + self.pull * (y - me.memory["own"][:1])


class Racy(fk.Rule):
    """Wrong across workers: depends on which thread it runs in."""

    def gradient(self, g, y, me):
        return g * (1 if threading.current_thread() is threading.main_thread() else 1.001)


class Forgetful(fk.Rule):
    """Wrong after resuming: keeps state on itself instead of in a slot."""

    def __init__(self):
        self.rounds = 0

    def serve(self, server, up, view):
        self.rounds += 1
        return server, up.delta * self.rounds


@dataclass(frozen=True, repr=False)
class Dead(fk.Rule):
    """Wrong in its parameter, which nothing reads."""

    mu: float = 0.1


class Smuggler(fk.Rule):
    """Wrong in its traffic: sends a vector up as if it were derived."""

    def finish(self, y, end, me):
        return fk.Up(derived={"secret": y})


@dataclass(frozen=True, repr=False)
class Noisy(fk.Rule):
    """Correct with random numbers, which are drawn for each client and step."""

    scale: float = 0.1

    def gradient(self, g, y, me):
        if not self.scale:
            return g
        draws = me.site.generators("noise", me.site.batch.step)
        rows = [torch.from_numpy(one.standard_normal(g.shape[1])) for one, _ in zip(draws, g, strict=False)]
        return g + self.scale * torch.stack(rows).to(g)


@dataclass(frozen=True, repr=False)
class Careless(Noisy):
    """Wrong with random numbers: torch's global generator knows no clients."""

    def gradient(self, g, y, me):
        return g + self.scale * torch.randn_like(g)


def with_rule(rule):
    return fk.Algorithm(rules=[rule])


def test_a_correct_rule_with_all_kinds_of_state_passes_every_check():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also those that the tests' settings ignore: it says nothing
        conformance.check_all(with_rule(Anchor()))


def test_a_formula_that_mixes_clients_is_caught():
    with pytest.raises(AssertionError, match="serial and batched gradients differ"):
        conformance.check_modes_agree(with_rule(OneRow()))


def test_a_rule_that_draws_by_client_and_step_passes_every_check():
    conformance.check_all(with_rule(Noisy()), neutral={"scale": 0})


def test_draws_of_the_global_generator_are_caught_and_named_as_a_usual_cause():
    with pytest.raises(AssertionError, match=r"gradients differ .*random numbers .*across clients"):
        conformance.check_modes_agree(with_rule(Careless()))


def test_a_setting_that_is_not_neutral_is_caught():
    with pytest.raises(AssertionError, match=r"with pull=0.1 the model is not that without anchor \(serial\)"):
        conformance.check_all(with_rule(Anchor()), neutral={"pull": 0.1})
    conformance.check_neutral(with_rule(Anchor()), {"pull": 0})


def test_a_neutral_value_of_a_parameter_that_no_rule_has_is_refused():
    with pytest.raises(AssertionError, match="no rule has a parameter mu"):
        conformance.check_neutral("fedavg", {"mu": 0})


def test_a_rule_that_depends_on_its_thread_is_caught():
    with pytest.raises(AssertionError, match="one worker and with two"):
        conformance.check_workers(with_rule(Racy()), "serial")


def test_state_outside_the_slots_is_caught():
    rule = with_rule(Forgetful())
    with pytest.raises(AssertionError, match="resumed"):
        conformance.check_resume(rule)


@dataclass(frozen=True, repr=False)
class ClipServer(fk.Rule):
    """Clips the server's step; no update of the toy task is as long as the default."""

    radius: float = 1e6

    def serve(self, server, up, view):
        return server, up.delta * (self.radius / up.delta.norm()).clamp(max=1)


def test_a_dead_parameter_is_caught_with_what_to_do():
    with pytest.raises(AssertionError, match=r"dead\.mu is a dead parameter") as caught:
        conformance.check_knobs(with_rule(Dead()))
    assert "give one of them, others={'dead.mu': VALUE}; " in str(caught.value)
    conformance.check_knobs(with_rule(Dead()), skip=["dead.mu"])


def test_a_parameter_that_acts_at_some_values_only_is_checked_at_one_of_them():
    with pytest.raises(AssertionError, match=r"clipserver\.radius is a dead parameter"):
        conformance.check_knobs(with_rule(ClipServer()))
    conformance.check_knobs(with_rule(ClipServer()), others={"clipserver.radius": 1e-3})


def test_a_parameter_without_another_value_is_asked_for():
    with pytest.raises(AssertionError, match=r"guess\.steps is 'remaining'"):
        conformance.check_knobs("gel")


def test_a_wrong_gradient_is_caught():
    with pytest.raises(AssertionError, match="not the slope"):
        conformance.check_gradient(fk.Proximal(0.5), lambda y, me: 0.5 * ((y - me.x) ** 2).sum(1, keepdim=True))


def test_a_rule_without_a_penalty_is_asked_for_one():
    with pytest.raises(AssertionError, match="no penalty"):
        conformance.check_gradient(Dead())


def test_uncounted_bytes_are_caught(monkeypatch):
    monkeypatch.setattr(chunks, "cost", lambda *messages: cost(*messages) | {"bytes_up": 1})
    with pytest.raises(AssertionError, match="bytes_up"):
        conformance.check_bytes("fedavg")


def test_derived_vectors_are_not_counted():
    conformance.check_bytes(with_rule(Smuggler()))


def test_shared_choices_of_one_seed_are_caught_when_they_differ(monkeypatch):
    real = conformance.choices
    changed = lambda algorithm, seed: real(algorithm, seed) | ({"budgets": []} if algorithm == "fedavg" else {})  # noqa: E731
    monkeypatch.setattr(conformance, "choices", changed)
    with pytest.raises(AssertionError, match="two algorithms with one seed differ in budgets"):
        conformance.check_seeds("fedprox")


def test_equal_choices_of_two_seeds_are_caught(monkeypatch):
    real = conformance.choices
    monkeypatch.setattr(conformance, "choices", lambda algorithm, seed: real(algorithm, 0))
    with pytest.raises(AssertionError, match="two seeds have the same initial model"):
        conformance.check_seeds("fedprox")


def test_quadratics_are_the_quadratics_asked_for():
    task = quadratics(a=[[1, 2], [3, 4]], b=[[1, 0], [0, 1]], n=[1, 3], x0=[5, 6])
    algorithm, witness = witnessed("fedavg")
    run = fk.train(task, algorithm, fk.World("all", fk.FixedSteps(1)), 1, dtype=torch.float64)
    assert witness.gradients[1, 0, 0].tolist() == [1 * (5 - 1), 2 * 6]
    assert witness.gradients[1, 1, 0].tolist() == [3 * 5, 4 * (6 - 1)]
    assert run.history[0]["loss"] == 0.25 * (0.5 * 16 + 36) + 0.75 * (1.5 * 25 + 2 * 25)


def test_quadratics_of_different_lengths_are_refused():
    with pytest.raises(fk.InputError, match="as long as a"):
        quadratics(a=[1, 2], b=[1])


def test_a_witness_changes_no_bit():
    algorithm, _ = witnessed("fednova+gel")
    runs = [fk.train(toy(), a, toy_world(), 3) for a in (algorithm, "fednova+gel")]
    assert torch.equal(runs[0].params, runs[1].params)
