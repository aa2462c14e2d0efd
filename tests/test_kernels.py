"""C only when asked for: what is the same without a compiler, what stops a run, and who else trains by kernels."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.engine import kernels
from fedkeel.engine.kernels import chain, convolution, native
from fedkeel.engine.probe import probe
from fedkeel.errors import InputError
from fedkeel.files import read_json, write_json

compiler = pytest.mark.skipif(
    not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))), reason="no C compiler here"
)
SMALL = ["run", "synthetic:users=25"]  # a chain in lockstep


def pictures(model, shape=(1, 12, 12)):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, *shape, generator=draw), torch.randint(4, (80,), generator=draw)
    data = fk.FederatedData.from_arrays(x, y, clients=[client for client in range(8) for _ in range(10)], test=(x, y))
    return fk.Task(model, fk.cross_entropy, data, batch_size=5, lr=0.05, budget=fk.FixedSteps(3))


def wide_cnn():
    """32 channels, 16 at half the width: kernels for both."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(512, 4),
    )  # fmt: skip


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def no_compiler(monkeypatch):
    """No C compiler, and nothing that an earlier one made."""
    for made in (native._build, convolution.library):
        made.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    yield
    for made in (native._build, convolution.library):
        made.cache_clear()


def contents(folder):
    """Every file but the mark, which names the process that wrote last."""
    found = [file for file in folder.rglob("*") if file.is_file() and file.name != ".fedkeel.json"]
    return {file.relative_to(folder): file.read_bytes() for file in found}


