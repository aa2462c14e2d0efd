"""Errors of a user's own model, loss, rule, budget, metric or callback say in one line what failed, and where."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fedkeel as fk
from fedkeel.conformance import toy, toy_world
from fedkeel.data.partition import dirichlet

HERE = "of test_user_code.py"


def play(task: fk.Task | None = None, algorithm: Any = "fedavg", rounds: int = 2, **more: Any) -> fk.Run:
    return fk.train(task or toy(), algorithm, more.pop("world", toy_world()), rounds, **more)


def refusal(call: Callable[[], Any], kind: type[fk.FedkeelError] = fk.InputError) -> str:
    """The message of the error, which must have one line."""
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Broken(Exception):
    """An error of the user's own."""


def broken(*_: Any, **__: Any) -> Any:
    raise Broken("on purpose\nand in two lines")


# Models


def test_a_model_that_cannot_be_made_names_the_function() -> None:
    text = refusal(lambda: play(replace(toy(), model=broken)))
    assert text.startswith("The task's model cannot be made: Broken: on purpose and in two lines (in broken, line ")
    assert text.endswith(f"{HERE}).")


def test_the_error_of_the_user_is_the_cause() -> None:
    with pytest.raises(fk.InputError) as caught:
        play(replace(toy(), model=broken))
    assert isinstance(caught.value.__cause__, Broken)


class Net(nn.Linear):
    """A model with a forward pass of the user's own."""

    def __init__(self, forward: Callable[[Tensor], Any]) -> None:
        super().__init__(4, 3)
        self.own = forward

    def forward(self, input: Tensor) -> Any:
        return self.own(super().forward(input))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Net(broken), "The model fails on a batch (2, 4) of float32: Broken: on purpose and in two"),
        (lambda: Net(lambda y: (y, y)), "The model must return one tensor, not a tuple; return the part that the"),
        (lambda: Net(lambda y: {"scores": y}), "The model must return one tensor, not a dict"),
        (lambda: Net(lambda y: y.detach().numpy()), "The model must return one tensor, not a ndarray"),
        (lambda: Net(lambda y: y.sum()), "The model must return one row per sample"),
        (nn.Identity, "The model has no trainable parameter; set requires_grad=True"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "The model has no trainable parameter; set requires_grad=True"),
        (lambda: nn.Linear(9, 3), "The model fails on a batch (2, 4) of float32"),
        (lambda: "a model", "must be a function that makes an nn.Module"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_work_is_refused_before_round_1(model: Any, message: str, tmp_path: Path) -> None:
    assert message in refusal(lambda: play(replace(toy(), model=model), checkpoint=tmp_path / "d"))
    assert not (tmp_path / "d").exists()


def test_a_module_in_the_place_of_a_function_is_refused_with_an_example() -> None:
    text = refusal(lambda: replace(toy(), model=nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))))
    assert "must be a function that makes an nn.Module, such as lambda: MyModel(). Got Sequential(" in text


class FailsInTraining(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return broken() if self.training else super().forward(input)


@pytest.mark.parametrize("mode", ["serial", "batched"])
def test_a_model_that_fails_in_training_only_is_refused_before_round_1(mode: str) -> None:
    text = refusal(lambda: play(replace(toy(), model=lambda: FailsInTraining(4, 3)), engine=mode))
    assert text.startswith("The model fails in training mode") and "(in broken" in text


# Losses, labels and metrics


def labelled(y: Any, outputs: int, loss: Any = fk.cross_entropy) -> fk.Task:
    data = fk.FederatedData.from_arrays(torch.ones(len(y), 3), y, clients=[0] * len(y), test=(torch.ones(2, 3), y[:2]))
    return fk.Task(lambda: nn.Linear(3, outputs), loss, data)


def binary(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output, target, reduction="none")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (labelled([0, 1, 1], 1), "The model has one output and the targets are integers: give it an output per class"),
        (labelled([0, 0, 1], 1, nn.CrossEntropyLoss(reduction="none")), "The model has one output"),
        (labelled([0, 1, 1], 1, binary), "The model has one output and the targets are integers"),
        (labelled([0.0, 1.0, 1.0], 2), "The model has several outputs and y holds floats"),
        (labelled([0.0, 1.0, 1.0], 2, nn.CrossEntropyLoss(reduction="none")), "give integer labels"),
        (labelled([0, 1, 1], 2, broken), "fails on outputs (2, 2) of float32 and targets (2,) of int64: Broken"),
        (labelled([0, 1, 1], 2, nn.CrossEntropyLoss()), "shape (2,) here; got (). With torch losses"),
        (labelled([0.0, 1.0], 1, lambda o, t: (o - t) ** 2), "got (2, 2). Outputs are (2, 1) of float32, targets (2,)"),
        (labelled([0, 1, 1], 2, lambda o, t: o), "got (2, 2). With torch losses use reduction='none'"),
        (labelled([1, 2, 2], 2), "y has labels 1..2; the model has outputs for 0..1. Subtract 1: y - 1."),
        (labelled([[0], [1], [1]], 2), "Targets are (2, 1) of int64: give one label per sample, y.squeeze(1)."),
    ],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_refused_with_what_to_do(task: fk.Task, message: str) -> None:
    assert message in refusal(lambda: fk.train(task, "fedavg", rounds=1))


