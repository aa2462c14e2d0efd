"""Bad clients: robust aggregation within its bounds, the guard, the warning, and rounds with too few clients."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedkeel as fk
from fedkeel import conformance, legal
from fedkeel.cli import main
from fedkeel.conformance import MODES, quadratics, toy
from fedkeel.explain import explain
from fedkeel.messages import Update
from fedkeel.recipes import PARTS, nameable, rebuild
from fedkeel.robust import AGGREGATIONS, ROBUST, by_score
from fedkeel.rules import RULES
from fedkeel.settings import settings as declared

few = settings(derandomize=True, max_examples=25, deadline=None)
honest_numbers = st.floats(-1e6, 1e6, width=32)
WIDE = 3  # coordinates


def update(rows: Tensor) -> Update:
    """These rows as the updates of clients 0, 1, ... in one message."""
    column = torch.ones(len(rows), 1)
    return Update(0, np.arange(len(rows)), np.array([], dtype=np.int64), column, column, None, column, rows)


def combined(weights: Any, rows: Tensor) -> Tensor:
    """The aggregated update, from messages of two clients and of the others."""
    found: Tensor = weights.combine([update(rows[:2]), update(rows[2:])])
    return found


@st.composite
def cohorts(draw: Any, least: Any) -> tuple[Tensor, Tensor, int]:
    """(all updates in some order, the honest ones, how many are bad); `least(bad)` clients or up to 4 more."""
    bad, more = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    honest = random.normal(size=(least(bad) + more - bad, WIDE)) * 10.0 ** draw(st.integers(-6, 6))
    centre = honest[0] if draw(st.booleans()) else random.normal(size=WIDE)  # bad clients may agree with each other
    spread = 10.0 ** draw(st.sampled_from([-40, -6, 0, 6, 37]))
    bad_ones = centre + spread * random.normal(size=(bad, WIDE))
    rows = random.permutation(np.concatenate([honest, bad_ones]))
    return torch.from_numpy(rows).float(), torch.from_numpy(honest).float(), bad


@few
@given(cohorts(lambda bad: 2 * bad + 1))
def test_a_median_and_a_trimmed_mean_stay_between_the_honest_clients(cohort: tuple[Tensor, Tensor, int]) -> None:
    rows, honest, bad = cohort
    for weights in (fk.Median(), fk.Trimmed(count=bad), fk.Trimmed(share=bad / len(rows))):
        found = combined(weights, rows)
        assert (found >= honest.min(0).values).all() and (found <= honest.max(0).values).all(), weights


@few
@given(cohorts(lambda bad: 2 * bad + 3))
def test_krum_chooses_an_honest_update_or_one_as_near_as_its_score_says(cohort: tuple[Tensor, Tensor, int]) -> None:
    rows, honest, bad = cohort
    n, exact = len(rows), honest.double()
    diameter = torch.cdist(exact, exact).max()
    bound = diameter * math.sqrt((n - bad - 2) / (n - 2 * bad - 1)) * (1 + 1e-6)  # see docs/robust.md
    best = rows[by_score(rows, bad)[: n - bad]].double()
    assert (torch.cdist(best, exact).min(1).values <= bound).all()
    assert torch.equal(combined(fk.Krum(bad), rows).double(), best[0])
    for keep in (None, 1, n - bad):
        mean = combined(fk.MultiKrum(bad, keep), rows).double()
        assert (torch.cdist(mean[None], exact) <= bound + diameter + 1e-6 * exact.abs().max()).all()


EACH = [fk.Median(), fk.Trimmed(0.3), fk.Trimmed(count=2), fk.Krum(1), fk.MultiKrum(1), fk.MultiKrum(1, 4)]


@few
@given(st.sampled_from(EACH), st.permutations(range(7)), st.integers(0, 99))
def test_the_order_of_the_clients_changes_no_bit(weights: Any, order: list[int], seed: int) -> None:
    rows = torch.randn(7, WIDE, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(combined(weights, rows), combined(weights, rows[order]))


@few
@given(st.sampled_from(EACH), st.lists(honest_numbers, min_size=WIDE, max_size=WIDE))
def test_equal_updates_give_that_update(weights: Any, values: list[float]) -> None:
    row = torch.tensor(values)
    found = combined(weights, row.repeat(7, 1))
    if isinstance(weights, fk.MultiKrum):  # its mean may round
        assert torch.allclose(found, row, rtol=1e-6, atol=1e-37)
    else:
        assert torch.equal(found, row)


def test_a_median_is_the_middle_one_or_the_mean_of_the_two_in_the_middle() -> None:
    rows = torch.tensor([[1.0, 9.0], [2.0, 7.0], [5.0, 8.0], [4.0, 1e38]])
    assert combined(fk.Median(), rows[:3]).tolist() == [2.0, 8.0]
    assert combined(fk.Median(), rows).tolist() == [3.0, 8.5]
    assert combined(fk.Trimmed(count=1), rows).tolist() == [3.0, 8.5]
    assert combined(fk.Trimmed(0.01), rows).tolist() == [3.0, 8.5]


def test_long_updates_are_sorted_in_blocks_that_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    whole = combined(fk.Median(), rows)
    monkeypatch.setattr("fedkeel.robust.BLOCK", 4)
    assert torch.equal(combined(fk.Median(), rows), whole)
    assert torch.equal(whole, rows.median(0).values)


WITH = {
    "fedavg+median": "serial",
    "fedavgm+trimmed:share=0.2": "batched",
    "ghbm:tau=2+krum": "batched",
    "fedyogi+multikrum:keep=2": "batched",
    "fedavg+guard:k=1.1": "serial",
    "fedhbm+guard:action=reject,k=1.2": "batched",
}
SIX = fk.World(cohort=6, budget=fk.UniformSteps(1, 4))
quietly = pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning")  # of fedhbm, in short runs


@quietly
@pytest.mark.parametrize(("text", "mode"), WITH.items())
def test_robust_algorithms_keep_the_promises_of_every_other(text: str, mode: str) -> None:
    conformance.check_workers(text, mode, world=SIX)
    conformance.check_resume(text, mode, world=SIX)
    if "reject" in text:
        conformance.check_bytes(text, mode, world=SIX)


@pytest.mark.parametrize(
    "texts",
    [
        ("trimmed", "trimmed:share=0.4", "trimmed:count=2"),
        ("krum", "krum:bad=2"),
        ("multikrum", "multikrum:bad=2", "multikrum:keep=1", "multikrum:keep=6"),
        ("guard:k=1.1", "guard:k=1.2", "guard:k=1.1,action=reject", "guard:k=1.1,window=1"),
    ],
)
def test_every_parameter_changes_the_result(texts: tuple[str, ...]) -> None:
    world = replace(SIX, cohort=7)
    ends = [tuple(fk.train(toy(), f"fedavg+{part}", world, 4, engine="batched").params.tolist()) for part in texts]
    assert len(set(ends)) == len(texts)


@pytest.mark.parametrize("mode", MODES)
def test_a_guard_that_never_acts_is_fedavg_bit_for_bit(mode: str) -> None:
    guarded, plain = (fk.train(toy(), text, SIX, 4, engine=mode) for text in ("fedavg+guard:k=1e9", "fedavg"))
    assert torch.equal(guarded.params, plain.params)
    assert [row["guarded"] for row in guarded.history[1:]] == [0] * 4


@pytest.mark.parametrize("part", ["median", "trimmed", "krum", "multikrum"])
def test_clients_that_hold_the_same_data_train_as_with_fedavg(part: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(8, 4)), np.arange(8) % 3
    data = fk.FederatedData.from_arrays(np.tile(x, (5, 1)), np.tile(y, 5), clients=np.repeat(np.arange(5), 8))
    task = replace(toy(), data=data, batch_size=None)
    world = fk.World("all", fk.FixedSteps(2))
    robust, plain = (fk.train(task, f"fedavgm+{part}" if part else "fedavgm", world, 5) for part in (part, ""))
    assert torch.allclose(robust.params, plain.params, rtol=1e-5, atol=1e-7)


# The grammar, configurations and explanations


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_rebuilt_listed_and_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = fk.algorithm(f"fedprox+{name}")
    assert nameable(algorithm)
    assert rebuild(algorithm.parameters(), algorithm.spec) == algorithm
    assert main(["explain", f"fedprox+{name}"]) == 0
    assert PARTS[name].summary in capsys.readouterr().out
    assert main(["list", "algorithms"]) == 0
    assert f"{name} " in capsys.readouterr().out


@pytest.mark.parametrize("name", PARTS)
def test_a_default_typed_out_changes_nothing(name: str) -> None:
    for key, value in PARTS[name].keys.items():
        typed = fk.algorithm(f"fedavg+{name}:{key}={'none' if value is None else value}")
        assert typed.parameters() == fk.algorithm(f"fedavg+{name}").parameters()


def test_python_has_the_same_names() -> None:
    assert fk.algorithm("fedavg+multikrum:bad=2,keep=5").weights == fk.MultiKrum(bad=2, keep=5)
    assert fk.algorithm("fedavg+trimmed:share=0.2").weights == fk.Trimmed(share=0.2)
    assert fk.algorithm("fedavg+trimmed:count=2").weights == fk.Trimmed(count=2)
    assert fk.algorithm("deltasgd+median").weights == fk.Median()  # which counts clients alike, as deltasgd does
    guard = fk.Guard(action="reject", k=4, window=5)
    assert fk.algorithm("fedavg+guard:action=reject,k=4,window=5").rules == (guard,)
    assert set(ROBUST) | {"guard", "buffered"} == set(PARTS)
    assert set(AGGREGATIONS) >= set(ROBUST)


def test_the_explanation_has_the_formula_and_the_least_cohort() -> None:
    assert "without the ceil(0.1 |S|) smallest and largest" in explain("fedavg+trimmed")
    text = explain("fedavg+multikrum:bad=2,keep=5")
    assert "mean of the 5 Delta_i of the least scores" in text and "in a round with |S| < 7" in text
    assert "over the |S| - 1000000002 nearest j" in explain("fedavg+krum:bad=1000000000")
    assert "medians (guard)" in explain("fedavg+guard") and "drop i where" in explain("fedavg+guard:action=reject")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedavg+trimmed:share=0.5", r"'share' parameter of Trimmed must be a number in \[1e-9, 0.5\)"),
        ("fedavg+trimmed:count=0", r"'count' parameter of Trimmed must be an integer in \[1, 1e9\]"),
        ("fedavg+krum:bad=0", r"'bad' parameter of Krum must be an integer in \[1, 1e9\]"),
        ("fedavg+multikrum:keep=0", "'keep' parameter of MultiKrum"),
        ("fedavg+guard:action=ignore", "'action' parameter of Guard must be 'clip' or 'reject'"),
        ("fedavg+guard:k=0.5", r"'k' parameter of Guard must be a number in \[1, 1e9\]"),
        ("fedavg+guard:window=0", "'window' parameter of Guard"),
        ("fedavg+medain", "Did you mean 'median'"),
        ("fedavg:weights=samples+median", "counts every client the same; leave out weights"),
        ("fednova+median", "asks for median and nova; use one of them"),
        ("fedavg+median+krum", "use one of them"),
        ("fedavg+guard+guard", "'guard' appears twice"),
        ("heterofl:weights=uniform+guard", "use it without levels"),
        ("heterofl+median", "updates of different size"),
        ("mime+guard:action=reject", "first exchange, which no guard sees; leave out the guard"),
        ("scaffold+guard", "use guard:action=reject"),
        ("fathom+guard:action=clip", "cosines that set the next rate, which a guard does not clip"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(fk.InputError, match=why) as caught:
        fk.algorithm(text)
    assert "\n" not in str(caught.value)


class Reads(fk.Reports):
    """Reports from which only the aggregated update may be read."""

    def _sum(self, name: str, how: str) -> Tensor:
        raise AssertionError(f"reads {name} beside the update")

    def values(self, name: str) -> Tensor:
        raise AssertionError(f"reads {name} beside the update")


SENDING = [kind for kind in RULES.values() if legal.REASONS[kind].sends]
# self-distillation needs levels, which have no robust mean
UPDATE_ALONE = [kind for kind in RULES.values() if kind not in {*SENDING, fk.SelfDistillation}]


@quietly
@pytest.mark.parametrize("kind", UPDATE_ALONE)
def test_rules_that_are_not_refused_read_nothing_but_the_update(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkeel.round.Reports", Reads)
    algorithm = fk.Algorithm(client=fk.SGD(0.1, momentum=0.9), rules=[kind()], weights=fk.Median())
    assert fk.train(replace(toy(), model=Represented), algorithm, SIX, 2, engine="serial").status == "done"


class Represented(nn.Module):
    """A small network that shows its representation."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def represent(self, x: Tensor) -> Tensor:
        return self.body(x).tanh()

    def classify(self, z: Tensor) -> Tensor:
        return self.head(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.represent(x))


