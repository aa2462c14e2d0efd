"""SCAFFOLD, FedDyn, AdaBest, Mime, FedCM, FedADC, GHBM, LocalGHBM, FedHBM against worked numbers and theory.

Problems are scalar quadratics f_i(x) = a_i (x - b_i)^2 / 2, so that every claim has a number.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk

EXAMPLES = json.loads((Path(__file__).parent / "drift_numbers.json").read_text())
A, B = (1.0, 2.0, 0.5), (1.0, -1.0, 3.0)  # problem A of the examples
OPTIMUM = 1 / 7  # sum a b / sum a
MODES = ["serial", "batched"]


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1))

    def forward(self, ab: Tensor) -> Tensor:
        return 0.5 * ab[:, 0] * (self.x - ab[:, 1]) ** 2


def quadratics(a: Sequence[float], b: Sequence[float], n: Sequence[int] | None = None) -> fk.Task:
    n = n or [1] * len(a)
    rows = [[ai, bi] for ai, bi, ni in zip(a, b, n, strict=True) for _ in range(ni)]
    owner = [i for i, ni in enumerate(n) for _ in range(ni)]
    data = fk.FederatedData.from_arrays(torch.tensor(rows, dtype=torch.float64), torch.zeros(len(rows)), owner)
    return fk.Task(model=Point, loss=lambda output, _: output, data=data, batch_size=None)


def play(text: str, rounds: int, mode: str = "serial", task: fk.Task | None = None, **world: Any) -> fk.Run:
    world = {"cohort": "all", "budget": fk.FixedSteps(2)} | world
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fk.StabilityWarning)  # some examples are unstable on purpose
        return fk.train(task or quadratics(A, B), text, fk.World(**world), rounds, dtype=torch.float64, engine=mode)


def rows(run: fk.Run, slot: str, name: str) -> list[float]:
    kept = run.memories.read(np.arange(3)).slots
    return kept[slot][name].flatten().tolist()


def named(value: Any) -> str | None:
    return value["example"] if isinstance(value, dict) else None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("example", "text"), [(e, text) for e in EXAMPLES for text in e["runs"]], ids=named)
def test_worked_numbers_are_met_after_the_first_and_the_last_round(example: Any, text: str, mode: str) -> None:
    steps, path = example["steps"], example["runs"][text]
    budget = fk.FixedSteps(steps) if isinstance(steps, int) else lambda _, client: steps[client]
    task = quadratics(example["a"], example["b"], example["n"])
    for rounds in (1, len(path)):  # a wrong round in between could not lead to the right last one
        run = play(text, rounds, mode, task, cohort=example["cohorts"], budget=budget)
        assert run.params.item() == pytest.approx(path[rounds - 1], abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_states_after_three_rounds_are_the_worked_ones(mode: str) -> None:
    scaffold = play("scaffold:lr=0.1", 3, mode)
    assert scaffold.state.rules["scaffold"]["c"].item() == pytest.approx(-0.0872008362, abs=1e-9)
    assert rows(scaffold, "scaffold", "ci") == pytest.approx([-0.9307425, 2.1343490972, -1.4652091059], abs=1e-9)
    feddyn = play("feddyn:alpha=0.1,lr=0.1", 3, mode)
    assert feddyn.state.rules["feddyn"]["h"].item() == pytest.approx(-0.0066322637, abs=1e-9)
    assert rows(feddyn, "feddyn", "gi") == pytest.approx([-0.0509793427, 0.1143108045, -0.0832282529], abs=1e-9)
    adabest = play("adabest:mu=0.1,beta=0.9,lr=0.1", 3, mode)
    assert rows(adabest, "adabest", "hi") == pytest.approx([-0.051539788, 0.1143771178, -0.0838006549], abs=1e-9)
    fedhbm = play("fedhbm:lr=0.1", 3, mode)
    assert rows(fedhbm, "fedhbm", "anchor") == pytest.approx([0.2668130833, -0.3681138125, 0.3983084531], abs=1e-9)
    mimemom = play("mimemom:lr=0.1", 3, mode)
    assert mimemom.state.rules["mime"]["m"].item() == pytest.approx(-0.3205555684, abs=1e-9)


@pytest.mark.parametrize("text", ["scaffold", "scaffold:option=1", "feddyn:alpha=0.3", "mime", "mimemom"])
def test_drift_is_removed_so_the_true_optimum_is_reached(text: str) -> None:
    sep = "," if ":" in text else ":"
    assert play(f"{text}{sep}lr=0.1", 500, "batched").params.item() == pytest.approx(OPTIMUM, abs=1e-8)


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("fedavg", 0.1891891892),
        ("ghbm:tau=1", 0.1891891892),
        ("ghbm:tau=3,warmup=clamp", 0.1891891892),
        ("fedcm:alpha=0.1", 0.1471752429),
        ("fedhbm:beta=0.5", 0.1694744029),
    ],
)
def test_multi_step_bias_stays_where_theory_puts_it(text: str, point: float) -> None:
    sep = "," if ":" in text else ":"
    assert play(f"{text}{sep}lr=0.1", 800, "batched").params.item() == pytest.approx(point, abs=1e-8)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "neutral",
    ["ghbm:beta=0,tau=2", "localghbm:beta=0", "fedhbm:beta=0", "fedavgm:beta=0", "fedprox:mu=0", "fedcm:alpha=1",
     "adabest:mu=0,beta=0,weights=samples", "mimelitemom:beta=0,weights=samples", "mimelite:weights=samples"],
)  # fmt: skip
def test_neutral_settings_are_fedavg_bit_for_bit(neutral: str, mode: str) -> None:
    task, world = fk.tasks.synthetic(), fk.World(cohort=8)
    plain = fk.train(task, "fedavg", world, rounds=5, engine=mode)
    assert torch.equal(fk.train(task, neutral, world, rounds=5, engine=mode).params, plain.params)


def test_ghbm_with_tau_one_is_fedcm_and_fedadc() -> None:
    task, world = fk.tasks.synthetic(), fk.World(cohort=8)
    runs = [
        fk.train(task, text, world, rounds=8, dtype=torch.float64).params
        for text in ("ghbm:tau=1,beta=0.9,lr=0.01", "fedcm:alpha=0.1,lr=0.1", "fedadc:lr=0.01")
    ]
    assert torch.allclose(runs[0], runs[1], rtol=0, atol=1e-12)
    assert torch.allclose(runs[0], runs[2], rtol=0, atol=1e-12)


def test_clamped_ghbm_is_momentum_over_the_last_tau_momenta() -> None:
    """Lemma B.2 through invariant I4: one full-batch step, everybody, uniform weights."""
    tau, beta, lr = 3, 0.9, 0.1
    x, momenta, path = 0.0, [0.0] * tau, []
    for _ in range(12):
        g = sum(a * (x - b) for a, b in zip(A, B, strict=True)) / 3
        m = beta / tau * sum(momenta[-tau:]) + g
        momenta.append(m)
        x -= lr * m
        path.append(x)
    text = f"ghbm:tau={tau},beta={beta},lr={lr},warmup=clamp,weights=uniform"
    for rounds in (1, 4, 12):
        assert play(text, rounds, budget=fk.FixedSteps(1)).params.item() == pytest.approx(path[rounds - 1], abs=1e-12)


@pytest.mark.parametrize("tau", [1, 2, 3])
@pytest.mark.parametrize("idle", [{1}, {2}, {4}, {2, 3}, {1, 2, 3, 4}])
def test_ghbm_looks_back_over_rounds_in_which_nobody_took_part(tau: int, idle: set[int]) -> None:
    """M = (x^{t-1} - x^{t-tau-1}) / tau with every round counted: one without participants leaves x as it was."""
    lr, beta, path = 0.1, 0.9, [0.0]
    for t in range(1, 8):
        x = path[-1]
        push = beta / 2 * (x - path[t - tau - 1]) / tau if t > tau else 0.0
        ends = [x] * len(A)
        for _ in range(2):
            ends = [y - lr * a * (y - b) + push for y, a, b in zip(ends, A, B, strict=True)]
        path.append(x if t in idle else sum(ends) / len(A))
    run = play(f"ghbm:tau={tau},beta={beta},lr={lr}", 7, budget=lambda round, _: 0 if round in idle else 2)
    assert run.params.item() == pytest.approx(path[-1], abs=1e-12)


def test_cyclic_participation_with_tau_one_over_c_covers_every_client_once() -> None:
    world = fk.World(cohort=5, sampler="cyclic")
    seen = sorted(int(c) for t in range(7, 11) for c in world.who(t, 20, seed=0))
    assert seen == list(range(20))


def test_under_cyclic_participation_localghbm_is_ghbm_in_both_scalings() -> None:
    task = quadratics((1.0, 2.0, 0.5, 1.5), (1.0, -1.0, 3.0, 0.5))
    world: dict[str, Any] = {"cohort": 1, "sampler": "cyclic"}
    runs = [
        play(f"{text},lr=0.05,beta=0.9,weights=uniform", 13, task=task, **world).params.item()
        for text in ("ghbm:tau=4", "localghbm:scale=participation", "localghbm:scale=elapsed")
    ]
    assert runs[1] == pytest.approx(runs[0], abs=1e-12)
    assert runs[2] == pytest.approx(runs[0], abs=1e-12)


def test_scaffold_keeps_c_at_the_mean_of_all_c_i_for_any_cohorts() -> None:
    task = quadratics((1.0, 2.0, 0.5, 1.5), (1.0, -1.0, 3.0, 0.5), (10, 30, 20, 40))
    run = play("scaffold:lr=0.1", 9, task=task, cohort=[[0, 1], [2, 3], [0, 2], [3]])
    memory = run.memories.read(np.arange(4))
    assert memory.seen.all()
    kept = memory.slots["scaffold"]["ci"]
    assert run.state.rules["scaffold"]["c"].item() == pytest.approx(kept.mean().item(), abs=1e-14)


def test_scaffold_rebuilds_on_the_server_what_it_would_have_sent() -> None:
    sent, rebuilt = play("scaffold:lr=0.1", 4), play("scaffold:lr=0.1,rebuild=true", 4)
    assert torch.equal(sent.params, rebuilt.params)
    assert rebuilt.history[-1]["bytes_up"] * 2 == sent.history[-1]["bytes_up"]


def test_a_client_that_stays_away_keeps_its_memory_bit_for_bit() -> None:
    task = quadratics((1.0, 2.0, 0.5), (1.0, -1.0, 3.0))
    for text in ("scaffold", "feddyn", "adabest", "localghbm", "fedhbm"):
        before = play(f"{text}:lr=0.1", 1, task=task, cohort=[[0, 2], [0, 1]])
        after = play(f"{text}:lr=0.1", 2, task=task, cohort=[[0, 2], [0, 1]])
        old, new = (run.memories.read(np.array([2])).slots[text] for run in (before, after))
        for name, value in old.items():
            assert torch.equal(value, new[name]), (text, name)


def test_the_first_participation_of_the_anchored_methods_is_a_fedavg_round() -> None:
    plain = play("fedavg:lr=0.1", 1)
    for text in ("localghbm", "fedhbm", "ghbm:tau=2"):
        sep = "," if ":" in text else ":"
        assert play(f"{text}{sep}lr=0.1", 1).params.item() == plain.params.item()
    assert play("fedhbm:first=shared,lr=0.1", 1).params.item() != plain.params.item()


def test_a_random_anchor_is_a_draw_of_the_initialiser_per_client_and_seed() -> None:
    task, world = fk.tasks.synthetic(), fk.World(cohort=4)
    runs = [fk.train(task, "fedhbm:first=random", world, rounds=1, seed=s, engine=e).params
            for s, e in ((0, "serial"), (0, "batched"), (1, "serial"))]  # fmt: skip
    assert torch.allclose(runs[0], runs[1], atol=1e-5)
    assert not torch.allclose(runs[0], runs[2], atol=1e-3)


def test_with_zero_gradients_fedhbm_moves_away_from_its_anchor_as_printed() -> None:
    """I12: y = a + (1 + beta s / J)^J (x - a); round 2 from an anchor that round 1 left at x_0 and a moved x."""
    task = quadratics((1.0, 0.0), (1.0, 0.0))  # client 1 has no gradient at all
    run = play("fedhbm:beta=0.8,lr=0.1,weights=uniform", 2, task=task, budget=fk.FixedSteps(3))
    x1 = play("fedhbm:beta=0.8,lr=0.1,weights=uniform", 1, task=task, budget=fk.FixedSteps(3)).params.item()
    kept = run.memories.read(np.array([1])).slots
    assert kept["fedhbm"]["anchor"].item() == pytest.approx((1 + 0.8 / 3) ** 3 * x1, abs=1e-14)


@pytest.mark.parametrize(
    ("text", "down", "up"),
    [("fedavg", 1, 1), ("scaffold", 2, 2), ("scaffold:rebuild=true", 2, 1), ("feddyn", 1, 1), ("adabest", 1, 1),
     ("mime", 2, 2), ("mimemom", 3, 2), ("mimelite", 1, 1), ("mimelitemom", 2, 2), ("fedcm", 2, 1), ("fedadc", 2, 1),
     ("ghbm:tau=2", 2, 1), ("localghbm", 1, 1), ("fedhbm", 1, 1)],
)  # fmt: skip
def test_traffic_is_what_the_overview_says(text: str, down: int, up: int) -> None:
    history = play(text, 5).history
    model = 3 * 1 * 8  # clients x parameters x float64
    assert (history[5]["bytes_down"] - history[4]["bytes_down"]) / model == down
    assert (history[5]["bytes_up"] - history[4]["bytes_up"]) / model == up


@pytest.mark.parametrize(("text", "silent"), [("ghbm:tau=2", 2), ("fedcm", 1), ("fedadc", 1)])
def test_nothing_extra_is_sent_while_there_is_no_momentum_yet(text: str, silent: int) -> None:
    down = [row["bytes_down"] / 24 for row in play(text, 4).history]
    assert [after - before for before, after in pairwise(down)] == [1] * silent + [2] * (4 - silent)


def test_mime_counts_its_second_gradients_and_full_passes() -> None:
    rounds, clients, steps = 2, 3, 2
    assert play("mime:lr=0.1", rounds).history[-1]["gradients"] == rounds * clients * (2 * steps + 1)
    assert play("mimelitemom:lr=0.1", rounds).history[-1]["gradients"] == rounds * clients * (steps + 1)
    assert play("mimelite:lr=0.1", rounds).history[-1]["gradients"] == rounds * clients * steps


def test_feddyn_reports_both_models_and_evaluates_the_one_asked_for() -> None:
    task = fk.tasks.synthetic()
    server = fk.train(task, "feddyn", fk.World(cohort=4), rounds=3).history[-1]
    cohort = fk.train(task, "feddyn:evaluate=cohort", fk.World(cohort=4), rounds=3).history[-1]
    assert server["accuracy_cohort"] == cohort["accuracy"]
    assert server["accuracy"] == cohort["accuracy_server"]
    assert server["loss"] != server["loss_cohort"]


def test_adaptive_feddyn_differs_only_when_sizes_do() -> None:
    same = quadratics(A, B, (4, 4, 4))
    assert play("feddyn:adaptive=true", 3, task=same).params.item() == play("feddyn", 3, task=same).params.item()
    unlike = quadratics(A, B, (2, 4, 6))
    assert play("feddyn:adaptive=true", 3, task=unlike).params.item() != play("feddyn", 3, task=unlike).params.item()


def test_known_instabilities_warn_with_their_numbers() -> None:
    task = quadratics(A, B)
    world = fk.World(cohort="all", budget=fk.FixedSteps(8))
    with pytest.warns(fk.StabilityWarning, match="= 1.566 >= 1"):
        fk.train(task, "fedhbm", world, rounds=1)
    with pytest.warns(fk.StabilityWarning, match="product 1.8"):
        fk.train(task, "ghbm:server_lr=2", world, rounds=1)
    many = quadratics([1.0] * 10, [0.0] * 10)
    with pytest.warns(fk.StabilityWarning, match=r"k \(1/C - 1\)"):
        fk.train(many, "fedhbm:beta=1.08", fk.World(cohort=1, budget=fk.FixedSteps(8)), rounds=1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("scaffold:momentum=0.9", "momentum stretches"),
        ("scaffold:client=adam", "SGD clients"),
        ("feddyn:server_lr=0.5", "server step of its own"),
        ("adabest+fedadam", "server step of its own"),
        ("feddyn+adabest", "each replace the server's update"),
        ("scaffold+fednova", "fixed combination of gradients, which scaffold does not give"),
        ("deltasgd+fednova", "fixed combination of gradients, which DeltaSGD does not give"),
        ("fedbuff+fednova", "asks for weights=nova and weights=uniform; give one of them"),
        ("fednova:tau_eff=steps+fednova", "asks for weights=nova twice"),
        ("scaffold:option=1,momentum=0.9", "defined for plain SGD steps, without momentum; give momentum=0"),
        ("scaffold:control=gradient_mean,client=adam", "defined for plain SGD steps; use SGD clients"),
        ("scaffold:weights=nova", "fixed combination of gradients"),
        *(
            (text, "SCAFFOLD and guesses with proxy=zero cannot be combined")
            for text in ("scaffold+gel", "gel+scaffold")
        ),
        *((text, "cannot be combined") for text in ("scaffold:momentum=0+gel", "gel:momentum=0+scaffold")),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(fk.InputError, match=why):
        fk.algorithm(text)


@pytest.mark.parametrize("text", ["ghbm+gel", "fedhbm+fedadam", "scaffold+fedprox", "localghbm+fedyogi", "fedcm+gel"])
def test_what_composes_trains(text: str) -> None:
    run = fk.train(fk.tasks.synthetic(), text, fk.World(cohort=4), rounds=3)
    assert run.status == "done"


PUSHES = ["ghbm:tau=1", "localghbm", "fedhbm", "fedcm", "fedadc", "gel:proxy=last,steps=2,momentum=0"]


@pytest.mark.parametrize("push", PUSHES)
def test_control_variates_do_not_count_a_push_as_a_gradient(push: str) -> None:
    """With one step on a full batch the mean raw gradient is the gradient at x, which option 1 takes, push or not."""
    name = push.partition(":")[0]
    for text in (f"scaffold+{push}", f"{push}+scaffold"):
        with pytest.raises(
            fk.InputError, match=rf"use scaffold:control=gradient_mean\+{name}(:proxy=last,momentum=0)?\."
        ):
            fk.algorithm(text)
    with_mean, with_gradient, alone = (
        play(f"scaffold:{keys},lr=0.1{more}", 4, budget=fk.FixedSteps(1), cohort=[[0, 1], [1, 2], [0, 2]])
        for keys, more in (("control=gradient_mean", f"+{push}"), ("option=1", f"+{push}"), ("option=1", ""))
    )
    assert rows(with_mean, "scaffold", "ci") == pytest.approx(rows(with_gradient, "scaffold", "ci"), abs=1e-14)
    assert with_mean.params.item() == pytest.approx(with_gradient.params.item(), abs=1e-14)
    assert with_mean.params.item() != pytest.approx(alone.params.item(), abs=1e-6)  # there was a push


def test_control_variates_do_not_count_mimes_momentum_as_a_gradient() -> None:
    for keys in ("", ":control=gradient_mean"):
        with pytest.raises(fk.InputError, match=r"use mimemom\+scaffold:option=1\."):
            fk.algorithm(f"mimemom+scaffold{keys}")
    with pytest.raises(fk.InputError, match=r"use scaffold:control=gradient_mean\+mimelitemom\."):
        fk.algorithm("mimelitemom+scaffold")
    for text in ("mimemom+scaffold:option=1", "scaffold:control=gradient_mean+mimelitemom", "mime+scaffold"):
        assert fk.algorithm(text).rules


@pytest.mark.parametrize("push", ["fedcm", "fedadc"])
def test_a_mean_of_gradients_to_which_a_push_was_added_is_refused(push: str) -> None:
    with pytest.raises(fk.InputError, match=rf"use scaffold:control=gradient_mean\+{push}\."):
        fk.algorithm(f"{push}+scaffold:control=gradient_mean")
    assert fk.algorithm(f"{push}+scaffold:option=1").rules


def test_the_guess_coasts_on_velocity_only_and_the_push_is_spread_over_real_steps() -> None:
    """In the GHBM + GEL update the push appears once, whatever is guessed."""
    spec = "lr=0.1,momentum=0.5,weights=uniform"
    first = play(f"ghbm:tau=1,beta=0,{spec}+gel:steps=3", 1).params.item()
    pushed = play(f"ghbm:tau=1,beta=0.6,{spec}+gel:steps=3", 2, task=quadratics((0.0,), (0.0,))).params.item()
    assert first != 0
    assert pushed == 0  # no gradient, no velocity, no movement to push along
    still = quadratics((1.0, 0.0), (1.0, 0.0))
    two = play(f"ghbm:tau=1,beta=0.6,{spec}+gel:steps=3", 2, task=still, budget=fk.FixedSteps(1)).params.item()
    one = play(f"ghbm:tau=1,beta=0.6,{spec}+gel:steps=3", 1, task=still, budget=fk.FixedSteps(1)).params.item()
    reach = 0.1 * (1 + 0.5 * (1 - 0.5**3) / (1 - 0.5))  # one step, then three guesses
    assert two == pytest.approx(one + 0.6 * one + 0.5 * reach * (1 - one), abs=1e-14)


def test_memory_and_momentum_survive_a_stop_bit_for_bit(tmp_path: Path) -> None:
    task = fk.tasks.synthetic(users=40)
    for text in ("scaffold", "feddyn", "adabest", "mimemom", "fedcm", "fedadc", "ghbm:tau=3", "localghbm", "fedhbm"):
        world = fk.World(cohort=8)
        straight = fk.train(task, text, world, rounds=8)
        fk.train(task, text, world, rounds=8, stop_after=4, checkpoint=tmp_path / text.replace(":", "_"))
        resumed = fk.resume(tmp_path / text.replace(":", "_"))
        assert torch.equal(resumed.params, straight.params), text
