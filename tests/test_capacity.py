"""Devices of different size: cutting, levels, what is counted, and HeteroFL's and ScaleFL's own parts."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel import capacity as sizes
from fedkeel import models, recipes
from fedkeel.aggregate import COVER, Reports, Sums, fold
from fedkeel.capacity import slicing
from fedkeel.capacity.exits import Heads, MultiExit
from fedkeel.cli import main
from fedkeel.conformance import MODES, Stairs, toy, toy_exits, toy_world
from fedkeel.engine.threads import Local, one_thread
from fedkeel.flat import FlatModel
from fedkeel.messages import Update
from fedkeel.run.training import prepare


def half(wide):
    return math.ceil(wide / 2)


def task_on(model, x, classes=3):
    y = np.arange(len(x)) % classes
    data = fk.FederatedData.from_arrays(x, y, clients=np.arange(len(x)) // 4, test=(x, y))
    return fk.Task(model, fk.cross_entropy, data, batch_size=4, lr=0.05, budget=fk.FixedSteps(2))


def heterofl_conv(classes=10):
    """The convolutional network of the HeteroFL paper for MNIST."""
    layers, inside = [], 1
    for width in (64, 128, 256, 512):
        layers += [nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width, track_running_stats=False), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if width < 512 else []
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        x = self.words(x)
        return self.head(self.norm(x + self.attention(x, x, x)[0]).mean(1))


IMAGES, WORDS = torch.rand(2, 1, 28, 28), torch.arange(18).view(2, 9) % 9
PLAIN = {  # nets whose cut channels are 0 where their weights are
    "dense": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 7), nn.Tanh(), nn.Linear(7, 3)), IMAGES),
    "convolutions": (lambda: models.deltasgd_cnn(dropout=False), IMAGES),
    "own lstm": (lambda: models.shakespeare_lstm(9, hidden=6), WORDS),
    "stairs": (Stairs, torch.rand(2, 4)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_narrow_model_computes_what_the_whole_does_with_its_other_weights_at_zero(name):
    make, x = PLAIN[name]
    model = FlatModel(make(), torch.float64)
    x = x.double() if x.is_floating_point() else x
    index, module = slicing.narrow(model, x, half)
    vector = torch.zeros_like(model.flat)
    vector[index] = model.flat[index]
    part = FlatModel(module, torch.float64)
    part.load(model.flat[index])
    model.load(vector)
    with torch.no_grad():
        assert torch.allclose(part.module.eval()(x), model.module.eval()(x), atol=1e-12)
    assert 0 < part.size < model.size


def test_torchs_lstm_is_cut_inside_each_gate():
    left = slicing.cut(nn.LSTM(3, 4), torch.arange(3), half)
    assert left.kept["weight_hh_l0"][0].tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert left.kept["weight_hh_l0"][1].tolist() == [0, 1]


def test_attention_is_cut_inside_each_head_and_runs():
    model = FlatModel(Attends())
    index, module = slicing.narrow(model, WORDS, half)
    left = slicing.cut(model.module.attention, torch.arange(4), half)
    assert left.kept["out_proj.weight"][1].tolist() == [0, 1, 4, 5]
    assert left.kept["in_proj_bias"][0].tolist() == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21]
    assert module(WORDS).shape == (2, 5) and len(index) == FlatModel(module).size
    with pytest.raises(fk.InputError, match=r"'attention'.*2 heads of 1 are not 1 channels; use a rate"):
        slicing.narrow(model, WORDS, lambda wide: math.ceil(wide / 8))


def test_a_residual_network_keeps_the_same_channels_on_both_ways():
    model = FlatModel(models.resnet8())
    index, module = slicing.narrow(model, torch.rand(2, 3, 8, 8), half)
    assert module.blocks[1].project[0].weight.shape == (16, 8, 1, 1)
    assert len(set(index.tolist())) == len(index) == FlatModel(module).size


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.tilt = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.tilt


class OddThatSays(Odd):
    def cut(self, inside, width):
        return fk.Cut({"tilt": (inside,)}, inside)


def test_a_layer_that_cannot_be_cut_is_named_and_may_say_how():
    with pytest.raises(fk.InputError, match=r"layer '1' \(Odd\) cannot be cut.*give it a method cut"):
        slicing.narrow(FlatModel(nn.Sequential(nn.Linear(3, 4), Odd(), nn.Linear(4, 2))), torch.rand(2, 3), half)
    says = FlatModel(nn.Sequential(nn.Linear(3, 4), OddThatSays(), nn.Linear(4, 2)))
    index, module = slicing.narrow(says, torch.rand(2, 3), half)
    assert module[1].tilt.shape == (2,) and len(index) == 8 + 2 + 6
    with pytest.raises(fk.InputError, match=r"at or after the layer 'blocks\.3"):  # it pads by widths it has fixed
        slicing.narrow(FlatModel(models.resnet20()), torch.rand(2, 3, 8, 8), half)
    groups = nn.Sequential(nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.LazyLinear(2))
    groups(IMAGES)
    with pytest.raises(fk.InputError, match=r"'1' .GroupNorm. cannot be cut: 3 channels do not make 2"):
        slicing.narrow(FlatModel(groups), IMAGES, half)
    running = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(fk.InputError, match="use track_running_stats=False"):
        slicing.narrow(FlatModel(running), torch.rand(2, 3), half)


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(fk.InputError, match="early exits, and Sequential has none; use heterofl"):
        fk.train(toy(), "scalefl", toy_world(), 1, checkpoint=tmp_path / "run")
    with pytest.raises(fk.InputError, match="cannot be cut"):
        fk.train(replace(toy(), model=Odd), "heterofl", toy_world(), 1, checkpoint=tmp_path / "run")
    assert not list(tmp_path.iterdir())


SCALEFL = {  # trained parameters with 10 and with 100 classes, and million products per picture, by level
    "resnet110_exits": ([157_453, 325_631, 783_402, 1_982_136], [159_523, 331_751, 794_472, 2_002_656],
                        [70.1, 90.8, 133.2, 274.4]),
    "msdnet24": ([279_370, 643_099, 1_380_319, 2_646_556], [286_930, 659_299, 1_409_749, 2_692_996],
                 [15.6, 32.4, 59.2, 101.4]),
}  # fmt: skip


@pytest.mark.extra  # slow
@pytest.mark.parametrize("name", SCALEFL)
def test_scalefls_levels_have_the_papers_sizes(name):
    few, many, products = SCALEFL[name]
    with one_thread():
        for classes, side, due in ((10, 32, few), (100, 8, many)):
            task = task_on(lambda c=classes: models.MODELS[name](classes=c), np.zeros((4, 3, side, side), np.float32))
            levels = fk.Exits().levels(FlatModel(task.model()), task)
            assert [len(level.index) for level in levels] == due
            if classes == 10:
                assert [round(level.flops / 6e6, 1) for level in levels] == products


def test_heterofls_levels_have_the_papers_sizes():
    task = task_on(heterofl_conv, np.zeros((4, 1, 28, 28), np.float32))
    with one_thread():
        levels = fk.Widths().levels(FlatModel(task.model()), task)
    assert [len(level.index) for level in levels] == [1_556_874, 391_370, 98_922, 25_274, 6_594]


def update_of(client, samples, steps, norms, delta):
    """What one client reports that saw one sample."""
    own, nobody, losses = np.array([client]), np.array([], dtype=np.int64), torch.ones(1, 1)
    return Update(0, own, nobody, samples, steps, norms, losses, delta, counts={"samples": 1})


def test_e12_elements_are_averaged_over_the_clients_that_trained_them():
    w = torch.arange(16.0, dtype=torch.float64)
    index = torch.arange(16).view(4, 4)[:2, :2].flatten()
    weights, total, one = fk.Uniform(), Sums(), torch.ones(1, 1, dtype=torch.float64)
    for place, delta in ((torch.arange(16), torch.ones(16)), (index, torch.full((4,), -3.0))):
        part = fold(update_of(len(total.clients), one, one, one, delta.double()[None]), weights)
        total.add(part.spread(place, 16, weights, flops=0))
    new = w + Reports.of_all(total, weights).delta
    want = [-1, 0, 3, 4, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert torch.allclose(new, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_e13_the_loss_over_exits():
    z = torch.tensor([[[1.0, 0, -1], [0.5, 0.5, 0], [2, -1, 0]]], dtype=torch.float64)
    plain = MultiExit(fk.cross_entropy)(z, torch.tensor([0])).item()
    assert plain == pytest.approx(0.4721973665, abs=1e-9)
    for mean, due in (("elements", 0.4772948959), ("batch", 0.4874899548)):
        rule = fk.SelfDistillation(0.05, mean=mean)
        assert plain + 0.05 * rule.divergence(z).item() == pytest.approx(due, abs=1e-9)


def test_distillation_begins_after_its_share_of_the_rounds():
    far, never = (fk.train(toy_exits(), f"scalefl:gamma={g},after=0.5", toy_world(), 4) for g in (1, 0))
    losses = [[row["loss"] for row in run.history] for run in (far, never)]
    assert losses[0][:3] == losses[1][:3] and losses[0][3:] != losses[1][3:]


@pytest.mark.parametrize("mode", MODES)
def test_level_4_alone_without_distillation_is_fedavg_on_the_loss_over_exits(mode):
    plain = "momentum=0,weight_decay=0"
    ours = fk.train(toy_exits(), f"scalefl:shares=0/0/0/1,gamma=0,{plain}", toy_world(), 4, engine=Local(mode, chunk=3))
    task = replace(toy(), model=lambda: Heads(Stairs(), 4), loss=MultiExit(fk.cross_entropy), metric=lambda o, y: 0.0)
    theirs = fk.train(task, "fedavg:weights=uniform", toy_world(), 4, engine=Local(mode, chunk=3))
    assert ours.config["engine"] == theirs.config["engine"] == mode
    assert torch.equal(ours.params, theirs.params)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["fedavg:level=1", "fedprox:level=2+gel", "heterofl:shares=0/0/1/0/1"])
def test_elements_nobody_trains_keep_every_bit(text, mode):
    run = fk.train(toy_exits(), text, toy_world(), 3, engine=mode)
    levels = fk.algorithm(text).capacity.levels(run.flat, toy_exits().cast(torch.float32, "cpu"))
    trained = torch.cat([level.index for level in levels if level]).unique()
    others = torch.ones(len(run.params), dtype=torch.bool)
    others[trained] = False
    assert others.any() and torch.equal(run.params[others], run.state.x0[others])
    assert not torch.equal(run.params[trained], run.state.x0[trained])


@pytest.mark.parametrize("part", ["fedprox", "fedyogi", "fedavgm", "fednova", "fathom", "gel", "fedavg:decay=step"])
@pytest.mark.parametrize("name", ["heterofl", "scalefl"])
def test_other_methods_go_with_levels_and_change_the_result(name, part):
    task = replace(toy(), exits=Stairs)
    both, alone = (fk.train(task, text, toy_world(), 3) for text in (f"{name}+{part}", name))
    assert both.status == "done" and not torch.equal(both.params, alone.params)


def test_fednovas_weights_are_over_the_clients_that_trained_an_element():
    """By hand: delta_e = tau_eff * sum_i (n_i / A_i) delta_i / sum_i n_i over the clients i that trained e."""
    weights, total = fk.Nova(), Sums()
    samples, norms = torch.tensor([[3.0], [1.0]]), torch.tensor([[2.0], [4.0]])
    for i, index in enumerate((torch.tensor([0, 1]), torch.tensor([0]))):
        delta, norm = torch.full((1, len(index)), float(1 + i)), norms[i : i + 1]
        part = fold(update_of(i, samples[i : i + 1], norm, norm, delta), weights)
        total.add(part.spread(index, 2, weights, flops=0))
    tau = (3 * 2 + 1 * 4) / 4
    want = torch.tensor([tau * (3 / 2 * 1 + 1 / 4 * 2) / 4, tau * (3 / 2 * 1) / 3])
    assert torch.allclose(Reports.of_all(total, weights).delta, want)
    assert total.sums[COVER].tolist() == [4, 3]


def test_levels_are_dealt_by_shares_kept_or_drawn_or_given():
    everybody = np.arange(40)
    fixed = fk.Exits(shares="1/1/2/0")
    first, later = (fixed.of(everybody, 0, t, 40) for t in (1, 2))
    assert np.bincount(first, minlength=4).tolist() == [10, 10, 20, 0]
    assert (first == later).all() and (first != fixed.of(everybody, 1, 1, 40)).any()
    drawn = fk.Exits(shares="1/1/2/0", assign="dynamic")
    assert (drawn.of(everybody, 0, 1, 40) != drawn.of(everybody, 0, 2, 40)).any()
    assert (drawn.of(everybody[5:], 0, 1, 40) == drawn.of(everybody, 0, 1, 40)[5:]).all()
    assert fk.Widths(assign=[0, 1, 4]).of(np.array([0, 2]), 0, 1, 3).tolist() == [0, 4]
    assert fk.Widths(assign=lambda t, i: (t + i) % 5).of(np.array([0, 3]), 0, 2, 9).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: fk.Widths(rates="1/2"), "'rates' parameter"), (lambda: fk.Widths(rates="x"), "not a list of numbers"),
        (lambda: fk.Widths(shares="1/1"), "one for each of the 5 rates"), (lambda: fk.Exits(shares="0/0"), "not all 0"),
        (lambda: fk.Widths(assign="some"), "'assign' parameter"), (lambda: fk.Widths(scaler="no"), "'scaler' param"),
        (lambda: fk.Widths(statistics=-1), "'statistics' parameter"), (lambda: fk.Exits(ratios="0"), "'ratios' param"),
        (lambda: fk.algorithm("fedavg:level=5"), "'level' param"), (lambda: fk.algorithm("fedavg:level=f"), "level"),
        (lambda: fk.algorithm("heterofl:level=a"), "levels twice; use one"),
        (lambda: fk.Algorithm(rules=[fk.SelfDistillation()]), "between early exits; use it with"),
        (lambda: fk.Widths(assign=[0, 1]).adapt(toy()), "Levels are given for 2 clients; the task has 7"),
        (lambda: fk.Widths(assign=[9] * 7).of(np.arange(7), 0, 1, 7), "is given level 9 in round 1; there are 0..4"),
        (lambda: fk.train(toy_exits(), "scalefl:shares=1/1", toy_world(), 1), "has 4 levels; give shares for each"),
    ],
)  # fmt: skip
def test_bad_levels_are_refused_in_one_line(make, word):
    with pytest.raises(fk.InputError, match=word) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_bytes_and_work_are_counted_per_level(mode):
    small, whole = (fk.train(toy_exits(), f"fedavg:level={i}", toy_world(), 2, engine=mode) for i in (1, 4))
    task = toy_exits().cast(torch.float32, "cpu")
    levels = [fk.Exits().levels(run.flat, task) for run in (small, whole)]
    for run, level in ((small, levels[0][0]), (whole, levels[1][3])):
        row = run.history[-1]
        assert row["bytes_up"] == row["bytes_down"] == 2 * 4 * 4 * len(level.index)
        assert row["flops"] == row["samples"] * level.flops
    assert small.history[-1]["gradients"] == whole.history[-1]["gradients"]
    assert "flops" not in fk.train(toy(), "fedavg", toy_world(), 1).history[-1]


def test_every_exit_has_its_accuracy_and_the_last_one_is_the_headline():
    row = fk.train(toy_exits(), "scalefl", toy_world(), 2).history[-1]
    assert row["accuracy"] == row["accuracy_exit4"]
    assert {f"accuracy_exit{i}" for i in range(1, 5)} <= row.keys()


def test_rows_of_classes_a_client_has_not_seen_do_not_count():
    x = np.random.default_rng(0).normal(size=(8, 4))
    data = fk.FederatedData.from_arrays(x, [0, 1, 0, 1, 1, 1, 1, 1], clients=[0] * 4 + [1] * 4)
    task = fk.Task(lambda: nn.Linear(4, 3), fk.cross_entropy, data, batch_size=4, lr=0.1, budget=fk.FixedSteps(2))
    run = fk.train(task, "heterofl:rates=1", fk.World("all"), 2)
    before, after = (FlatModel(nn.Linear(4, 3)).views(v) for v in (run.state.x0, run.params))
    assert torch.equal(before["weight"][2], after["weight"][2])  # weight decay does not touch it either
    first = fk.train(task, "heterofl:rates=1", fk.World([[0]]), 1)
    second = fk.train(task, "heterofl:rates=1", fk.World([[1]]), 1)
    together = fk.train(task, "heterofl:rates=1", fk.World("all"), 1)
    rows = [FlatModel(nn.Linear(4, 3)).views(r.params)["weight"] for r in (first, second, together)]
    assert torch.allclose(rows[2][0], rows[0][0]) and not torch.equal(rows[1][0], rows[0][0])
    assert torch.allclose(rows[2][1], (rows[0][1] + rows[1][1]) / 2)


def small_norm():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(144, 3)
    )


def test_evaluation_uses_the_mean_statistics_of_the_training_data_and_leaves_no_buffer():
    x = np.random.default_rng(0).normal(size=(24, 1, 8, 8)) + 1
    task = task_on(small_norm, x)
    runs = [fk.train(task, f"heterofl:statistics={n}", fk.World(3), 1) for n in ("all", 0)]
    assert torch.equal(runs[0].params, runs[1].params)
    model = runs[0].model()
    layer = model[1]
    hidden = model[0](torch.from_numpy(x).float()).detach()
    layer.running_mean, layer.running_var = hidden.mean((0, 2, 3)), hidden.var((0, 2, 3))
    want = fk.cross_entropy(model(torch.from_numpy(x).float()), task.data.y).mean().item()
    assert runs[0].history[-1]["loss"] == pytest.approx(want, rel=1e-5)
    assert not runs[0].state.buffers
    assert runs[0].history[-1]["bytes_up"] == runs[1].history[-1]["bytes_up"]


def test_the_scaler_divides_before_normalisation_in_training_or_always():
    x = torch.rand(2, 1, 8, 8)
    for always in (False, True):
        module = small_norm()
        slicing.scale(module, 0.5, always, x)
        seen = []
        module[1].layer.register_forward_pre_hook(lambda m, a, seen=seen: seen.append(a[0]))
        module.train()(x)
        module.eval()(x)
        plain = module[0](x)
        assert torch.equal(seen[0], plain / 0.5)
        assert torch.equal(seen[1], plain / 0.5 if always else plain)
    bare = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    slicing.scale(bare, 0.5, False, torch.rand(2, 3))
    assert isinstance(bare[0], slicing.Scaled) and isinstance(bare[2], nn.Linear)


def test_scalefl_does_not_scale_shortcuts_and_heterofl_does():
    x, found = torch.rand(2, 1, 28, 28), {}
    for shortcuts in (True, False):
        module = models.exit_net()
        slicing.scale(module, 0.5, True, x, shortcuts)
        found[shortcuts] = {name for name, layer in module.named_modules() if isinstance(layer, slicing.Scaled)}
    assert {name for name in found[True] if "project" in name} == found[True] - found[False] == {"blocks.2.project.1"}
    model = FlatModel(models.exit_net())
    data = fk.FederatedData.from_arrays(x, [0, 1], clients=[0, 1], test=(x, [0, 1]))
    level = fk.Exits().levels(model, fk.Task(models.exit_net, fk.cross_entropy, data))[2]
    scaled = [name for name, layer in level.model.module.named_modules() if isinstance(layer, slicing.Scaled)]
    assert scaled and not any("project" in name for name in scaled)


@pytest.mark.parametrize("text", ["heterofl:shares=1/0/2/0/1,assign=dynamic", "scalefl+gel:steps=5", "fedavg:level=b"])
def test_a_configuration_makes_the_same_algorithm_again(text):
    algorithm = fk.algorithm(text)
    assert recipes.nameable(algorithm)
    again = recipes.rebuild(json.loads(json.dumps(algorithm.parameters())), algorithm.spec)
    assert again == algorithm


def test_a_run_with_levels_is_saved_loaded_and_resumed(tmp_path):
    task = replace(toy(), exits=Stairs)  # the task's own model has no exits
    run = fk.train(task, "scalefl", toy_world(), 3, stop_after=1, checkpoint=tmp_path)
    whole = fk.train(task, "scalefl", toy_world(), 3)
    again = fk.resume(tmp_path, task)
    assert torch.equal(again.params, whole.params) and not torch.equal(run.params, whole.params)
    loaded = fk.load(tmp_path, task)
    assert torch.equal(loaded.params, whole.params) and isinstance(loaded.model(), Stairs)


def test_levels_given_by_a_function_say_that_the_run_cannot_be_repeated():
    algorithm = fk.Algorithm(capacity=fk.Widths(assign=lambda t, i: i % 5))
    config = fk.train(toy(), algorithm, toy_world(), 1).config
    assert not config["rerunnable"] and "algorithm" in config["why_not"]


@pytest.mark.parametrize("mode", MODES)
def test_a_group_of_mixed_levels_gives_what_its_clients_give_one_by_one(mode):
    apart, together = (
        fk.train(toy_exits(), "scalefl", toy_world(), 2, engine=Local(mode, chunk=n), dtype=torch.float64).params
        for n in (1, 4)
    )
    assert torch.allclose(apart, together, rtol=0, atol=1e-12)


def test_only_makes_everybody_the_same():
    assert sizes.only(2).shares == (0, 1, 0, 0) and sizes.only("A").shares == (1, 0, 0, 0, 0)


def test_the_table_says_what_accuracy_costs_where_arms_have_levels(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ["run", "digits", "heterofl", "fedavg:level=a", "fedavg", "--rounds", "1", "--out", "out"]
    assert main(run) == 0
    printed = capsys.readouterr().out
    assert "per MB" in printed and "per TFLOP" in printed
    arms = json.loads((tmp_path / "out" / "summary.json").read_text())["arms"]
    last = [json.loads(line) for line in (tmp_path / "out/heterofl/seed-0/history.jsonl").read_text().splitlines()][-1]
    traffic = (last["bytes_down"] + last["bytes_up"]) / 1e6
    assert arms[0]["accuracy_per_MB"] == pytest.approx(last["accuracy"] / traffic)
    assert arms[0]["accuracy_per_TFLOP"] == pytest.approx(last["accuracy"] / (last["flops"] / 1e12))
    assert "accuracy_per_TFLOP" not in arms[2]
    assert main(["run", "--config", "out/config.json", "--out", "again"]) == 0
    assert (tmp_path / "again/heterofl/seed-0/model.safetensors").read_bytes() == (
        tmp_path / "out/heterofl/seed-0/model.safetensors"
    ).read_bytes()
    single = tmp_path / "out/heterofl/seed-0/config.json"
    assert main(["run", "--config", str(single), "--out", "single"]) == 0
    assert (tmp_path / "single/model.safetensors").read_bytes() == (
        tmp_path / "out/heterofl/seed-0/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(("name", "word"), [("heterofl", "ceil(rate w)"), ("scalefl", "KL(softmax(z_L/T)")])
def test_explain_prints_the_papers_box(name, word, capsys):
    assert main(["explain", name]) == 0
    printed = capsys.readouterr().out
    assert word in printed and "cite:" in printed and "Delta = 0 where none did" in printed


def test_gel_guesses_five_steps_where_nobody_says_what_the_server_expects():
    job = prepare(toy_exits(), fk.algorithm("scalefl+gel"), fk.World(4, fk.Epochs(1)), 1, 0, None)
    assert next(rule for rule in job.algorithm.rules if isinstance(rule, fk.Guess)).steps == 5
    known = prepare(toy_exits(), fk.algorithm("scalefl+gel"), toy_world(), 1, 0, None)
    assert next(rule for rule in known.algorithm.rules if isinstance(rule, fk.Guess)).steps == "remaining"
    with pytest.raises(fk.InputError, match="expected_steps"):
        prepare(toy_exits(), fk.algorithm("gel"), fk.World(4, fk.Epochs(1)), 1, 0, None)


def test_a_model_with_running_statistics_is_refused_before_anything_is_written():
    images = IMAGES.repeat(8, 1, 1, 1)
    task = task_on(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), images)
    with pytest.raises(fk.InputError, match="track_running_stats=False"):
        prepare(task, fk.algorithm("fedavg:level=a"), fk.World(2), 1, 0, None)