@pytest.mark.parametrize("task", ["synthetic:users=25", "digits"])
def test_a_command_gives_the_same_bits_with_and_without_a_compiler(task, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for name, change in (("with", {}), ("without", {"CC": "no-such-compiler", "PATH": str(empty)})):
        command = [
            sys.executable,
            "-m",
            "fedkeel",
            "run",
            task,
            "gel:steps=2",
            "--rounds",
            "2",
            "--out",
            str(tmp_path / name),
        ]
        subprocess.run([*command, "--seeds", "1"], check=True, capture_output=True, env=os.environ | change)
    first, second = (fk.load(tmp_path / name) for name in ("with", "without"))
    assert torch.equal(first.params, second.params)
    assert first.config == second.config and first.config["compile"] is False
    for one, other in zip(first.history, second.history, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }


def test_nothing_is_compiled_unless_it_is_asked_for(monkeypatch):
    def never(*given):
        raise AssertionError("compiled")

    monkeypatch.setattr(native, "build", never)
    monkeypatch.setattr(chain, "build", never)
    monkeypatch.setattr(convolution, "build", never)
    for model, mode in ((perceptron, "batched"), (wide_cnn, "serial"), (wide_cnn, "probe")):
        run = fk.train(pictures(model), "fedavg", rounds=1, engine=mode)
        assert run.config["compile"] is False


SEVERAL = ["fedavg", "gel", "--seeds", "2"]


@pytest.mark.parametrize("words", [["fedavg", "--seeds", "1"], SEVERAL, [*SEVERAL, "--engine", "probe"]])
def test_a_command_without_a_compiler_stops_with_one_line_and_writes_nothing(words, no_compiler, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*SMALL, *words, "--rounds", "1", "--compile", "--out", str(out)]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("fedkeel: compile=True needs a C compiler: the C compiler 'no-such-compiler' does not run.")
    assert "\n" not in told and not out.exists()


def test_a_sweep_without_a_compiler_stops_with_one_line_and_writes_nothing(no_compiler, tmp_path, capsys):
    out, words = tmp_path / "out", ["sweep", "synthetic:users=25", "fedavg", "--grid", "lr=0.01,0.1"]
    assert main([*words, "--rounds", "1", "--compile", "--out", str(out)]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("fedkeel: compile=True needs a C compiler") and "\n" not in told and not out.exists()


@compiler
@pytest.mark.parametrize("words", [["fedavg", "--seeds", "1"], SEVERAL])
def test_a_command_without_a_kernel_stops_with_one_line_and_writes_nothing(words, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*SMALL, *words, "--rounds", "1", "--compile", "--engine", "serial", "--out", str(out)]) == 2
    told = capsys.readouterr().err.strip()
    assert "compile=True has no C kernel for this model where clients run serial" in told
    assert "\n" not in told and not out.exists()


@compiler
@pytest.mark.parametrize("words", [["fedavg", "--seeds", "1"], SEVERAL])
def test_a_command_whose_kernel_differs_stops_with_one_line_and_writes_nothing(words, monkeypatch, tmp_path, capsys):
    honest, out = chain.gradients, tmp_path / "out"

    def altered(task, model):
        def gradients(*given):
            g, loss = honest(task, model)(*given)
            return 1.1 * g, loss

        return gradients

    monkeypatch.setattr(chain, "gradients", altered)
    assert main([*SMALL, *words, "--rounds", "1", "--compile", "--out", str(out)]) == 2
    told = capsys.readouterr().err.strip()
    assert told == "fedkeel: The compiled gradients of this model differ from torch's; leave out --compile."
    assert not out.exists()


@compiler
@pytest.mark.parametrize("compile", [True, False])
def test_the_configuration_says_whether_kernels_are_used_and_a_repetition_keeps_it(compile, tmp_path):
    flags = ["--compile"] if compile else []
    assert main([*SMALL, *SEVERAL, "--rounds", "2", *flags, "--out", str(tmp_path / "all")]) == 0
    assert main([*SMALL, "fedavg", "--seeds", "1", "--rounds", "2", *flags, "--out", str(tmp_path / "one")]) == 0
    found = [read_json(file)["compile"] for file in tmp_path.rglob("config.json")]
    assert found == [compile] * 6
    assert main(["run", "--config", str(tmp_path / "one" / "config.json"), "--out", str(tmp_path / "again")]) == 0
    again, one = fk.load(tmp_path / "again"), fk.load(tmp_path / "one")
    assert again.config["compile"] is compile and torch.equal(again.params, one.params)


@compiler
def test_a_stopped_command_is_resumed_with_its_kernels_or_not_at_all(monkeypatch, tmp_path, capsys):
    engine, settings = fk.Local("batched", compile=True), {"rounds": 4, "checkpoint": tmp_path}
    whole = fk.train(fk.tasks.get("synthetic:users=25"), "fedavg", rounds=4, engine=engine)
    fk.train(fk.tasks.get("synthetic:users=25"), "fedavg", engine=engine, **settings, stop_after=2)
    before = contents(tmp_path)
    native._build.cache_clear()
    with monkeypatch.context() as without:
        without.setenv("CC", "no-such-compiler")
        assert main(["resume", str(tmp_path)]) == 2
    assert "needs a C compiler" in capsys.readouterr().err and contents(tmp_path) == before
    assert main(["resume", str(tmp_path)]) == 0
    assert torch.equal(fk.load(tmp_path).params, whole.params) and read_json(tmp_path / "config.json")["compile"]


def test_a_comparison_that_has_ended_is_read_without_a_compiler(no_compiler, tmp_path, monkeypatch):
    arguments = [*SMALL, *SEVERAL, "--rounds", "1", "--out", str(tmp_path)]
    assert main(arguments) == 0
    for file in tmp_path.rglob("*.json"):
        known = read_json(file)
        if file.name in ("config.json", "outcome.json"):
            known.get("config", known)["compile"] = True
            write_json(file, known)
    assert main(["resume", str(tmp_path)]) == 0


LEVELS = {  # with the algorithm, the mode, and the kernel that has to run
    "a convolutional network": (wide_cnn, "heterofl:rates=1/0.5", "serial", "convolutions"),
    "a chain in lockstep": (perceptron, "heterofl:rates=1/0.5,mask=false,scaler=false", "batched", "a chain of layers"),
}


@compiler
@pytest.mark.parametrize(("model", "algorithm", "mode", "kernel"), LEVELS.values(), ids=LEVELS)
def test_sub_models_train_by_kernels_and_learn_the_same(model, algorithm, mode, kernel, monkeypatch):
    made, honest = [], kernels.compiled
    monkeypatch.setattr(kernels, "compiled", lambda *a, **k: made.append(honest(*a, **k)) or made[-1])

    def play(compile, workers=1):
        engine = fk.Local(mode, workers, chunk=2, compile=compile)
        return fk.train(pictures(model), algorithm, fk.World("all"), rounds=3, engine=engine)

    plain, run = play(False), play(True)
    assert made and all(made)  # of the whole model and of both levels
    assert f"; {kernel} compiled in" in run.config["engine_reason"] and run.config["compile"] is True
    assert torch.allclose(run.params, plain.params, atol=1e-4) and not torch.equal(run.params, plain.params)
    for workers in (2, 3):
        assert torch.equal(run.params, play(True, workers).params)


@compiler
def test_a_level_whose_sizes_do_not_fit_stays_torchs_beside_one_whose_do(monkeypatch):
    seen, honest = [], convolution.Compiled.train
    monkeypatch.setattr(convolution.Compiled, "train", lambda s, x: seen.append(x.shape[1]) or honest(s, x))

    def play(compile):
        engine = fk.Local("serial", compile=compile)
        return fk.train(pictures(wide_cnn), "heterofl:rates=1/0.25", fk.World("all"), rounds=2, engine=engine)

    plain, run = play(False), play(True)
    assert set(seen) == {32} and torch.allclose(run.params, plain.params, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["heterofl:rates=1/0.5", "moon"])
def test_a_chain_whose_loss_a_rule_changes_has_no_kernel_and_no_hint(algorithm):
    run = fk.train(pictures(perceptron), algorithm, fk.World("all"), rounds=1, engine="batched")
    assert kernels.HINT not in run.config["engine_reason"]
    with pytest.raises(InputError, match=r"no C kernel for a loss that a rule changes where clients run batched"):
        fk.train(pictures(perceptron), algorithm, fk.World("all"), rounds=1, engine=fk.Local("batched", compile=True))


@compiler
def test_a_narrow_chain_whose_activations_are_scaled_stays_torchs_beside_the_whole_one():
    def play(compile, workers=1):
        engine = fk.Local("batched", workers, compile=compile)
        return fk.train(
            pictures(perceptron), "heterofl:rates=1/0.5,mask=false", fk.World("all"), rounds=3, engine=engine
        )

    plain, run = play(False), play(True)
    assert torch.allclose(run.params, plain.params, atol=1e-4) and run.config["compile"] is True
    assert torch.equal(run.params, play(True, 2).params)


@compiler
@pytest.mark.parametrize("algorithm", ["fedavgcm", "gel:steps=2", "fedprox", "scaffold"])
def test_a_compiled_chain_learns_what_torch_does_with_any_number_of_workers(algorithm):
    def play(compile, workers=1):
        engine = fk.Local("batched", workers, chunk=2, compile=compile)
        return fk.train(pictures(perceptron), algorithm, fk.World("all"), rounds=3, engine=engine)

    plain, run = play(False), play(True)
    assert torch.allclose(run.params, plain.params, rtol=1e-4, atol=1e-6)
    assert torch.equal(run.params, play(True, 3).params)


def test_the_hint_stands_where_there_is_a_kernel_and_nowhere_else():
    def reason(model, mode, **settings):
        return fk.train(pictures(model), "fedavg", rounds=1, engine=mode, **settings).config["engine_reason"]

    assert reason(perceptron, "batched").endswith(f"; {kernels.HINT}")
    assert reason(wide_cnn, "serial").endswith(f"; {kernels.HINT}")
    assert kernels.HINT not in reason(perceptron, "serial")
    assert kernels.HINT not in reason(wide_cnn, "batched")
    assert kernels.HINT not in reason(wide_cnn, "serial", dtype="float64")
    assert kernels.HINT not in reason(
        lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(800, 4)), "auto"
    )


