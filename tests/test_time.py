"""Simulated time: against a simulator of events that is written here, and against a run without a clock."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel import draws
from fedkeel.conformance import quadratics, toy, toy_exits, toy_world, witnessed
from fedkeel.messages import Broadcast, Facts, Plan, download, measure
from fedkeel.recipes import RECIPES
from fedkeel.rules.guess import matched
from fedkeel.run.training import prepare
from fedkeel.world import Ask
from fedkeel.world.clock import Clock
from fedkeel.world.devices import Fleet

few = settings(derandomize=True, max_examples=12, deadline=None)
SAMPLES = 3 + 2 * np.arange(7)  # of toy's clients
devices = st.builds(
    Fleet,
    distribution=st.sampled_from(["equal", "lognormal", "exponential"]),
    seconds=st.floats(0.001, 1),
    spread=st.floats(0, 2),
    down=st.floats(0.01, 10),
    up=st.floats(0.01, 10),
    network_spread=st.floats(0, 1),
    latency=st.floats(0, 1),
    dropout=st.sampled_from([0.0, 0.4]),
)


class Halves(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))

    def represent(self, x):
        return self[0](x)

    def classify(self, z):
        return self[1](z)


def timed(**more):
    return replace(toy_world(), **{"fleet": "phones:available=always"} | more)


def lines(run, *names):
    return [tuple(row[name] for name in names) for row in run.history[1:]]


def same(one, two):
    ignored = {"wall_seconds", "sim_seconds", "late", "lost"}
    assert torch.equal(one.params, two.params)
    for mine, other in zip(one.history, two.history, strict=True):
        assert {k: v for k, v in mine.items() if k not in ignored} == {
            k: v for k, v in other.items() if k not in ignored
        }


@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "mimemom", "deltasgd", "fedavgcm+gel", "fedavg+median", "fathom"]
)
def test_equal_devices_without_a_deadline_are_a_run_without_a_fleet_bit_for_bit(name):
    plain, equal = (fk.train(toy(), name, world, rounds=4) for world in (toy_world(), timed(fleet="equal")))
    same(plain, equal)
    assert [row["sim_seconds"] for row in equal.history] == sorted({row["sim_seconds"] for row in equal.history})
    assert "sim_seconds" not in plain.history[1]
    assert "late" not in plain.history[1]


def one_client(profiles, client, sizes):
    """The simulator's own view of a client: seconds without steps, and seconds of a step."""
    down, up = sizes
    seconds = float(profiles.seconds[client])
    fixed = 2 * float(profiles.latency[client]) + down / float(profiles.down[client]) + up / float(profiles.up[client])
    return fixed, seconds * min(4, int(SAMPLES[client]))


def bytes_of(run):
    """What a client of FedAvg receives and sends, headers included."""
    x = run.params
    down = sum(download(Broadcast(0, Plan(0.1), Facts(), x)))
    return down, sum(measure({"update": x[None]}, ["samples", "steps"], rows=True))


@few
@given(devices, st.sampled_from([None, 0.8, 3.0]), st.sampled_from(["partial", "drop"]), st.sampled_from([1.0, 1.5]))
def test_a_synchronous_run_agrees_with_a_simulator_of_events(fleet_, deadline, late, invite):
    world = timed(fleet=fleet_, deadline=deadline, late=late, invite=invite, budget=fk.UniformSteps(1, 6))
    try:
        run = fk.train(toy(), "fedavg", world, rounds=4, seed=3)
    except fk.InputError:  # nobody can meet this deadline
        assume(False)
    profiles, sizes, now = fleet_.profiles(7, 3), bytes_of(run), 0.0
    for t, row in enumerate(run.history[1:], 1):
        clients = world.who(t, 7, 3)
        asked = world.steps(Ask(3, t, clients, SAMPLES[clients], 4))
        events, late_ones, lost_ones = [], 0, 0
        for client, steps in zip(clients.tolist(), asked.tolist(), strict=True):
            fixed, each = one_client(profiles, client, sizes)
            done = steps
            while deadline is not None and done and fixed + each * done > deadline * (1 + 1e-9):
                done -= 1
            is_late = deadline is not None and (done < steps if late == "drop" else done == 0)
            chance = draws.generator(3, "dropout", t, client).random() if fleet_.dropout else 1.0
            if chance < fleet_.dropout:
                lost_ones += 1
                events.append((deadline if is_late else fixed + each * done, client, False))
            elif is_late:
                late_ones += 1
            else:
                events.append((fixed + each * done, client, True))
        arrived = sorted(event for event in events if event[2])[:4]
        wanted = min(4, len(clients)) if invite > 1 else len(clients)
        if len(arrived) == wanted:
            now += arrived[-1][0]
        else:
            now += max(event[0] for event in events) if deadline is None else deadline
        assert row["sim_seconds"] == pytest.approx(now, rel=1e-9)
        assert (row["late"], row["lost"], row["clients"]) == (late_ones, lost_ones, len(arrived))


