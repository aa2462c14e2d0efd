import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.conformance import MODES, quadratics, toy, toy_world
from fedkeel.engine.threads import Local


def play(algorithm="fedavg", rounds=4, **settings):
    return fk.train(settings.pop("task", toy()), algorithm, settings.pop("world", toy_world()), rounds, **settings)


def bare(history):
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in history]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0), ("rounds", 2.0), ("seed", -1), ("seed", 2**63), ("seed", "x"), ("batch_size", 0),
        ("eval_every", 0), ("every", 0), ("stop_after", 0), ("dtype", torch.float16), ("task", "synthetic"),
        ("algorithm", fk.SGD(0.1)), ("algorithm", None), ("world", 20), ("engine", None), ("device", "abacus"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_by_name(name, value):
    with pytest.raises(fk.InputError, match=f"'{name}' parameter of train must be"):
        play(**{name: value})


@pytest.mark.parametrize("keys", [{"mode": "fast"}, {"workers": 0}, {"chunk": 0}])
def test_a_bad_engine_is_refused(keys):
    with pytest.raises(fk.InputError, match="parameter of Local must be"):
        Local(**keys)
    with pytest.raises(fk.InputError, match="'mode' parameter of Local"):
        play(engine="probably")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_command_gives_the_same_bits(mode):
    one, two = play("fedyogi+gel", engine=mode), play("fedyogi+gel", engine=mode)
    assert torch.equal(one.params, two.params)
    assert bare(one.history) == bare(two.history)


def test_the_callers_settings_are_restored():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        state = torch.get_rng_state()
        play()
        assert torch.get_num_threads() == 2
        assert torch.equal(state, torch.get_rng_state())
        with pytest.raises(fk.ClientError):
            play(task=replace(toy(), loss=fails_on_gradient))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_params_are_in_the_order_of_the_models_parameters():
    run = play()
    assert torch.equal(run.params, torch.cat([p.detach().flatten() for p in run.model().parameters()]))
    assert run.params.shape == (4 * 5 + 5 + 5 * 3 + 3,)


def test_callbacks_see_every_row_and_may_stop_the_run():
    rows = []
    run = play(rounds=6, callbacks=[lambda row: row["round"] == 3, rows.append])
    assert run.status == "stopped"
    assert [row["round"] for row in rows] == [0, 1, 2, 3]


def test_a_stop_leaves_the_plan_as_it_was():
    run = play(rounds=6, stop_after=2)
    assert (run.status, run.config["rounds"], run.history[-1]["round"]) == ("stopped", 6, 2)
    assert play(rounds=2, stop_after=2).status == "done"


def fails_on_gradient(output, target):
    if torch.is_grad_enabled():
        raise ZeroDivisionError("no such thing")
    return fk.cross_entropy(output, target)


class FailsAt(fk.Rule):
    def objective(self, f, me, y, batch):
        g, value = f(y, batch)
        if me.facts.round == 2 and batch.step == 1 and 5 in me.site.clients[: len(y)]:
            raise KeyError("lost")
        return g, value


def test_an_error_on_a_client_names_round_client_and_step():
    world = fk.World([[1, 5]], fk.FixedSteps(3))
    where = r"\(in objective, line \d+ of test_training.py\)"
    with pytest.raises(fk.ClientError, match=rf"^Round 2, client 5, step 2: KeyError: 'lost' {where}$"):
        play(fk.Algorithm(rules=[FailsAt()]), world=world, engine="serial")
    with pytest.raises(fk.ClientError, match=r"^Round 2, one of the clients \[1, 5\], step 2: KeyError"):
        play(fk.Algorithm(rules=[FailsAt()]), world=world, engine="batched")


class Poison(fk.Rule):
    """Some clients' updates are not numbers."""

    def __init__(self, bad, value=torch.nan):
        self.bad, self.value = bad, value

    def walk(self, go, me, y):
        end = go(y)
        for row, client in enumerate(me.site.clients):
            if self.bad(me.facts.round, client):
                y[row, 0] = self.value
        return end


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("mode", MODES)
def test_a_non_finite_client_is_dropped_counted_and_weighs_nothing(mode, value):
    task = quadratics(a=[1, 1, 1], b=[0, 5, 2], n=[1, 9, 1])
    poisoned = fk.Algorithm(client=fk.SGD(0.1), rules=[Poison(lambda t, i: i == 1, value)])
    run = fk.train(task, poisoned, fk.World("all", fk.FixedSteps(2)), 3, engine=mode)
    assert run.status == "done"
    assert [(row["clients"], row["dropped"]) for row in run.history[1:]] == [(2, 1)] * 3
    pair = fk.train(quadratics([1, 1], [0, 2]), "fedavg:lr=0.1", fk.World("all", fk.FixedSteps(2)), 3, engine=mode)
    assert torch.equal(run.params, pair.params)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_whose_whole_cohort_is_non_finite_ends_as_diverged(mode, tmp_path):
    algorithm = fk.Algorithm(rules=[Poison(lambda t, i: t == 3)])
    run = play(algorithm, rounds=9, engine=mode, checkpoint=tmp_path)
    assert run.status == "diverged"
    assert [row["round"] for row in run.history] == [0, 1, 2, 3]
    assert (run.history[-1]["clients"], run.history[-1]["dropped"]) == (0, 4)
    assert torch.isfinite(run.params).all()
    assert torch.equal(run.params, play(algorithm, rounds=9, engine=mode, stop_after=2).params)
    loaded = fk.load(tmp_path, toy())
    assert loaded.status == "diverged"
    assert torch.equal(loaded.params, run.params)


@pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning")  # one client diverges faster
def test_a_real_divergence_is_noticed():
    task = quadratics(a=[1, 3], b=[1, -1], x0=2)
    run = fk.train(task, "fedavg:lr=1e6", fk.World("all", fk.FixedSteps(5)), 50)
    assert run.status == "diverged"
    assert len(run.history) < 20
    assert torch.isfinite(run.params).all()


def test_a_client_whose_statistics_overflow_does_not_reach_the_server():
    """Its update is finite (the normalised input is 0), its running variance is not."""
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    x[4:] *= 1e25
    data = fk.FederatedData.from_arrays(x, [0, 1] * 4, clients=[0] * 4 + [1] * 4)

    def model():
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))

    run = fk.train(fk.Task(model, fk.cross_entropy, data), "fedavg", fk.World("all", fk.FixedSteps(2)), 2)
    assert [(row["clients"], row["dropped"]) for row in run.history[1:]] == [(1, 1)] * 2
    assert all(torch.isfinite(b.float()).all() for b in run.state.buffers.values())


