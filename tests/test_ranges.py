"""Every number that users give has a range: what is outside is refused in one line, what is inside works."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel import recipes
from fedkeel.capacity import CAPACITIES
from fedkeel.cli import main
from fedkeel.conformance import toy, toy_world
from fedkeel.data import partition
from fedkeel.data.batches import Batches
from fedkeel.engine.threads import Local
from fedkeel.errors import is_number
from fedkeel.ranges import COUNT, FADING, POSITIVE, RATE, Range, check_memory, plain
from fedkeel.robust import ROBUST
from fedkeel.rules import RULES
from fedkeel.run.config import RunConfig
from fedkeel.settings import settings

SMALL = ["--rounds", "1", "--cohort", "2"]
HUGE = [10**45, 10**400, 1e300, math.inf, -math.inf, math.nan, -1e30]


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        (COUNT, [1, 10**9, np.int64(5), np.uint8(5)], [0, 10**9 + 1, 1.0, True, "1", None, np.float32(1), np.True_]),
        (FADING, [0, 0.999, np.float32(0.9)], [1, -1e-9, math.nan, "0.5"]),
        (POSITIVE, [1e-30, 5, 1e9], [0, 1e-31, 1.1e9, math.inf, 10**400]),
        (RATE, [0.1, 1e38], [0, 1e39, np.inf]),
    ],
)
def test_a_range_holds_numbers_of_python_and_of_numpy(allowed: Range, inside: list[Any], outside: list[Any]) -> None:
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in outside)


def parts() -> list[tuple[type, str]]:
    """Every number of every part of an algorithm, by class and name."""
    found = []
    for kind in [*RULES.values(), *recipes.OPTIMIZERS.values(), *CAPACITIES.values(), *ROBUST.values(), Local]:
        made = kind()
        for one in fields(kind) if is_dataclass(kind) else ():
            if is_number(getattr(made, one.name)) or (one.default is None and one.name not in TEXTS):
                found.append((kind, one.name))
    return found


TEXTS = ("proxy", "why", "shares", "ratios", "bias_correction")  # None, and no number


@pytest.mark.parametrize(("kind", "name"), parts(), ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_every_number_of_every_part_has_an_upper_and_a_lower_end(kind: type, name: str) -> None:
    message = f"'{name}' parameter of {kind.__name__} must be (a|an|'|left)"
    for value in HUGE:
        with pytest.raises(fk.InputError, match=message) as caught:
            kind(**{name: value})
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(("owner", "more"), [(RunConfig, "train"), (fk.World, "World")])
def test_every_number_among_the_settings_has_an_upper_and_a_lower_end(owner: Any, more: str) -> None:
    numbers = [name for name, one in settings(owner).items() if one.kind.read in (int, float)]
    assert len(numbers) >= (8 if owner is RunConfig else 1)
    for name in numbers:
        for value in HUGE:
            with pytest.raises(fk.InputError, match=f"'{name}' parameter of {more} must be an? (integer|number) in"):
                owner(**{name: value})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "1e300e"], "must be a number in [1e-30, 1e9]. Got 1e+300 instead"),
        (["--budget", "1e8e"], "are more than 10,000,000 steps in a round"),
        (["--budget", "1:1000000000000"], "must be an integer in [1, 1e7]"),
        (["--budget", "9" * 23], "must be an integer in [1, 1e7]"),
        (["--budget", "5:2"], "must be at least low, 5. Got 2"),
        (["--batch-size", "9" * 23], "must be an integer in [1, 1e9]"),
        (["--seeds", "100000000"], "--seeds must be an integer in [1, 10000]"),
        (["--rounds", "1000000000000"], "must be an integer in [1, 1e9]"),
        (["--lr", "1e39"], "must be a number in [1e-30, 1e38]"),
        (["--cohort", "9" * 23], "larger than the population of 3 clients"),
        (["--device", "meta"], "must be 'cpu', or 'cuda' or 'mps' where this machine and its torch have one"),
        (["--device", "cuda:99"], "must be 'cpu', or 'cuda' or 'mps' where this machine and its torch have one"),
        (["--device", "abacus"], "must be 'cpu', or 'cuda' or 'mps' where this machine and its torch have one"),
    ],
)  # fmt: skip
def test_a_flag_out_of_range_is_one_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["run", "synthetic:users=3", "fedavg", *SMALL, *words, "--out", str(tmp_path / "d")]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("synthetic:users=10000000000", "must be an integer in [1, 1e8]"),
        ("synthetic:users=100000000", "GB of memory, and this machine has"),
        ("synthetic-fedprox:users=100000000", "GB of memory, and this machine has"),
        ("synthetic-fedprox:alpha=1e30", "must be a number in [0, 1e9]"),
        ("synthetic:seed=5000000000", "below 2^32"),
        ("digits:clients=100000000,partition=dirichlet_repeated", "GB of memory, and this machine has"),
        ("digits:alpha=1e30", "must be a number in [0, 1e9]"),
        ("digits:seed=9223372036854775808", "must be an integer in [0, 2^63)"),
        ("blobs-deep:seed=-1", "must be an integer in [0, 2^63)"),
    ],
)
def test_a_number_of_a_task_out_of_range_is_refused_before_its_data_are_made(text: str, message: str) -> None:
    with pytest.raises(fk.InputError) as caught:
        fk.tasks.get(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "fedadc:a=1e9", "feddyn:alpha=1e9", "feddyn:alpha=1e-30", "fedadc:beta_local=1e9,beta_global=1e9",
        "fedprox:mu=1e9", "fedavg:lr=1e38", "fedavg:lr=1e-30", "fedadam:eps=1e-30,v_init=1e9", "fedadam:server_lr=1e38",
        "adabest:mu=1e9,beta=1e9", "ghbm:beta=1e9,tau=1000000000,warmup=clamp", "localghbm:beta=1e9", "fedhbm:beta=1e9",
        "deltasgd:delta=1e9,gamma=1e9", "sps:c=1e-30,fstar=-1e9", "fedcm:alpha=1e-30", "scaffold:lr=1e-30",
        "fathom:gamma_lr=1e9,gamma_epochs=1e9,gamma_batch=1e9,epochs_max=1e9", "fedavg:weight_decay=1e9,clip=1e-30",
        "gel:steps=10000000", "gel:steps=100000%", "heterofl:rates=1/1e-6,shares=1/1e9", "mimemom:lr=1e38",
        "fednova:momentum=0.9999999999", "moon:temperature=1e-30,mu=1e9",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::fedkeel.StabilityWarning")
def test_what_is_accepted_at_the_end_of_its_range_trains_or_diverges(text: str) -> None:
    run = fk.train(toy(), text, toy_world(), 3)
    assert run.status in ("done", "diverged")
    assert bool(torch.isfinite(run.params).all())
    json.dumps(run.history, allow_nan=False)


def test_the_largest_budget_for_match_gel_is_stated() -> None:
    world = fk.World(2, fk.UniformSteps(1, 10**6))
    with pytest.raises(fk.InputError, match="budgets of up to 10,000 steps, and this one has 1,000,000"):
        fk.train(toy(), "fedavgcm:server_lr=match-gel", world, 1)


def test_fathom_never_asks_for_more_steps_than_a_budget_may_have() -> None:
    plan = fk.Plan(0.1, batch_size=1, epochs=1e9)
    steps = plan.steps(np.array([10**6]))
    assert steps is not None and steps.tolist() == [10**7]


def test_batches_that_do_not_fit_into_memory_are_refused() -> None:
    data = fk.FederatedData.from_arrays(np.zeros((1000, 1)), np.zeros(1000), clients=np.zeros(1000))
    with pytest.raises(fk.InputError, match=r"10,000,000 steps of 1,000 samples, need about .* use fewer steps"):
        Batches(data, np.array([0]), np.array([10**7]), 1000, 0, 1)


def test_what_fits_into_memory_is_not_refused() -> None:
    check_memory("A page", 4096, "use less")
    with pytest.raises(fk.InputError, match=r"^A library need about .* GB; use less\.$"):
        check_memory("A library", 1e18, "use less")


def test_a_budget_of_epochs_is_checked_with_the_data_of_the_task(tmp_path: Path) -> None:
    with pytest.raises(fk.InputError, match="of a client with 15 samples are more than 10,000,000 steps"):
        fk.train(toy(), "fedavg", fk.World(budget=fk.Epochs(1e9)), 1, checkpoint=tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_numbers_of_numpy_are_numbers_everywhere_and_plain_in_the_configuration(tmp_path: Path) -> None:
    world = fk.World(np.int64(2), fk.UniformSteps(np.int64(1), np.int32(3)), expected_steps=np.int64(9))
    algorithm = fk.Algorithm(
        client=fk.SGD(np.float32(0.5), momentum=np.float64(0.5), clip=np.float32(2)),
        rules=[fk.Proximal(np.float32(0.25)), fk.Guess(np.int64(3)), fk.GHBM(tau=np.int16(2))],
        server=fk.Adam(np.float32(0.5), eps=np.float32(0.125)),
    )
    task = replace(toy(), batch_size=np.int64(3), lr=np.float32(0.5), target=np.float32(0.5))
    run = fk.train(task, algorithm, world, np.int64(2), np.uint8(1), eval_every=np.int64(1), checkpoint=tmp_path)
    assert (run.config["rounds"], run.config["seed"], run.config["batch_size"]) == (2, 1, 3)
    plain_run = fk.train(
        replace(toy(), batch_size=3, lr=0.5, target=0.5),
        fk.Algorithm(
            client=fk.SGD(0.5, momentum=0.5, clip=2.0),
            rules=[fk.Proximal(0.25), fk.Guess(3), fk.GHBM(tau=2)],
            server=fk.Adam(0.5, eps=0.125),
        ),
        fk.World(2, fk.UniformSteps(1, 3), expected_steps=9), 2, 1, eval_every=1,
    )  # fmt: skip
    assert run.config == plain_run.config
    assert torch.equal(run.params, plain_run.params)
    json.dumps(run.config)  # nothing of numpy is left


def test_a_cohort_may_be_numbers_of_numpy_too() -> None:
    schedule = fk.World(cohort=[list(np.array([0, 1])), (np.int8(2), np.int64(3))])
    assert schedule.parameters()["cohort"] == [[0, 1], [2, 3]]
    assert fk.World(cohort=np.float32(0.5)).size(6) == 3
    json.dumps(schedule.parameters())


def test_numbers_of_numpy_partition_data() -> None:
    labels = np.repeat(np.arange(3), 10)
    same = partition.dirichlet(labels, 3, 0.5, seed=1)
    assert (partition.dirichlet(labels, np.int64(3), np.float64(0.5), seed=np.int64(1)) == same).all()


def test_plain_leaves_what_is_no_number() -> None:
    assert [plain(value) for value in (True, None, "5", [1])] == [True, None, "5", [1]]
    assert type(plain(np.float32(0.5))) is float and type(plain(np.int8(5))) is int


MANY = ",".join(map(str, range(1, 150)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--grid", f"lr={MANY}", f"clip={MANY}"],
            "at least two cells, such as --grid lr=0.01,0.1, and at most 10,000. Got 22,201",
        ),
        (["--grid", "lr=0.1,0.2", "--jobs", "100000"], "must be an integer in [1, 1024]"),
        (["--grid", "lr=0.1,0.2", "--seeds", "10001"], "must be an integer in [1, 10000]"),
    ],
)
def test_a_sweep_that_would_never_end_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["sweep", "synthetic:users=3", "fedavg", *SMALL, *words, "--out", str(tmp_path / "d")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