@pytest.mark.parametrize("name", [name for name in RECIPES if not RECIPES[name].pace])
def test_the_clock_charges_the_gradients_and_bytes_that_are_really_counted(name, monkeypatch):
    charged, attend = [], Clock.attend

    def spy(self, broadcast, work, goal, now):
        found = self.costs(work, self.trips(broadcast, work))
        charged.append({name: int(column.sum()) for name, column in found.items()})
        return attend(self, broadcast, work, goal, now)

    monkeypatch.setattr(Clock, "attend", spy)
    task = toy_exits() if name == "scalefl" else toy()
    if name == "moon":
        task = replace(task, model=Halves)
    run = fk.train(task, name, timed(fleet="equal"), rounds=3)
    for column in ("gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes"):
        real = np.diff([row[column] for row in run.history])
        assert [one[column] for one in charged] == real.tolist(), column


def test_late_lost_and_surplus_clients_cost_what_they_did():
    everybody = {"cohort": "all", "budget": fk.FixedSteps(3)}
    usual = fk.train(toy(), "fedavg", timed(fleet="equal", **everybody), rounds=1).history[-1]
    surplus = fk.train(toy(), "fedavg", timed(fleet="equal", cohort=4, invite=1.75, budget=fk.FixedSteps(3)), rounds=1)
    row = surplus.history[-1]
    assert row["clients"] == 4
    for column in ("gradients", "bytes_down", "bytes_up"):
        assert row[column] == usual[column]
    fleet_ = Fleet("lognormal", seconds=0.1, spread=1.5)
    dropped = fk.train(toy(), "fedavg", timed(fleet=fleet_, deadline="p50", late="drop", **everybody), rounds=1)
    row = dropped.history[-1]
    assert row["late"] > 0
    assert (row["gradients"], row["bytes_up"]) == (usual["gradients"], usual["bytes_up"])
    away = fk.train(toy(), "fedavg", timed(fleet="equal:dropout=0.99", **everybody), rounds=1).history[-1]
    assert away["lost"] == 7
    assert away["clients"] == away["bytes_up"] == 0
    assert 0 < away["gradients"] < usual["gradients"]
    assert away["bytes_down"] == usual["bytes_down"]


def test_a_round_without_reporters_counts_and_changes_nothing():
    run = fk.train(toy(), "scaffold", timed(fleet="equal:dropout=0.999999"), rounds=3)
    assert run.status == "done"
    assert lines(run, "clients", "dropped") == [(0, 0)] * 3
    start = fk.train(toy(), "scaffold", toy_world(), rounds=1, stop_after=1).state.x0
    assert torch.equal(run.params, start)


# Deadlines


