import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.conformance import toy, toy_world
from fedkeel.flat import CountedDropout, FlatModel, seeded


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False)
        self.b = nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return self.b(self.a(x)) * self.frozen


def test_parameters_and_gradients_are_views_of_one_vector():
    model = FlatModel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
    model.load(torch.arange(11.0))
    assert torch.cat([p.flatten() for p in model.module.parameters()]).tolist() == list(range(11))
    model.module(torch.ones(1, 3)).sum().backward()
    assert torch.equal(torch.cat([p.grad.flatten() for p in model.module.parameters()]), model.grad)
    assert model.grad.any()


def test_tied_weights_count_once_and_frozen_ones_not_at_all():
    model = FlatModel(Tied())
    assert model.size == 9
    assert model.replica().size == 9


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(fk.InputError, match="no trainable parameter"):
        FlatModel(nn.Flatten())


def test_a_replica_is_independent():
    model = FlatModel(nn.BatchNorm1d(2))
    replica = model.replica()
    replica.load(torch.full((4,), 7.0))
    replica.module.running_mean += 1
    assert 7.0 not in model.flat
    assert not model.module.running_mean.any()


def test_a_model_is_made_under_its_seed_and_the_callers_generator_is_left():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, c = (seeded(s, lambda: nn.Linear(3, 3)).weight for s in (4, 4, 5))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert torch.equal(before, torch.get_rng_state())


def dropping(*layers):
    return FlatModel(nn.Sequential(nn.Linear(50, 50), *layers))


def mask_of(model, **place):
    for name, value in ({"seed": 0, "round": 1, "client": 2, "step": 3} | place).items():
        setattr(model.place, name, value)
    layer = next(m for m in model.module.modules() if isinstance(m, CountedDropout))
    return layer(torch.ones(4, 50)) != 0


def test_a_mask_is_a_function_of_its_place_alone():
    model = dropping(nn.Dropout(0.5))
    first = mask_of(model)
    torch.rand(100)
    assert torch.equal(first, mask_of(model)) and torch.equal(first, mask_of(model.replica()))
    for change in ({"seed": 1}, {"round": 2}, {"client": 3}, {"step": 4}):
        assert not torch.equal(first, mask_of(model, **change))


def test_two_dropout_layers_have_masks_of_their_own():
    model = dropping(nn.Dropout(0.5), nn.Dropout(0.5))
    layers = [m for m in model.module.modules() if isinstance(m, CountedDropout)]
    masks = [layer(torch.ones(4, 50)) for layer in layers]
    assert not torch.equal(*masks)


def test_what_is_kept_is_scaled_so_that_the_mean_stays():
    kept = dropping(nn.Dropout(0.2)).module[1](torch.ones(200, 500))
    assert set(kept.unique().tolist()) == {0.0, 1.25}
    assert kept.mean().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("layer", "shape"), [(nn.Dropout1d, (4, 6, 5)), (nn.Dropout2d, (4, 6, 5, 5))])
def test_channel_dropout_drops_whole_channels(layer, shape):
    kept = dropping(layer(0.5)).module[1](torch.ones(shape)).flatten(2)
    assert (kept == kept[..., :1]).all()
    assert (kept == 0).any() and (kept != 0).any()


@pytest.mark.parametrize(("p", "want"), [(0.0, 1.0), (1.0, 0.0)])
def test_nothing_or_everything_may_be_dropped(p, want):
    assert (dropping(nn.Dropout(p)).module[1](torch.ones(3, 50)) == want).all()


def with_dropout():
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))


def test_dropout_is_counted_in_a_run_so_that_workers_change_no_bit():
    from dataclasses import replace

    task = replace(toy(), model=with_dropout)
    runs = [fk.train(task, "fedavg", toy_world(), 3, engine=fk.Local("serial", workers=w)) for w in (1, 2)]
    assert torch.equal(runs[0].params, runs[1].params)
    without = replace(task, model=lambda: nn.Sequential(nn.Linear(4, 16), nn.Identity(), nn.Linear(16, 3)))
    assert not torch.equal(runs[0].params, fk.train(without, "fedavg", toy_world(), 3).params)


def test_the_trained_model_has_the_users_own_layers_again():
    from dataclasses import replace

    run = fk.train(replace(toy(), model=with_dropout), "fedavg", toy_world(), 1)
    model = run.model()
    assert [type(layer) for layer in model] == [nn.Linear, nn.Dropout, nn.Linear]
    assert not model.training
    model.train()
    x = torch.ones(5, 4)
    assert not torch.equal(model(x), model(x))  # fresh masks, for whoever trains it further
    assert torch.equal(run.params, torch.cat([p.detach().flatten() for p in model.parameters()]))
