import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.draws import generator, torch_seed

PLACE = {"seed": 1, "purpose": "batch", "round": 2, "client": 3, "step": 4}


def numbers(**place):
    return generator(**PLACE | place).integers(2**62, size=3).tolist()


def test_a_place_gives_the_same_numbers_whatever_was_drawn_before():
    first = numbers()
    generator(9, "cohort").random(1000)
    assert numbers() == first


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"purpose": "budget"}, {"round": 3}, {"client": 4}, {"step": 5}, {"round": 3, "client": 2}]
)
def test_another_place_gives_other_numbers(change):
    assert numbers(**change) != numbers()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.tuples(*[st.integers(0, 5)] * 3), st.tuples(*[st.integers(0, 5)] * 3))
def test_no_two_places_share_a_stream(one, two):
    drawn = [numbers(round=r, client=c, step=s) for r, c, s in (one, two)]
    assert (drawn[0] == drawn[1]) == (one == two)


def test_neighbouring_streams_do_not_overlap():
    """A long draw of one client must not run into the next client's numbers."""
    long = set(generator(0, "batch", client=0).integers(2**62, size=20_000).tolist())
    assert not long & set(generator(0, "batch", client=1).integers(2**62, size=2000).tolist())
    assert not long & set(generator(0, "batch", client=0, step=1).integers(2**62, size=2000).tolist())


@pytest.mark.parametrize("seed", [0, 2**62, 2**63 - 1])
def test_every_seed_up_to_63_bits_works(seed):
    assert 0 <= torch_seed(seed, "init") < 2**63


def test_numpys_global_generator_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    generator(0, "cohort").random(5)
    assert np.random.get_state()[1].tolist() == before


def test_the_draws_are_those_of_philox_with_this_key_and_counter():
    key = np.array([5, zlib.crc32(b"batch")], dtype=np.uint64)
    philox = np.random.Philox(key=key, counter=np.array([0, 4, 7, 3], dtype=np.uint64))
    ours = generator(5, "batch", round=3, client=7, step=4)
    assert np.array_equal(np.random.Generator(philox).integers(2**62, size=20), ours.integers(2**62, size=20))