def test_with_a_deadline_clients_do_the_steps_they_can_and_gel_guesses_the_rest():
    task = quadratics([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    fleet_ = Fleet(seconds=1.0, down=1e6, up=1e6, latency=0.0)
    world = fk.World(cohort="all", budget=fk.FixedSteps(9), fleet=fleet_, deadline=4.5)
    spied, witness = witnessed("fedavgcm+gel")
    run = fk.train(task, spied, world, rounds=1, dtype=torch.float64, lr=0.1)
    assert set(witness.budgets.values()) == {4}
    less = fk.World(cohort="all", budget=fk.FixedSteps(4), expected_steps=9)
    want = fk.train(task, "fedavgcm+gel", less, rounds=1, dtype=torch.float64, lr=0.1)
    assert torch.equal(run.params, want.params)
    assert run.history[-1]["sim_seconds"] == pytest.approx(4, rel=1e-3)  # nobody is missing


def test_the_draw_of_a_task_becomes_the_steps_that_the_server_asks_for():
    job = prepare(toy(), fk.algorithm("fedavg"), fk.World(fleet="phones", deadline="p80"), 3, 0, None)
    assert job.world.budget == fk.FixedSteps(9)  # of 1:4
    job = prepare(toy(), fk.algorithm("fedavg"), fk.World(fleet="phones"), 3, 0, None)
    assert job.world.budget == fk.UniformSteps(1, 4)
    given = fk.World(fleet="phones", deadline="p80", budget=fk.UniformSteps(1, 4))
    assert prepare(toy(), fk.algorithm("gel"), given, 3, 0, None).world.budget == fk.UniformSteps(1, 4)


def test_a_percentile_is_one_number_for_all_arms_and_that_of_fedavg():
    runs = [fk.train(toy(), name, timed(deadline="p80"), rounds=1) for name in ("fedavg", "scaffold", "deltasgd")]
    (deadline,) = {run.config["deadline_seconds"] for run in runs}
    profiles, sizes = fk.World(fleet="phones").fleet.profiles(7, 0), bytes_of(runs[0])
    world = toy_world()
    asked = world.steps(Ask(0, 1, np.arange(7), SAMPLES, 4))
    parts = [one_client(profiles, client, sizes) for client in range(7)]
    durations = [fixed + each * steps for (fixed, each), steps in zip(parts, asked.tolist(), strict=True)]
    assert deadline == pytest.approx(np.percentile(durations, 80), rel=1e-9)
    assert runs[0].config["world"]["deadline"] == "p80"


def test_match_gel_is_over_the_steps_of_the_population():
    world = timed(deadline="p50", budget=fk.FixedSteps(8))
    job = prepare(toy(), fk.algorithm("fedavgcm:server_lr=match-gel"), world, 3, 0, None)
    profiles = world.fleet.profiles(7, 0)
    sizes = bytes_of(fk.train(toy(), "fedavg", rounds=1))
    pairs = []
    for client in range(7):
        fixed, each = one_client(profiles, client, sizes)
        done = min(8, math.floor((job.clock.deadline - fixed) / each + 1e-9))
        if done > 0:
            pairs.append(done)
    assert len(set(pairs)) > 1

    def length(steps):  # of a with momentum 0.9: sum over k of (1 - 0.9^(8 - k)) / 0.1, with guesses up to 8
        return sum((1 - 0.9 ** (8 - k)) / 0.1 for k in range(steps))

    def plain(steps):
        return sum((1 - 0.9 ** (steps - k)) / 0.1 for k in range(steps))

    want = sum(map(length, pairs)) / sum(map(plain, pairs))
    assert job.algorithm.server.lr == pytest.approx(want, rel=1e-9)
    one = matched(fk.SGD(0.1, momentum=0.9), world, (np.array([4, 4]), np.array([8, 8])))
    assert one == pytest.approx(length(4) / plain(4))


@pytest.mark.parametrize("late", ["partial", "drop"])
def test_a_deadline_that_nobody_can_meet_is_refused(late):
    with pytest.raises(fk.InputError, match=r"No client can do .* within the deadline of 1e-06 seconds; the fastest"):
        fk.train(toy(), "fedavg", timed(deadline=1e-6, late=late), rounds=1)


def test_partial_and_drop_differ_and_both_differ_from_no_deadline():
    runs = [
        fk.train(toy(), "fedavg", timed(deadline=deadline, late=late, cohort="all", budget=fk.FixedSteps(6)), rounds=2)
        for deadline, late in ((None, "partial"), ("p50", "partial"), ("p50", "drop"))
    ]
    one, two, three = (run.params for run in runs)
    assert not torch.equal(one, two)
    assert not torch.equal(two, three)
    assert runs[2].history[-1]["late"] > 0


# Settings


def test_a_run_ends_at_the_first_server_step_after_the_time():
    whole = fk.train(toy(), "fedavg", timed(), rounds=30)
    middle = whole.history[17]["sim_seconds"]
    for limit, last in ((middle, 17), (middle * 0.999999, 17), (middle * 1.000001, 18)):
        run = fk.train(toy(), "fedavg", timed(), rounds=2, sim_seconds=limit)
        assert run.status == "done"
        assert run.history[-1]["round"] == last
        assert run.history[-1]["accuracy"] is not None
    assert torch.equal(fk.train(toy(), "fedavg", timed(), rounds=18).params, run.params)


def test_evaluations_follow_the_clock():
    run = fk.train(toy(), "fedavg", timed(), rounds=20, eval_every="0.7s")
    times = [row["sim_seconds"] for row in run.history]
    for before, row in zip(times, run.history[1:], strict=False):
        due = row["sim_seconds"] // 0.7 > before // 0.7 or row["round"] == 20
        assert (row["accuracy"] is not None) == due
    assert 3 < sum(row["accuracy"] is not None for row in run.history) < 19


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sim_seconds": 0}, "sim_seconds"),
        ({"sim_seconds": 5, "eval_last": 3}, "eval_last"),
        ({"eval_every": "0s"}, "eval_every"),
        ({"eval_every": "often"}, "eval_every"),
        ({"diagnose": 1}, "diagnose"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given, message):
    with pytest.raises(fk.InputError, match=message):
        fk.train(toy(), "fedavg", timed(), rounds=1, **given)


@pytest.mark.parametrize("given", [{"sim_seconds": 5}, {"eval_every": "60s"}])
def test_time_needs_a_fleet(given):
    with pytest.raises(fk.InputError, match="give a fleet"):
        fk.train(toy(), "fedavg", toy_world(), rounds=1, **given)


def test_a_decay_needs_rounds():
    with pytest.raises(fk.InputError, match="A decay and ScaleFL need the number of rounds"):
        fk.train(toy(), "fedavg:decay=step", timed(), sim_seconds=3)


@pytest.mark.parametrize("more", [{}, {"deadline": "p60"}, {"invite": 1.5, "deadline": 2.0}])
def test_a_run_with_devices_is_resumed_bit_for_bit(tmp_path, more):
    world = timed(fleet="phones", **more)
    whole = fk.train(toy(), "scaffold", world, rounds=6)
    fk.train(toy(), "scaffold", world, rounds=6, stop_after=3, checkpoint=tmp_path)
    rest = fk.resume(tmp_path, task=toy())
    same(whole, rest)
    assert lines(whole, "sim_seconds", "late", "lost") == lines(rest, "sim_seconds", "late", "lost")