# ------------------------------------------------------------------------------------------- run directories

SCRIPT = """
import sys, time
import fedkeel as fk
from fedkeel.conformance import toy, toy_world
pause = float(sys.argv[2])
fk.train(toy(), "fedyogi+gel", toy_world(), 12, seed=3, checkpoint=sys.argv[1], every=4,
         callbacks=[lambda row: time.sleep(pause), lambda row: print(row["round"], flush=True)])
print("end", flush=True)
"""


def straight():
    return play("fedyogi+gel", rounds=12, seed=3)


def start(folder, pause):
    source = Path(fk.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", SCRIPT, str(folder), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(process, round):
    for line in process.stdout:
        if line.strip() == str(round):
            return
    pytest.fail(process.stderr.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_round_and_leaves_a_checkpoint_that_resumes_exactly(tmp_path, number):
    process = start(tmp_path / "run", 0.2)
    wait_for(process, 5)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert 5 <= rows[-1]["round"] < 12
    stopped = fk.load(tmp_path / "run", toy())
    assert (stopped.status, stopped.state.round) == ("stopped", rows[-1]["round"])
    resumed = fk.resume(tmp_path / "run", toy())
    assert torch.equal(resumed.params, straight().params)
    assert bare(resumed.history) == bare(straight().history)


@pytest.mark.parametrize("killed_after", [2, 6])
def test_a_killed_run_resumes_as_if_it_had_never_stopped(tmp_path, killed_after):
    folder = tmp_path / "run"
    process = start(folder, 0.2)
    wait_for(process, killed_after)
    process.kill()
    process.communicate(timeout=60)
    assert not (folder / "model.safetensors").exists()
    assert (folder / "checkpoint" / "state.safetensors").exists() == (killed_after >= 4)
    with open(folder / "history.jsonl", "a") as file:
        file.write('{"round": 7, "lo')  # and the last line was cut off
    resumed = fk.resume(folder, toy())
    assert resumed.status == "done"
    assert torch.equal(resumed.params, straight().params)
    assert bare(resumed.history) == bare(straight().history)
    assert bare(fk.load(folder, toy()).history) == bare(straight().history)
    assert not (folder / "checkpoint").exists()


class Crash(BaseException):
    """Ends a run at once, as a kill does; a callback's own error would end it in good order."""


def test_a_crash_after_the_last_round_but_before_the_model_is_written_is_resumed(tmp_path):
    def crash(row):
        if row["round"] == 4:
            raise Crash("the disk is full")

    for every, folder in ((10, tmp_path / "never"), (2, tmp_path / "often")):
        with pytest.raises(Crash, match="disk"):
            play("fedavgm", checkpoint=folder, every=every, callbacks=[crash])
        resumed = fk.resume(folder, toy())
        assert resumed.status == "done"
        assert torch.equal(resumed.params, play("fedavgm").params)


def test_a_model_of_an_earlier_stop_is_not_taken_for_the_last(tmp_path):
    def crash(row):
        if row["round"] == 4:
            raise Crash("power cut")

    play("fedavgm", stop_after=2).save(tmp_path)
    with pytest.raises(Crash, match="power"):
        fk.resume(tmp_path, toy(), callbacks=[crash])
    assert fk.load(tmp_path, toy()).status == "stopped"
    assert torch.equal(fk.resume(tmp_path, toy()).params, play("fedavgm").params)


def test_a_new_run_does_not_continue_from_what_an_earlier_one_left(tmp_path):
    def crash(row):
        if row["round"] == 1:
            raise Crash("early")

    play("fedavgm", stop_after=2, checkpoint=tmp_path)
    assert (tmp_path / "checkpoint").exists()
    with pytest.raises(Crash, match="early"):
        play("fedavgm", seed=1, checkpoint=tmp_path, callbacks=[crash])
    assert torch.equal(fk.resume(tmp_path, toy()).params, play("fedavgm", seed=1).params)


def test_a_finished_run_saved_over_a_stopped_one_is_finished(tmp_path):
    play(stop_after=2).save(tmp_path)
    run = play()
    run.save(tmp_path)
    loaded = fk.load(tmp_path, toy())
    assert loaded.status == "done"
    assert torch.equal(loaded.params, run.params)


def test_a_stopped_run_that_was_loaded_and_saved_again_still_resumes(tmp_path):
    play("fedyogi", stop_after=2).save(tmp_path / "a")
    fk.load(tmp_path / "a", toy()).save(tmp_path / "b")
    resumed = fk.resume(tmp_path / "b", toy())
    assert torch.equal(resumed.params, play("fedyogi").params)
    assert bare(resumed.history) == bare(play("fedyogi").history)


def test_a_run_may_be_stopped_and_resumed_many_times(tmp_path):
    play("fedyogi+gel", rounds=6, stop_after=1).save(tmp_path)
    for stop in (2, 5):
        assert fk.resume(tmp_path, toy(), stop_after=stop).status == "stopped"
    assert torch.equal(fk.resume(tmp_path, toy()).params, play("fedyogi+gel", rounds=6).params)


def test_resuming_a_finished_run_just_loads_it(tmp_path):
    run = play(checkpoint=tmp_path)
    before = (tmp_path / "history.jsonl").read_text()
    again = fk.resume(tmp_path, toy())
    assert again.status == "done"
    assert torch.equal(again.params, run.params)
    assert (tmp_path / "history.jsonl").read_text() == before


def test_a_nameable_run_needs_nothing_but_its_directory(tmp_path):
    world = fk.World(cohort=5, budget=fk.Epochs(2 / 3), sampler="weighted")
    task = fk.tasks.synthetic(users=30)
    whole = fk.train(task, "fedprox:mu=0.1+gel:steps=50%", world, 4, batch_size=3)
    assert whole.config["rerunnable"]
    fk.train(task, "fedprox:mu=0.1+gel:steps=50%", world, 4, batch_size=3, stop_after=2).save(tmp_path)
    assert torch.equal(fk.resume(tmp_path).params, whole.params)


@pytest.mark.parametrize("part", ["model", "loss", "data", "metric", "augment"])
def test_a_named_task_with_another_part_cannot_be_repeated_by_its_name(part):
    named = fk.tasks.synthetic(users=5)
    other = {"model": lambda: nn.Linear(60, 5, bias=False), "data": named.data.cast(torch.float64, "cpu")}
    other |= {"metric": lambda outputs, targets: 0.0, "augment": lambda x, generators: x}
    other |= {"loss": lambda output, target: fk.cross_entropy(output, target)}
    for task, can in ((replace(named, lr=0.5), True), (replace(named, **{part: other[part]}), False)):
        config = fk.train(task, "fedavg", rounds=1).config
        assert config["rerunnable"] is can
        assert can or config["why_not"] == "the task was made from Python objects"


def test_a_run_directory_holds_the_contracts_files_and_keys(tmp_path):
    run = play("fedprox+gel", checkpoint=tmp_path)
    assert {f.name for f in tmp_path.iterdir()} == {
        "config.json", "history.jsonl", "history.csv", "model.safetensors", "environment.json", "outcome.json",
        ".fedkeel.json",
    }  # fmt: skip
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(config.pop("sha256")) == 64
    assert config == run.config
    assert set(config) >= {
        "fedkeel", "task", "algorithm", "parameters", "world", "rounds", "seed", "batch_size", "dtype", "engine",
        "chunk", "target", "eval_every",
    }  # fmt: skip
    assert (config["algorithm"], config["rerunnable"]) == ("fedprox+gel", False)
    assert "the task was made from Python objects" in config["why_not"]


def test_the_model_file_has_the_state_dicts_names_with_buffers(tmp_path):
    import safetensors.torch

    task = replace(toy(), model=lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)))
    run = play(task=task, checkpoint=tmp_path)
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert set(saved) == set(task.model().state_dict())
    mine = task.model()
    mine.load_state_dict(saved)
    x = torch.ones(2, 4)
    assert torch.equal(mine.eval()(x), run.model()(x))
    assert torch.equal(fk.load(tmp_path, task).model()(x), run.model()(x))