@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.parametrize("weights", [weights() for weights in ROBUST.values()])
def test_rules_whose_uploads_would_bypass_a_robust_mean_are_refused(kind: Any, weights: Any) -> None:
    with pytest.raises(fk.InputError, match=f"Clients of {kind.__name__.lower()} also send"):
        fk.Algorithm(rules=[kind()], weights=weights)


class Sends(fk.Rule):
    def finish(self, y: Any, end: Any, me: Any) -> Any:
        return fk.Up(mean={"y": y})

    def serve(self, server: Any, up: Any, view: Any) -> Any:
        return server, up.mean("y")


class Asks(fk.Rule):
    def survey(self, me: Any) -> Any:
        return {"x": me.x}


def test_a_users_own_rule_is_judged_by_its_hooks_or_by_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fk.InputError, match="Clients of sends also send what its `finish` gives"):
        fk.Algorithm(rules=[Sends()], weights=fk.Median())
    with pytest.raises(fk.InputError, match="answers to a survey, which no guard sees"):
        fk.Algorithm(rules=[Asks(), fk.Guard("reject")])
    assert fk.Algorithm(rules=[Sends(), fk.Guard("reject")]).rules
    monkeypatch.setitem(legal.REASONS, Sends, legal.Reasons())
    assert fk.Algorithm(rules=[Sends()], weights=fk.Median()).rules


