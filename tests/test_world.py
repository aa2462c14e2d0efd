import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.conformance import MODES, quadratics, toy, toy_world, witnessed
from fedkeel.world import Ask, parse_budget

few = settings(derandomize=True, max_examples=50, deadline=None)


def ask(samples=(45,), batch_size=20, round=1, seed=0):
    return Ask(seed, round, np.arange(len(samples)), np.array(samples), batch_size)


# ------------------------------------------------------------------------------------------------ cohorts


@few
@given(st.integers(1, 200), st.integers(0, 5), st.integers(1, 5), st.sampled_from(["uniform", "weighted"]))
def test_a_cohort_is_ascending_and_distinct(population, seed, round, sampler):
    world = fk.World(cohort=max(1, population // 3), sampler=sampler)
    cohort = world.who(round, population, seed, lambda c: c + 1)
    assert cohort.tolist() == sorted(set(cohort.tolist()))
    assert len(cohort) == max(1, population // 3)
    assert cohort.max() < population


@pytest.mark.parametrize(
    ("cohort", "population", "size"),
    [(None, 7, 7), (None, 100, 20), (3, 7, 3), (0.3, 10, 3), (0.001, 10, 1), (1.0, 10, 10), ("all", 9, 9)],
)
def test_a_cohort_is_a_number_a_fraction_all_or_at_most_twenty(cohort, population, size):
    assert fk.World(cohort=cohort).size(population) == size
    assert len(fk.World(cohort=cohort).who(1, population, 0)) == size


def test_a_schedule_repeats_and_its_cohorts_are_sorted():
    world = fk.World(cohort=[[3, 0], [1]])
    assert [world.who(t, 5, seed=0).tolist() for t in (1, 2, 3, 4)] == [[0, 3], [1], [0, 3], [1]]


@pytest.mark.parametrize("mode", MODES)
def test_a_scheduled_run_trains_whom_the_schedule_names(mode):
    algorithm, witness = witnessed("fedavg")
    run = fk.train(toy(), algorithm, fk.World([[5, 0], [1]], fk.FixedSteps(1)), 3, engine=mode)
    assert sorted((t, i) for t, i, _ in witness.gradients) == [(1, 0), (1, 5), (2, 1), (3, 0), (3, 5)]
    assert [row["clients"] for row in run.history] == [0, 2, 1, 2]


def test_the_cyclic_sampler_sees_everybody_once_per_cycle():
    world = fk.World(cohort=3, sampler="cyclic")
    cohorts = [world.who(t, 7, seed=0).tolist() for t in range(1, 8)]
    assert sorted(client for cohort in cohorts for client in cohort) == sorted(list(range(7)) * 3)


def test_the_weighted_sampler_prefers_who_holds_more():
    world = fk.World(cohort=1, sampler="weighted")
    picks = [int(world.who(t, 2, 0, lambda c: np.array([1, 9]))[0]) for t in range(1, 301)]
    assert 0.84 < np.mean(picks) < 0.96


def test_uniform_sampling_is_uniform():
    world = fk.World(cohort=2)
    counts = np.bincount(np.concatenate([world.who(t, 5, seed=0) for t in range(1, 1001)]))
    assert (abs(counts - 400) < 70).all()


@pytest.mark.parametrize(
    "cohort",
    [0, -1, 1.5, 0.0, "some", True, [], [[]], [[0, 0]], [[-1]], [[0.5]], [0, 1], [[0], 1], ["ab"], np.array([[0, 1]])],
)
def test_a_cohort_that_cannot_be_is_refused(cohort):
    with pytest.raises(fk.InputError, match="'cohort' parameter of World must be"):
        fk.World(cohort=cohort)


def test_a_cohort_larger_than_the_population_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(fk.InputError, match="A cohort of 8 is larger than the population of 7 clients"):
        fk.train(toy(), "fedavg", fk.World(cohort=8), 1, checkpoint=tmp_path / "run")
    with pytest.raises(fk.InputError, match=r"names client 7; there are clients 0\.\.6"):
        fk.train(toy(), "fedavg", fk.World([[0, 7]]), 1, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------ budgets


def test_uniform_steps_are_uniform_with_both_ends():
    budget, counts = fk.UniformSteps(4, 13), np.zeros(14, int)
    for t in range(1, 201):
        np.add.at(counts, budget.steps(ask((9,) * 10, round=t)), 1)
    assert (counts[:4] == 0).all()
    assert (abs(counts[4:] - 200) < 60).all()


@pytest.mark.parametrize(
    ("median", "batch_size", "budget"), [(22, 5, "4:22"), (161, 20, "8:40"), (33, 10, "3:17"), (1, 20, "1:1")]
)
def test_budgets_of_the_median_client_are_those_of_gels_table_3(median, batch_size, budget):
    samples = [1, median, 1000]  # not the mean
    assert str(fk.UniformSteps.of_epochs(1, 5, samples, batch_size)) == budget


def test_a_budget_is_drawn_per_client_and_round_whoever_else_takes_part():
    budget = fk.UniformSteps(1, 10**6)
    some = budget.steps(Ask(0, 3, np.array([2, 7]), np.array([1, 1]), None))
    more = budget.steps(Ask(0, 3, np.array([1, 2, 7]), np.array([1, 1, 1]), None))
    assert some.tolist() == more[1:].tolist()
    assert some.tolist() != budget.steps(Ask(0, 4, np.array([2, 7]), np.array([1, 1]), None)).tolist()
    assert some.tolist() != budget.steps(Ask(1, 3, np.array([2, 7]), np.array([1, 1]), None)).tolist()


@pytest.mark.parametrize(
    ("budget", "samples", "batch_size", "steps"),
    [
        (fk.Epochs(1), 45, 20, 3),
        (fk.Epochs(2), 45, 20, 5),
        (fk.Epochs(2, per_epoch=True), 45, 20, 6),
        (fk.Epochs(2, per_epoch=True, drop_last=True), 45, 20, 4),
        (fk.Epochs(0.1), 45, 20, 1),
        (fk.Epochs(0.1), 1000, 10, 10),
        (fk.Epochs(3), 7, 20, 3),
        (fk.Epochs(3), 7, None, 3),
        (fk.Epochs(1.5), 7, None, 2),
        (fk.Epochs(1, per_epoch=True, drop_last=True), 7, 20, 1),
        (fk.FixedSteps(10), 7, 20, 10),
    ],
)
def test_epochs_become_steps(budget, samples, batch_size, steps):
    assert budget.steps(ask((samples,), batch_size)).tolist() == [steps]


@pytest.mark.parametrize(
    "make",
    [
        lambda: fk.UniformSteps(5, 4), lambda: fk.UniformSteps(-1, 4), lambda: fk.UniformSteps(0, 0),
        lambda: fk.UniformSteps(1.5, 4), lambda: fk.FixedSteps(0), lambda: fk.FixedSteps(2.0), lambda: fk.Epochs(0),
        lambda: fk.Epochs(-1), lambda: fk.Epochs(1.5, per_epoch=True), lambda: fk.Epochs(1, drop_last=True),
        lambda: fk.World(budget=0), lambda: fk.World(budget=2.5), lambda: fk.World(budget=fk.World()),
        lambda: fk.World(expected_steps=0), lambda: fk.World(sampler="best"),
    ],
)  # fmt: skip
def test_a_budget_that_cannot_be_is_refused(make):
    with pytest.raises(fk.InputError, match="must be"):
        make()


def test_a_world_takes_a_budget_as_the_command_line_has_it():
    for text, same in (("3:8", fk.UniformSteps(3, 8)), (5, fk.FixedSteps(5)), ("2e", fk.Epochs(2))):
        assert fk.World(budget=text) == fk.World(budget=same)
    with pytest.raises(fk.InputError, match="'3-8' is not one of 4:13"):
        fk.World(budget="3-8")


budgets = st.one_of(
    st.builds(lambda a, b: fk.UniformSteps(a, a + b), st.integers(0, 50), st.integers(1, 50)),
    st.builds(fk.FixedSteps, st.integers(1, 99)),
    st.builds(fk.Epochs, st.floats(0.001, 50)),
    st.builds(lambda e, d: fk.Epochs(e, True, d), st.integers(1, 20), st.booleans()),
)


@few
@given(budgets)
def test_a_budget_is_read_back_as_it_was_written(budget):
    assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize("text", ["", "x", "4:", ":4", "4:x", "2ee", "2e:now", "1.5", "5:4", "0", "-1", "4:13:2"])
def test_text_that_is_no_budget_is_refused(text):
    with pytest.raises(fk.InputError):
        parse_budget(text)


@pytest.mark.parametrize("mode", MODES)
def test_a_callable_budget_gives_rounds_from_one_and_client_numbers(mode):
    asked = []

    def budget(round, client):
        asked.append((round, client))
        return round + client

    algorithm, witness = witnessed("fedavg")
    run = fk.train(toy(), algorithm, fk.World([[1, 4]], budget), 2, engine=mode)
    assert asked == [(1, 1), (1, 4), (2, 1), (2, 4)]
    assert witness.budgets == {(1, 1): 2, (1, 4): 5, (2, 1): 3, (2, 4): 6}
    assert run.history[-1]["gradients"] == 16
    assert run.config["world"]["budget"] is None
    assert "budget is a Python function" in run.config["why_not"]


@pytest.mark.parametrize("steps", [-1, 1.5, "3", None, 2.0])
def test_a_callable_budget_must_give_whole_steps(steps):
    with pytest.raises(fk.InputError, match=r"The budget of client 0 in round 1 must be an integer in \[0, 1e7\]"):
        fk.train(toy(), "fedavg", fk.World("all", lambda t, i: steps), 1)


def test_a_callable_budget_may_give_numpy_integers():
    assert fk.train(toy(), "fedavg", fk.World("all", lambda t, i: np.int64(1)), 1).history[-1]["gradients"] == 7


class Visits(fk.Rule):
    """Counts participations on each client."""

    def remember(self, me):
        return {"count": me.x.new_zeros(1)}

    def finish(self, y, end, me):
        return fk.Up(memory={"count": me.memory["count"] + 1})


@pytest.mark.parametrize("mode", MODES)
def test_a_client_with_no_budget_takes_no_part_and_changes_nothing(mode):
    world = fk.World("all", lambda t, i: 0 if i == 1 else 2)
    task = quadratics(a=[1, 1, 1], b=[0, 100, 2], n=[1, 5, 1])
    run = fk.train(task, fk.Algorithm(rules=[Visits()]), world, 3, engine=mode)
    assert [row["clients"] for row in run.history[1:]] == [2, 2, 2]
    assert [row["gradients"] for row in run.history] == [0, 4, 8, 12]
    memory = run.memories.read(np.arange(3))
    assert memory.seen.tolist() == [1, 0, 1]
    assert memory.slots["visits"]["count"].flatten().tolist() == [3, 0, 3]
    pair = quadratics(a=[1, 1], b=[0, 2])
    without = fk.train(pair, "fedavg", fk.World("all", fk.FixedSteps(2)), 3, engine=mode)
    assert torch.equal(run.params, without.params)


@pytest.mark.parametrize("mode", MODES)
def test_a_round_in_which_nobody_has_budget_leaves_the_model_alone(mode):
    world = fk.World("all", lambda t, i: 0 if t == 2 else 1)
    run = fk.train(toy(), "fedavgm", world, 3, engine=mode)
    assert run.status == "done"
    assert [row["clients"] for row in run.history] == [0, 7, 0, 7]
    assert run.history[2]["loss"] == run.history[1]["loss"]
    assert run.history[2]["train_loss"] is None
    assert run.history[2]["bytes_down"] == run.history[1]["bytes_down"]


def test_expected_steps_default_to_five_more_than_anybody_can_do():
    assert fk.World(budget=fk.UniformSteps(4, 13)).expected == 18
    assert fk.World(budget=fk.UniformSteps(4, 13), expected_steps=30).expected == 30
    assert fk.World(budget=fk.FixedSteps(4)).expected is None


def test_remaining_guesses_without_expected_steps_are_refused():
    with pytest.raises(fk.InputError, match="give expected_steps"):
        fk.train(toy(), "gel", fk.World(budget=fk.FixedSteps(4)), 1)
    assert fk.train(toy(), "gel", fk.World(budget=fk.FixedSteps(4), expected_steps=6), 1).status == "done"


def test_the_budget_comes_from_the_world_then_the_task_then_one_epoch():
    from dataclasses import replace

    budgets = [
        fk.train(replace(toy(), budget=task), "fedavg", fk.World(budget=world), 1).config["world"]["budget"]
        for task, world in ((fk.FixedSteps(2), fk.FixedSteps(3)), (fk.FixedSteps(2), None), (None, None))
    ]
    assert budgets == ["3", "2", "1e"]
    assert toy_world().budget == fk.UniformSteps(1, 4)