class Holds(fk.Rule):
    """A user's rule that holds things JSON cannot."""

    def __init__(self):
        self.mask, self.function = torch.ones(2), len

    def gradient(self, g, y, me):
        return g * 0.5


def test_a_run_with_the_users_own_parts_is_saved_and_says_what_it_needs(tmp_path):
    algorithm = fk.Algorithm(rules=[Holds()])
    play(algorithm, stop_after=2, checkpoint=tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["rerunnable"], "user-defined parts" in config["why_not"]) == (False, True)
    with pytest.raises(fk.InputError, match="give task="):
        fk.resume(tmp_path)
    with pytest.raises(fk.InputError, match="give algorithm="):
        fk.resume(tmp_path, toy())
    assert torch.equal(fk.resume(tmp_path, toy(), algorithm).params, play(algorithm).params)


def test_a_callable_budget_must_be_given_again(tmp_path):
    world = fk.World("all", lambda t, i: 1 + (t + i) % 3)
    play(world=world, stop_after=2).save(tmp_path)
    with pytest.raises(fk.InputError, match="give world="):
        fk.resume(tmp_path, toy())
    assert torch.equal(fk.resume(tmp_path, toy(), world=world).params, play(world=world).params)


@pytest.mark.parametrize(
    ("text", "word"), [(None, "is not there"), ("{", "cannot be read as JSON"), ("[1]", "does not hold a JSON object")]
)
def test_a_directory_that_holds_no_run_is_refused(tmp_path, text, word):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    for read in (fk.load, fk.resume):
        with pytest.raises(fk.InputError, match=word):
            read(tmp_path)