# Too few clients


class Fails(fk.Rule):
    """These clients end in NaN, by round."""

    keeps_linear: ClassVar[bool] = True

    def __init__(self, *clients: int, until: int = 99) -> None:
        self.clients, self.until = clients, until

    def walk(self, go: Any, me: Any, y: Tensor) -> Any:
        end = go(y)
        for row, client in enumerate(me.site.clients):
            if client in self.clients and me.facts.round <= self.until:
                y[row] = math.nan
        return end


BOWLS = quadratics([1.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0], x0=9.0)
ALL = fk.World("all", fk.FixedSteps(2))


@pytest.mark.parametrize(
    ("weights", "cohort"), [(fk.Median(), 2), (fk.Trimmed(count=2), 4), (fk.Krum(), 4), (fk.MultiKrum(1, 5), 5)]
)
def test_a_cohort_smaller_than_the_rule_needs_is_refused(weights: Any, cohort: int) -> None:
    with pytest.raises(fk.InputError, match=f"needs at least {cohort + 1} clients .* has {cohort}; give a larger"):
        fk.train(toy(), fk.Algorithm(weights=weights), fk.World(cohort), 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_round_with_fewer_clients_than_the_rule_needs_makes_no_step(mode: str) -> None:
    algorithm = fk.Algorithm(client=fk.SGD(0.1), rules=[Fails(0, until=1)], weights=fk.Krum())
    run = fk.train(BOWLS, algorithm, ALL, 2, engine=mode)
    assert [(row["clients"], row["dropped"]) for row in run.history[1:]] == [(4, 1), (5, 0)]
    assert run.history[1]["loss"] == run.history[0]["loss"] > run.history[2]["loss"]


@pytest.mark.parametrize("mode", MODES)
def test_a_round_with_fewer_than_min_clients_counts_but_changes_nothing(mode: str) -> None:
    world = replace(ALL, min_clients=4)
    rules = [fk.FedHBM(beta=0.1, first="shared"), Fails(0, 1, until=2)]
    runs = [
        fk.train(BOWLS, fk.Algorithm(fk.SGD(0.1), rules, fk.Adam(0.1)), world, 3, engine=mode, stop_after=t)
        for t in (2, 3)
    ]
    idle, moved = runs
    assert torch.equal(idle.params, idle.state.x0)
    assert not len(idle.memories)
    assert not any(value.any() for name, value in idle.state.optimizer.items() if name == "m")
    assert idle.history[2]["round"] == 2
    assert idle.history[2]["gradients"] == 20
    assert idle.history[2]["bytes_up"] == 2 * idle.history[1]["bytes_up"] > 0
    assert not torch.equal(moved.params, idle.params)
    assert len(moved.memories) == 5


def test_min_clients_is_a_setting_of_the_world(tmp_path: Path) -> None:
    fk.train(toy(), "fedavg+median", fk.World(3, min_clients=3), 1, checkpoint=tmp_path)
    assert fk.World.from_parameters(fk.load(tmp_path, toy()).config["world"]).min_clients == 3
    assert "min_clients" in declared(fk.World)  # and so a flag
    with pytest.raises(fk.InputError, match="min_clients=3 no round would make a server step"):
        fk.train(toy(), "fedavg", fk.World(2, min_clients=3), 1)
    with pytest.raises(fk.InputError, match=r"'min_clients' parameter of World must be an integer in \[1, 1e9\]"):
        fk.World(min_clients=0)
    assert fk.train(toy(), "fedavg", fk.World([[0], [1, 2, 3]], min_clients=3), 2).status == "done"


# The guard


class Shouts(fk.Rule):
    """One client's update is huge, but finite, from a round on."""

    keeps_linear: ClassVar[bool] = True

    def __init__(self, client: int, size: float = 1e30, begin: int = 1) -> None:
        self.client, self.size, self.begin = client, size, begin

    def walk(self, go: Any, me: Any, y: Tensor) -> Any:
        end = go(y)
        for row, client in enumerate(me.site.clients):
            if client == self.client and me.facts.round >= self.begin:
                y[row] = self.size
        return end


def guarded(guard: fk.Guard, *others: fk.Rule, rounds: int, mode: str = "serial", **more: Any) -> fk.Run:
    """Clients whose optima are 1 to 5, at x = 0; one step of lr 1 moves them there."""
    task = quadratics([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    algorithm = fk.Algorithm(fk.SGD(1.0), [*others, guard], weights="uniform", **more)
    return fk.train(task, algorithm, fk.World("all", fk.FixedSteps(1)), rounds, engine=mode, dtype=torch.float64)


@pytest.mark.parametrize("mode", MODES)
def test_a_guard_clips_at_k_times_the_median(mode: str) -> None:
    # round 1: norms 1, 2, 3, 4 and 1e30, bound 1.5 * 3; round 2 at x = 2.9: norms 1.9, .9, .1, 1.1 and 1e30
    run = guarded(fk.Guard("clip", k=1.5), Shouts(4), rounds=1, mode=mode)
    assert run.params.item() == pytest.approx((1 + 2 + 3 + 4 + 4.5) / 5)
    assert (run.history[1]["clients"], run.history[1]["dropped"], run.history[1]["guarded"]) == (5, 0, 1)
    run = guarded(fk.Guard("clip", k=1.5), Shouts(4), rounds=2, mode=mode)
    assert run.params.item() == pytest.approx(2.9 + (-1.9 - 0.9 + 0.1 + 1.1 + 4.5) / 5)
    assert run.state.rules["guard"]["medians"][-2:].tolist() == pytest.approx([3.0, 1.1])


@pytest.mark.parametrize("mode", MODES)
def test_a_guard_that_rejects_leaves_a_client_out_as_if_it_had_not_reported(mode: str) -> None:
    run = guarded(fk.Guard("reject", k=1.5), Shouts(4), rounds=1, mode=mode)
    assert run.params.item() == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert (run.history[1]["clients"], run.history[1]["dropped"], run.history[1]["guarded"]) == (4, 1, 1)
    assert run.history[1]["bytes_up"] == 5 * 8
    assert run.state.rules["guard"]["medians"][-1].item() == pytest.approx(2.0)  # of 1, 2, 3, 4


@quietly
@pytest.mark.parametrize("mode", MODES)
def test_a_rejected_client_keeps_its_old_memory(mode: str) -> None:
    rules = fk.FedHBM(beta=0.1, first="shared"), Shouts(4, begin=2)
    run = guarded(fk.Guard("reject"), *rules, rounds=3, mode=mode)
    last = run.memories.read(np.arange(5)).slots["fedhbm"]["last"].flatten().tolist()
    assert last == [3.0, 3.0, 3.0, 3.0, 1.0]


def test_everything_a_rejected_client_sent_is_left_out() -> None:
    shouting = guarded(fk.Guard("reject", k=4), Shouts(4), fk.Scaffold(), rounds=2)
    without = fk.train(
        quadratics([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]),
        fk.Algorithm(fk.SGD(1.0), [fk.Scaffold()], weights="uniform"),
        fk.World([[0, 1, 2, 3]], fk.FixedSteps(1)),
        2,
        dtype=torch.float64,
        engine="serial",
    )
    assert torch.equal(shouting.state.rules["scaffold"]["c"], without.state.rules["scaffold"]["c"])
    assert torch.equal(shouting.params, without.params)


def test_a_run_in_which_every_update_explodes_is_diverged_with_a_guard_that_rejects() -> None:
    class Explodes(fk.Rule):
        def walk(self, go: Any, me: Any, y: Tensor) -> Any:
            end = go(y)
            y.mul_(10.0 ** (6 * me.facts.round))
            return end

    run = guarded(fk.Guard("reject"), Explodes(), rounds=3)
    assert run.status == "diverged"
    assert run.history[-1]["round"] == 2


def test_without_any_movement_there_is_no_bound() -> None:
    task = quadratics([1.0, 1.0], [1.0, 1.0], x0=1.0)
    run = fk.train(task, "fedavg:lr=0.1+guard:action=reject", fk.World("all", fk.FixedSteps(1)), 2)
    assert [row["dropped"] for row in run.history] == [0, 0, 0]
    assert run.state.rules["guard"]["medians"].tolist() == [0.0] * 20


# Buffers


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))


def infected(factor: float = 1e15, model: Any = None) -> fk.Task:
    """Ten clients with data of the same kind, of whom client 6 has inputs that are `factor` times too large."""
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 200)
    x = random.normal(size=(200, 4)) + 3 * np.eye(4)[y]
    owner, test = np.repeat(np.arange(10), 20), (x.copy(), y)
    x[owner == 6] *= factor
    data = fk.FederatedData.from_arrays(x, y, clients=owner, test=test)
    return replace(toy(), data=data, model=model or (lambda: nn.Linear(4, 3)), batch_size=10, lr=0.1)