def test_pictures_of_bytes_and_the_class_of_a_loss_are_refused_with_what_to_do() -> None:
    data = fk.FederatedData.from_arrays(torch.ones(4, 3, dtype=torch.uint8), [0, 1, 0, 1], clients=[0, 0, 1, 1])
    task = fk.Task(lambda: nn.Linear(3, 2), fk.cross_entropy, data, client_test=0.5)
    assert "of uint8: RuntimeError" in (text := refusal(lambda: fk.train(task, "fedavg", rounds=1)))
    assert text.endswith("Give floating-point inputs: x.float() / 255.")
    assert "such as fk.cross_entropy. Got <class" in refusal(lambda: replace(toy(), loss=nn.CrossEntropyLoss))


@pytest.mark.parametrize(
    ("clients", "use"),
    [
        (20, "dirichlet, clients=20, alpha=0.1)"),
        ("shards", "shards, clients=100)"),
        (dirichlet, "dirichlet, clients=100, alpha=0.1)"),
    ],
)
def test_a_partition_that_is_not_complete_is_refused_with_the_whole_of_it(clients: Any, use: str) -> None:
    text = refusal(lambda: fk.FederatedData.from_arrays(torch.ones(4, 3), [0, 1, 0, 1], clients))
    assert text.endswith(f"or a partition such as functools.partial(fk.data.partition.{use}.")


def test_unknown_keywords_of_a_world_and_an_algorithm_and_the_class_of_a_rule_say_what_to_write() -> None:
    class Own(fk.Rule):
        pass

    anything: Any = fk
    assert "'clients'. Write cohort=10 for the clients of a round" in refusal(lambda: anything.World(clients=10))
    assert refusal(lambda: anything.World(cohrt=1)) == "Unknown keyword of World 'cohrt'. Did you mean 'cohort'?"
    assert "of Algorithm 'lr'. Write client=fk.SGD(0.1)." in refusal(lambda: anything.Algorithm(lr=0.1))
    assert "a list of rules; make an instance: Own()." in refusal(lambda: anything.Algorithm(rules=[Own]))
    with pytest.raises(TypeError, match="positional"):
        anything.World(*range(20))


