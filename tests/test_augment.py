"""Augmentation: right pictures, and the same ones whoever trains beside a client."""

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel import draws, models
from fedkeel.data.augment import CropFlip, crop
from fedkeel.data.batches import Batches


def generators(count, step=0):
    return [draws.generator(0, "augment", 1, client, step) for client in range(count)]


def images(*shape):
    return torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).float()


def possible(image, pad, flip):
    """Every picture that padding, cropping and mirroring may give, one at a time."""
    height, width = image.shape[-2:]
    padded = torch.zeros(image.shape[0], height + 2 * pad, width + 2 * pad)
    padded[:, pad : pad + height, pad : pad + width] = image
    cut = [padded[:, t : t + height, s : s + width] for t in range(2 * pad + 1) for s in range(2 * pad + 1)]
    return cut + [c.flip(-1) for c in cut] if flip else cut


@pytest.mark.parametrize("flip", [True, False])
def test_every_picture_is_one_of_the_possible_ones_and_all_of_them_come_up(flip):
    image = images(2, 4, 5)
    x = image.expand(3, 150, 2, 4, 5)
    out = CropFlip(pad=1, flip=flip)(x, generators(3)).flatten(0, 1)
    choices = possible(image, 1, flip)
    seen = [[bool(torch.equal(o, c)) for c in choices] for o in out]
    assert all(sum(row) == 1 for row in seen)
    assert np.array(seen).any(0).all()


def test_half_of_the_images_are_mirrored():
    x = images(1, 3, 3).expand(1, 4000, 1, 3, 3)
    out = CropFlip(pad=0)(x, generators(1))
    mirrored = (out == x.flip(-1)).flatten(2).all(2).float().mean().item()
    assert mirrored == pytest.approx(0.5, abs=0.03)


def test_crop_cuts_each_image_at_its_own_place():
    x = images(3, 2, 4, 4)
    out = crop(x, 1, torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0]), torch.zeros(2))
    expected = [possible(x[i], 1, False)[place] for i, place in enumerate((2, 4, 6))]
    assert torch.equal(out, torch.stack(expected))


def test_the_border_has_the_value_of_its_channel():
    x = torch.ones(1, 200, 2, 4, 4)
    out = CropFlip(pad=2, fill=(-3.0, 7.0))(x, generators(1))
    assert set(out[0, :, 0].unique().tolist()) == {-3.0, 1.0} and set(out[0, :, 1].unique().tolist()) == {1.0, 7.0}
    with pytest.raises(fk.InputError, match="has 3 values for images of 2 channels"):
        CropFlip(fill=(0.0, 0.0, 0.0))(x, generators(1))


def test_per_batch_draws_one_place_for_all_images_of_a_client():
    x = images(1, 6, 6).expand(8, 5, 1, 6, 6)
    out = CropFlip(pad=2, per="batch")(x, generators(8))
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert len({tuple(o.flatten().tolist()) for o in out[:, 0]}) > 4


def test_the_input_is_left_as_it_was_and_types_are_kept():
    x = images(1, 3, 1, 4, 4).to(torch.uint8)
    before = x.clone()
    out = CropFlip(pad=1)(x, generators(1))
    assert torch.equal(x, before) and out.dtype == torch.uint8 and out.shape == x.shape


def federated(sizes=(2, 5, 9, 4), side=16):
    torch.manual_seed(1)
    n = sum(sizes)
    x, y = torch.randn(n, 3, side, side), torch.randint(0, 10, (n,))
    return fk.FederatedData.from_arrays(x, y, np.repeat(np.arange(len(sizes)), sizes), test=(x, y))


def test_a_clients_augmented_batch_does_not_depend_on_its_neighbours():
    data, steps = federated(), np.array([3, 3, 2, 1])
    clients = np.array([2, 0, 3, 1])
    together = Batches(data, clients, steps, 6, 5, 7, CropFlip())
    for row in range(4):
        alone = Batches(data, clients[row : row + 1], steps[row : row + 1], 6, 5, 7, CropFlip())
        plain = Batches(data, clients[row : row + 1], steps[row : row + 1], 6, 5, 7)
        for k in range(steps[row]):
            own = alone.at(k, 1).x[0]
            assert torch.equal(together.at(k, together.active[k]).x[row, : len(own)], own)
            assert not torch.equal(own, plain.at(k, 1).x[0])


def test_draws_differ_by_seed_round_client_and_step():
    data = fk.FederatedData.from_arrays(images(1, 1, 8, 8).expand(16, 1, 8, 8), [0] * 16, [0] * 8 + [1] * 8)

    def batch(seed=0, round=1, client=0, step=0):
        return Batches(data, np.array([client]), np.array([2]), 8, seed, round, CropFlip()).at(step, 1).x

    base = batch()
    assert torch.equal(base, batch())
    for other in (batch(seed=1), batch(round=2), batch(client=1), batch(step=1)):
        assert not torch.equal(base, other)


def task(augment, data=None):
    return fk.Task(models.small_lenet, fk.cross_entropy, data or federated(), batch_size=4, augment=augment)


def test_both_engine_modes_train_on_the_same_pictures():
    runs = [
        fk.train(task(CropFlip()), "fedavg:lr=0.1", fk.World(budget=fk.UniformSteps(1, 4)), rounds=2, engine=mode,
                 dtype=torch.float64)
        for mode in ("serial", "batched")
    ]  # fmt: skip
    plain = fk.train(task(None), "fedavg:lr=0.1", fk.World(budget=fk.UniformSteps(1, 4)), rounds=2, dtype=torch.float64)
    assert [run.config["engine"] for run in runs] == ["serial", "batched"]
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(runs[0].params, plain.params, atol=1e-6)


def test_the_number_of_workers_changes_no_bit():
    runs = [fk.train(task(CropFlip()), "fedavg", rounds=2, engine=fk.Local("serial", workers=w)) for w in (1, 3)]
    assert torch.equal(runs[0].params, runs[1].params)


def test_a_function_of_the_users_own_is_an_augmentation():
    def noise(x, generators):
        return x + torch.stack([torch.from_numpy(g.standard_normal(x.shape[1:])) for g in generators]).to(x)

    quiet, loud = (fk.train(task(a), "fedavg", rounds=1).params for a in (None, noise))
    assert not torch.equal(quiet, loud)


def test_test_images_are_left_alone():
    calls = []

    def count(x, generators):
        calls.append(len(x))
        return x

    world = fk.World(cohort="all", budget=fk.FixedSteps(3))
    fk.train(task(count), "fedavg", world, rounds=2, engine=fk.Local("serial", workers=1))
    assert calls == [1] * (2 * 4 * 3)  # rounds, clients, steps; three evaluations add nothing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CropFlip(pad=-1), "'pad' parameter of CropFlip must be an integer in [0, 1024]. Got -1"),
        (lambda: CropFlip(per="epoch"), "'per' parameter of CropFlip must be 'sample' or 'batch'. Got 'epoch'"),
        (lambda: CropFlip(flip=1), "'flip' parameter of CropFlip must be True or False. Got 1"),
        (lambda: CropFlip()(torch.zeros(1, 2, 7), generators(1)), "CropFlip needs images"),
        (lambda: task("flip"), "'augment' parameter of Task must be a function"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(fk.InputError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)