def test_the_end_of_a_command_says_that_there_is_compile_where_a_run_would_gain(tmp_path, capsys):
    ending = "--compile trains this model by C kernels"
    assert main([*SMALL, "fedavg", "--seeds", "1", "--rounds", "1", "--out", str(tmp_path / "a"), "-v"]) == 0
    told = capsys.readouterr()
    assert ending in told.out and kernels.HINT in told.err  # the latter by -v
    assert (
        main([*SMALL, "fedavg", "--seeds", "1", "--rounds", "1", "--engine", "serial", "--out", str(tmp_path / "b")])
        == 0
    )
    assert ending not in capsys.readouterr().out


@compiler
def test_a_probe_measures_lockstep_by_the_kernel_that_would_run():
    task = pictures(perceptron).cast(torch.float32, "cpu")
    model, calls = task.adopt(0, torch.float32, "cpu"), []
    made = kernels.compiled(task, model, "batched")
    counted = kernels.Kernels(lambda *given: calls.append(0) or made.plain(*given), made.summary)
    assert "ms batched" in probe(task, model, 1, None, counted)[1] and calls


def test_a_model_that_does_not_take_its_data_is_refused_in_the_same_words_as_ever():
    class Refuses(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.scores, self.calls = nn.Conv2d(16, 16, 3), nn.Linear(16, 4), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("never twice")
            return self.scores(self.conv(x).mean((2, 3)))

    task = pictures(Refuses, (16, 8, 8)).cast(torch.float32, "cpu")
    model = task.adopt(0, torch.float32, "cpu")
    assert not kernels.would_gain(task, model, "serial")
    with pytest.raises(InputError, match=r"The model fails .*never twice"):
        fk.train(task, "fedavg", rounds=1, engine="serial")


def test_compile_is_true_or_false():
    with pytest.raises(InputError, match="compile"):
        fk.Local(compile=None)