TEN = fk.World("all", fk.FixedSteps(3))


def test_a_guard_is_refused_where_buffers_would_bypass_it() -> None:
    with pytest.raises(fk.InputError, match=r"\(0.running_mean\) would bypass it; use buffers=server, or median"):
        fk.train(infected(model=normed), "fedavg+guard", TEN, 1)
    run = fk.train(infected(model=normed), "fedavg:buffers=server+guard", TEN, 1)
    assert run.state.buffers["0.running_mean"].abs().max() == 0


@pytest.mark.parametrize("part", ["median", "trimmed", "krum", "multikrum"])
def test_the_buffers_of_a_bad_client_are_treated_as_its_update(part: str) -> None:
    run = fk.train(infected(model=normed), f"fedavg+{part}", TEN, 5)
    buffers = run.state.buffers
    assert 0 < buffers["0.running_mean"].abs().max() < 10
    assert buffers["0.running_var"].abs().max() < 10
    assert buffers["0.num_batches_tracked"].dtype == torch.int64
    assert int(buffers["0.num_batches_tracked"]) == 15


# One client in ten with inputs of 1e15, which used to end as "done" with a model of 1e13


def test_one_bad_client_is_warned_of_and_moves_a_plain_mean() -> None:
    with pytest.warns(fk.StabilityWarning) as caught:
        run = fk.train(infected(), "fedavg", TEN, 5)
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("fedavg, client lr 0.") and "the update of client 6 in round 1 has norm" in text
    assert "If the rate is too high, give a lower lr; if" in text and "add +guard" in text
    assert run.params.abs().max() > 1e12