def fails_while_training(output: Tensor, target: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        raise Broken("while training")
    return fk.cross_entropy(output, target)


def test_a_loss_that_raises_in_a_round_names_round_client_step_and_function() -> None:
    text = refusal(lambda: play(replace(toy(), loss=fails_while_training), engine="serial"), fk.ClientError)
    assert text.startswith("Round 1, client ") and ", step 1: Broken: while training (in fails_while_training" in text


@pytest.mark.parametrize(
    "parts",
    [{"loss": lambda output, target: fk.cross_entropy(output, target).detach()}, {"model": lambda: Net(Tensor.detach)}],
    ids=["loss", "model"],
)
def test_a_loss_without_a_gradient_is_refused_with_what_to_look_for(parts: dict[str, Any]) -> None:
    text = refusal(lambda: play(replace(toy(), **parts)))
    assert "does not depend on the model's parameters" in text and "look for detach()" in text


def test_a_metric_that_raises_says_after_which_round() -> None:
    text = refusal(lambda: play(replace(toy(), metric=broken)), fk.ClientError)
    assert text.startswith("The evaluation after round 0: Broken: on purpose") and "(in broken" in text


def test_a_metric_that_gives_no_number_says_so() -> None:
    assert "float()" in refusal(lambda: play(replace(toy(), metric=lambda output, target: None)), fk.ClientError)


# Rules, budgets and other functions


@pytest.mark.parametrize(
    ("hook", "where"),
    [
        ("resolve", "Before round 1"), ("init", "Before round 1"), ("plan", "Round 1"), ("send", "Round 1"),
        ("start", "Round 1, "), ("remember", "Round 1, "), ("survey", "Round 1, "), ("gradient", "Round 1, "),
        ("loss", "Round 1, "), ("walk", "Round 1, "), ("finish", "Round 1, "), ("serve", "Round 1"),
        ("report", "Round 1"), ("models", "The evaluation after round 0"),
    ],
)  # fmt: skip
def test_every_hook_of_a_rule_that_raises_is_named(hook: str, where: str) -> None:
    own = type("Own", (fk.Rule,), {hook: broken})
    text = refusal(lambda: play(algorithm=fk.Algorithm(rules=[own()])), fk.ClientError)
    assert text.startswith(where) and ": Broken: on purpose and in two lines (in broken, line" in text


@pytest.mark.parametrize("mode", ["serial", "batched"])
@pytest.mark.parametrize(
    ("hook", "value", "message"),
    [
        ("init", None, "Before round 1: TypeError: Own.init must return tensors by name. Got None instead."),
        ("plan", None, "Round 1: TypeError: Own.plan must return a Plan. Got None"),
        ("send", None, "Round 1: TypeError: Own.send must return tensors by name. Got None"),
        ("start", None, ": TypeError: Own.start must return tensors by name. Got None"),
        ("remember", None, ": TypeError: Own.remember must return tensors by name. Got None"),
        ("survey", None, ": TypeError: Own.survey must return tensors by name. Got None"),
        ("gradient", None, ", step 1: TypeError: Own.gradient must return a tensor of g's shape, ("),
        ("gradient", torch.zeros(2, 2), "Got a tensor of (2, 2) instead."),
        ("gradient", torch.zeros(43), ", step 1: TypeError: Own.gradient must return a tensor of g's shape, ("),
        ("gradient", torch.zeros(43), ", 43). Got a tensor of (43,) instead."),
        ("objective", None, ": TypeError: Own.objective must return a gradient and a value. Got None instead."),
        ("step", torch.zeros(1), ": TypeError: Own.step must return a gradient and a value. Got a tensor of (1,)"),
        ("walk", None, ": TypeError: Own.walk must return the End that go(y) returns. Got None instead."),
        ("finish", {}, ": TypeError: Own.finish must return an Up. Got {} instead."),
        ("serve", {"c": 1, "d": 2}, "Round 1: TypeError: Own.serve must return two values:"),
        ("serve", (1, 2, 3), "Round 1: TypeError: Own.serve must return two values"),
        ("serve", torch.zeros(43), "what the server keeps, and the update. Got a tensor of (43,) instead."),
        ("serve", {"c": torch.zeros(43)}, "and the update. Got {'c': a tensor of (43,)} instead."),
        ("report", None, "Round 1: TypeError: Own.report must return numbers by column. Got None instead."),
        ("models", None, "after round 0: TypeError: Own.models must return models by name. Got None instead."),
    ],
)  # fmt: skip
def test_a_hook_that_returns_what_is_of_no_use_is_named_with_its_rule(
    hook: str, value: Any, message: str, mode: str
) -> None:
    own = type("Own", (fk.Rule,), {hook: lambda *_: value})
    text = refusal(lambda: play(algorithm=fk.Algorithm(rules=[fk.Proximal(), own()]), engine=mode), fk.ClientError)
    assert message in text


def test_an_error_of_the_model_is_not_put_down_to_a_rule_that_works() -> None:
    algorithm = fk.Algorithm(rules=[fk.Proximal()])
    text = refusal(lambda: play(replace(toy(), loss=fails_while_training), algorithm, engine="serial"), fk.ClientError)
    assert "Broken: while training (in fails_while_training" in text and "must return" not in text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gradiant", "gradient"),
        ("on_gradient", "gradient"),
        ("finsh", "finish"),
        ("sever", "serve"),
        ("Start", "start"),
    ],
)
def test_a_rule_with_a_misspelt_method_is_refused(name: str, meant: str) -> None:
    text = refusal(lambda: type("Own", (fk.Rule,), {name: lambda self, me: {}}))
    assert text == f"No round calls Own.{name}. Did you mean '{meant}'? A helper may be called _{name}."


