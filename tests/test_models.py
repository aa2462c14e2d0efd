"""The papers' models: their exact sizes, and an LSTM that agrees with torch's."""

import math
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

import fedkeel as fk
from fedkeel import models
from fedkeel.engine import choose
from fedkeel.flat import FlatModel
from fedkeel.models.resnet import Block


def size(model):
    return sum(p.numel() for p in model.parameters())


def image(side, colors=1):
    return torch.randn(3, colors, side, side)


def tokens(length, symbols=80):
    return torch.randint(0, symbols, (3, length))


SIZES = [  # name, arguments, parameters, input, output after the batch
    ("softmax_regression", {}, 305, torch.randn(3, 60), (5,)),
    ("softmax_regression", {"classes": 10}, 610, torch.randn(3, 60), (10,)),
    ("softmax_regression", {"features": 784, "classes": 10}, 7850, image(28), (10,)),
    ("mnist_mlp", {}, 79510, image(28), (10,)),
    ("gel_cnn", {}, 608_702, image(28), (62,)),
    ("gel_cnn", {"padding": 2}, 1_690_046, image(28), (62,)),
    ("fathom_cnn", {}, 1_206_590, image(28), (62,)),
    ("deltasgd_cnn", {}, 21_840, image(28), (10,)),
    ("deltasgd_cnn", {"dropout": False}, 21_840, image(28), (10,)),
    ("lenet", {}, 797_962, image(32, 3), (10,)),
    ("lenet", {"classes": 100}, 815_332, image(32, 3), (100,)),
    ("small_lenet", {}, 31_578, image(16, 3), (10,)),
    ("resnet8", {}, 78_042, image(32, 3), (10,)),
    ("resnet8", {"classes": 100, "norm": "batch"}, 83_892, image(32, 3), (100,)),
    ("resnet20", {}, 269_722, image(32, 3), (10,)),
    ("resnet20", {"classes": 100}, 275_572, image(32, 3), (100,)),
    ("resnet110", {}, 1_730_714, image(8, 3), (10,)),
    ("resnet110", {"classes": 100}, 1_736_564, image(8, 3), (100,)),
    ("resnet110_exits", {}, 1_982_136, image(8, 3), (10,)),
    ("exit_net", {}, 85_464, image(28, 1), (10,)),
    ("msdnet24", {}, 2_646_556, image(32, 3), (10,)),
    ("msdnet24", {"classes": 100}, 2_692_996, image(32, 3), (100,)),
    ("resnet18", {}, 11_173_962, image(8, 3), (10,)),
    ("resnet50", {"norm": "batch"}, 23_520_842, image(8, 3), (10,)),
    ("shakespeare_lstm", {}, 819_920, tokens(80), (80,)),
    ("shakespeare_lstm", {"biases": 1}, 817_872, tokens(80), (80,)),
    ("shakespeare_lstm", {"biases": 1, "symbols": 90}, 820_522, tokens(80), (90,)),
    ("shakespeare_lstm", {"hidden": 100}, 133_520, tokens(80), (80,)),
    ("stackoverflow_lstm", {}, 4_050_748, tokens(4), (10_004, 4)),
    ("stackoverflow_lstm", {"every": False}, 4_050_748, tokens(4), (10_004,)),
    ("sent140_lstm", {}, 1_173_986, tokens(25), (2,)),
]


@pytest.mark.parametrize(("name", "given", "parameters", "x", "shape"), SIZES)
def test_a_model_has_the_papers_size_and_maps_a_batch_to_scores(name, given, parameters, x, shape):
    with torch.device("meta"):  # shapes without the arithmetic
        model = models.MODELS[name](**given)
    assert size(model) == parameters
    assert model.eval()(x.to("meta")).shape == (3, *shape)
    assert not list(model.buffers())


def test_the_table_names_every_model_and_every_model_is_tested():
    from_hub = {"mobilenet_v2", "vit_b16", "distilbert"}
    assert {name for name, *_ in SIZES} | from_hub == set(models.MODELS)
    assert all(getattr(models, name) is make for name, make in models.MODELS.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("layers", "time"), [(1, 1), (1, 5), (2, 20)])
