"""Asynchronous runs: against synchronous ones, against numbers worked by hand, and against a simulator of events."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel import explain as explain_
from fedkeel import legal
from fedkeel import pace as pace_
from fedkeel.conformance import check_resume, check_workers, quadratics, toy, toy_world
from fedkeel.engine.threads import Local
from fedkeel.messages import Flight
from fedkeel.pace import Buffered
from fedkeel.reasons import BUFFERED
from fedkeel.rules import RULES
from fedkeel.world.clock import ARRIVES
from fedkeel.world.devices import Fleet

few = settings(derandomize=True, max_examples=15, deadline=None)
LOCKSTEP = "+buffered:buffer=4,inflight=4,dispatch=4,staleness=constant"
SOME = "+buffered:buffer=2,inflight=5"
ENGINES = [Local("serial"), Local("serial", chunk=3), Local("batched"), Local("batched", chunk=3)]


def phones(**more):
    return replace(toy_world(), **{"fleet": "phones:available=always"} | more)


def rows(run, *ignored):
    return [{k: v for k, v in row.items() if k not in ("wall_seconds", *ignored)} for row in run.history]


# Synchronous, as a special case


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: f"{engine.mode}-{engine.chunk}")
@pytest.mark.parametrize(
    "name",
    ["fedavg:weights=uniform", "fedavgm", "scaffold", "feddyn", "ghbm", "fedhbm", "fednova", "adabest", "mimelitemom",
     "deltasgd", "fedavgcm+gel", "fedavg+median", "fedavg+guard"],
)  # fmt: skip
def test_a_buffer_of_the_whole_cohort_is_a_synchronous_round_bit_for_bit(name, engine):
    for world in (toy_world(), phones(fleet="phones:available=always,dropout=0")):
        plain, buffered = (fk.train(toy(), text, world, rounds=4, engine=engine) for text in (name, name + LOCKSTEP))
        assert torch.equal(plain.params, buffered.params)
        assert rows(plain) == rows(buffered)


def test_staleness_and_order_of_arrival_change_the_result():
    runs = [
        fk.train(toy(), f"fedbuff:buffer=2,inflight=5,{more}", phones(), rounds=6).params
        for more in ("a=0.5", "a=1", "staleness=constant", "staleness=hinge,b=0", "dispatch=3", "alpha=0.5")
    ]
    for number, one in enumerate(runs):
        assert not any(torch.equal(one, other) for other in runs[number + 1 :])


# Numbers worked by hand


def two_or_three(tmp_path, *seconds):
    """A file of devices without a network, whose gradients take so many seconds."""
    file = tmp_path / "devices.csv"
    file.write_text("seconds,down,up,latency\n" + "".join(f"{s},1e9,1e9,0\n" for s in seconds))
    return fk.World(fleet=str(file), budget=fk.FixedSteps(1))


def history_of_x(task, text, world, rounds):
    found = []
    for last in range(1, rounds + 1):
        run = fk.train(task, text, world, rounds=last, lr=0.5, dtype=torch.float64)
        found.append(run.params.item())
    return found, [row["sim_seconds"] for row in run.history[1:]]


def test_fedbuff_and_fedasync_of_two_clients_are_the_numbers_worked_by_hand(tmp_path):
    # Client 0 takes 1 s and pulls towards 1, client 1 takes 2.5 s and pulls towards -1; a step covers half the way.
    #   1.0 s   0 from x=0:    Delta=.5                  tau=0     2.0 s   0 again:       tau=0
    #   2.5 s   1 from x=0:    Delta=-.5                 tau=2     3.0 s   0 from x_2:    tau=1
    task, world = quadratics([1.0, 1.0], [1.0, -1.0]), two_or_three(tmp_path, 1, 2.5)
    s = [(1 + tau) ** -0.5 for tau in range(3)]
    found, times = history_of_x(task, "fedbuff:buffer=1,inflight=2", world, 4)
    x1 = 0.5
    x2 = x1 + 0.25
    x3 = x2 + s[2] * -0.5
    x4 = x3 + s[1] * 0.125
    assert found == pytest.approx([x1, x2, x3, x4], abs=1e-12)
    assert times == pytest.approx([1, 2, 2.5, 3], rel=1e-6)

    found, _ = history_of_x(task, "fedasync:alpha=0.6,inflight=2", world, 3)
    x1 = 0.6 * 0.5
    x2 = x1 + 0.6 * (x1 + (1 - x1) / 2 - x1)
    x3 = x2 + 0.6 * s[2] * ((0 - 0.5) - x2)
    assert found == pytest.approx([x1, x2, x3], abs=1e-12)
    assert x3 == pytest.approx(0.160125737, abs=1e-9)


def test_fedbuff_divides_by_the_buffer_and_not_by_the_factors(tmp_path):
    # 0 and 1 are in at 1 and 1.5 s, again at 2.5 and 3 s; 2 is in at 3.9 s with two server steps since, 0 at 4 s.
    task, world = quadratics([1.0] * 3, [1.0, 2.0, 3.0]), two_or_three(tmp_path, 1, 1.5, 3.9)
    found, times = history_of_x(task, "fedbuff:buffer=2,inflight=3", world, 3)
    x1 = (0.5 + 1.0) / 2
    x2 = x1 + ((1 - x1) / 2 + (2 - x1) / 2) / 2
    x3 = x2 + (3**-0.5 * 1.5 + (1 - x2) / 2) / 2
    assert found == pytest.approx([x1, x2, x3], abs=1e-12)
    assert times == pytest.approx([1.5, 3, 4], rel=1e-6)


def test_the_hinge_is_one_up_to_b_and_falls_from_there():
    hinge = Buffered(staleness="hinge")
    assert [hinge.factor(tau) for tau in (0, 4)] == [1, 1]
    assert hinge.factor(6) == pytest.approx(1 / 21)
    assert Buffered(staleness="constant").factor(99) == 1


# Events


@few
@given(
    st.builds(
        Fleet,
        distribution=st.sampled_from(["lognormal", "exponential"]),
        seconds=st.floats(0.01, 1),
        spread=st.floats(0.1, 2),
        latency=st.floats(0, 1),
        dropout=st.sampled_from([0.0, 0.3]),
    ),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([None, 1.0, 5.0]),
)
def test_an_asynchronous_run_agrees_with_a_simulator_of_events(fleet_, buffer, more, dispatch, deadline):
    """The simulator knows durations and fates of dispatched clients, and looks through all of them for the next one."""
    world = phones(fleet=fleet_, deadline=deadline, budget=fk.UniformSteps(1, 6))
    inflight = buffer + more
    pace = Buffered(buffer, inflight, min(dispatch, inflight))
    sent: list[list[Flight]] = []  # by dispatch, with the length of the trip as the arrival
    first, more_ = pace_.dispatched, pace_.Candidates.take

    def spy(job, broadcast, work, now=None):
        made = list(first(job, broadcast, work))
        if now is not None:  # not a look at candidates
            sent.append(made)
        return [flight._replace(arrival=(now or 0.0) + flight.arrival) for flight in made]

    def spy_on_more(self, count, busy, there):
        made = list(more_(self, count, busy, there))
        sent.append(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace_, "dispatched", spy)
        patch.setattr(pace_.Candidates, "take", spy_on_more)
        try:
            algorithm = fk.Algorithm(weights="uniform", pace=pace)
            run = fk.train(toy(), algorithm, world, rounds=6)
        except fk.InputError:
            assert deadline is not None
            return

    out, now, queue = [], 0.0, list(sent)
    for version, row in enumerate(run.history[1:]):
        made = [flight._replace(arrival=now + flight.arrival) for flight in queue.pop(0)]  # after a server step
        assert all(flight.version == version for flight in made)
        assert not made or inflight - len(out) >= pace.dispatch
        out += made
        dispatched = {flight.client for flight in made}
        arrived, late_or_lost = [], 0
        while out and len(arrived) < buffer:
            first = min(out, key=lambda flight: (flight.arrival, flight.client))
            out.remove(first)
            now = first.arrival
            if first.fate == ARRIVES:
                arrived.append(first)
            else:
                late_or_lost += 1
            if len(arrived) < buffer and inflight - len(out) >= pace.dispatch:
                made = [flight._replace(arrival=now + flight.arrival) for flight in queue.pop(0)]
                fresh = {flight.client for flight in made}
                assert len(fresh) == len(made) <= inflight - len(out)
                assert not fresh & (dispatched | {one.client for one in (*out, *arrived)})
                dispatched |= fresh
                out += made
        assert len(out) <= inflight
        assert row["sim_seconds"] == now
        assert row["clients"] == len(arrived)
        assert row["late"] + row["lost"] == late_or_lost
    assert not queue


def test_clients_of_one_version_train_together_and_only_when_needed(monkeypatch):
    trained = []
    usual = fk.engine.threads.Threads.run

    def spy(self, do, broadcast, work, weights=None):
        trained.append((work.version, len(work.clients)))
        return usual(self, do, broadcast, work, weights)

    monkeypatch.setattr(fk.engine.threads.Threads, "run", spy)
    fk.train(toy(), "fedbuff:buffer=2,inflight=6", phones(), rounds=8)
    trained = trained[3:]  # the dry run
    versions = [version for version, _ in trained]
    assert len(set(versions)) == len(versions)  # no version trains twice
    assert max(count for _, count in trained) > 2


def test_what_is_kept_grows_with_the_clients_under_way_and_not_with_versions():
    run = fk.train(toy(clients=40), "fedbuff:buffer=2,inflight=8", phones(), rounds=40)
    flights = run.state.flights
    assert len(flights.clients) <= 8
    assert sum(len(update.clients) for update in flights.updates.values()) <= 2 * 8
    assert set(flights.broadcasts) <= {str(flight.version) for flight in flights.clients}


# Resuming and workers


@pytest.mark.parametrize("mode", ["serial", "batched"])
@pytest.mark.parametrize(
    "name", ["fedbuff:buffer=2,inflight=5", "fedasync:inflight=4", "scaffold" + SOME, "fedhbm" + SOME]
)
def test_workers_and_resuming_change_no_bit(name, mode):
    for world in (toy_world(), phones(deadline="p70")):
        check_workers(name, mode, world=world)
        check_resume(name, mode, world=world)


@pytest.mark.parametrize("name", ["scaffold" + SOME, "fedasync:inflight=5"])
@pytest.mark.parametrize("killed", [1, 2, 3, 5, 8])
def test_an_asynchronous_run_that_is_killed_goes_on_bit_for_bit(tmp_path, name, killed):
    class Killed(BaseException):
        pass

    def kill(row):
        if row["round"] == killed:
            raise Killed

    whole = fk.train(toy(), name, phones(), rounds=9)
    with pytest.raises(Killed):
        fk.train(toy(), name, phones(), rounds=9, checkpoint=tmp_path, every=2, callbacks=[kill])
    rest = fk.resume(tmp_path, task=toy())
    assert torch.equal(whole.params, rest.params)
    assert rows(whole) == rows(rest)


def test_the_pace_is_in_the_configuration(tmp_path):
    run = fk.train(toy(), "fedbuff:buffer=2,staleness=hinge", phones(), rounds=1)
    assert run.config["parameters"]["pace"] == {
        "buffer": 2, "inflight": 7, "dispatch": 1, "staleness": "hinge", "a": None, "b": 4, "alpha": None,
    }  # fmt: skip
    assert "pace" not in fk.train(toy(), "fedavg", rounds=1).config["parameters"]
    known = fk.algorithm("fedbuff:buffer=2")
    assert fk.recipes.rebuild(known.parameters(), known.spec) == known


# What is legal


def test_every_rule_is_refused_with_a_reason_or_says_what_a_round_is():
    for kind in RULES.values():
        refused = legal.REASONS[kind].unbuffered
        assert (refused is None) == (kind in BUFFERED), kind.__name__
    assert BUFFERED.keys() <= set(RULES.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mime+buffered", "refused with mime"),
        ("fathom+buffered", "refused with fathom"),
        ("heterofl+buffered", "Levels"),
        ("fedavg:level=b+buffered", "Levels"),
        ("feddyn+fedasync", "replaces the server's update"),
        ("fedbuff+buffered", "two asynchronous paces"),
        ("fedbuff:inflight=5", "at least buffer, 10"),
        ("fedbuff:dispatch=50", "at most inflight, 40"),
        ("fedbuff:staleness=old", "one of poly, hinge, constant"),
        ("fedbuff:buffer=0", "buffer"),
        ("fedbuff:alpha=0", "alpha"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(text, message):
    with pytest.raises(fk.InputError, match=message) as caught:
        fk.algorithm(text)
    assert "\n" not in str(caught.value)


def test_a_survey_of_ones_own_and_another_sampler_are_refused():
    class Asks(fk.Rule):
        def survey(self, me):
            return {}

    with pytest.raises(fk.InputError, match="refused with asks"):
        fk.Algorithm(rules=[Asks()], pace=fk.Buffered())
    with pytest.raises(fk.InputError, match="leave out sampler"):
        fk.train(toy(), "fedbuff", fk.World(cohort=2, sampler="cyclic"), rounds=1)
    with pytest.raises(fk.InputError, match="pace"):
        fk.Algorithm(pace="fast")


def test_explain_says_what_a_round_is():
    text = explain_.explain("scaffold+buffered:buffer=3,inflight=6")
    assert "made when 3 updates have arrived" in text
    assert "scaffold: c moves by the plain sum" in text
    assert "x_v the model" in explain_.explain("fedasync")
    assert "asynchronous" not in explain_.explain("scaffold")
