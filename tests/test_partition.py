"""Partitions: exact covers, sizes met by construction, functions of their seed."""

import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel import InputError
from fedkeel.data import partition
from fedkeel.data.partition import (
    PARTITIONS,
    dirichlet,
    dirichlet_balanced,
    dirichlet_by_label,
    dirichlet_repeated,
    iid,
    natural,
    quantity,
    shards,
)

quick = settings(derandomize=True, max_examples=60, deadline=500, database=None)
labelled = st.lists(st.integers(-3, 6), min_size=1, max_size=120)
alphas = st.sampled_from([0, 1e-300, 1e-9, 1e-3, 0.1, 1.0, 30.0, 1e9])
BALANCED = np.repeat(np.arange(10), 200)
COVERING = {
    "iid": iid,
    "shards": partial(shards, per_client=1),
    "dirichlet": partial(dirichlet, alpha=0.3),
    "dirichlet_balanced": partial(dirichlet_balanced, alpha=0.3, tries=3),
    "dirichlet_by_label": partial(dirichlet_by_label, alpha=0.3, minimum=1, tries=3),
    "quantity": partial(quantity, spread=2.0),
}


def mixtures(owner, labels=BALANCED):
    """Counts `[clients, labels]`."""
    return np.array([np.bincount(labels[owner == c], minlength=labels.max() + 1) for c in range(owner.max() + 1)])


@quick
@given(labelled, st.integers(1, 40), st.integers(0, 5), st.sampled_from(sorted(COVERING)))
def test_every_sample_has_one_client_and_no_client_is_empty(labels, clients, seed, name):
    if len(labels) < clients:
        with pytest.raises(InputError, match=f"{clients} clients need {clients} samples; there are {len(labels)}"):
            COVERING[name](labels, clients=clients, seed=seed)
        return
    owner = COVERING[name](labels, clients=clients, seed=seed)
    assert owner.shape == (len(labels),) and owner.dtype == np.int64
    assert sorted(set(owner.tolist())) == list(range(clients))


@quick
@given(labelled, st.integers(1, 40), alphas, st.sampled_from([dirichlet, dirichlet_balanced]))
def test_dirichlet_sizes_differ_by_at_most_one_for_any_alpha(labels, clients, alpha, split):
    clients = min(clients, len(labels))
    sizes = np.bincount(split(labels, clients, alpha), minlength=clients)
    assert sizes.max() - sizes.min() <= 1


@quick
@given(labelled, st.integers(1, 10), st.integers(1, 4), st.sampled_from(["lognormal", "dirichlet"]), st.integers(1, 8))
def test_quantity_skew_keeps_the_minimum(labels, clients, minimum, law, spread):
    if len(labels) < clients * minimum:
        with pytest.raises(InputError, match=f"need {clients * minimum} samples"):
            quantity(labels, clients, spread, law, minimum)
        return
    sizes = np.bincount(quantity(labels, clients, spread, law, minimum), minlength=clients)
    assert sizes.sum() == len(labels) and sizes.min() >= minimum


@quick
@given(labelled, st.integers(1, 10), st.integers(1, 60), st.floats(1e-6, 1e6), st.booleans())
def test_repeated_draws_are_indices_of_the_asked_number(labels, clients, samples, alpha, literal):
    held = dirichlet_repeated(labels, clients, alpha, samples, literal)
    assert len(held) == clients
    for own in held:
        assert own.min() >= 0 and own.max() < len(labels)
        assert len(own) == samples or literal


@pytest.mark.parametrize("name", COVERING)
def test_a_partition_is_a_function_of_its_seed(name):
    split = partial(COVERING[name], BALANCED, clients=20)
    assert np.array_equal(split(seed=3), split(seed=3))
    assert not np.array_equal(split(seed=3), split(seed=4))