def test_lstm_agrees_with_torch_in_outputs_and_gradients(dtype, layers, time):
    torch.manual_seed(0)
    theirs = nn.LSTM(6, 10, layers, batch_first=True).to(dtype)
    ours = models.LSTM(6, 10, layers).to(dtype)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    ours.load_state_dict(theirs.state_dict())
    x = [torch.randn(4, time, 6, dtype=dtype).requires_grad_()]
    x.append(x[0].detach().clone().requires_grad_())
    weighing = torch.randn(4, time, 10, dtype=dtype)
    outputs = theirs(x[0])[0], ours(x[1])
    for output in outputs:
        (output * weighing).mean().backward()
    near = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6 if dtype == torch.float32 else 1e-14)
    near(outputs[1], outputs[0])
    near(x[1].grad, x[0].grad)
    for mine, torchs in zip(ours.parameters(), theirs.parameters(), strict=True):
        near(mine.grad, torchs.grad)


def test_lstm_with_one_bias_is_torchs_with_the_other_at_zero():
    theirs, ours = nn.LSTM(3, 4, batch_first=True).double(), models.LSTM(3, 4, biases=1).double()
    theirs.load_state_dict({**ours.state_dict(), "bias_hh_l0": torch.zeros(16).double()})
    x = torch.randn(2, 5, 3).double()
    torch.testing.assert_close(ours(x), theirs(x)[0], rtol=0, atol=1e-14)


def test_lstm_gradients_pass_a_finite_difference_check():
    torch.manual_seed(0)
    model, x = models.LSTM(2, 3, 2).double(), torch.randn(2, 4, 2).double()
    names = [name for name, _ in model.named_parameters()]
    values = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    assert torch.autograd.gradcheck(
        lambda *p: functional_call(model, dict(zip(names, p, strict=True)), (x,)), values, check_undefined_grad=False
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # alone, the first is torch's own kernel
@pytest.mark.parametrize("shared", ["nothing", "inputs", "parameters"])
def test_lstm_along_the_client_axis_is_one_client_at_a_time(shared, dtype):
    torch.manual_seed(0)
    model = models.LSTM(3, 5, 2).to(dtype)
    params = {k: torch.stack([v.detach() + 0.3 * i for i in range(4)]) for k, v in model.named_parameters()}
    x = torch.randn(4, 2, 6, 3).to(dtype)
    if shared == "inputs":
        x = x[0]
    if shared == "parameters":
        params = {k: v[0] for k, v in params.items()}
    params = {k: v.requires_grad_() for k, v in params.items()}
    dims = (None if shared == "parameters" else 0, None if shared == "inputs" else 0)
    outputs = vmap(lambda p, x: functional_call(model, p, (x,)), dims)(params, x)
    slopes = torch.autograd.grad(outputs.square().sum(), list(params.values()))

    alone = [
        functional_call(
            model,
            {k: v if shared == "parameters" else v[i] for k, v in params.items()},
            (x if shared == "inputs" else x[i],),
        )
        for i in range(4)
    ]
    close = 1e-5 if dtype == torch.float32 else 1e-12
    near = partial(torch.testing.assert_close, rtol=close, atol=close)
    near(outputs, torch.stack(alone))
    oracle = torch.autograd.grad(torch.stack(alone).square().sum(), list(params.values()))
    for mine, expected in zip(slopes, oracle, strict=True):
        near(mine, expected)


@pytest.mark.parametrize("shape", [(2, 4, 2), (2, 4, 7), (2, 2, 4, 3)])
def test_lstm_refuses_samples_of_another_width(shape):
    """torch's kernel, called as it is, would read beyond them."""
    with pytest.raises(RuntimeError):
        models.LSTM(3, 5)(torch.randn(shape))


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "bias_hh_l1"])
def test_lstm_with_a_parameter_of_another_shape_is_not_left_to_the_kernel(name):
    model = models.LSTM(3, 5, 2)
    setattr(model, name, nn.Parameter(getattr(model, name)[:10].clone()))
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 4, 3))


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3)])
def test_lstm_of_nothing_is_nothing(shape):
    assert models.LSTM(3, 5)(torch.zeros(shape)).shape == (*shape[:2], 5)


