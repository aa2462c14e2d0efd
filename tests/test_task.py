from dataclasses import replace

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.conformance import quadratics, toy, toy_world


def labelled(y, test=None, outputs=2):
    x = torch.ones(len(y), 3)
    data = fk.FederatedData.from_arrays(x, y, clients=[0] * len(y), test=test and (torch.ones(len(test), 3), test))
    return fk.Task(lambda: nn.Linear(3, outputs), fk.cross_entropy, data)


@pytest.mark.parametrize(
    ("task", "word"),
    [
        (lambda: labelled([0, 1, 2]), r"y has labels 0..2; the model has outputs for 0..1"),
        (lambda: labelled([0, -1]), r"y has labels -1..0"),
        (lambda: labelled([0, 1], test=[0, 5]), r"test y has labels 0..5"),
    ],
)
def test_labels_outside_the_models_outputs_are_refused(task, word):
    with pytest.raises(fk.InputError, match=word):
        fk.train(task(), "fedavg", rounds=1)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [(nn.functional.cross_entropy, r"\(\)"), (lambda o, t: o, r"\(2, 3\)"), (lambda o, t: 1.0, "float")],
)
def test_a_loss_must_give_one_value_per_sample(loss, shape):
    with pytest.raises(fk.InputError, match=rf"one value per sample, shape \(2,\) here; got {shape}"):
        fk.train(replace(toy(), loss=loss), "fedavg", toy_world(), 1)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"loss": 5}, "loss"), ({"model": 5}, "model"), ({"model": nn.Linear(3, 2)}, "model"), ({"data": [1]}, "data"),
        ({"batch_size": 0}, "batch_size"), ({"lr": -1}, "lr"), ({"target": "high"}, "target"),
        ({"metric": "auc"}, "metric"),
    ],
)  # fmt: skip
def test_a_bad_part_is_refused_by_name(keys, name):
    with pytest.raises(fk.InputError, match=f"'{name}' parameter of Task must be"):
        replace(toy(), **keys)


def test_a_function_that_makes_no_module_is_refused():
    with pytest.raises(fk.InputError, match=r"'model' parameter of Task must be a function that makes an nn\.Module"):
        fk.train(replace(toy(), model=lambda: 5), "fedavg", toy_world(), 1)


def test_the_model_is_made_once_under_the_runs_seed():
    made = []

    def make():
        made.append(torch.initial_seed())
        return nn.Linear(4, 3)

    torch.manual_seed(99)
    task = replace(toy(), model=make)
    a, b, c = (fk.train(task, "fedavg", toy_world(), 1, seed=s).state.x0 for s in (0, 0, 1))
    assert len(made) == 3
    assert 99 not in made
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_integer_targets_have_accuracy_and_float_targets_have_none():
    assert 0 <= fk.train(toy(), "fedavg", toy_world(), 1).history[-1]["accuracy"] <= 1
    row = fk.train(quadratics([1.0], [1.0]), "fedavg:lr=0.5", rounds=1).history[-1]
    assert row["accuracy"] is None
    assert row["loss"] == pytest.approx(0.125)


def test_accuracy_is_the_share_of_right_answers():
    run = fk.train(toy(), "fedavg", toy_world(), 2)
    x, y = toy().cast(torch.float32, "cpu").data.test
    assert run.history[-1]["accuracy"] == (run.model()(x).argmax(1) == y).double().mean().item()


def test_a_metric_takes_the_place_of_accuracy():
    task = replace(quadratics([1.0], [1.0]), metric=lambda outputs, targets: 42 + len(targets))
    assert fk.train(task, "fedavg", rounds=1).history[-1]["accuracy"] == 43


def test_a_score_that_is_no_number_is_null_because_json_has_no_nan():
    task = replace(quadratics([1.0], [1.0]), metric=lambda outputs, targets: float("nan"))
    assert fk.train(task, "fedavg", rounds=1).history[-1]["accuracy"] is None


def test_without_a_test_set_nothing_is_evaluated():
    plain = toy()
    data = fk.FederatedData(plain.data.x, plain.data.y, plain.data.offsets)
    row = fk.train(replace(plain, data=data), "fedavg", toy_world(), 1).history[-1]
    assert (row["loss"], row["accuracy"]) == (None, None)
    assert row["train_loss"] > 0


def test_float64_is_float64_throughout():
    run = fk.train(toy(), "fedyogi+gel", toy_world(), 2, dtype=torch.float64)
    tensors = [run.params, run.state.x0, *run.state.optimizer.values(), *run.model().parameters()]
    assert {t.dtype for t in tensors} == {torch.float64}


def test_no_batch_size_means_all_local_data():
    task = replace(toy(), batch_size=None)
    run = fk.train(task, "fedavg", fk.World([[2]], fk.FixedSteps(2)), 1)
    assert run.history[-1]["samples"] == 2 * 7
    assert fk.train(task, "fedavg", fk.World([[2]], fk.FixedSteps(2)), 1, batch_size=3).history[-1]["samples"] == 6


def test_a_model_that_does_not_fit_its_data_is_named_in_one_line():
    data = fk.FederatedData.from_arrays(torch.zeros(4, 3), [0, 1, 0, 1], clients=[0, 0, 1, 1])
    task = fk.Task(model=lambda: nn.Linear(5, 2), loss=fk.cross_entropy, data=data)
    with pytest.raises(fk.InputError, match=r"fails on a batch \(2, 3\) of float32") as caught:
        fk.train(task, "fedavg", rounds=1)
    assert len(str(caught.value).splitlines()) == 1
