"""Fleets: what a profile says, where it comes from, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.world import draw_here
from fedkeel.world.devices import DISTRIBUTIONS, FIGURES, FLEETS, SOURCES, Fleet, fleet

few = settings(derandomize=True, max_examples=40, deadline=None)
fleets = st.builds(
    Fleet,
    distribution=st.sampled_from(DISTRIBUTIONS),
    seconds=st.floats(1e-6, 10),
    spread=st.floats(0, 0.99),
    down=st.floats(0.1, 1000),
    up=st.floats(0.1, 1000),
    network_spread=st.floats(0, 0.99),
    latency=st.floats(0, 2),
    dropout=st.floats(0, 0.9),
    available=st.sampled_from(["always", "diurnal", 0.3]),
)


@few
@given(fleets, st.integers(1, 300), st.integers(0, 9))
def test_every_device_is_positive_and_does_not_depend_on_who_else_there_is(devices, clients, seed):
    one, more = devices.profiles(clients, seed), devices.profiles(clients + 7, seed)
    for name in ("seconds", "down", "up"):
        assert (getattr(one, name) > 0).all()
        assert np.isfinite(getattr(one, name)).all()
        np.testing.assert_array_equal(getattr(one, name), getattr(more, name)[:clients])


@few
@given(fleets)
def test_a_fleet_can_be_written_and_read(devices):
    assert fleet(str(devices)) == devices


def test_two_seeds_have_other_devices_and_equal_ones_have_none():
    assert not (fleet("phones").profiles(50, 0).seconds == fleet("phones").profiles(50, 1).seconds).any()
    assert len(set(fleet("equal").profiles(50, 0).seconds)) == 1


def test_a_lognormal_fleet_has_the_median_and_spread_that_were_asked_for():
    seconds = Fleet("lognormal", seconds=0.5, spread=0.7).profiles(40_000, 3).seconds
    assert np.median(seconds) == pytest.approx(0.5, rel=0.02)
    assert np.log(seconds).std() == pytest.approx(0.7, rel=0.02)


def test_every_figure_of_the_built_in_fleets_has_a_source_or_is_assumed():
    built_in = FLEETS.keys() - set(DISTRIBUTIONS)
    assert built_in == SOURCES.keys() == {"phones", "hospitals"}
    for name in built_in:
        assert SOURCES[name].keys() == {"distribution", *(figure.name for figure in FIGURES)}
        assert all(text.startswith("assumed") or "20" in text for text in SOURCES[name].values())


def test_a_million_clients_cost_columns_and_no_objects():
    profiles = fleet("phones").profiles(10**6, 0)
    assert all(isinstance(column, np.ndarray) and column.nbytes == 8 * 10**6 for column in vars(profiles).values())


# Files


def write(tmp_path, text):
    file = tmp_path / "devices.csv"
    file.write_text(text)
    return file


def test_a_file_has_a_line_per_client(tmp_path):
    file = write(tmp_path, "seconds,down,up,latency,available\n0.1,8,4,0.5,always\n0.2,16,8,0,diurnal\n")
    profiles = fleet(str(file)).profiles(2, 0)
    assert profiles.seconds.tolist() == [0.1, 0.2]
    assert profiles.down.tolist() == [1e6, 2e6]
    assert profiles.share[0] == 1
    assert math.isnan(profiles.share[1])
    with pytest.raises(fk.InputError, match="2 devices for 3 clients"):
        fleet(str(file)).profiles(3, 0)


def test_a_file_has_a_line_per_class_of_devices(tmp_path):
    file = write(tmp_path, "share,seconds,down,up,latency,dropout\n3,0.1,8,4,0.5,0\n1,0.9,16,8,0,0.5\n")
    profiles = fleet(str(file)).profiles(4000, 0)
    assert set(profiles.seconds) == {0.1, 0.9}
    assert (profiles.seconds == 0.9).mean() == pytest.approx(0.25, abs=0.03)
    assert set(profiles.dropout[profiles.seconds == 0.9]) == {0.5}


def test_a_file_that_changed_since_is_refused(tmp_path):
    file = write(tmp_path, "seconds,down,up,latency\n0.1,8,4,0.5\n")
    world = fk.World(fleet=str(file))
    known = world.parameters()
    assert str(fk.World.from_parameters(known).fleet) == known["fleet"]
    file.write_text("seconds,down,up,latency\n0.2,8,4,0.5\n")
    with pytest.raises(fk.InputError, match="has changed since"):
        fk.World.from_parameters(known)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no devices"),
        ("seconds,down,up,latency\n", "has no devices"),
        ("seconds,down,up\n1,1,1\n", "has no column latency"),
        ("seconds,down,up,latency\n1,,1,0\n", "Line 2 .* down must be"),
        ("seconds,down,up,latency\n1,1,1,0\n-1,1,1,0\n", "Line 3 .* seconds must be"),
        ("seconds,down,up,latency\n1,1,1\n", "Line 2 .* latency must be"),
        ("seconds,down,up,latency,available\n1,1,1,0,never\n", "available must be"),
        ("seconds,down,up,latency,colour\n1,1,1,0,red\n", "Unknown column"),
        ("seconds,seconds,down,up,latency\n1,1,1,1,0\n", "a column twice"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(fk.InputError, match=message) as caught:
        fk.World(fleet=str(write(tmp_path, text)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fleet": "phone"}, "Did you mean 'phones'"),
        ({"fleet": "phones:speed=3"}, "Unknown figure"),
        ({"fleet": "phones:seconds=-1"}, "seconds"),
        ({"fleet": "phones:seconds=fast"}, "must be a number"),
        ({"fleet": "phones:dropout=1"}, "dropout"),
        ({"fleet": "uniform:spread=1"}, "spread"),
        ({"fleet": "nowhere.csv"}, "cannot be read"),
        ({"fleet": 3}, "the name of a fleet"),
        ({"deadline": 3}, "give a fleet"),
        ({"late": "drop"}, "give a fleet"),
        ({"invite": 1.3}, "give a fleet"),
        ({"fleet": "phones", "deadline": "p101"}, "percentile"),
        ({"fleet": "phones", "deadline": 0}, "deadline"),
        ({"fleet": "phones", "late": "never"}, "'partial' or 'drop'"),
        ({"fleet": "phones", "invite": 0.5}, "invite"),
        ({"fleet": "phones", "invite": 2, "cohort": [[0], [1]]}, "schedule"),
    ],
)
def test_bad_worlds_are_refused_in_one_line(given, message):
    with pytest.raises(fk.InputError, match=message) as caught:
        fk.World(**given)
    assert "\n" not in str(caught.value)


# Availability


def test_a_share_of_the_devices_is_there_and_another_one_in_the_next_round():
    profiles, everybody = fleet("equal:available=0.3").profiles(4000, 0), np.arange(4000)
    one, two = (profiles.available(everybody, 0, t, 0.0) for t in (1, 2))
    assert one.mean() == pytest.approx(0.3, abs=0.03)
    assert (one & two).mean() == pytest.approx(0.09, abs=0.02)
    some = np.array([7, 99])
    np.testing.assert_array_equal(profiles.available(some, 0, 1, 0.0), one[some])


def test_four_times_as_many_diurnal_devices_are_there_at_midnight_as_at_noon():
    profiles, everybody = fleet("equal:available=diurnal").profiles(8000, 0), np.arange(8000)
    midnight, noon = (profiles.available(everybody, 0, 1, 3600.0 * hour).mean() for hour in (0, 12))
    assert midnight / noon == pytest.approx(4, rel=0.15)
    same = profiles.available(everybody, 0, 5, 1800.0)
    np.testing.assert_array_equal(same, profiles.available(everybody, 0, 9, 1800.0))  # a device stays for the hour


@few
@given(st.integers(1, 400), st.integers(1, 20), st.integers(0, 5), st.sets(st.integers(0, 399)))
def test_only_available_clients_are_drawn_and_each_once(population, size, seed, gone):
    def here(clients):
        return np.array([client not in gone for client in clients.tolist()], dtype=bool)

    drawn = draw_here(np.random.default_rng(seed), size, population, here)
    there = [client for client in range(population) if client not in gone]
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert set(drawn.tolist()) <= set(there)
    assert len(drawn) == min(size, len(there))


def test_every_available_client_is_as_likely():
    counts = np.zeros(100)
    for seed in range(600):
        counts[draw_here(np.random.default_rng(seed), 5, 100, lambda c: c % 2 == 0)] += 1
    assert counts[1::2].sum() == 0
    assert counts[::2].min() > 30  # 60 are expected
    assert counts[::2].max() < 95