SANE = ["median", "trimmed", "krum", "multikrum", "guard", "guard:action=reject"]


@pytest.mark.parametrize("part", SANE)
def test_one_bad_client_does_no_harm_to_a_robust_algorithm(part: str) -> None:
    run = fk.train(infected(), f"fedavg+{part}", TEN, 20)
    assert run.status == "done"
    assert run.params.abs().max() < 10
    assert run.history[-1]["accuracy"] > 0.9


# The warning


def test_the_warning_changes_no_bit_and_comes_once(recwarn: pytest.WarningsRecorder) -> None:
    rules = [Shouts(4, 1e6, begin=3)]
    algorithm = fk.Algorithm(fk.SGD(0.01), rules)
    warned = fk.train(BOWLS, algorithm, ALL, 6)
    (warning,) = recwarn.list
    assert "client 4 in round 3" in str(warning.message)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkeel.run.norms.FACTOR", math.inf)
        silent = fk.train(BOWLS, algorithm, ALL, 6)
    assert torch.equal(warned.params, silent.params)
    assert len(recwarn.list) == 1


def test_a_cohort_of_one_is_compared_with_earlier_rounds() -> None:
    world = fk.World([[0], [1], [4]], fk.FixedSteps(1))
    with pytest.warns(fk.StabilityWarning, match="client 4 in round 3"):
        fk.train(BOWLS, fk.Algorithm(fk.SGD(0.01), [Shouts(4, 1e6)]), world, 3)