def test_repeated_draws_are_a_function_of_their_seed():
    first, again, other = (np.stack(dirichlet_repeated(BALANCED, 4, 0.1, seed=s)) for s in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_no_partition_moves_numpys_global_generator():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    for split in COVERING.values():
        split(BALANCED, clients=20)
    assert np.array_equal(before, np.random.get_state()[1])


def test_natural_clients_are_numbered_by_sorted_id():
    assert natural(np.array([30, 10, 30, 20])).tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize("split", [dirichlet, dirichlet_balanced])
def test_alpha_zero_gives_every_client_one_label(split):
    counts = mixtures(split(BALANCED, 100, 0))
    assert ((counts > 0).sum(1) == 1).all() and (counts.sum(1) == 20).all()


@pytest.mark.parametrize("split", [dirichlet, dirichlet_balanced])
def test_a_smaller_alpha_gives_fewer_labels_per_client(split):
    seen = [(mixtures(split(BALANCED, 20, alpha)) > 0).sum(1).mean() for alpha in (0.01, 1.0, 1000.0)]
    assert seen[0] < seen[1] < seen[2]
    assert seen[2] > 9.5


def test_dirichlet_mixtures_have_the_spread_of_their_law():
    # The first of many clients draws from untouched labels: Var q_c = p (1 - p) / (alpha + 1) with p = 1/4, plus
    # the multinomial part (1 - 1/m) Var q + p (1 - p) / m for m samples.
    labels, m, alpha, p = np.repeat(np.arange(4), 500), 40, 1.0, 0.25
    shares = [np.mean(labels[dirichlet(labels, 50, alpha, seed=s) == 0] == 0) for s in range(400)]
    expected = (1 - 1 / m) * p * (1 - p) / (alpha + 1) + p * (1 - p) / m
    assert np.var(shares) == pytest.approx(expected, rel=0.2)
    assert np.mean(shares) == pytest.approx(p, abs=0.05)


def test_dirichlet_follows_the_label_shares_of_unbalanced_data():
    labels = np.repeat([0, 1], [900, 100])
    shares = [np.mean(labels[dirichlet(labels, 20, 2.0, seed=s) == 0]) for s in range(200)]
    assert np.mean(shares) == pytest.approx(0.1, abs=0.04)


def test_large_alpha_and_iid_give_everybody_the_same_mixture():
    # 20 of each label are expected, with a standard deviation of about 4; Dirichlet's last clients take what is left
    assert mixtures(dirichlet(BALANCED, 10, 1e9))[:7].min() > 5
    assert mixtures(iid(BALANCED, 10)).min() > 5


def test_shards_limit_the_labels_a_client_sees():
    counts = mixtures(shards(BALANCED, 50, per_client=2))
    assert ((counts > 0).sum(1) <= 2).all() and (counts.sum(1) == 40).all()


def test_a_larger_spread_makes_lognormal_sizes_more_unequal_and_dirichlet_sizes_more_equal():
    def range_of(spread, law):
        return np.ptp(np.bincount(quantity(BALANCED, 20, spread, law)))

    assert range_of(0, "lognormal") == 0
    assert 0 < range_of(0.3, "lognormal") < range_of(2.0, "lognormal")
    assert range_of(100.0, "dirichlet") < range_of(0.3, "dirichlet")


def test_quantity_skew_leaves_the_mixture_alone():
    counts = mixtures(quantity(BALANCED, 4, 1.0))
    shares = counts / counts.sum(1, keepdims=True)
    assert np.abs(shares[counts.sum(1) > 300] - 0.1).max() < 0.08


def test_repeated_draws_have_the_labels_of_their_mixture_and_may_repeat():
    held = dirichlet_repeated(BALANCED, 30, 0.1, samples=500)
    assert any(len(np.unique(own)) < len(own) for own in held)  # 500 of few labels with 200 samples each
    assert np.mean([(np.bincount(BALANCED[own]) > 0).sum() for own in held]) < 6
    assert any((np.diff(BALANCED[own]) < 0).any() for own in held)  # shuffled


def test_the_literal_split_loses_the_highest_labels():
    held = dirichlet_repeated(BALANCED, 30, 100.0, samples=500, literal=True)
    counts = np.array([np.bincount(BALANCED[own], minlength=10) for own in held])
    assert all((np.diff(BALANCED[own]) >= 0).all() for own in held)
    assert {len(own) for own in held} <= {450, 451, 452, 453}
    assert counts[:, 9].mean() < 10 < 40 < counts[:, 8].mean()


def test_balancing_keeps_every_sample_of_a_lopsided_draw():
    counts = np.array([[9, 1], [0, 0], [0, 2]])
    moved = partition._rebalance(np.random.default_rng(0), counts, np.array([4, 4, 4]))
    assert moved.sum(1).tolist() == [4, 4, 4] and moved.sum(0).tolist() == [9, 3] and moved.min() >= 0


def test_many_clients_take_seconds_at_most():
    began = time.process_time()
    dirichlet(np.repeat(np.arange(100), 100), clients=5000, alpha=0.01)
    dirichlet_balanced(np.repeat(np.arange(10), 500), clients=1000, alpha=0.01, tries=10)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dirichlet(BALANCED, 10, -1), "'alpha' parameter of dirichlet must be a number in [0, 1e9]. Got -1"),
        (lambda: dirichlet(BALANCED, 10, float("nan")), "'alpha' parameter of dirichlet must"),
        (lambda: dirichlet_repeated(BALANCED, 10, 0), "must be a number in [0, 1e9], and above 0. Got 0"),
        (lambda: dirichlet_repeated(BALANCED, 0, 1), "'clients' parameter of dirichlet_repeated must"),
        (lambda: dirichlet_balanced(BALANCED, 10, 1, tries=0), "'tries' parameter of dirichlet_balanced must"),
        (lambda: iid(BALANCED, 0), "'clients' parameter of iid must be an integer in [1, 1e8]. Got 0"),
        (lambda: iid(BALANCED, 2, seed=-1), "'seed' parameter of iid must"),
        (lambda: iid(np.zeros((4, 2)), 2), "labels must have one entry per sample. Got an array of shape (4, 2)."),
        (lambda: natural([]), "ids must have one entry per sample"),
        (lambda: shards(BALANCED, 10, 0), "'per_client' parameter of shards must"),
        (lambda: quantity(BALANCED, 10, law="zipf"), "'law' parameter of quantity must"),
        (lambda: quantity(BALANCED, 10, spread=0, law="dirichlet"), "'spread' parameter of quantity must"),
        (lambda: quantity(BALANCED, 10, minimum=0), "'minimum' parameter of quantity must"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_table_names_every_partition():
    assert {name for name in PARTITIONS if callable(getattr(partition, name))} == set(PARTITIONS)
    assert set(COVERING) | {"natural", "dirichlet_repeated"} == set(PARTITIONS)
