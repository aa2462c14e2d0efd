import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.aggregate import COVER, DELTA, WEIGHTS, Reports, Sums, are_finite, collect, fold
from fedkeel.conformance import quadratics
from fedkeel.messages import Update


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def applied(weights, samples, norms, steps, updates):
    each = weights.each(samples, norms)
    return ((each * updates).sum() * weights.scale(samples, norms, steps)).item()


def test_each_weighting_is_its_formula():
    n, a, tau, d = column(3, 1), column(2.9, 9.0), column(2, 4), column(1.0, -2.0)
    assert applied(fk.Samples(), n, a, tau, d) == pytest.approx(0.75 - 0.5)
    assert applied(fk.Uniform(), n, a, tau, d) == pytest.approx(-0.5)
    direction = 0.75 / 2.9 - 0.25 * 2 / 9.0
    assert applied(fk.Nova(), n, a, tau, d) == pytest.approx((0.75 * 2.9 + 0.25 * 9.0) * direction)
    assert applied(fk.Nova("steps"), n, a, tau, d) == pytest.approx(2.5 * direction)


def test_only_known_words_are_taken():
    with pytest.raises(fk.InputError, match="'tau_eff' parameter of Nova must be 'norm' or 'steps'"):
        fk.Nova("epochs")
    assert set(WEIGHTS) == {"samples", "uniform", "nova"}


def test_nova_works_with_guesses_on_the_last_gradient():
    task = quadratics(a=[1, 3], b=[1, -1], n=[3, 1], x0=2)
    world = fk.World("all", lambda t, i: (2, 4)[i])
    run = fk.train(task, "fednova:lr=0.1+gel:steps=3,proxy=last", world, 1, dtype=torch.float64)
    assert run.history[-1]["clients"] == 2


@pytest.mark.parametrize("client", ["adam", "adagrad"])
def test_nova_is_refused_where_updates_are_not_linear(client):
    with pytest.raises(fk.InputError, match="use weights=samples or weights=uniform"):
        fk.algorithm(f"fednova:client={client}")


def test_nova_is_refused_with_a_rule_that_bends_the_update():
    class SignSGD(fk.Rule):
        def gradient(self, g, y, me):
            return g.sign()

    with pytest.raises(fk.InputError, match="signsgd"):
        fk.Algorithm(rules=[SignSGD()], weights="nova")


def reported(clients, delta, dropped=(), **more):
    """What these clients reported: client i holds i + 1 samples and did i + 2 steps."""
    ids = np.array(clients, dtype=np.int64)
    numbers = [torch.from_numpy(ids + k).double()[:, None] for k in (1, 2, 3)]
    none = np.array(dropped, dtype=np.int64)
    return Update(0, ids, none, numbers[0], numbers[1], None, numbers[2], torch.tensor(delta).double(), **more)


def test_folding_on_workers_gives_the_sums_of_folding_on_the_server():
    updates = [reported([0, 1], [[1.0, 2.0], [3.0, 5.0]], counts={"gradients": 3}), reported([2], [[7.0, 11.0]], [5])]
    for weights in (fk.Samples(), fk.Uniform(), fk.Nova()):
        here = collect(updates, weights)
        there = collect([fold(update, weights) for update in updates], weights)
        assert (here.clients, here.dropped) == (there.clients, there.dropped) == ([0, 1, 2], [5])
        assert here.counts == there.counts == {"gradients": 3}
        assert here.sums.keys() == there.sums.keys() == {DELTA}
        assert torch.equal(here.sums[DELTA], there.sums[DELTA])


def test_the_update_is_the_mean_by_weights_of_who_reported():
    updates = [reported([0, 1], [[1.0], [3.0]]), reported([4], [[7.0]], dropped=[2])]
    for weights, want in ((fk.Samples(), (1 + 2 * 3 + 5 * 7) / 8), (fk.Uniform(), 11 / 3)):
        assert Reports.of_all(collect(updates, weights), weights).delta.item() == pytest.approx(want)


def test_a_group_in_which_nobody_is_finite_adds_nothing_but_who_it_was_and_what_it_cost():
    nobody = fold(reported([], torch.zeros(0, 1).tolist(), dropped=[3, 8], counts={"bytes_up": 8}), fk.Samples())
    assert (nobody.clients, nobody.dropped, nobody.sums) == ([], [3, 8], {})
    whole = collect([nobody, fold(reported([1], [[2.0]]), fk.Samples())], fk.Samples())
    assert (whole.clients, whole.dropped, whole.counts) == ([1], [3, 8], {"bytes_up": 8})
    assert Reports.of_all(whole, fk.Samples()).delta.item() == 2.0
    assert collect([nobody], fk.Samples()).mean_loss() is None


