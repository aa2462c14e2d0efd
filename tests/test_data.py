import gc
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedkeel as fk
from fedkeel.data.batches import Batches, whole


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["b", "a", "zz", "c"]), min_size=1, max_size=30))
def test_samples_are_packed_by_sorted_id_in_their_order(ids):
    data = fk.FederatedData.from_arrays(np.arange(float(len(ids))), np.arange(len(ids)), clients=ids)
    assert data.client_ids.tolist() == sorted(set(ids))
    for number, name in enumerate(data.client_ids):
        own = slice(data.offsets[number], data.offsets[number + 1])
        assert data.x[own].tolist() == [i for i, owner in enumerate(ids) if owner == name]
        assert data.sizes([number]).tolist() == [ids.count(name)]


@pytest.mark.parametrize(
    ("x", "y", "clients", "word"),
    [
        ([[1.0], [2.0]], [0], [0, 1], "one entry per sample"),
        ([[1.0], [2.0]], [0, 1], [0], "one entry per sample"),
        ([[1.0], [2.0]], [0, 1], np.array([[0], [1]]), "one entry per sample"),
        ([[1.0], [np.nan]], [0, 1], [0, 1], "x has non-finite values, the first in sample 1"),
        ([[1.0], [2.0]], [0.0, np.inf], [0, 1], "y has non-finite values"),
        ([["a"], ["b"]], [0, 1], [0, 1], "x must be numeric"),
        ([[1.0], [2.0, 3.0]], [0, 1], [0, 1], "x must be one array"),
        ([[1.0], [2.0]], [0, 1], np.array([1, "a"], dtype=object), "all numbers or all texts"),
        (1.0, [0], [0], "single number"),
        (np.zeros((0, 2)), [], [], "no client"),
    ],
)
def test_bad_arrays_get_one_clear_line(x, y, clients, word):
    with pytest.raises(fk.InputError, match=word) as caught:
        fk.FederatedData.from_arrays(x, y, clients=clients)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("offsets", "ids", "word"),
    [
        ([0, 2, 2, 3], None, "Client 1 has no samples"),
        ([0, 2, 2, 3], ["a", "b", "c"], "Client b has no samples"),
        ([0, 4], None, "offsets must run from 0"),
        ([1, 3], None, "offsets must run from 0"),
        ([0, 3], ["a", "b"], "2 client ids for 1 clients"),
    ],
)
def test_bad_offsets_get_one_clear_line(offsets, ids, word):
    with pytest.raises(fk.InputError, match=word):
        fk.FederatedData(torch.zeros(3, 1), torch.zeros(3), offsets, ids)


@pytest.mark.parametrize("test", [([[1.0]], [0, 1]), ([[np.nan]], [0]), (np.zeros((0, 1)), []), np.ones((2, 1))])
def test_a_bad_test_set_is_refused(test):
    with pytest.raises(fk.InputError, match="test"):
        fk.FederatedData.from_arrays([[1.0]], [0], clients=[0], test=test)


def test_arrays_keep_their_type_until_training():
    data = fk.FederatedData.from_arrays(
        np.ones((2, 1), np.float16), np.array([0, 1], np.uint8), clients=[0, 1], test=(np.ones((1, 1)), [0.5])
    )
    assert (data.x.dtype, data.y.dtype) == (torch.float16, torch.uint8)
    cast = data.cast(torch.float64, "cpu")
    assert (cast.x.dtype, cast.y.dtype, cast.test[1].dtype) == (torch.float64, torch.int64, torch.float64)


def test_values_that_overflow_the_runs_type_are_refused():
    data = fk.FederatedData.from_arrays([[1e300]], [0], clients=[0])
    with pytest.raises(fk.InputError, match="non-finite"):
        data.cast(torch.float32, "cpu")


def million():
    n = 1_000_000
    return fk.FederatedData(torch.zeros(n, 1), torch.zeros(n), np.arange(n + 1))


def test_a_million_clients_cost_no_object_each():
    gc.collect()
    before = len(gc.get_objects())
    data = million()
    task = fk.Task(lambda: nn.Linear(1, 1), lambda o, t: (o[:, 0] - t) ** 2, data)
    run = fk.train(task, "fedavg", fk.World(cohort=50), rounds=2)
    assert run.history[-1]["clients"] == 50
    assert len(data) == 1_000_000
    gc.collect()
    assert len(gc.get_objects()) - before < 20_000


def test_drawing_a_cohort_does_not_touch_all_clients():
    world = fk.World(cohort=50)
    tracemalloc.start()
    cohort = world.who(1, 1_000_000_000, seed=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(cohort.tolist())) == 50
    assert peak < 1_000_000


# ------------------------------------------------------------------------------------------------ batches


def data_of(sizes):
    x = torch.arange(float(sum(sizes)))
    return fk.FederatedData(x, x.long(), np.concatenate([[0], np.cumsum(sizes)]))


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(sizes, st.integers(1, 8), st.one_of(st.none(), st.integers(1, 10)), st.integers(0, 3))
def test_a_client_walks_through_permutations_in_full_batches(sizes, longest, batch_size, seed):
    data, clients = data_of(sizes), np.arange(len(sizes))
    steps = np.sort(np.random.default_rng(seed).integers(1, longest + 1, len(sizes)))[::-1].copy()
    batches = Batches(data, clients, steps, batch_size, seed, round=1)
    walks = [[] for _ in clients]
    for k in range(batches.longest):
        active = batches.active[k]
        assert active == (steps > k).sum()
        batch = batches.at(k, active)
        for i in range(active):
            own = min(batch_size or sizes[i], sizes[i])
            share = torch.full((batch.x.shape[1],), 1 / own) if batch.share is None else batch.share[i]
            assert share.double().sum().item() == pytest.approx(1, abs=1e-6)
            real = batch.x[i][share > 0]
            assert len(real) == own
            walks[i] += real.tolist()
    for i, walk in enumerate(walks):
        first = data.offsets[i]
        for start in range(0, len(walk) - sizes[i] + 1, sizes[i]):  # every whole pass sees every sample once
            assert sorted(walk[start : start + sizes[i]]) == list(range(first, first + sizes[i]))


def test_a_clients_batches_do_not_depend_on_its_neighbours():
    data = data_of([5, 9, 7])
    alone = Batches(data, np.array([1]), np.array([3]), 4, seed=0, round=2)
    among = Batches(data, np.array([2, 1, 0]), np.array([5, 3, 1]), 4, seed=0, round=2)
    for k in range(3):
        assert torch.equal(alone.at(k, 1).x[0], among.at(k, 2).x[1])


def test_batches_change_with_round_client_and_seed():
    data = data_of([50, 50])

    def first(client=0, seed=0, round=1):
        return Batches(data, np.array([client]), np.array([1]), 10, seed, round).at(0, 1).x[0] % 50

    assert torch.equal(first(), first())
    for other in (first(client=1), first(seed=1), first(round=2)):
        assert not torch.equal(first(), other)


@pytest.mark.parametrize("block", [2, 5, 100])
def test_blocks_of_everything_cover_every_sample_once(block):
    data, clients = data_of([5, 1, 7]), np.array([2, 0])
    seen = {2: [], 0: []}
    for batch in whole(data, clients, block):
        for client, x, share in zip(clients, batch.x, batch.share, strict=True):
            size = {2: 7, 0: 5}[client]
            assert set(share.tolist()) <= {0.0, np.float32(1 / size).item()}
            seen[client] += x[share > 0].tolist()
    assert seen == {2: list(range(6, 13)), 0: list(range(5))}
