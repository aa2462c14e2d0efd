"""The user's own data: arrays, torch data sets, Hugging Face data sets, CSV files."""

import sys
import traceback
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import fedkeel as fk
from fedkeel.data.partition import dirichlet_repeated, iid, natural
from fedkeel.errors import InputError

FederatedData = fk.FederatedData


class Pairs(Dataset):
    """Map-style, without an end: what a `for` loop over it would never leave."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i % len(self.items)]


class Columns(dict):
    """What a `datasets.Dataset` looks like from outside."""

    @property
    def column_names(self):
        return list(self)


class Image:
    """What a PIL image looks like from outside."""

    def __init__(self, array):
        self.array, self.size = np.asarray(array, dtype=np.uint8), np.shape(array)[1::-1]

    def getbands(self):
        return ("L",)

    def __array__(self, dtype=None, copy=None):
        return self.array.astype(dtype or np.uint8)


def message_of(call):
    with pytest.raises(fk.InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_samples_that_are_grouped_already_are_not_copied():
    x, y = torch.arange(6.0)[:, None], torch.zeros(6, dtype=torch.int64)
    grouped = FederatedData.from_arrays(x, y, clients=["a", "a", "b", "c", "c", "c"])
    assert grouped.x.data_ptr() == x.data_ptr() and grouped.sizes([0, 1, 2]).tolist() == [2, 1, 3]
    mixed = FederatedData.from_arrays(x, y, clients=["a", "b", "a", "c", "c", "c"])
    assert mixed.x.data_ptr() != x.data_ptr() and mixed.x.flatten().tolist() == [0, 2, 1, 3, 4, 5]


def test_a_function_of_the_targets_may_say_who_holds_what():
    x, y = torch.arange(40.0).reshape(20, 2), torch.arange(20) % 4
    data = FederatedData.from_arrays(x, y, partial(iid, clients=5, seed=3))
    by_hand = FederatedData.from_arrays(x, y, iid(y.numpy(), 5, seed=3))
    assert len(data) == 5 and torch.equal(data.x, by_hand.x) and torch.equal(data.y, by_hand.y)


def test_lists_of_indices_may_repeat_a_sample_or_leave_it_out():
    data = FederatedData.from_arrays([[0.0], [1.0], [2.0]], [5, 6, 7], [np.array([2, 2, 0]), np.array([2])])
    assert data.sizes([0, 1]).tolist() == [3, 1]
    assert data.x.flatten().tolist() == [2, 2, 0, 2] and data.y.tolist() == [7, 7, 5, 7]


def test_draws_with_replacement_become_clients():
    y = np.repeat(np.arange(4), 10)
    data = FederatedData.from_arrays(y[:, None], y, partial(dirichlet_repeated, clients=6, alpha=0.5, samples=30))
    assert data.sizes(range(6)).tolist() == [30] * 6
    assert torch.equal(data.x[:, 0], data.y)


@pytest.mark.parametrize("lists", [[[0, 3]], [[-1, 0]], [[0.5]]])
def test_indices_outside_the_data_are_refused(lists):
    held = [np.array(own) for own in lists]
    message = message_of(lambda: FederatedData.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 2], held))
    assert "whole numbers in 0..2" in message


def test_a_client_without_indices_is_refused():
    held = [np.array([0]), np.array([])]
    assert "no samples" in message_of(lambda: FederatedData.from_arrays([[0.0]], [0], held))


def test_torch_tensors_and_torch_items_give_the_same_data():
    x, y = torch.randn(12, 3), torch.arange(12) % 3
    owner = np.arange(12) % 4
    items = Pairs([(x[i].numpy(), int(y[i])) for i in range(12)])
    first = FederatedData.from_torch(TensorDataset(x, y), owner, test=Subset(TensorDataset(x, y), [0, 5]))
    second = FederatedData.from_torch(items, owner)
    assert torch.equal(first.x, second.x) and torch.equal(first.y, second.y)
    assert torch.equal(first.test[0], x[[0, 5]]) and torch.equal(first.test[1], y[[0, 5]])
    assert first.y.dtype == second.y.dtype == torch.int64


def test_a_torch_data_set_trains():
    x = torch.randn(60, 4)
    dataset = TensorDataset(x, (x[:, 0] > 0).long())
    data = FederatedData.from_torch(dataset, partial(iid, clients=6), test=dataset)
    run = fk.train(fk.Task(lambda: torch.nn.Linear(4, 2), fk.cross_entropy, data), "fedavg:lr=0.5", rounds=20)
    assert run.history[-1]["accuracy"] > 0.85


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Pairs([(Image([[1]]), 0)]), "inputs must be tensors, arrays or numbers, not Image"),
        (Pairs([(torch.zeros(2), 0), (torch.zeros(3), 0)]), "one shape. Items 0 and 1 have (2,) and (3,)"),
        (Pairs([torch.zeros(2)]), "pairs. Item 0 is a Tensor"),
        (Pairs([]), "is empty"),
        (TensorDataset(torch.zeros(2)), "pairs. Got 1 tensors"),
        (iter([]), "data sets have. Got a list_iterator"),
    ],
)
def test_a_torch_data_set_that_does_not_fit_is_refused(dataset, message):
    assert message in message_of(lambda: FederatedData.from_torch(dataset, [0]))


def test_a_hub_data_set_has_its_clients_in_a_column():
    rows = Columns(a=[1.0, 2.0, 3.0], b=[10, 20, 30], label=[0, 1, 0], user=["wan", "ada", "wan"])
    data = FederatedData.from_huggingface(rows, x=["b", "a"], y="label", client_column="user", test=rows)
    assert data.client_ids.tolist() == ["ada", "wan"]
    assert data.x.tolist() == [[20, 2], [10, 1], [30, 3]] and data.test[0].shape == (3, 2)


def test_hub_images_become_channels_first_in_0_to_1():
    grey = Columns(image=[Image([[0, 255, 51]])] * 2, label=[0, 1])
    data = FederatedData.from_huggingface(grey, "image", "label", partition=natural)
    assert data.x.shape == (2, 1, 1, 3) and data.x.dtype == torch.float32
    assert data.x[0].flatten().tolist() == pytest.approx([0, 1, 0.2])
    colour = Columns(image=[Image(np.arange(24).reshape(2, 4, 3))], label=[0])
    assert FederatedData.from_huggingface(colour, "image", "label", partition=natural).x.shape == (1, 3, 2, 4)


def test_text_targets_are_numbered_by_the_training_data():
    train = Columns(x=[[1], [2], [3]], y=["dog", "cat", "eel"])
    data = FederatedData.from_huggingface(train, "x", "y", partition=[0, 0, 0], test=Columns(x=[[4]], y=["eel"]))
    assert data.y.tolist() == [1, 0, 2] and data.test[1].tolist() == [2]


def hub(rows=None, **given):
    rows = rows if rows is not None else Columns(x=[[1], [2]], y=["a", "b"])
    return lambda: FederatedData.from_huggingface(rows, **{"x": "x", "y": "y", "partition": [0, 1], **given})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (hub(partition=None), "either client_column= or partition="),
        (hub(client_column="y"), "either client_column= or partition="),
        (hub(y="yy"), "Unknown column 'yy'. Did you mean 'y'?"),
        (hub({"x": [1]}), "A datasets.Dataset (one split) is needed. Got a dict."),
        (hub(Columns(x=[[1], [2, 3]], y=[0, 1])), "Column 'x' does not hold numbers of one shape"),
        (hub(Columns(x=["hello", "you"], y=[0, 1])), "Column 'x' does not hold numbers of one shape"),
        (hub(test=Columns(x=[[1]], y=["c"])), "The test target 'c' does not occur in the training data."),
        (hub(test=Columns(x=[[1]], y=[1])), "must both be numbers or both be texts"),
    ],
)
def test_a_hub_data_set_that_does_not_fit_is_refused(call, message):
    assert message in message_of(call)


def test_a_hub_name_without_the_library_gives_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(fk.MissingExtra, match=r'needs datasets: pip install "transformers>=4.40" "datasets>=2.14"'):
        FederatedData.from_huggingface("mnist", "image", "label", partition=natural)


def test_a_hub_name_loads_its_splits(monkeypatch):
    asked = []

    class Library:
        @staticmethod
        def load_dataset(name, split):
            asked.append((name, split))
            return Columns(x=[[1], [2]], y=[0, 1])

    monkeypatch.setitem(sys.modules, "datasets", Library)
    FederatedData.from_huggingface("digits", "x", "y", partition=natural, test="validation")
    assert asked == [("digits", "train"), ("digits", "validation")]


def test_the_real_library_gives_the_same():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    columns = {"x": [[1, 2], [3, 4], [5, 6]], "y": ["b", "a", "b"], "user": [9, 7, 9]}
    table = datasets.table.InMemoryTable.from_pydict(columns)
    rows = datasets.Dataset(table, fingerprint="given")  # its own way to one pickles, and fails with some versions
    real = FederatedData.from_huggingface(rows, "x", "y", client_column="user")
    same = FederatedData.from_huggingface(Columns(columns), "x", "y", client_column="user")
    assert torch.equal(real.x, same.x) and torch.equal(real.y, same.y) and real.client_ids.tolist() == [7, 9]


@pytest.fixture
def write(tmp_path):
    def to(text, name="data.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return to


def test_a_csv_file_becomes_clients(write):
    path = write("age,site,ill,dose\n63,10,1,.5\n41,9,0,1e1\n\n57,10,1,-2\n")
    data = FederatedData.from_csv(path, client_column="site", target_column="ill", scale=False)
    assert data.client_ids.tolist() == [9, 10]  # numbers sort as numbers
    assert data.x.tolist() == [[41, 10], [63, 0.5], [57, -2]]
    assert data.y.tolist() == [0, 1, 1] and data.y.dtype == torch.int64


def test_csv_targets_may_be_texts_or_real_numbers(write):
    texts = FederatedData.from_csv(write("c,x,y\na,1,no\na,2,yes\na,3,no\n"), "c", "y")
    reals = FederatedData.from_csv(write("c,x,y\na,1,0.5\na,2,2\n"), "c", "y")
    assert texts.y.tolist() == [0, 1, 0]
    assert reals.y.tolist() == [0.5, 2.0] and reals.y.is_floating_point()


def test_a_csv_test_file_is_read_in_the_order_of_the_training_columns(write):
    train = write("c,x1,x2,y\na,1,2,no\nb,3,4,yes\n")
    test = write('y,x2,x1,note\nyes,"40",30,"said ""no"", twice"\n', "test.csv")
    data = FederatedData.from_csv(train, "c", "y", test, scale=False)
    assert data.test[0].tolist() == [[30, 40]] and data.test[1].tolist() == [1]


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbfc,x,y\r\na,1,0\r\n")
    assert len(FederatedData.from_csv(path, "c", "y")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c,x,y\na,,0\n", "Column 'x' is blank in every row. Leave it out: drop=['x']"),
        ("c,x,y\n,1,0\n", "'c' is blank; 1 row of the file is like that. Fill it in, or take it out of"),
        ('c,x,y\n"a\nb",1,1\n\na,1,\na,1,NA\n', "Line 5: the target column 'y' is blank; 2 rows of the file are"),
        ("c,x,y\na,1,0\na,1\n", "line 3: 2 values for the 3 columns of the header"),
        ("c\na,1\n", "line 2: 2 values for the 1 column of the header"),
        ("c,x,y\n", "has no rows below the line with the names of its columns"),
        ("", "is empty; it needs a line with the names of the columns"),
        ("c,x,x,y\na,1,1,0\n", "has 2 columns named 'x'; give each a name of its own"),
        ("c,x,y, ,\na,1,0,,\n", " has no name; give it one."),
        ("client,x,y\na,1,0\n", "Unknown column 'c'"),
        ("c;x;y\na;1;0\n", "one column, with semicolons in its name; save it with commas"),
        ("c;x;y\na;1,5;0\n", "semicolons in its name; save it with commas between the values, and with points in"),
        ("c\tx\ty\na\t1\t0\n", "one column, with tabs in its name; save it with commas"),
        (f"{'9' * 5000},x,y\na,1,0\n", f"Known: {'9' * 60}, x, y."),
        ('"a\nb",x,y\na,1,0\n', "Known: a b, x, y."),
        ("c,y\na,0\n", "no feature column"),
        ("c,x,y\n" + "".join(f"a,t{i},0\n" for i in range(101)), "'x' has 101 different texts, such as 't0'; 100 are"),
        ("c,x,y\na,1e400,0\n", "Row 1: column 'x' has '1e400', which is not a finite number"),
        ("c,x,y\na,1,nan\n", "y has non-finite values"),
        ("c,x,y\n1,1,0\nnan,1,0\n", "Line 3: the client column 'c' is blank ('nan'); 1 row"),
        ("c,x,y\n1,1,0\ninf,1,0\n", "A client id is NaN or infinite"),
        (f"c,x,y\n{'a' * 300},1,0\n", "has 300 characters; 256 are allowed"),
        ('c,x,y\na,"1,0\n', "cannot be read"),
    ],
)
def test_a_csv_file_that_does_not_fit_is_refused(write, text, message):
    path = write(text)
    assert message in message_of(lambda: FederatedData.from_csv(path, "c", "y"))


def test_a_missing_or_unreadable_csv_file_is_refused(tmp_path):
    assert "no.csv is not there" in message_of(lambda: FederatedData.from_csv(tmp_path / "no.csv", "c", "y"))
    (tmp_path / "binary.csv").write_bytes(b"c,x,y\n\xff\xfe,1,0\n")
    assert "cannot be read" in message_of(lambda: FederatedData.from_csv(tmp_path / "binary.csv", "c", "y"))


@pytest.mark.parametrize(("encoding", "byte"), [("latin-1", "0xf6"), ("utf-16", "0xff")])
def test_a_csv_file_in_another_encoding_says_how_to_save_it(tmp_path, encoding, byte):
    (tmp_path / "a.csv").write_bytes("c,x,y\nK\u00f6ln,1,0\n".encode(encoding))
    said = message_of(lambda: FederatedData.from_csv(tmp_path / "a.csv", "c", "y"))
    assert f'as UTF-8: the byte {byte} does not fit; save it as UTF-8, which Excel calls "CSV UTF-8".' in said


def test_a_csv_file_that_is_not_there_is_looked_for_under_a_similar_name(tmp_path):
    (tmp_path / "patient.csv").write_text("c,x,y\na,1,0\n")
    (tmp_path / "patients.txt").write_text("")
    said = message_of(lambda: FederatedData.from_csv(tmp_path / "patients.csv", "c", "y"))
    assert said == f"{tmp_path}/patients.csv is not there. Did you mean 'patient.csv'?"
    assert message_of(lambda: FederatedData.from_csv(tmp_path / "no" / "a.csv", "c", "y")).endswith("is not there.")


def test_spaces_around_names_and_values_of_a_csv_file_are_left_out(write):
    train = write('site, age , "ill"\nnorth , 40, yes \nnorth,50 , "yes"\nsouth,60, no\n')
    test = write("ill ,age\n yes,50\n", "test.csv")
    data = FederatedData.from_csv(train, "site", "ill", test)
    assert data.client_ids.tolist() == ["north", "south"] and data.class_names == ["no", "yes"]
    assert data.y.tolist() == [1, 1, 0] and data.test[1].tolist() == [1] and float(data.test[0]) == 0


def test_an_error_about_a_column_has_no_second_one_behind_it(write):
    for text in ("c,x,y\n" + "".join(f"a,t{i},0\n" for i in range(101)), "c,y\na,0\n"):
        with pytest.raises(fk.InputError) as error:
            FederatedData.from_csv(write(text), "c", "y")
        assert "".join(traceback.format_exception(error.value)).count("Traceback") == 1


def test_long_numbers_are_names_since_floats_would_merge_them(write):
    ids = [f"{10**20 + i}" for i in range(2)]
    data = FederatedData.from_csv(write(f"c,x,y\n{ids[0]},1,0\n{ids[1]},2,1\n"), "c", "y")
    assert data.client_ids.tolist() == ids


def test_one_column_cannot_be_client_and_target(write):
    path = write("c,x\na,1\n")
    assert "are both 'c'" in message_of(lambda: FederatedData.from_csv(path, "c", "c"))


def test_arrays_in_the_byte_order_of_other_machines_are_taken():
    data = FederatedData.from_arrays(np.array([[1.5], [2]], ">f4"), np.array([0, 1], ">i2"), clients=[0, 0])
    assert data.x.flatten().tolist() == [1.5, 2.0] and data.y.tolist() == [0, 1]


def test_a_csv_test_file_without_a_column_is_refused(write):
    train, test = write("c,x,y\na,1,0\n"), write("y\n0\n", "test.csv")
    assert "has no column 'x'" in message_of(lambda: FederatedData.from_csv(train, "c", "y", test))


def test_numpy_pandas_and_torch_give_the_same_data():
    pandas = pytest.importorskip("pandas")
    x, y, owner = np.arange(24.0).reshape(12, 2), np.arange(12) % 3, np.arange(12) % 4
    plain = FederatedData.from_arrays(x, y, clients=owner, test=(x[:3], y[:3]))
    frame, names = pandas.DataFrame(x, columns=["a", "b"]), pandas.Series([f"u{i}" for i in owner])
    same = [
        (frame, pandas.Series(y, index=range(5, 17)), pandas.Series(owner)),
        (frame, pandas.DataFrame({"y": y}), pandas.DataFrame({"owner": owner})),
        (frame, pandas.Series(y, dtype="Int64"), pandas.Series(owner, dtype="Int64")),
        (frame, pandas.Series(y).astype("category"), names),
        (torch.tensor(x), torch.tensor(y), torch.tensor(owner)),
        (x.tolist(), y.tolist(), names.astype("category")),
    ]
    by_client = [np.flatnonzero(owner == i) for i in range(4)]
    for kind in (list, torch.tensor, pandas.Series, tuple):
        same.append((x, y, [kind(own) for own in by_client]))
    for inputs, targets, clients in same:
        data = FederatedData.from_arrays(inputs, targets, clients=clients, test=(inputs[:3], targets[:3]))
        assert (
            torch.equal(data.x, plain.x) and torch.equal(data.y, plain.y) and torch.equal(data.test[1], plain.test[1])
        )
        assert data.sizes(range(4)).tolist() == [3, 3, 3, 3]


def test_a_frame_of_several_types_becomes_one_array_and_a_bad_column_is_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [63, 41], "dose": [0.5, 2.0], "smokes": [True, False]})
    assert FederatedData.from_arrays(frame, [0, 1], clients=[0, 1]).x.tolist() == [[63, 0.5, 1], [41, 2, 0]]
    for bad, error in ((["low", "high"], "x: column 'more' holds .*; encode it as numbers"),
                       ([1, None], "x: column 'more' has missing values")):  # fmt: skip
        with pytest.raises(InputError, match=error):
            FederatedData.from_arrays(frame.assign(more=bad), [0, 1], clients=[0, 1])


def test_data_that_pandas_lends_are_copied():
    pandas = pytest.importorskip("pandas")
    series = pandas.Series([0, 1])
    data = FederatedData.from_arrays([[1.0], [2.0]], series, clients=[0, 1])
    data.y[0] = 5
    assert series.tolist() == [0, 1]