def test_lstm_that_nothing_comes_back_to_has_no_derivative():
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, d):
            return None

    model = models.LSTM(3, 5).double()
    Stop.apply(model(torch.randn(2, 4, 3).double())).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_lstm_refuses_second_derivatives_it_does_not_have():
    model, x = models.LSTM(2, 3).double(), torch.randn(1, 2, 2, dtype=torch.double, requires_grad=True)
    with pytest.raises(fk.FedkeelError, match="LSTM has first derivatives only"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


def toy_task(model, x, classes, clients=None):
    y = torch.randint(0, classes, (len(x),))
    data = fk.FederatedData.from_arrays(x, y, clients=clients or [i % 4 for i in range(len(x))], test=(x, y))
    return fk.Task(model=model, loss=fk.cross_entropy, data=data, batch_size=3)


CLIENT_AXIS_MODELS = {
    "shakespeare_lstm": (partial(models.shakespeare_lstm, symbols=12, hidden=6), (7,), 12),
    "small_lenet": (models.small_lenet, (3, 16, 16), 10),
    "deltasgd_cnn": (partial(models.deltasgd_cnn, dropout=False), (1, 28, 28), 10),
    "resnet20": (models.resnet20, (3, 8, 8), 10),
    "resnet8": (models.resnet8, (3, 8, 8), 10),
    "resnet8 with BatchNorm": (partial(models.resnet8, norm="batch"), (3, 8, 8), 10),
}


@pytest.mark.parametrize("name", CLIENT_AXIS_MODELS)
def test_both_engine_modes_train_the_same_model(name):
    torch.manual_seed(0)
    make, shape, classes = CLIENT_AXIS_MODELS[name]
    task = toy_task(
        make, torch.randn(22, *shape) if len(shape) > 1 else torch.randint(0, classes, (22, *shape)), classes
    )
    runs = [  # in double precision, where rounding hardly ever carries a ReLU over its edge
        fk.train(
            task, "fedavg:lr=0.05", fk.World(budget=fk.UniformSteps(1, 3)), rounds=1, engine=mode, dtype=torch.float64
        )
        for mode in (fk.Local("serial", workers=1), fk.Local("batched", workers=1))
    ]
    assert [run.config["engine"] for run in runs] == ["serial", "batched"]
    moved = [run.params - run.state.x0 for run in runs]
    assert (moved[1] - moved[0]).norm() <= 1e-10 * moved[0].norm()
    assert moved[0].norm() > 0


def test_models_with_running_statistics_or_masks_do_not_claim_a_client_axis():
    def running():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))

    for make, x in ((running, torch.randn(8, 3, 8, 8)), (models.deltasgd_cnn, torch.randn(8, 1, 28, 28))):
        task = toy_task(make, x, 10)
        assert choose.no_client_axis(task, FlatModel(task.model())) is not None


@pytest.mark.parametrize("algorithm", ["fedavg:lr=0.05", "mime:lr=0.05", "moon:lr=0.05"])
def test_padding_does_not_enter_the_statistics_of_a_batch(algorithm):
    torch.manual_seed(0)
    owners = [0] * 2 + [1] * 3 + [2] * 7 + [3] * 2 + [4]  # batches of 3: clients 0, 3 and 4 have fewer samples
    task = toy_task(lambda: Normalised(), torch.randn(len(owners), 3, 8, 8), 10, owners)
    world, wide = fk.World(budget=fk.UniformSteps(1, 3)), torch.float64
    runs = [fk.train(task, algorithm, world, rounds=2, engine=mode, dtype=wide) for mode in ("serial", "batched")]
    assert [run.config["engine"] for run in runs] == ["serial", "batched"]
    moved = [run.params - run.state.x0 for run in runs]
    assert (moved[1] - moved[0]).norm() <= 1e-10 * moved[0].norm()
    assert moved[0].norm() > 0


