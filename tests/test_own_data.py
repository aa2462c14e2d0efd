"""Tables with texts and blanks, pictures in folders, and models with several inputs."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.cli import main
from fedkeel.data.csv_files import csv_summary
from fedkeel.data.partition import iid

FederatedData = fk.FederatedData
CSV = "site,age,sex,ill\n" + "".join(
    f"{'AB'[row % 2]},{'' if row == 3 else 20 + row},{('f', 'm', '?')[row % 3]},{('no', 'yes')[row % 2]}\n"
    for row in range(20)
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "hearts.csv"
    path.write_text(CSV)
    return path


def test_texts_become_columns_blanks_the_mean_and_numbers_are_scaled(file, capsys):
    data = FederatedData.from_csv(file, "site", "ill")
    assert data.x.shape == (20, 3) and data.class_names == ["no", "yes"]
    assert float(data.x[:, 0].mean()) == pytest.approx(0, abs=1e-12)
    assert sorted({tuple(row) for row in data.x[:, 1:].tolist()}) == [(0, 0), (0, 1), (1, 0)]
    known = [20 + row for row in range(20) if row != 3]
    column = data.table.preparation.columns[0]
    assert (column.mean, column.deviation) == pytest.approx((np.mean(known), np.std(known)))
    said = capsys.readouterr().err
    assert "'age': numbers, scaled by mean 29.8" in said and "1 blank became the mean" in said
    assert "'sex': 2 texts, a column each (f, m); 6 blank became 0 in all" in said


@pytest.mark.parametrize("part", ["test", "validation", "client_test"])
def test_what_is_fitted_never_sees_rows_that_are_held_out(file, part):
    data = FederatedData.from_csv(file, "site", "ill", verbose=False).held_out(0.3, part=part)
    train = data.table.raw["train"][:, 0]
    known = train[~train.isnan()]
    assert data.table.preparation.columns[0].mean == pytest.approx(float(known.mean()))
    assert float(data.x[:, 0][~train.isnan()].mean()) == pytest.approx(0, abs=1e-12)
    held = getattr(data, part)[0]
    assert torch.equal(held, data.table.preparation.inputs(data.table.raw[part]))
    changed = data.table.raw[part].clone() * 1000
    assert torch.equal(
        data.table.preparation.fitted(data.table.raw["train"]).inputs(changed)[:, 1:] * 0, held[:, 1:] * 0
    )


def test_a_share_of_every_clients_rows_may_be_the_test_set(file):
    data = FederatedData.from_csv(file, "site", "ill", test=0.2, verbose=False)
    assert data.sizes([0, 1]).tolist() == [8, 8] and len(data.test[0]) == 4
    for wrong in (1.5, -0.1, True, False):
        with pytest.raises(fk.InputError, match=r"must be a file, or a share of every client's rows: 0 or a number in"):
            FederatedData.from_csv(file, "site", "ill", test=wrong)


def test_a_share_of_zero_keeps_no_test_rows_in_python_and_on_the_command_line(file):
    for data in (
        FederatedData.from_csv(file, "site", "ill", test=0, verbose=False),
        fk.tasks.get(f"csv:file={file},client=site,target=ill,test=0").data,
        fk.tasks.get(f"csv:file={file},client=site,target=ill,test=none").data,
    ):
        assert data.test is None and len(data.x) == 20
    tested = fk.tasks.get(f"csv:file={file},client=site,target=ill,test=0").held_out(0.2, "client_test").data
    assert len(tested.x) == 16 and torch.equal(tested.test[0], tested.client_test[0])
    assert "16 training rows, 4 test rows (those of the tests of clients);" in csv_summary(file, tested)
    twice = fk.tasks.get(f"csv:file={file},client=site,target=ill").held_out(0.25, "client_test").held_out(0.2).data
    assert "4 test rows, 4 rows for tests of clients, 2 rows for validation;" in csv_summary(file, twice)


def test_the_seed_of_the_task_draws_the_rows_of_every_test(file):
    def rows(part, seed):
        task = fk.tasks.get(f"csv:file={file},client=site,target=ill,seed={seed}").held_out(0.25, "client_test")
        return getattr(task.data, part)[0].tolist()

    for part in ("test", "client_test"):
        assert rows(part, 0) == rows(part, 0) != rows(part, 1)


def test_unknown_texts_of_a_test_file_are_zero_everywhere_and_said(file, tmp_path, capsys):
    (tmp_path / "test.csv").write_text("age,sex,ill\n30,x,no\n")
    data = FederatedData.from_csv(file, "site", "ill", tmp_path / "test.csv")
    assert data.test[0][0, 1:].tolist() == [0, 0]
    assert "test: 1 text that is blank or not in the training file" in capsys.readouterr().err


def test_a_column_that_looks_like_an_identifier_is_warned_about(tmp_path, capsys):
    rows = "".join(f"{i},a,{i % 7},{i % 2}\n" for i in range(30))
    (tmp_path / "a.csv").write_text("id,c,x,y\n" + rows)
    FederatedData.from_csv(tmp_path / "a.csv", "c", "y")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("  Warning: column 'id' looks like an identifier") and last.endswith("out with drop=id.")
    assert ": 1 client, 30 training rows, no test rows; " in first
    FederatedData.from_csv(tmp_path / "a.csv", "c", "y", drop=["id"])
    assert "Warning" not in capsys.readouterr().err


def ages(tmp_path, *values, head="c,age,y"):
    path = tmp_path / "ages.csv"
    path.write_text("\n".join([head, *(f"{'ab'[i % 2]},{value},{i % 2}" for i, value in enumerate(values))]) + "\n")
    return path


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [*range(20, 89), "6o"],
            "'age' has 69 numbers and 1 other value: line 71 has '6o'. Correct what is wrong, or le",
        ),
        (
            ["1", "-", "", "-", "NA", "3"],
            "'age' has 2 numbers and 2 other values: line 3 has '-'. Correct what is wron",
        ),
        (
            ['"10,5"', '"9,25"', "8"],
            "line 2 has '10,5', with a comma; write 10.5, not 10,5, and 1234, not 1,234. Correct",
        ),
        (['"10,5"', "low", "9.5"], "has 1 number and 2 other values: line 2 has '10,5', with a comma"),
        (
            ["6o", *range(200)],
            "line 2 has '6o'. Correct what is wrong, or leave it blank; a column of names is read as",
        ),
    ],
)
def test_a_column_of_numbers_with_some_other_values_is_refused(tmp_path, values, said):
    path = ages(tmp_path, *values)
    with pytest.raises(fk.InputError) as error:
        FederatedData.from_csv(path, "c", "y")
    assert said in str(error.value) and str(error.value).endswith("is read as texts with categories=['age'].")
    with pytest.raises(fk.InputError, match=r"with categories=age\.$"):
        fk.tasks.get(f"csv:file={path},client=c,target=y")


def test_codes_that_are_mostly_numbers_may_be_read_as_texts_and_a_column_of_mostly_texts_is(tmp_path):
    codes = ages(tmp_path, "250", "428", "V45", "250")
    named = FederatedData.from_csv(codes, "c", "y", categories=["age"], verbose=False)
    assert named.table.preparation.columns[0].values == ("250", "428", "V45")
    texts = FederatedData.from_csv(ages(tmp_path, "3a", "3b", "2"), "c", "y", verbose=False)
    assert texts.table.preparation.columns[0].values == ("2", "3a", "3b")
    left_out = FederatedData.from_csv(ages(tmp_path, "1,6o", "2,3", head="c,x,age,y"), "c", "y", drop="age")
    assert left_out.x.shape == (2, 1)


def test_a_target_of_numbers_with_some_other_values_is_refused_unless_it_is_named_as_texts(tmp_path):
    task = labelled(tmp_path, [0, 1, 1, "O"] * 5)
    with pytest.raises(fk.InputError, match=r"'y' has 15 numbers and 5 other values: line 5 has 'O'.*take its row out"):
        fk.tasks.get(task)
    assert fk.tasks.get(f"{task},categories=y").data.class_names == ["0", "1", "O"]
    with_none = tmp_path / "stages.csv"
    with_none.write_text("c,x,y\n" + "a,1,2\na,2,none\nb,3,2\nb,1,none\n" * 5)
    data = FederatedData.from_csv(with_none, "c", "y", with_none, categories=["y"], verbose=False)
    assert data.class_names == ["2", "none"] and sorted(data.test[1].unique().tolist()) == [0, 1]


def test_whole_targets_with_a_fraction_are_numbers_with_a_warning_or_classes_where_that_is_said(tmp_path, capsys):
    task = labelled(tmp_path, ["1.0", "0.0"] * 20)
    assert main(["data", "show", task]) == 0
    said = "Warning: the target 'y' is read as a number, but has only whole ones (0.0, 1.0); if they are classes, add "
    assert f"{said}categories=y.\n" in capsys.readouterr().err
    assert main(["data", "show", f"{task},categories=y"]) == 0
    err = capsys.readouterr().err
    assert "targets: classes 0.0, 1.0\n" in err and "Warning" not in err
    for labels in ([f"{i}.0" for i in range(40)], ["1.0", "0.5"] * 20):
        assert main(["data", "show", labelled(tmp_path, labels)]) == 0
        assert "Warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "column", "note"),
    [
        ("", "test loss at the end", "Losses are on the test set, at the end after 8 rounds, of one seed."),
        (",test=0", "training loss at the end", "Losses are those of training, since there are no test samples, at"),
        (",categories=y", "  at the end", "Accuracies are on the test set, at the end after 8 rounds, of one seed."),
    ],
)
def test_the_table_below_a_run_shows_the_loss_where_numbers_are_predicted(tmp_path, capsys, more, column, note):
    task = labelled(tmp_path, ["1.0", "0.0"] * 20) + more
    assert main(["run", task, "fedavg", "--rounds", "8", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.split()[:2] == ["■", "fedavg"] and len(line.split()) > 2]
    assert column in out and note in out and float(row.split()[-1]) >= 0
    assert ("accurac" in out.lower()) == (more == ",categories=y")


def test_classes_and_clients_that_differ_only_in_case_are_warned_about(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("c,x,y\nnorth,1,Yes\nNorth,2,yes\nsouth,3,no\n")
    FederatedData.from_csv(tmp_path / "a.csv", "c", "y")
    *_, classes, clients = capsys.readouterr().err.splitlines()
    assert classes == "  Warning: the classes 'Yes' and 'yes' differ only in upper and lower case."
    assert clients == "  Warning: the clients 'North' and 'north' differ only in upper and lower case."


def test_columns_may_be_left_out_or_be_names(file):
    data = FederatedData.from_csv(file, "site", "ill", drop=["age"], verbose=False)
    assert data.x.shape == (20, 2)
    names = FederatedData.from_csv(file, "site", "ill", categories=["age"], verbose=False)
    assert names.x.shape == (20, 19 + 2)
    with pytest.raises(fk.InputError, match="Unknown column 'agee'"):
        FederatedData.from_csv(file, "site", "ill", drop=["agee"])
    one = FederatedData.from_csv(file, "site", "ill", drop="age", verbose=False)
    assert torch.equal(one.x, data.x)
    with pytest.raises(fk.InputError, match="no feature column"):
        FederatedData.from_csv(file, "site", "ill", drop="age|sex")


def test_a_column_that_cannot_be_used_is_left_out_in_the_form_that_was_given(tmp_path):
    rows = "".join(f"{i},a,2024-03-{i % 28 + 1:02d} 10:{i % 60:02d},{i % 2}\n" for i in range(200))
    (tmp_path / "a.csv").write_text("id,c,at,y\n" + rows)
    with pytest.raises(fk.InputError, match=r"looks like dates; 100 are allowed. Leave it out: drop=\['id', 'at'\]\.$"):
        FederatedData.from_csv(tmp_path / "a.csv", "c", "y", drop=["id"])
    with pytest.raises(fk.InputError, match=r"Leave it out: drop=id\|at, in quotes\.$"):
        fk.tasks.get(f"csv:file={tmp_path}/a.csv,client=c,target=y,drop=id")
    with pytest.raises(fk.InputError, match=r"Leave it out: drop=at\.$"):
        fk.tasks.get(f"csv:file={tmp_path}/a.csv,client=c,target=y")


def test_words_that_count_as_blanks_and_months_are_remarked_upon(tmp_path, capsys):
    rows = "".join(f"a,{('none', 'heart', 'lung')[i % 3]},2024-{i % 12 + 1:02d},{i % 2}\n" for i in range(24))
    (tmp_path / "a.csv").write_text("c,ward,month,y\n" + rows)
    FederatedData.from_csv(tmp_path / "a.csv", "c", "y")
    _, ward, month, _ = capsys.readouterr().err.splitlines()
    assert "8 blank became 0 in all (the file has 'none' 8 times, which counts as blank)" in ward
    assert "looks like dates" in month and "dates" not in ward


def labelled(tmp_path, labels, head="c,x,y"):
    path = tmp_path / "labels.csv"
    path.write_text(f"{head}\n" + "".join(f"{'ab'[i % 2]},{i % 5},{label}\n" for i, label in enumerate(labels)))
    return f"csv:file={path},client=c,target=y"


def test_whole_numbers_are_classes_of_the_whole_file_whatever_the_split_keeps_for_the_test(tmp_path, capsys):
    rare = labelled(tmp_path, [10, -1] * 40 + [77])  # a class of one row
    for seed in range(12):
        task = fk.tasks.get(f"{rare},seed={seed},test=0.5")
        assert task.data.class_names == ["-1", "10", "77"]
        assert task.model()(task.data.x[:1].float()).shape == (1, 3)
        if 2 in task.data.test[1].tolist():
            break
    else:
        pytest.fail("no seed keeps the rare class for the test")
    assert 2 not in task.data.y.tolist()
    assert fk.train(task, "fedavg", rounds=1).history[-1]["accuracy"] is not None
    assert main(["data", "show", labelled(tmp_path, [0, 1] * 20)]) == 0
    assert "targets: classes 0, 1\n" in capsys.readouterr().err
    assert main(["data", "show", labelled(tmp_path, range(15))]) == 0
    assert "targets: 15 classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)" in capsys.readouterr().err


@pytest.mark.parametrize("labels", [range(1000, 1300), [f"p{i}" for i in range(300)], [i % 31 for i in range(300)]])
def test_a_target_with_too_many_classes_is_refused_by_its_name(tmp_path, labels):
    wrong = r"target column 'y' has (300|31) different values in 300 rows, each of them a class; at most 1,000"
    for more in ("", ",test=0"):
        with pytest.raises(fk.InputError, match=wrong):
            fk.tasks.get(labelled(tmp_path, labels) + more)


def test_a_tenth_of_the_rows_may_be_classes(tmp_path):
    assert len(fk.tasks.get(labelled(tmp_path, [i % 30 for i in range(300)])).data.class_names) == 30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("csv", "The task csv has no file, client and target: write csv:file=FILE.csv,client=COLUMN,target=COLUMN."),
        ("csv:file=hearts.csv,client=site", "The task csv has no target: write csv:file=hearts.csv,"),
        ("csv:file=hearts.csv,client=site", "Its columns are site, age, sex, ill."),
        ("hearts.csv", "for a CSV file write csv:file=hearts.csv,client=COLUMN,target=COLUMN. Its columns are site,"),
        (
            "./none.csv",
            "'./none.csv' is no task; for a CSV file write csv:file=./none.csv,client=COLUMN,target=COLUMN.",
        ),
        ("csv:file=hearts.csv,client=site,target=ill,drop=age,sex", "have | between them, in quotes: 'drop=age|sex'."),
        ("csv:file=hearts.csv,drop=age,sex,client=site,target=ill", "have | between them, in quotes: 'drop=age|sex'."),
        ("csv:file=ages.csv,client=age,target=ill", "'age' makes 30 clients of one row each, and a test share of 0.2"),
    ],
)
def test_a_task_for_a_file_that_is_not_right_says_what_to_write(file, tmp_path, monkeypatch, capsys, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ages.csv").write_text("age,x,ill\n" + "".join(f"{i},1,0\n" for i in range(30)))
    assert main(["run", text, "fedavg"]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def pictures(root, depth):
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("cat", "dog")):
        for client in ("ada", "wan"):
            folder = root / client / name if depth == 3 else root / name
            folder.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (10, 8), (255 * number, 0, 0)).save(folder / f"{client}.png")


def test_pictures_lie_in_folders_of_clients_and_classes(tmp_path):
    pictures(tmp_path / "train", 3)
    pictures(tmp_path / "test", 2)
    data = FederatedData.from_folder(tmp_path / "train", size=6, test=tmp_path / "test")
    assert data.client_ids.tolist() == ["ada", "wan"] and data.class_names == ["cat", "dog"]
    assert data.x.shape == (4, 3, 6, 6) and data.y.tolist() == [0, 1, 0, 1]
    assert torch.equal(data.x[:, 0].amax((1, 2)), data.y.float()) and len(data.test[0]) == 4
    dealt = FederatedData.from_folder(tmp_path / "test", size=6, partition=partial(iid, clients=2))
    assert len(dealt) == 2
    with pytest.raises(fk.InputError, match="holds no pictures as CLIENT/CLASS"):
        FederatedData.from_folder(tmp_path / "test", size=6)


class Two(nn.Module):
    """A picture and a row of numbers; what it returns has more beside its scores."""

    def __init__(self, wrap=lambda scores: scores):
        super().__init__()
        self.look, self.read, self.wrap = nn.Linear(9, 4), nn.Embedding(5, 4), wrap
        self.last = nn.Linear(4, 2)

    def forward(self, picture, word):
        assert picture.shape[1:] == (1, 3, 3) and word.dtype == torch.int64 and word.ndim == 1
        return self.wrap(self.last(torch.tanh(self.look(picture.flatten(1)) + self.read(word))))


def two_inputs():
    generator = torch.Generator().manual_seed(0)
    picture, word = torch.randn(60, 1, 3, 3, generator=generator), torch.randint(0, 5, (60,), generator=generator)
    return {"picture": picture, "word": word}, (picture.mean((1, 2, 3)) > 0).long()


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: SimpleNamespace(logits=s), lambda s: {"logits": s, "loss": 0}])
def test_a_model_with_several_inputs_and_logits_trains_as_one_that_takes_them_apart_by_hand(engine, wrap):
    inputs, y = two_inputs()
    clients = np.arange(60) % 6
    data = FederatedData.from_arrays(inputs, y, clients, test=(inputs, y))
    run = fk.train(fk.Task(partial(Two, wrap), fk.cross_entropy, data), "fedavg:lr=0.3", rounds=3, engine=engine)

    class ByHand(Two):
        def forward(self, x):
            return super().forward(x[:, :9].reshape(-1, 1, 3, 3), x[:, 9].long())

    packed = torch.cat([inputs["picture"].flatten(1), inputs["word"][:, None].float()], 1)
    plain = FederatedData.from_arrays(packed, y, clients, test=(packed, y))
    same = fk.train(fk.Task(ByHand, fk.cross_entropy, plain), "fedavg:lr=0.3", rounds=3, engine=engine)
    assert run.config["engine"] == same.config["engine"] == engine
    assert torch.equal(run.params, same.params) and run.history[-1]["loss"] == same.history[-1]["loss"]
    given_back = run.model()  # takes its own inputs and returns its own output
    output = given_back(**inputs)
    scores = output if torch.is_tensor(output) else output["logits"] if isinstance(output, dict) else output.logits
    assert scores.shape == (60, 2) and not given_back._forward_pre_hooks and not given_back._forward_hooks


def test_inputs_by_place_and_by_name_and_items_of_data_sets_are_the_same():
    inputs, y = two_inputs()
    clients = np.arange(60) % 6
    named = FederatedData.from_arrays(inputs, y, clients)
    dicts = [{"picture": inputs["picture"][i], "word": inputs["word"][i], "labels": y[i]} for i in range(60)]
    tensors = torch.utils.data.TensorDataset(*inputs.values(), y)
    for data in (
        FederatedData.from_arrays(tuple(inputs.values()), y, clients),
        FederatedData.from_torch(dicts, clients),
        FederatedData.from_torch([(tuple(i.values())[:2], i["labels"]) for i in dicts], clients),
        FederatedData.from_torch(tensors, clients),
    ):
        assert torch.equal(data.x, named.x) and torch.equal(data.y, named.y)
        run = fk.train(fk.Task(Two, fk.cross_entropy, data), "fedavg:lr=0.3", rounds=1)
        assert run.status == "done"


def test_inputs_that_do_not_fit_are_refused():
    inputs, y = two_inputs()
    clients = np.arange(60) % 6
    with pytest.raises(fk.InputError, match="The test inputs are picture"):
        FederatedData.from_arrays(inputs, y, clients, test=({"picture": inputs["picture"]}, y))
    with pytest.raises(fk.InputError, match="above 16,777,216"):
        FederatedData.from_arrays(inputs | {"word": inputs["word"] + 2**25}, y, clients)
    with pytest.raises(fk.InputError, match="one entry per sample"):
        FederatedData.from_arrays(inputs | {"word": inputs["word"][:5]}, y, clients)
    task = fk.Task(Two, fk.cross_entropy, FederatedData.from_arrays(inputs, y, clients))
    for name in ("moon", "heterofl"):
        with pytest.raises(fk.InputError, match="several"):
            fk.train(task, name, rounds=1)


@pytest.mark.extra
def test_a_tiny_transformer_out_of_a_hub_data_set_trains():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.DistilBertConfig(
        vocab_size=20, dim=8, hidden_dim=16, n_layers=1, n_heads=2, max_position_embeddings=6, num_labels=2
    )

    class Columns(dict):
        column_names = property(list)

    tokens = np.random.default_rng(0).integers(1, 20, (40, 6))
    rows = Columns(tokens=tokens.tolist(), seen=np.ones((40, 6), int).tolist(), kind=["no", "yes"] * 20)
    data = FederatedData.from_huggingface(
        rows, {"input_ids": "tokens", "attention_mask": "seen"}, "kind", partition=partial(iid, clients=4)
    )
    task = fk.Task(partial(transformers.DistilBertForSequenceClassification, config), fk.cross_entropy, data)
    first, second = (fk.train(task, "scaffold:lr=0.5", rounds=3) for _ in range(2))
    assert torch.equal(first.params, second.params)
    assert first.history[-1]["train_loss"] < first.history[1]["train_loss"]
    assert type(first.model()(torch.tensor(tokens[:2]))).__name__ == "SequenceClassifierOutput"


def test_without_pillow_a_folder_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(fk.MissingExtra, match=r'pip install "Pillow>=10"'):
        FederatedData.from_folder(tmp_path, size=4)


def test_a_csv_file_is_a_task_of_the_command_line_and_its_runs_can_be_repeated(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    task = fk.tasks.get("csv:file=hearts.csv,client=site,target=ill,hidden=4")
    run = fk.train(task, "fedavg", rounds=2, stop_after=1, checkpoint=tmp_path / "run")
    assert run.config["rerunnable"] and str(file) in run.config["task"]
    monkeypatch.chdir("/")
    assert fk.resume(tmp_path / "run").history[-1]["accuracy"] is not None
    assert not capsys.readouterr().err  # only the command says what was done, and only where it trains
    assert main(["run", run.config["task"], "fedavg", "--rounds", "1", "--out", str(tmp_path / "more")]) == 0
    assert "'age': numbers, scaled by mean" in capsys.readouterr().err
    words = ["run", run.config["task"], "fedavg", "--rounds", "1", "--client-test", "0.25"]
    assert main([*words, "--out", str(tmp_path / "own")]) == 0
    used = len(task.held_out(0.25, "client_test").data.x)
    assert f"fitted on {used} training rows" in capsys.readouterr().err and used < len(task.data.x)
    (tmp_path / "doses.csv").write_text("c,x,dose\n" + "".join(f"a,{i},{i / 4}\n" for i in range(10)))
    numbers = fk.train(fk.tasks.get(f"csv:file={tmp_path}/doses.csv,client=c,target=dose"), "fedavg", rounds=20)
    assert numbers.history[-1]["loss"] < numbers.history[0]["loss"]
