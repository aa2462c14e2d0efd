"""Every measure against numbers by hand, and the promise that watching changes nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.aggregate import Nova, Samples, Uniform
from fedkeel.cli import main
from fedkeel.conformance import MODES, quadratics, toy, toy_world
from fedkeel.lab import diagnose as d
from fedkeel.lab.diagnose.watch import CLIENT_MEMORY
from fedkeel.recipes import RECIPES
from fedkeel.response import coefficients, lengths
from fedkeel.rules import RULES
from fedkeel.run.history import COLUMNS

EXACT = {"rel": 1e-9, "abs": 1e-12}


def told(task: fk.Task, text: str, mode: str = "serial", rounds: int = 1, **world: object) -> dict[str, float | None]:
    """The diagnosis of the last of a few rounds, in float64."""
    where = fk.World(**({"cohort": "all"} | world))  # type: ignore[arg-type]
    run = fk.train(task, text, where, rounds, engine=mode, dtype=torch.float64, diagnose=rounds)
    return run.history[-1]


def contract(run: fk.Run) -> list[dict[str, object]]:
    return [{name: row[name] for name in COLUMNS if name != "wall_seconds"} for row in run.history]


ONE_SIZE = [name for name, recipe in RECIPES.items() if recipe.capacity is None and recipe.pace is None]


def test_runs_with_a_clock_are_not_diagnosed():
    for text, world in (("fedbuff", toy_world()), ("fedavg", replace(toy_world(), fleet="phones"))):
        with pytest.raises(fk.InputError, match="leave out diagnose"):
            fk.train(toy(), text, world, 1, diagnose=1)


def test_devices_of_different_size_are_not_diagnosed():
    with pytest.raises(fk.InputError, match="differ in size"):
        fk.train(toy(), "heterofl", toy_world(), 1, diagnose=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", [*ONE_SIZE, "fedprox:mu=0.1+gel", "ghbm:tau=1", "gel:client=adam", "fedavg:clip=0.1"])
def test_watching_changes_no_bit_of_the_training(text: str, mode: str) -> None:
    plain = fk.train(toy(), text, toy_world(), 2, engine=mode)
    watched = fk.train(toy(), text, toy_world(), 2, engine=mode, diagnose=1)
    assert torch.equal(plain.params, watched.params)
    assert contract(plain) == contract(watched)
    assert set(d.COLUMNS) <= set(watched.history[2])
    assert watched.history[2]["diagnostic_gradients"] > 0
    assert not set(d.COLUMNS) & set(plain.history[2])
    json.dumps(watched.history, allow_nan=False)


@pytest.mark.parametrize("text", ["fedavgcm+gel", "fedhbm", "mimemom", "moon", "scaffold", "fednova:momentum=0.9"])
def test_serial_and_batched_and_chunks_of_any_size_see_the_same(text: str) -> None:
    engines = [fk.Local("serial"), fk.Local("batched", chunk=1), fk.Local("batched", chunk=2)]
    runs = [fk.train(toy(), text, toy_world(), 3, engine=e, dtype=torch.float64, diagnose=3) for e in engines]
    for column in d.COLUMNS:
        values = [run.history[-1][column] for run in runs]
        assert values == [values[0]] * 3 if values[0] is None else values == pytest.approx([values[0]] * 3, rel=1e-8)


@pytest.mark.parametrize("mode", MODES)
def test_the_drift_of_equally_curved_quadratics_has_its_closed_form(mode: str) -> None:
    # theta_i^j - theta^j = (b_i - b)(1 - r^j) with r = 1 - lr h, so eps = var(b) mean_j (1 - r^j)^2
    h, lr, steps, b, n = 2.0, 0.1, 4, np.array([1.0, -2.0, 4.0]), np.array([1, 2, 5])
    row = told(quadratics([h] * 3, b, n, x0=7.0), f"fedavg:lr={lr}", mode, budget=fk.FixedSteps(steps))
    p, r = n / n.sum(), 1 - lr * h
    spread = (p * (b - p @ b) ** 2).sum()
    eps = spread * np.mean([(1 - r**j) ** 2 for j in range(1, steps + 1)])
    assert row["drift"] == pytest.approx(eps, **EXACT)
    assert row["spread"] == pytest.approx(eps, **EXACT)  # their mean is the shadow: they differ only from each other
    assert row["dissimilarity"] == pytest.approx(h**2 * spread, **EXACT)
    g = h * (7.0 - p @ b)
    assert row["gradient_norm"] == pytest.approx(abs(g), **EXACT)
    assert row["dissimilarity_ratio"] == pytest.approx(1 + h**2 * spread / g**2, **EXACT)
    assert row["sampling_error"] == pytest.approx(0, abs=1e-12)  # everybody took part


def walk(a: float, b: float, x: float, lr: float, steps: int) -> list[float]:
    places = []
    for _ in range(steps):
        x -= lr * a * (x - b)
        places.append(x)
    return places


@pytest.mark.parametrize("mode", MODES)
def test_unequal_curvature_and_unequal_budgets_by_hand(mode: str) -> None:
    a, b, n, budgets, lr = (1.0, 3.0), (1.0, -1.0), (3, 1), (2, 4), 0.1
    task = quadratics(a, b, n, x0=2.0)
    row = told(task, f"fedavg:lr={lr}", mode, budget=lambda t, i: budgets[i])
    p, x, shadow = (0.75, 0.25), 2.0, []
    for _ in range(4):
        x -= lr * sum(p[i] * a[i] * (x - b[i]) for i in (0, 1))
        shadow.append(x)
    paths = [walk(a[i], b[i], 2.0, lr, budgets[i]) for i in (0, 1)]
    share = {(i, j): p[i] / budgets[i] for i in (0, 1) for j in range(budgets[i])}
    assert row["drift"] == pytest.approx(
        sum(c * (paths[i][j] - shadow[j]) ** 2 for (i, j), c in share.items()), **EXACT
    )
    mean = {j: sum(c * paths[i][k] for (i, k), c in share.items() if k == j)
            / sum(c for (_, k), c in share.items() if k == j) for j in range(4)}  # fmt: skip
    assert row["spread"] == pytest.approx(sum(c * (paths[i][j] - mean[j]) ** 2 for (i, j), c in share.items()), **EXACT)
    ends = [paths[i][-1] - 2.0 for i in (0, 1)]
    assert row["update_norm_mean"] == pytest.approx(np.mean(np.abs(ends)), **EXACT)
    assert row["update_norm_max"] == pytest.approx(max(np.abs(ends)), **EXACT)
    assert row["cosine_mean"] == pytest.approx(1.0, **EXACT)
    # 4 steps of the shadow, and the first gradient is its first: 4 passes of both clients; the replay's 2 + 4
    assert row["diagnostic_gradients"] == 4 * 2 + 6


def test_clients_with_momentum_have_a_shadow_with_momentum() -> None:
    task = quadratics([2.0, 2.0], [3.0, 3.0], x0=0.0)
    row = told(task, "fedavgcm:lr=0.1", budget=fk.FixedSteps(5))
    assert row["drift"] == pytest.approx(0, abs=1e-20)  # alike clients do not drift, however they step
    assert row["dissimilarity"] == pytest.approx(0, abs=1e-12)


def test_clients_that_find_their_own_rate_have_no_drift_but_a_spread() -> None:
    row = told(toy(), "deltasgd", budget=fk.FixedSteps(3))
    assert row["drift"] is None
    assert row["spread"] is not None
    assert row["spread"] > 0


def test_cosines_and_norms_by_hand() -> None:
    updates = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    row = d.alignment(updates, torch.tensor([[1.0], [3.0]], dtype=torch.float64))  # mean along (6, 4)
    cosines = [34 / (5 * math.sqrt(52)), 6 / math.sqrt(52)]
    assert row["cosine_mean"] == pytest.approx(np.mean(cosines), **EXACT)
    assert row["cosine_min"] == pytest.approx(min(cosines), **EXACT)
    assert (row["update_norm_mean"], row["update_norm_max"]) == (3.0, 5.0)
    assert "cosine_mean" not in d.alignment(torch.zeros(2, 2), torch.ones(2, 1))


def test_the_momentum_error_by_hand() -> None:
    g = torch.tensor([5.0, 0.0], dtype=torch.float64)
    along, across = (
        d.momentum_error(torch.tensor([0.1, 0.0]).double(), g),
        d.momentum_error(torch.tensor([3.0, 4.0]).double(), g),
    )
    assert along["momentum_error"] == pytest.approx(0, abs=1e-12)
    assert across["momentum_cosine"] == pytest.approx(0.6, **EXACT)
    assert across["momentum_error"] == pytest.approx(1 - 0.36, **EXACT)
    assert d.momentum_error(-g, g)["momentum_error"] == 1.0  # the wrong way round is worth no memory at all
    assert d.momentum_error(torch.zeros(2).double(), g) == {}


A, B, X0 = np.array([[1.0, 2.0], [3.0, 1.0]]), np.array([[1.0, 0.0], [-1.0, 2.0]]), np.array([2.0, -1.0])


def slope(x: np.ndarray, client: int | None = None) -> np.ndarray:
    each = A * (x - B)
    return each.mean(0) if client is None else each[client]


def check_momentum(row: dict[str, float | None], memory: np.ndarray, now: np.ndarray) -> None:
    cosine = memory @ now / np.linalg.norm(memory) / np.linalg.norm(now)
    assert row["momentum_cosine"] == pytest.approx(cosine, **EXACT)
    assert row["momentum_error"] == pytest.approx(1 - max(0.0, cosine) ** 2, **EXACT)


@pytest.mark.parametrize("name", ["ghbm:tau=1", "localghbm:beta=0.9", "fedcm:alpha=0.1", "fedadc:a=1",
                                  "fedavgm:beta=0.9", "mimemom:beta=0.9", "mimelitemom:beta=0.9"])  # fmt: skip
def test_what_a_method_remembers_is_compared_with_the_gradient_where_it_stands_now(name: str) -> None:
    row = told(quadratics(A, B, x0=X0), f"{name},lr=0.1", rounds=2, budget=fk.FixedSteps(1))
    rate = 0.01 if name.startswith("fedcm") else 0.1  # FedCM's first round has no D yet and steps by alpha lr
    x1 = X0 - rate * slope(X0)
    check_momentum(row, slope(X0), slope(x1))


@pytest.mark.parametrize("name", ["fedhbm", "localghbm"])
def test_a_client_looks_back_to_its_own_last_visit(name: str) -> None:
    text, world = f"{name}:lr=0.1,beta=0.5", {"cohort": [[0], [1], [0]], "budget": fk.FixedSteps(1)}
    row = told(quadratics(A, B, x0=X0), text, rounds=3, **world)
    x1 = X0 - 0.1 * slope(X0, 0)
    x2 = x1 - 0.1 * slope(x1, 1)
    check_momentum(row, (x1 if name == "fedhbm" else X0) - x2, slope(x2))


def test_methods_without_momentum_have_no_momentum_error() -> None:
    for text in ("fedavg", "scaffold", "fedprox", "fedadagrad"):
        assert told(toy(), text, rounds=2, budget=fk.FixedSteps(2))["momentum_error"] is None


def test_lemma_4_7_by_hand_and_its_bound() -> None:
    b, schedule = [1.0, -1.0, 4.0, 2.0], [[0, 1], [2], [1, 3]]
    task = quadratics([1.0] * 4, b, x0=0.0)
    for tau, recent in ((1, [1, 3]), (2, [1, 2, 3]), (3, [0, 1, 2, 3])):
        run = fk.train(task, f"ghbm:tau={tau},lr=0.1", fk.World(schedule, fk.FixedSteps(1)), 3, dtype=torch.float64,
                       diagnose=3, stop_after=None)  # fmt: skip
        row = run.history[-1]
        x = fk.train(
            task, f"ghbm:tau={tau},lr=0.1", fk.World(schedule, fk.FixedSteps(1)), 2, dtype=torch.float64
        ).params.item()
        g, lately = x - np.mean(b), x - np.mean([b[i] for i in recent])
        assert row["sampling_error"] == pytest.approx((lately - g) ** 2 / g**2, **EXACT)
        allowed = 8 * ((4 - len(recent)) / 4) ** 2 * (row["dissimilarity"] + g**2)
        assert row["sampling_error"] * g**2 <= allowed + 1e-12


@pytest.mark.parametrize(("text", "known"), [("fedhbm:beta=0.5", False), ("localghbm", False), ("fedcm", True)])
def test_clients_that_look_back_to_their_own_last_visit_have_no_common_tau(text: str, known: bool) -> None:
    row = told(toy(), text, rounds=2, budget=fk.FixedSteps(2))
    assert (row["sampling_error"] is not None) == known


def test_with_many_clients_the_cohort_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    b = [1.0, -1.0, 4.0, 2.0]
    monkeypatch.setattr(d.watch, "EVERYBODY", 3)
    row = told(quadratics([1.0] * 4, b, x0=0.0), "fedavg:lr=0.1", cohort=[[0, 2]], budget=fk.FixedSteps(1))
    assert row["gradient_norm"] == pytest.approx(2.5, **EXACT)
    assert row["dissimilarity"] == pytest.approx(1.5**2, **EXACT)
    assert row["sampling_error"] is None
    assert row["diagnostic_gradients"] == 2 + 2


@pytest.mark.parametrize(("momentum", "guesses"), [(0.0, 0), (0.9, 0), (0.9, 7), (0.5, 3)])
def test_the_coefficients_are_those_of_lemma_1(momentum: float, guesses: int) -> None:
    steps, client = torch.tensor([[2.0], [4.0]]), fk.SGD(0.1, momentum=momentum)
    rules = [fk.Guess(guesses)] if guesses else []
    a = coefficients(client, rules, steps, 0.1, None)
    for row, real in zip(a, (2, 4), strict=True):
        lemma = [(1 - momentum ** (guesses + real - k)) / (1 - momentum) for k in range(real)] + [0.0] * (4 - real)
        assert row.tolist() == pytest.approx(lemma, **EXACT)
    assert a.sum(1, keepdim=True).flatten().tolist() == pytest.approx(
        lengths(client, rules, steps, 0.1, None).flatten().tolist(), **EXACT
    )


def test_the_coefficients_rebuild_an_update_with_momentum_a_proximal_term_and_a_guess() -> None:
    # Gradients that do not depend on the place: f = g . x, so the update is -lr sum_k a_k g whatever the path.
    a = coefficients(fk.SGD(0.1, momentum=0.9), [fk.Proximal(0.5), fk.Guess()], torch.tensor([[4.0]]), 0.1, 9)
    assert a.sum().item() == pytest.approx(19.4368840838, rel=1e-9)  # the specification's check, section 6


@pytest.mark.parametrize("weights", [Samples(), Uniform(), Nova()])
def test_the_constants_of_theorem_2_by_hand(weights: fk.Samples) -> None:
    a = torch.tensor([[2.0, 1.0, 0.0], [3.0, 2.0, 1.0]], dtype=torch.float64)
    samples, steps = torch.tensor([[3.0], [1.0]], dtype=torch.float64), torch.tensor([[2.0], [3.0]])
    p = np.array([0.5, 0.5] if weights == Uniform() else [0.75, 0.25])
    one, two, last = np.array([3.0, 6.0]), np.array([5.0, 14.0]), np.array([1.0, 1.0])
    tau = (p * one).sum()
    w = p if weights == Nova() else p * one / tau
    told = d.bound(a, samples, steps, weights)
    assert told["bound_tau_eff"] == pytest.approx(tau, **EXACT)
    assert told["bound_A"] == pytest.approx(2 * tau * (w**2 * two / one**2).sum(), **EXACT)
    assert told["bound_B"] == pytest.approx((w * (two - last**2)).sum(), **EXACT)
    assert told["bound_C"] == pytest.approx(max(one**2 - one * last), **EXACT)


def test_guessing_flattens_the_coefficients_and_lengthens_the_step() -> None:
    world = {"budget": fk.UniformSteps(4, 13), "cohort": 5}
    plain, guessed = (told(toy(), text, **world) for text in ("fedavgcm", "gel"))
    assert guessed["coefficient_norm"] > plain["coefficient_norm"]
    assert guessed["coefficient_last"] > plain["coefficient_last"]
    assert told(toy(), "scaffold", **world)["bound_A"] is None
    assert told(toy(), "gel:client=adam", **world)["coefficient_norm"] is None


def test_only_every_so_many_rounds_are_diagnosed_and_resuming_goes_on_with_it(tmp_path: Path) -> None:
    whole = fk.train(toy(), "fedhbm", toy_world(), 6, diagnose=2)
    assert [row["round"] for row in whole.history if "drift" in row] == [2, 4, 6]
    assert whole.config["diagnose"] == 2
    fk.train(toy(), "fedhbm", toy_world(), 6, diagnose=2, stop_after=3, checkpoint=tmp_path)
    resumed = fk.resume(tmp_path, task=toy(), world=toy_world())
    assert resumed.config["diagnose"] == 2
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert one | {"wall_seconds": 0} == other | {"wall_seconds": 0}


def test_a_round_with_nobody_in_it_is_diagnosed_as_empty() -> None:
    row = told(toy(), "fedavg", budget=lambda t, i: 0)
    assert row["diagnostic_gradients"] == 0
    assert row["drift"] is None


def test_a_client_whose_update_is_not_finite_is_left_out_of_the_diagnosis_too() -> None:
    world = fk.World("all", fk.FixedSteps(9))
    for x0, status in ((1.0, "done"), (3.0, "diverged")):  # the second client starts at its minimum, or nobody does
        task = quadratics([1.0, 2.0], [0.0, 1.0], x0=x0)
        run = fk.train(task, "fedavg:lr=1e38", world, 1, dtype=torch.float64, diagnose=1)
        row = run.history[1]
        assert run.status == status
        assert row["update_norm_max"] == (0.0 if status == "done" else None)
        assert row["drift"] is None  # the shadow has gone to infinity
        assert row["spread"] is None
        assert row["gradient_norm"] > 0
        json.dumps(run.history, allow_nan=False)


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "ten"])
def test_a_bad_interval_is_refused(every: object) -> None:
    with pytest.raises(fk.InputError, match=r"'diagnose' parameter of train must be an integer in \[1, 1e9\]"):
        fk.train(toy(), "fedavg", toy_world(), 2, diagnose=every)  # type: ignore[arg-type]


def test_the_command_diagnoses_prints_and_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, again = tmp_path / "runs", tmp_path / "again"
    flags = ["--rounds", "2", "--cohort", "3", "--budget", "2:3", "--diagnose", "2"]
    assert main(["run", "digits", "fedavg", "gel", *flags, "--out", str(out)]) == 0
    text, said = capsys.readouterr()
    assert "cosine_mean" in text and "diagnostic_gradients" in text
    row = json.loads((out / "gel/seed-0/history.jsonl").read_text().splitlines()[2])
    cost = f"{row['diagnostic_gradients']:,} gradients, a round of its training {row['gradients'] / 2:,.0f}."
    assert said.count(f"A diagnosis of gel takes {cost}") == 1
    assert json.loads((out / "config.json").read_text())["diagnose"] == 2
    arms = json.loads((out / "summary.json").read_text())["arms"]
    assert arms[1]["diagnosis"]["bound_A"] > arms[0]["diagnosis"]["bound_A"]
    assert main(["run", "--config", str(out / "fedavg" / "seed-0" / "config.json"), "--out", str(again)]) == 0
    rows = [json.loads(line) for line in (again / "history.jsonl").read_text().splitlines()]
    assert rows[2]["drift"] == json.loads((out / "fedavg/seed-0/history.jsonl").read_text().splitlines()[2])["drift"]
    capsys.readouterr()
    assert main(["run", "digits", "fedavg", "--diagnose", "0", "--out", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()


def test_without_a_number_every_tenth_round_is_diagnosed(tmp_path: Path) -> None:
    assert main(["run", "digits", "fedavg", "--rounds", "1", "--diagnose", "--out", str(tmp_path / "r")]) == 0
    assert json.loads((tmp_path / "r" / "config.json").read_text())["diagnose"] == 10


def test_every_rule_says_which_of_its_tensors_is_a_momentum_or_that_it_has_none() -> None:
    assert set(CLIENT_MEMORY) == set(RULES.values())
