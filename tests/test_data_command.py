"""`fedkeel data`: the commands and the picture of heterogeneity."""

import argparse
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

import fedkeel as fk
from fedkeel import InputError, MissingExtra
from fedkeel.cli import data as command
from fedkeel.data import catalogue, show, store


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")


def run(*words):
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["data", *map(str, words)])
    return arguments.do(arguments)


def test_list_names_every_set_whether_it_is_here_and_how_to_get_it(capsys, tmp_path):
    (tmp_path / "w8a").write_text("1 1:1\n")
    assert run("add", "w8a", tmp_path / "w8a") == 0
    assert run("list") == 0
    table, how = capsys.readouterr().out.split("What is missing:")
    rows = {line.split()[0]: line for line in table.splitlines() if line}
    assert catalogue.KNOWN.keys() <= rows.keys()
    assert " yes " in rows["w8a"] and " no " in rows["cifar10"]
    assert "cifar10: fedkeel data get cifar10" in how and "fedkeel data add celeba PATH" in how and "w8a" not in how


def test_get_refuses_a_wrong_name_before_it_downloads_anything(monkeypatch):
    monkeypatch.setattr(store, "get", lambda *a: pytest.fail("downloaded"))
    with pytest.raises(InputError, match="Did you mean 'cifar10'"):
        run("get", "fmnist", "cifr10")


def test_get_reports_where_the_set_is(monkeypatch, capsys, tmp_path):
    def get(name, progress):
        progress("a.gz", 5, None)
        progress("a.gz", 10, 10)
        return tmp_path / name

    monkeypatch.setattr(store, "get", get)
    assert run("get", "fmnist") == 0
    assert f"fmnist is in {tmp_path / 'fmnist'}" in capsys.readouterr().out


def test_show_draws_one_class_per_client_as_one_dark_cell_each(capsys):
    assert run("show", "blobs-deep") == 0
    out = capsys.readouterr().out
    assert "20 clients, 4,000 samples; sizes 200\nevery client holds 1 of 20 labels" in out
    rows = [line[2:].lstrip() for line in out.splitlines() if "█" in line][:20]
    assert [row.count("█") for row in rows] == [1] * 20


def test_a_label_held_at_all_is_seen():
    assert show.shaded(np.array([[999, 1]])) == ["0 █", "1 ░"]


def test_many_clients_and_labels_are_drawn_in_groups():
    rows = show.shaded(np.ones((1000, 62), np.int64))
    assert len(rows) == 20 and all(len(row) == 3 + 64 for row in rows)


def test_the_picture_fits_a_narrow_terminal():
    assert {len(row) for row in show.shaded(np.ones((1000, 62), np.int64), terminal=30)} == {30}


def test_the_histogram_counts_every_client():
    sizes = np.array([1, 2, 2, 50, 100])
    assert sum(int(line.split()[1]) for line in show.bars(sizes)) == 5


def test_targets_that_are_no_labels_leave_only_the_sizes(capsys):
    data = fk.FederatedData.from_arrays(torch.randn(4, 2), torch.randn(4), clients=[0, 0, 1, 1])
    task = fk.Task(model=lambda: torch.nn.Linear(2, 1), loss=fk.cross_entropy, data=data, name="mine")
    show.draw(task, Console())
    out = capsys.readouterr().out
    assert "label" not in out and "2 clients, 4 samples; sizes 2\nsamples per client\n" in out
    assert "one to five epochs of the median client, batch 20: --budget 1:1\n" in out


def test_without_matplotlib_the_command_to_install_it_is_named(tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r'pip install "matplotlib>=3.8"'):
        run("show", "digits", "--out", tmp_path / "digits.png")


def test_the_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    assert run("show", "digits", "--out", tmp_path / "digits.png") == 0
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="Cannot write"):
        run("show", "digits", "--out", tmp_path / "nowhere" / "digits.png")
