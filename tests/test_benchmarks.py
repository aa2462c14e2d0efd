"""The benchmarks: workloads of the right size, a runner that works end to end, a page from its results alone."""

import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.engine import kernels

COMPILER = os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))
pytestmark = pytest.mark.extra  # they start many processes
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """The benchmarks' own modules, which are scripts and no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cells
    import models
    import render
    import run
    import workloads

    yield type("Bench", (), {"cells": cells, "models": models, "render": render, "run": run, "workloads": workloads})
    for name in ("cells", "models", "render", "run", "workloads", "engines"):
        sys.modules.pop(name, None)


def test_the_models_have_the_sizes_that_the_workloads_name(bench):
    for name, size in bench.models.PARAMETERS.items():
        assert sum(p.numel() for p in bench.models.model(name).parameters()) == size


def test_a_model_takes_its_workloads_inputs_and_scores_its_classes(bench):
    for name, work in bench.workloads.WORKLOADS.items():
        x = torch.zeros(2, *work.shape, dtype=torch.int64 if work.tokens else torch.float32)
        assert bench.models.model(name)(x).shape == (2, work.classes)


def test_the_sizes_of_clients_are_those_of_the_specification(bench):
    sizes = bench.workloads.WORKLOADS["W1"].sizes(np.random.default_rng(7))
    assert len(sizes) == 1000 and sizes.min() >= 10 and abs(sizes.mean() - 96) < 2
    cohorts = {w.name: (w.cohort, w.batch, w.steps) for w in bench.workloads.WORKLOADS.values()}
    fives = {"W1": (20, 5, 13), "W2": (10, 20, 10), "W3": (10, 64, 8), "W4": (10, 20, 10), "W5": (10, 16, 10)}
    assert cohorts == fives | {"W6": (10, 20, 10), "W7": (10, 20, 10)}


def test_the_page_says_whose_models_they_are_and_how_large(bench):
    for name, work in bench.workloads.WORKLOADS.items():
        assert work.about.endswith(f"; {bench.models.PARAMETERS[name]:,} parameters")


def test_the_papers_networks_are_those_of_the_package(bench):
    ours = {
        "W2": fk.models.fathom_cnn(dropout=False), "W3": fk.models.lenet(), "W6": fk.models.gel_cnn(),
        "W4": fk.models.shakespeare_lstm(hidden=100), "W7": fk.models.shakespeare_lstm(),
    }  # fmt: skip
    for name, module in ours.items():
        sizes = [sorted(p.numel() for p in model.parameters()) for model in (module, bench.models.model(name))]
        assert sizes[0] == sizes[1]


def test_fedkeel_is_measured_with_kernels_exactly_where_there_are_some(bench):
    from engines import ENGINES

    for name, work in bench.workloads.WORKLOADS.items():
        x = torch.zeros(8, *work.shape, dtype=torch.int64 if work.tokens else torch.float32)
        data = fk.FederatedData(x, torch.zeros(8, dtype=torch.int64), [0, 4, 8])
        task = fk.Task(bench.models.MODELS[name], fk.cross_entropy, data).cast(torch.float32, "cpu")
        model = task.adopt(0, torch.float32, "cpu")
        has = kernels.available(task, model, fk.Local().chosen(task, model)[0])
        assert has == (name in ENGINES["fedkeel, --compile"].workloads)


def test_a_visit_has_full_batches_of_the_clients_own_samples(bench):
    work = bench.workloads.WORKLOADS["W1"]
    data = bench.workloads.make(work)
    smallest = int(np.argmin(np.diff(data.offsets)))
    chosen = data.batches(smallest, work, np.random.default_rng(0))
    assert len(chosen) == work.steps * work.batch > data.size(smallest)
    assert data.offsets[smallest] <= chosen.min() and chosen.max() < data.offsets[smallest + 1]


def test_the_runner_measures_naive_and_fedkeel_end_to_end(tmp_path):
    engines = ["naive-1thread", "fedkeel", "fedkeel-anymodel", *(["fedkeel-compile"] if COMPILER else [])]
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--workloads", "W1", "--engines", *engines, "--sections"]
    places = {"--data": tmp_path / "data", "--results": tmp_path / "results.json", "--docs": tmp_path / "docs"}
    given = [str(text) for pair in places.items() for text in pair]
    subprocess.run([*command, "--passes", "1", "--seconds", "0.1", *given], check=True, capture_output=True)
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert [cell.get("error") for cell in cells] == [None] * len(engines)
    for cell in cells:
        assert cell["rounds"] >= 2 and cell["steps"] == cell["rounds"] * 260
        assert cell["losses"][1] < cell["losses"][0] and cell["memory_mb"] > 50 and cell["startup_s"] > 0
    assert "| fedkeel, any model |" in (tmp_path / "docs" / "speed.md").read_text()


def test_processes_take_turns_after_their_first_rounds(bench, monkeypatch, tmp_path):
    turn, order = bench.cells.Cell.turn, []
    monkeypatch.setattr(bench.cells.Cell, "turn", lambda self: (order.append(self.process.pid), turn(self))[1])
    bench.workloads.store(bench.workloads.WORKLOADS["W1"], tmp_path)
    asked = ["W1", str(tmp_path), "--seconds", "1.5", "--turns", bench.cells.TURNS]
    found = dict(bench.cells.in_turns(bench.cells.Cell(sys.executable, "drivers.naive", asked, 60) for _ in range(2)))
    assert sorted(found) == [0, 1] and not any("error" in each for each in found.values())
    assert order[0] != order[1] and order[:4] == order[:2] * 2  # one starts, then the other; they go on by turns


@pytest.mark.filterwarnings("ignore:TF32")  # torch's word on switching its kernels off
def test_the_limit_has_as_many_multiplications_as_the_gradients(bench, tmp_path):
    from drivers import products

    there = 5 * 60 * 10  # and back for the weights; nobody asks for the derivative by the data
    lstm = 80 * 20 * 400 * (8 + 100 + 100 + 100)  # there, and back for inputs and weights,
    first = 2 * 20 * 400 * 100  # but for what came before step 0 in either layer
    wanted = {"W1": 2 * there, "W4": 3 * (lstm + 20 * 100 * 80) - first}
    for name, products_of in wanted.items():
        work = bench.workloads.WORKLOADS[name]
        bench.workloads.store(work, tmp_path)
        assert products.flops(work, bench.workloads.load(work, tmp_path)) == 2 * products_of


def test_a_turn_of_a_single_round_tells_its_length(bench, tmp_path):
    bench.workloads.store(bench.workloads.WORKLOADS["W1"], tmp_path)
    asked = ["W1", str(tmp_path), "--seconds", "0.2", "--turn", "0", "--turns", bench.cells.TURNS]
    ((_, told),) = bench.cells.in_turns([bench.cells.Cell(sys.executable, "drivers.naive", asked, 60)])
    assert len(told["lengths"]) == told["rounds"] - 1 and sum(told["lengths"]) >= 0.2 > sum(told["lengths"][:-1])


def test_a_rule_is_compared_with_its_bases_rounds_just_before_and_after(bench, monkeypatch, tmp_path):
    from sections import rules

    lengths = {"base": [1.0, 3.0, 1.0], "slow": [4.0, 8.0, 7.0], "few": [1.0]}
    monkeypatch.setattr(rules, "start", lambda algorithm, *_: algorithm)
    monkeypatch.setattr(rules, "in_turns", lambda cells: [(k, {"lengths": lengths[c]}) for k, c in enumerate(cells)])
    assert rules.costs("W2", ("base", "slow", "few"), tmp_path, 1.0) == [[2.0, 4.0], [0.5]]


def test_ending_a_process_ends_what_it_left_behind(bench):
    wait = "import os, time; os.write(1, b'here\\n'); time.sleep(600)"  # one write each: two processes share a pipe
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}])"
    told = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {leave!r}]); {wait}"
    process = subprocess.Popen([sys.executable, "-c", told], stdout=subprocess.PIPE, start_new_session=True)
    for _ in range(2):  # the process, and the one whose parent has ended
        assert process.stdout.readline() == b"here\n"
    bench.cells.end(process)
    with process.stdout as both:
        assert select.select([both], [], [], 10)[0] and both.read() == b""  # nobody is left who could write


def test_a_process_that_fails_or_hangs_is_told_in_one_line(bench, tmp_path):
    told = bench.cells.run(sys.executable, "drivers.naive", ["W1", str(tmp_path)], cap=60)
    assert "error" in told and "\n" not in told["error"]
    assert bench.cells.run(sys.executable, "http.server", ["0", "--bind", "127.0.0.1"], cap=1) == {
        "error": "over the cap of 1 s"
    }


def cell(number, workload, engine, speed):
    return {
        "pass": number, "workload": workload, "engine": engine, "steps_per_s": speed, "startup_s": 1.0,
        "memory_mb": 100.0, "versions": {"torch": "9.9"},
    }  # fmt: skip


def test_the_page_shows_medians_of_ratios_within_a_pass_and_what_failed(bench, tmp_path):
    naive, other = bench.render.NAIVE
    cells = [cell(0, "W1", naive, 100), cell(0, "W1", other, 50), cell(0, "W1", "fedkeel", 1000)]
    cells += [cell(1, "W1", naive, 10), cell(1, "W1", other, 20), cell(1, "W1", "fedkeel", 600)]
    cells += [{"pass": 0, "workload": "W1", "engine": "flwr", "error": "no luck"}]
    machine = {"cpu": "a cpu", "cores": 2, "memory_gb": 1, "system": "s", "python": "3", "load_at_start": 0.0}
    rows = [
        {"model": "perceptron", "parameters": 610, "batch": 5, "operations": 1_500_000, "serial": 2.0, "batched": 5.0}
    ]
    rows.append(rows[0] | {"compiled": 20.0})
    results = {
        "date": "2000-01-01", "commit": "abc", "machine": machine, "passes": 2, "seconds": 1, "cells": cells,
        "missing": {"pfl": "does not install: x"},
        "sections": {"crossover": {"rows": rows}, "scale": {"error": "late"}},
    }  # fmt: skip
    bench.render.write(results, tmp_path)
    page, chart = (tmp_path / "speed.md").read_text(), (tmp_path / "speed.svg").read_text()
    assert "| fedkeel | 20 (10-30) |" in page  # 1000 / 100 and 600 / 20
    assert "- flwr on W1: no luck" in page and "- pfl: does not install: x" in page
    assert "| perceptron | 610 | 5 | 1.5 | 2 | 5 | - | 2.50 | - |" in page and "| 5 | 20 | 2.50 | 4.00 |" in page
    assert "Not measured: late" in page
    assert ">20x</text>" in chart and "prefers-color-scheme: dark" in chart


def test_asking_for_a_page_without_results_is_refused(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--render", "--results", str(tmp_path / "none.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 2 and "is not there" in done.stderr


@pytest.mark.parametrize("asked", ["--render", "--add"])
def test_results_of_engines_that_are_no_more_are_measured_again_and_not_drawn(asked, bench, tmp_path, capsys):
    (tmp_path / "old.json").write_text(json.dumps({"cells": [{"engine": "fedkeel, torch alone"}]}))
    with pytest.raises(SystemExit):
        bench.run.parse([asked, "--results", str(tmp_path / "old.json")])
    assert "no more (fedkeel, torch alone): measure again" in capsys.readouterr().err


def test_what_is_measured_again_takes_the_place_of_its_own_workload_alone(bench):
    before = [{"workload": "W1", "ratio": 1}, {"workload": "W2", "ratio": 2}, {"workload": "W3", "ratio": 3}]
    again = [{"workload": "W2", "ratio": 9}]
    assert bench.run.merged(before, again) == [before[0], again[0], before[2]]
    assert bench.run.merged([["a row", 1.0]], [["a row", 2.0]]) == [["a row", 2.0]]


def test_two_results_are_the_same_only_if_every_bit_is(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from same_bits import apart, compare, tensors_apart

    one = {"status": "done", "tensors": {"parameters": torch.ones(2)}, "history": [{"round": 0, "overhead_bytes": 1}]}
    assert compare(one, one | {"history": [{"round": 0, "overhead_bytes": 2}]})[0] == 0
    assert compare(one, one | {"history": [{"round": 0, "overhead_bytes": 1, "loss": 2.0}]})[0] == np.inf
    assert compare(one, one | {"history": [{"round": 0, "overhead_bytes": 1, "loss": None}]})[0] == 0
    assert compare(one, {"raised": "InputError: no"})[0] == np.inf
    assert compare({"raised": "InputError: no"}, {"raised": "InputError: never"})[0] == 0
    assert compare(one, one | {"tensors": {"parameters": torch.tensor([1.0, 0.5])}}) == (0.5, "parameters")
    nan = torch.tensor([float("nan"), 1.0])
    assert tensors_apart(nan, nan.clone()) == 0 < tensors_apart(torch.tensor([0.0]), torch.tensor([-0.0])) < 1e-300
    assert tensors_apart(nan, torch.ones(2)) == apart(float("nan"), 1.0) == apart(None, 0.0) == np.inf
    sys.modules.pop("same_bits")


def test_the_size_of_a_round_counts_functions_files_and_edges(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from size_of_a_round import size

    def code(name, file):
        return compile("0", file, "exec").replace(co_name=name)

    a, b, c = code("train", "a.py"), code("one_round", "a.py"), code("visit", "b.py")
    stacks = [(a,), (b, a), (c, b, a), (c, a)]
    assert size(stacks) == (3, 2, 2) and size(stacks, "one_round") == (2, 2, 1) and size(stacks, "none") is None
    sys.modules.pop("size_of_a_round")


def test_before_and_after_are_one_line_per_workload(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from before_after import line

    old, new = ({"steps_per_s": speed, "own_peak_mb": size} for speed, size in ((260.0, 300), (520.0, 250)))
    expected = ("W1", "1", "2", "2.000", "1.000..2.000", "300", "250")
    assert line("W1", [{"old": old, "new": new}, {"new": new, "old": old}, {"old": old, "new": old}]) == expected
    assert line("W1", [{"old": {"error": "no"}, "new": new}]) == ("W1", "old: no")
    for name in ("before_after", "cells", "workloads"):
        sys.modules.pop(name)


def test_norms_of_honest_updates_are_compared_and_the_price_of_it_is_a_share(bench, monkeypatch):
    import update_norms

    from fedkeel import aggregate
    from fedkeel.run import training

    monkeypatch.setattr(training, "NormWatch", update_norms.Watch)
    monkeypatch.setattr(aggregate, "row_norms", update_norms.row_norms)
    found = update_norms.largest(2, tasks=["digits"], algorithms=["fedavg", "deltasgd"])
    assert found.keys() == {"fedavg", "deltasgd"}
    assert all(1 <= one.ratio < 1000 and one.run.startswith("digits, ") for one in found.values())
    share, milliseconds = update_norms.price("W1", seconds=0.05)
    assert 0 < share < 1 and milliseconds > 0
    sys.modules.pop("update_norms")