def test_vectors_of_rules_are_averaged_as_they_were_sent():
    rows = {"v": torch.tensor([[1.0], [5.0]]).double()}
    update = reported([0, 2], [[0.0], [0.0]], mean={"r": rows}, derived={"d": rows}, weighted={"w": rows})
    up = Reports.of_all(fold(update, fk.Samples()), fk.Samples())
    assert up.of("r").mean("v").item() == up.of("d").mean("v").item() == 3.0
    assert up.of("w").weighted("v").item() == pytest.approx((1 * 1 + 3 * 5) / 4)
    for slot, how in (("r", "weighted"), ("w", "mean"), ("x", "mean")):
        with pytest.raises(KeyError, match=f"{slot} sends up no 'v' under Up"):
            getattr(up.of(slot), how)("v")


def test_scalars_come_client_by_client_and_average_by_weight():
    parts = [reported([i], [[0.0]], scalars={"r": {"s": torch.tensor([[float(i)]])}}) for i in (3, 0, 1)]
    up = Reports.of_all(collect(parts, fk.Samples()), fk.Samples()).of("r")
    assert up.values("s").flatten().tolist() == [3, 0, 1]
    assert up.average("s").item() == pytest.approx((4 * 3 + 1 * 0 + 2 * 1) / 7)


def test_an_element_that_only_some_clients_cover_is_their_mean_alone():
    cover = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).double()
    update = reported([0, 2], [[4.0, 0.0, 6.0], [8.0, 0.0, 0.0]], cover=cover)
    sums = fold(update, fk.Samples())
    assert sums.sums[COVER].tolist() == [4, 0, 1]
    assert Reports.of_all(sums, fk.Samples()).delta.tolist() == [(1 * 4 + 3 * 8) / 4, 0, 6]


def test_sums_over_a_sub_model_become_sums_over_the_whole_model():
    part = fold(reported([1], [[2.0, 4.0]], counts={"samples": 3}), fk.Samples())
    whole = part.spread(torch.tensor([0, 2]), 3, fk.Samples(), flops=10)
    assert whole.sums[DELTA].tolist() == [4, 0, 8]
    assert whole.sums[COVER].tolist() == [2, 0, 2]
    assert whole.counts == {"samples": 3, "flops": 30}
    assert part.sums[DELTA].tolist() == [4, 8]


def test_buffers_are_averaged_by_samples_and_integers_are_the_first_clients():
    def one(client, mean, count):
        return reported([client], [[0.0]], buffers={"mean": torch.tensor([[mean]]), "n": torch.tensor([[count]])})

    sums = collect([one(0, 1.0, 7), one(2, 5.0, 9)], fk.Uniform())
    old = {"mean": torch.zeros(1), "n": torch.zeros(1, dtype=torch.int64)}
    new = Reports.of_all(sums, fk.Uniform()).buffers(old, fk.Uniform())
    assert (new["mean"].item(), new["n"].item()) == ((1 * 1 + 3 * 5) / 4, 7)


def test_weights_that_stack_get_the_updates_unsummed_and_without_memories():
    class Median(fk.Uniform):
        stacks = True

        def combine(self, updates):
            assert all(not update.memory for update in updates)
            return torch.cat([update.delta for update in updates]).median(0).values

    memory = {"r": {"kept": torch.zeros(2, 1)}}
    parts = [reported([0, 1], [[1.0], [2.0]], memory=memory), reported([2], [[1e30]])]
    sums = collect(parts, Median())
    assert DELTA not in sums.sums
    assert Reports.of_all(sums, Median()).delta.item() == 2.0


def test_a_part_is_not_changed_by_what_it_is_added_to():
    one, two = (fold(reported([i], [[1.0 + i]]), fk.Uniform()) for i in (0, 1))
    assert Sums().add(one).add(two).sums[DELTA].item() == 3.0
    assert (two.clients, two.sums[DELTA].item()) == ([1], 2.0)


def test_a_sum_that_is_too_large_does_not_make_its_client_infinite():
    large, bad = torch.full((1, 4), 3e38), torch.tensor([[1.0, 2.0, torch.nan, 3.0]])
    assert are_finite([torch.cat([large, bad, -large])]).tolist() == [True, False, True]
