import json

import pytest

import fedkeel as fk
from fedkeel.conformance import toy, toy_world
from fedkeel.run.history import COLUMNS, History, read


def test_a_row_has_the_contracts_columns_in_order():
    run = fk.train(toy(), "fedavg", toy_world(), 2)
    contract = [
        "round", "loss", "accuracy", "train_loss", "gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes",
        "wall_seconds", "clients", "dropped",
    ]  # fmt: skip
    assert list(COLUMNS) == contract
    for row in run.history:
        assert list(row) == contract
        assert type(row) is dict
    assert [row["round"] for row in run.history] == [0, 1, 2]


def test_counts_are_cumulative_and_row_zero_is_the_initial_model():
    history = fk.train(toy(), "fedavg", toy_world(), 4).history
    assert (history[0]["gradients"], history[0]["clients"], history[0]["train_loss"]) == (0, 0, None)
    for name in ("gradients", "samples", "bytes_down", "bytes_up", "overhead_bytes", "wall_seconds"):
        values = [row[name] for row in history]
        assert values == sorted(values) and values[-1] > values[1] > 0


def test_gradients_count_batches_and_samples_count_samples():
    world = fk.World([[0, 6]], fk.FixedSteps(3))  # 3 and 15 samples, batches of 4
    row = fk.train(toy(), "fedavg", world, 1).history[-1]
    assert (row["gradients"], row["samples"]) == (6, 3 * 3 + 3 * 4)


def test_guesses_are_not_gradients():
    plain, guessed = (fk.train(toy(), name, toy_world(), 2).history[-1] for name in ("fedavgcm", "fedavgcm+gel"))
    assert plain["gradients"] == guessed["gradients"]


def test_only_asked_rounds_and_the_last_are_evaluated():
    history = fk.train(toy(), "fedavg", toy_world(), 5, eval_every=2).history
    assert [row["loss"] is not None for row in history] == [True, False, True, False, True, True]
    assert [row["accuracy"] is not None for row in history] == [True, False, True, False, True, True]
    every = fk.train(toy(), "fedavg", toy_world(), 5).history
    assert history[4]["loss"] == every[4]["loss"]


def test_the_first_row_at_a_target_is_found_and_gaps_are_skipped():
    rows = [{"round": t, "accuracy": a} for t, a in enumerate([0.1, None, 0.6, 0.5, 0.9])]
    history = History(rows)
    assert history.reaching(0.6)["round"] == 2
    assert history.reaching(0.95) is None
    assert (history.last("accuracy"), history.last("nothing")) == (0.9, None)


def test_a_history_is_read_back_as_it_was_written(tmp_path):
    run = fk.train(toy(), "fedavg", toy_world(), 3, eval_every=2)
    run.history.write(tmp_path / "h.jsonl")
    assert read(tmp_path / "h.jsonl") == run.history


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_last_line_cut_off_is_left_out(tmp_path, cut):
    file = tmp_path / "h.jsonl"
    History([dict.fromkeys(COLUMNS) | {"round": t} for t in range(3)]).write(file)
    file.write_text(file.read_text()[: -1 - cut])
    assert [row["round"] for row in read(file)] == [0, 1]


def test_a_line_damaged_in_the_middle_is_an_error_that_names_it(tmp_path):
    file = tmp_path / "h.jsonl"
    History([dict.fromkeys(COLUMNS) | {"round": t} for t in range(3)]).write(file)
    good = file.read_text().splitlines()
    bad = [good[1][:9], '{"round": 1}', good[2], good[1].replace("null", '"x"'), "[1]", "1" * 5000, "[" * 100_000]
    for line in bad:
        file.write_text("\n".join([good[0], line, good[2]]) + "\n")
        with pytest.raises(fk.InputError, match=r"h\.jsonl .*(line 2|recursion|cannot be read)"):
            read(file)


def test_a_history_of_an_older_version_is_read_with_its_empty_columns(tmp_path):
    file = tmp_path / "h.jsonl"
    row = dict.fromkeys(COLUMNS) | {"round": 0, "accuracy": 0.5, "sim_seconds": None, "wall_seconds": 0.0}
    file.write_text(json.dumps(row) + "\n")
    (row,) = read(file)
    assert row["sim_seconds"] is None and row["accuracy"] == 0.5


def test_without_pandas_the_command_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fk.MissingExtra, match='pip install "pandas>=2"'):
        History([{"round": 0}]).to_pandas()


def test_with_pandas_there_is_a_frame():
    pandas = pytest.importorskip("pandas", reason="pandas is an extra")
    frame = fk.train(toy(), "fedavg", toy_world(), 2).history.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["round"].tolist() == [0, 1, 2]


def test_rows_are_plain_json():
    history = fk.train(toy(), "fedyogi+gel", toy_world(), 2).history
    assert json.loads(json.dumps(history)) == history
