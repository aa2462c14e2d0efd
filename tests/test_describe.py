"""The line about a task's data: which partition, and what it does to labels and sizes."""

import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.data import partition
from fedkeel.data.describe import CLIENTS, describe, effective_labels, holdings
from fedkeel.lab.report.page import as_html, read
from fedkeel.lab.report.progress import Watching
from fedkeel.lab.study import Study
from fedkeel.run import training

LABELS = np.repeat(np.arange(10), 100)
PAGES = Path(__file__).resolve().parents[1] / "docs" / "tasks"


def dealt(make, y=LABELS, **values):
    return fk.FederatedData.from_arrays(np.zeros((len(y), 1), np.float32), y, partial(make, **values))


def test_every_partition_by_labels_has_words_that_name_it_and_its_alpha():
    assert set(partition.WORDS) == set(partition.ALL) - {partition.natural}
    for make in partition.WORDS:
        values = {"alpha": 0.7} if "dirichlet" in make.__name__ else {}
        words = dealt(make, clients=5, **values).partition
        assert words.startswith(f"partition {make.__name__}: ")
        assert all(str(value) in words for value in values.values()), words


def test_the_four_dirichlets_of_one_alpha_are_four_different_lines():
    lines = {describe(dealt(make, clients=20, alpha=0.1)) for make in partition.WORDS if "dirichlet" in make.__name__}
    assert len(lines) == 4
    assert sum("Hsu et al. 2019" in line for line in lines) == sum("FedNova" in line for line in lines) == 1


def test_parameters_by_position_and_defaults_are_seen():
    data = fk.FederatedData.from_arrays(np.zeros((1000, 1)), LABELS, partial(partition.shards, clients=5))
    assert "2 per client" in data.partition
    assert "sizes of at least 3," in dealt(partition.dirichlet_by_label, clients=5, alpha=1, minimum=3).partition


def test_alpha_0_is_called_one_block_per_client():
    line = describe(dealt(partition.dirichlet, clients=20, alpha=0))
    assert "partition dirichlet at alpha 0: sorted by label, one block of equal size per client; in effect 1.0" in line
    assert line.endswith("in effect 1.0 of 10 labels per client, largest share 100 %, sizes 50")


def test_effective_labels_are_the_mean_of_the_clients_own():
    """Two clients with one label and two with five: 3 in effect on average, and a share of (1 + 1 + .2 + .2) / 4."""
    y = np.array([0] * 50 + [1] * 50 + [0, 1, 2, 3, 4] * 20)
    data = fk.FederatedData.from_arrays(np.zeros((200, 1)), y, np.repeat(np.arange(4), 50))
    assert effective_labels(holdings(data)).tolist() == pytest.approx([1, 1, 5, 5])
    data.partition = "by hand"
    assert describe(data) == "4 clients, 200 samples; by hand; in effect 3.0 of 5 labels per client, " + (
        "largest share 60 %, sizes 50"
    )


def test_holdings_of_some_clients_are_their_rows_of_all():
    data = dealt(partition.dirichlet_by_label, clients=20, alpha=0.3)
    some = np.array([0, 3, 19])
    assert np.array_equal(holdings(data, some), holdings(data)[some])


def test_clients_that_came_with_the_data_have_sizes_only():
    data = fk.FederatedData.from_arrays(np.zeros((6, 1)), [0, 1, 2, 0, 1, 2], clients=list("aabbbb"))
    assert describe(data) == "2 clients, 6 samples; sizes 2 to 4, median 3"
    assert describe(fk.tasks.synthetic().data) == "1,000 clients, 96,374 samples; sizes 4 to 900, median 22"


@pytest.mark.parametrize("y", [np.linspace(0, 1, 40), np.arange(40) - 20, np.arange(40) * 10**9])
def test_targets_that_are_no_labels_have_sizes_only(y):
    assert holdings(dealt(partition.iid, y, clients=4)) is None
    assert describe(dealt(partition.iid, y, clients=4)).endswith("at random, in equal sizes; sizes 10")


def test_of_many_clients_a_part_is_counted_and_the_line_says_so():
    clients = CLIENTS + 1000
    line = describe(dealt(partition.iid, np.arange(2 * clients) % 2, clients=clients))
    assert f"({CLIENTS:,} clients counted), sizes 2" in line


def test_the_line_stays_with_data_that_are_cast_or_held_out():
    data = dealt(partition.dirichlet, clients=20, alpha=0)
    assert describe(data.held_out(0.1)).endswith("largest share 100 %, sizes 45")


def test_the_line_heads_a_run_and_its_report_and_stands_in_its_configuration(tmp_path, capsys):
    assert main(["run", "digits", "fedavg", "gel:steps=1", "--rounds", "1", "-v", "--out", str(tmp_path / "d")]) == 0
    line = describe(fk.tasks.digits().data)
    assert "partition dirichlet: each client's labels by Dir(0.3 p)" in line
    assert capsys.readouterr().err.count(f"digits: {line}") == 1
    config = json.loads((tmp_path / "d" / "fedavg" / "seed-0" / "config.json").read_text())
    assert config["data"] == line
    page = read([tmp_path / "d"])
    assert page["data"] == line and "each client's labels by Dir(0.3 p)" in as_html(page)


def test_the_head_is_for_a_terminal_and_comes_once():
    for terminal, times in ((True, 1), (False, 0)):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=terminal, width=300)
        watching = Watching(Study("digits", ["fedavg"], rounds=1), console, verbose=False)
        for _ in range(2):
            watching.began({"task": "digits", "data": "50 clients [of 28]", "algorithm": "fedavg"})
        assert shown.getvalue().count("digits: 50 clients [of 28]") == times


def test_a_run_of_a_version_without_the_line_is_read_and_repeated_without_it(tmp_path, monkeypatch, capsys):
    now = training.configuration
    monkeypatch.setattr(training, "configuration", lambda *of: {k: v for k, v in now(*of).items() if k != "data"})
    fk.train(fk.tasks.digits(), "fedavg", rounds=2, checkpoint=tmp_path / "d", stop_after=1)
    assert main(["resume", str(tmp_path / "d"), "-v"]) == 0
    assert read([tmp_path / "d"])["data"] == "" and "partition" not in capsys.readouterr().err


def test_show_says_it_too(capsys):
    assert main(["data", "show", "digits"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"digits: {describe(fk.tasks.digits().data)} a client holds 1 to" in shown


def test_every_task_page_has_the_line_of_its_task():
    for name, make in fk.tasks.TASKS.items():
        (row,) = [line for line in (PAGES / f"{name}.md").read_text().splitlines() if line.startswith("| Partition |")]
        if name in ("synthetic", "synthetic-fedprox", "blobs-deep", "blobs-wide", "digits"):
            assert row == f"| Partition | {describe(make().data)} |"
        else:
            assert "sizes" in row, name