def test_bad_input_leaves_no_directory_behind(tmp_path):
    folder = tmp_path / "run"
    for task, algorithm, world in (
        (toy(), "fedavg", fk.World(cohort=100)),
        (toy(), "gel", fk.World(budget=fk.FixedSteps(2))),
        (replace(toy(), model=lambda: nn.Linear(4, 2)), "fedavg", None),
    ):
        with pytest.raises(fk.InputError):
            fk.train(task, algorithm, world, 2, checkpoint=folder)
    assert not folder.exists()


def test_no_half_written_file_is_ever_seen(tmp_path):
    from fedkeel.files import writing

    file = tmp_path / "a.json"
    file.write_text("old")

    def fail():
        with writing(file) as beside:
            beside.write_text("ne")
            raise OSError(28, "full")

    with pytest.raises(OSError, match=r"full.*a\.json"):
        fail()
    assert file.read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]


def test_wall_seconds_go_on_after_resuming(tmp_path):
    play(stop_after=2).save(tmp_path)
    before = fk.load(tmp_path, toy()).history[-1]["wall_seconds"]
    time.sleep(0.05)
    seconds = [row["wall_seconds"] for row in fk.resume(tmp_path, toy()).history]
    assert seconds == sorted(seconds)
    assert seconds[3] >= before


def test_a_run_a_task_and_data_are_printed_in_one_line():
    task = fk.tasks.synthetic(users=8)
    run = fk.train(task, "fedavg", rounds=2, seed=1)
    accuracy = run.history[-1]["accuracy"]
    assert repr(run) == f"<Run of fedavg on synthetic:users=8, seed 1: done after 2 rounds, accuracy {accuracy:.4f}>"
    samples, kept = len(task.data.y), len(task.data.test[1])
    data = f"<FederatedData of 8 clients, {samples:,} samples of shape (60,), {kept:,} for the test>"
    assert repr(task.data) == data and repr(task) == f"<Task synthetic:users=8: {data}>"