def test_helpers_and_parameters_of_a_rule_may_have_any_other_name() -> None:
    class Helped(fk.Rule):
        steps: int = 3
        gradients = property(lambda self: 1)

        def starts(self) -> int:
            return 1

        def _gradiant(self) -> int:
            return 1

        def direction(self, g: Tensor) -> Tensor:
            return g

        def gradient(self, g: Tensor, y: Tensor, me: fk.Me) -> Tensor:
            return self.direction(g) * max(one for one in [self.starts()])

    assert torch.equal(play(algorithm=fk.Algorithm(rules=[Helped()])).params, play().params)


def test_a_rule_that_fails_in_a_later_round_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    switched_on = [True]

    @dataclass(frozen=True, repr=False)
    class Fails(fk.Rule):
        def serve(self, server: Any, up: Any, view: Any) -> Any:
            if view.facts.round == 4 and switched_on:
                raise Broken("in round 4")
            return super().serve(server, up, view)

    algorithm = fk.Algorithm(rules=[Fails()])
    text = refusal(lambda: play(algorithm=algorithm, rounds=6, every=2, checkpoint=tmp_path), fk.ClientError)
    assert text.startswith("Round 4: Broken: in round 4 (in serve")
    switched_on.clear()
    went_on = fk.resume(tmp_path, toy(), algorithm, toy_world())
    assert torch.equal(went_on.params, play(algorithm=algorithm, rounds=6).params)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (broken, "The budget of client 1 in round 1 fails: Broken: on purpose and in two lines (in broken, line"),
        (lambda round, client: "5", "must be an integer in [0, 1e7]. Got '5' instead."),
        (lambda round, client: 10**23, "must be an integer in [0, 1e7]. Got 10000"),
        (lambda round, client: 2.0, "must be an integer in [0, 1e7]. Got 2.0 instead."),
    ],
)
def test_a_budget_that_fails_names_round_and_client(budget: Any, message: str) -> None:
    assert message in refusal(lambda: play(world=fk.World([[1, 2]], budget)))


def test_a_budget_of_numpy_integers_works() -> None:
    assert play(world=fk.World([[1, 2]], lambda round, client: np.int64(2))).status == "done"


def test_levels_that_cannot_be_assigned_name_the_round() -> None:
    text = refusal(lambda: play(algorithm=fk.Algorithm(capacity=fk.Widths(assign=broken))))
    assert text.startswith("The levels of round 1 cannot be assigned: Broken")


def test_an_augmentation_that_raises_names_round_and_client() -> None:
    text = refusal(lambda: play(replace(toy(), augment=broken), engine="serial"), fk.ClientError)
    assert text.startswith("Round 1, client ") and "(in broken" in text


# Callbacks


class FailsAt:
    """A callback that fails once, in a round, at the beginning or at the end."""

    def __init__(self, when: int | str) -> None:
        self.when, self.rows = when, list[int]()

    def fail(self, when: int | str) -> None:
        if when == self.when:
            raise Broken(f"at {when}")

    def begin(self, config: dict[str, Any]) -> None:
        self.fail("begin")

    def __call__(self, row: dict[str, Any]) -> None:
        self.rows.append(row["round"])
        self.fail(row["round"])

    def end(self, status: str) -> None:
        self.fail("end")


@pytest.mark.parametrize(
    ("when", "where", "rounds"),
    [("begin", "Before round 1", 0), (0, "Round 0", 0), (3, "Round 3", 3), (5, "Round 5", 5), ("end", "At the end", 5)],
)
def test_a_callback_that_raises_does_not_lose_the_run(when: int | str, where: str, rounds: int, tmp_path: Path) -> None:
    other = FailsAt("never")
    text = refusal(lambda: play(rounds=5, checkpoint=tmp_path, callbacks=[FailsAt(when), other]), fk.ClientError)
    assert text.startswith(f"{where}, the callback FailsAt: Broken: at {when} (in fail, line")
    assert other.rows == list(range(rounds + 1))  # it has seen the last row too
    assert fk.load(tmp_path, toy()).history[-1]["round"] == rounds  # all of it is saved
    went_on = fk.resume(tmp_path, toy())
    assert went_on.status == "done"
    assert torch.equal(went_on.params, play(rounds=5).params)


def test_an_error_of_the_run_is_not_hidden_by_one_of_a_callback() -> None:
    text = refusal(lambda: play(replace(toy(), loss=fails_while_training), callbacks=[FailsAt("end")]), fk.ClientError)
    assert "while training" in text