class Normalised(nn.Module):
    """A convolution, normalisation by the batch, a dense layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Tanh())
        self.dense = nn.Linear(4, 10)

    def represent(self, x):
        return self.body(x).square().mean((-2, -1))

    def classify(self, z):
        return self.dense(z)

    def forward(self, x):
        return self.classify(self.represent(x))


def test_auto_trains_models_with_batch_statistics_one_client_at_a_time():
    task = toy_task(Normalised, torch.randn(8, 3, 8, 8), 10)
    mode, why = choose.choose("auto", task, FlatModel(task.model()))
    assert mode == "serial" and "normalisation by the batch" in why


def test_batch_norm_uses_the_batch_in_training_and_at_test():
    model, x = models.resnet8(norm="batch"), torch.randn(6, 3, 16, 16)
    assert torch.equal(model.train()(x), model.eval()(x))
    assert not torch.allclose(model(x)[:2], model(x[:2]), atol=1e-3)


def test_group_norm_treats_samples_alone():
    model, x = models.resnet8(), torch.randn(6, 3, 16, 16)
    torch.testing.assert_close(model(x)[:2], model(x[:2]))
    groups = {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)}
    assert groups == {2}


def test_resnet_weights_are_kaiming_normal():
    torch.manual_seed(0)
    for layer in models.resnet20().modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 4000:
            fan_in = layer.weight[0].numel()
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.08)


def test_the_shortcut_without_parameters_subsamples_and_pads_with_zero_channels():
    block, x = Block(4, 8, 2, nn.Identity, False), torch.randn(1, 4, 6, 6)
    short = block._pad(x)
    assert torch.equal(short[:, 2:6], x[..., ::2, ::2])
    assert not short[:, :2].any() and not short[:, 6:].any()
    nn.init.zeros_(block.conv2.weight)
    assert torch.equal(block(x), short.relu())


def test_dropout_is_active_in_training_only():
    for make in (models.fathom_cnn, models.deltasgd_cnn):
        model, x = make(), image(28)
        assert torch.equal(model.eval()(x), model(x))
        assert not torch.equal(model.train()(x), model(x))
        without = make(dropout=False).train()
        assert torch.equal(without(x), without(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.resnet8(norm="layer"), "'norm' parameter of ResNet must be 'group' or 'batch'. Got 'layer'"),
        (lambda: models.resnet8(groups=3), "'groups' parameter of ResNet must be a divisor of 16. Got 3"),
        (lambda: models.lenet(size=12), "Images of 12 x 12 are too small"),
        (lambda: models.LSTM(3, 0), "'hidden' parameter of LSTM must be an integer >= 1. Got 0"),
        (lambda: models.LSTM(3, 4, biases=0), "'biases' parameter of LSTM must be 1 or 2. Got 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(fk.InputError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["mobilenet_v2", "vit_b16", "distilbert"])
def test_without_transformers_the_error_has_the_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(fk.MissingExtra, match=r'needs transformers: pip install "transformers>=4.40" "datasets>=2.14"'):
        models.MODELS[name]()


def test_models_from_transformers_have_the_papers_sizes():
    pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.device("meta"):  # sizes without the memory
        assert size(models.mobilenet_v2(classes=2028)) == 4_821_740
        assert size(models.vit_b16(classes=1000)) == 86_567_656
        assert size(models.distilbert(classes=4)) == 66_956_548


def test_distilbert_does_not_read_padding():
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = models.distilbert().eval()
    text = torch.randint(1, 99, (1, 6))
    padded = torch.cat([text, torch.zeros(1, 3, dtype=torch.long)], 1)
    torch.testing.assert_close(model(padded), model(text))
    model.padding = -1
    assert not torch.allclose(model(padded), model(text), atol=1e-6)


def test_msdnet_has_an_answer_at_each_of_its_four_exits():
    torch.manual_seed(0)
    net = models.msdnet24(classes=7)
    x = torch.randn(2, 3, 32, 32)
    answers = net.exits(x)
    assert [tuple(answer.shape) for answer in answers] == [(2, 7)] * 4
    assert torch.equal(net(x), answers[-1])
    assert not dict(net.named_buffers())
    answers[0].sum().backward()  # an early exit does not reach the layers after it
    assert net.layers[14][0].same[-1][0][0].weight.grad is not None
    assert net.layers[15][0].same[-1][0][0].weight.grad is None