def test_nobody_is_blamed_for_a_run_that_diverges_as_a_whole(recwarn: pytest.WarningsRecorder) -> None:
    run = fk.train(BOWLS, "fedavg:lr=1e6", ALL, 20)
    assert run.status == "diverged"
    assert not recwarn.list


def test_whoever_limits_updates_is_not_warned(recwarn: pytest.WarningsRecorder) -> None:
    for text in ("fedavg+median", "fedavg+guard"):
        fk.train(infected(), text, TEN, 1)
    assert not recwarn.list


# Divergence


class Overflows(fk.Rule):
    """A rule whose server state becomes infinite in round 2, although the model stays finite."""

    def init(self, x: Tensor, lr: float) -> dict[str, Tensor]:
        return {"sum": torch.ones(1)}

    def serve(self, server: Any, up: Any, view: Any) -> Any:
        return {"sum": server["sum"] * 1e20}, up.delta


@pytest.mark.parametrize("weights", ["samples", fk.Median()])
def test_a_rule_whose_state_overflows_ends_the_run_as_diverged(weights: Any) -> None:
    run = fk.train(BOWLS, fk.Algorithm(fk.SGD(0.1), [Overflows()], weights=weights), ALL, 5)
    assert run.status == "diverged"
    assert run.history[-1]["round"] == 2
    assert run.state.is_finite()


class Hoards(nn.Linear):
    """A model with a buffer that is finite on every client, but not its sum."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("most", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.most.fill_(3e38)
        return super().forward(x)


def test_buffers_that_overflow_in_the_mean_end_the_run_as_diverged() -> None:
    run = fk.train(infected(1.0, Hoards), "fedavg", TEN, 3)
    assert (run.status, run.history[-1]["round"]) == ("diverged", 1)
    assert run.state.is_finite()
    assert fk.train(infected(1.0, Hoards), "fedavg+median", TEN, 3).state.buffers["most"] == torch.tensor(3e38)