def test_an_interrupt_in_a_callback_passes_through(tmp_path: Path) -> None:
    def interrupted(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(rounds=5, every=2, checkpoint=tmp_path, callbacks=[interrupted])
    assert torch.equal(fk.resume(tmp_path, toy()).params, play(rounds=5).params)


@pytest.mark.parametrize("callbacks", [broken, [5], None, "print"])
def test_callbacks_are_a_list_of_functions(callbacks: Any) -> None:
    assert "'callbacks' parameter of train must be a list of functions" in refusal(lambda: play(callbacks=callbacks))


def test_a_failing_started_is_named() -> None:
    assert "Before round 1: Broken" in refusal(lambda: play(started=broken), fk.ClientError)


# Data


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> Any:
        return broken() if place == 2 else (torch.zeros(2), 0)


TENSORS = TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (DataLoader(TENSORS), "x must be an array, not a DataLoader; use FederatedData.from_torch(dataset"),
        (TENSORS, "x must be an array, not a TensorDataset; use FederatedData.from_torch"),
        ((row for row in np.zeros((4, 2))), "with one entry per sample, not a generator; make an array"),
        (iter([1, 2]), "not a list_iterator; make an array of it first"),
        (lambda: np.zeros(4), "not a function; make an array of it first"),
        (None, "x must be numeric"),
        (np.array([[0.0], [np.nan], [0.0], [1.0]]), "non-finite values, the first in sample 1; leave such samples"),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused_with_what_to_use(x: Any, message: str) -> None:
    assert message in refusal(lambda: fk.FederatedData.from_arrays(x, [0, 1, 0, 1], clients=[0, 0, 1, 1]))


def test_a_loader_in_the_place_of_a_data_set_is_refused_with_what_to_use() -> None:
    text = refusal(lambda: fk.FederatedData.from_torch(DataLoader(TENSORS), partition=[0, 0, 1, 1]))
    assert "must be the data set itself, not a DataLoader; give loader.dataset" in text


def test_a_partition_that_raises_is_named() -> None:
    text = refusal(lambda: fk.FederatedData.from_arrays(np.zeros((4, 1)), [0] * 4, clients=broken))
    assert text.startswith("The partition of the samples fails: Broken") and "(in broken" in text


def test_clients_from_a_generator_are_refused_with_what_to_use() -> None:
    text = refusal(lambda: fk.FederatedData.from_arrays(np.zeros((4, 1)), [0] * 4, clients=iter(range(4))))
    assert text == "clients must be an array or a list, not a range_iterator; make a list of it first."


def test_a_checkpoint_is_the_path_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for wrong in (tmp_path / "file", 5):
        assert "must be the path of a directory" in refusal(lambda wrong=wrong: play(checkpoint=wrong))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_data_set_that_raises_names_the_item() -> None:
    text = refusal(lambda: fk.FederatedData.from_torch(Pairs(), partition=[0, 0, 1]))
    assert "The data set fails at item 2: Broken" in text


def test_a_loader_in_the_place_of_federated_data_is_refused_with_what_to_use() -> None:
    text = refusal(lambda: fk.Task(toy().model, toy().loss, DataLoader(TENSORS)))  # type: ignore[arg-type]
    assert "must be a FederatedData, made by from_arrays, from_torch, from_huggingface, from_csv or from_folder" in text


def test_without_a_test_set_one_line_says_what_is_missing() -> None:
    plain = toy()
    task = replace(plain, data=fk.FederatedData(plain.data.x, plain.data.y, plain.data.offsets))
    with pytest.warns(fk.StabilityWarning, match=r"no test set, so the history has no test loss .* test=\(inputs"):
        run = play(task)
    assert run.history[-1]["accuracy"] is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fk.sweep(task, "fedavg", {"lr": [0.01, 0.1]}, rounds=1).best is not None  # it chooses on validation data


# Numbers


def test_a_rate_in_quotes_is_refused_as_no_number() -> None:
    assert refusal(lambda: fk.SGD("0.1")) == (
        "The 'lr' parameter of SGD must be a number in [1e-30, 1e38]. Got '0.1' instead."
    )


def test_a_device_may_be_torchs_own_and_one_that_is_missing_is_refused() -> None:
    assert play(device=torch.device("cpu")).config["device"] == "cpu"
    if not torch.cuda.is_available():
        text = refusal(lambda: play(device="cuda"))
        assert "must be 'cpu', or 'cuda' or 'mps' where this machine and its torch have one. Got 'cuda'" in text
