"""Formats that need an optional package: parquet, HDF5, pictures; and TFF's SQLite, which does not."""

import sqlite3
import struct
import sys

import numpy as np
import pytest

from fedkeel import InputError, MissingExtra
from fedkeel.data import read


def test_a_missing_package_is_named_with_the_command(tmp_path, monkeypatch):
    for package in ("pyarrow.parquet", "h5py", "PIL.Image"):
        monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a").write_bytes(b"x")
    for reader, needed in (
        (lambda f: read.parquet(f, ("a",)), "pyarrow>=14"),
        (lambda f: list(read.hdf5(f, ("a",))), "h5py>=3.10"),
        (lambda f: read.picture(f, 8), "Pillow>=10"),
    ):
        with pytest.raises(MissingExtra, match=rf'pip install "{needed}"'):
            reader(tmp_path / "a")


def test_parquet_columns_of_several_files_are_joined(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    for number in range(2):
        pq.write_table(pa.table({"text": ["a", "b"], "label": [number, 1]}), tmp_path / f"{number}.parquet")
    columns = read.parquet(tmp_path, ("label", "text"))
    assert columns["label"].tolist() == [0, 1, 1, 1] and columns["text"].tolist() == ["a", "b", "a", "b"]
    with pytest.raises(InputError, match=r"no column 'user' \(it has text, label\)"):
        read.parquet(tmp_path / "0.parquet", ("user",))
    whole = (tmp_path / "0.parquet").read_bytes()
    (tmp_path / "0.parquet").write_bytes(whole[:-10])
    with pytest.raises(InputError, match=r"0\.parquet cannot be read as parquet"):
        read.parquet(tmp_path, ("label",))


def test_hdf5_clients_come_by_name_with_their_fields(tmp_path):
    h5py = pytest.importorskip("h5py")
    file = tmp_path / "fed_emnist_train.h5"
    with h5py.File(file, "w") as out:
        for client, count in (("f2", 3), ("f1", 2)):
            out[f"examples/{client}/pixels"] = np.ones((count, 28, 28), np.float32)
            out[f"examples/{client}/label"] = np.arange(count)
    found = list(read.hdf5(file, ("pixels", "label")))
    assert [(name, fields["label"].tolist()) for name, fields in found] == [("f1", [0, 1]), ("f2", [0, 1, 2])]
    assert [name for name, _ in read.hdf5(file, ("label",), clients=1)] == ["f1"]
    with pytest.raises(InputError, match="it has no '/examples/f1/tokens'"):
        list(read.hdf5(file, ("tokens",)))
    with h5py.File(file, "a") as out:
        out["examples/f0/pixels"], out["examples/f0/label"] = np.ones((2, 28, 28)), [1]
    with pytest.raises(InputError, match="different lengths"):
        list(read.hdf5(file, ("pixels", "label")))
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(InputError, match="cannot be read as HDF5"):
        list(read.hdf5(file, ("label",)))


def message(field, content):
    assert len(content) < 128
    return bytes([field << 3 | 2, len(content)]) + content


def example(**features):
    """A tf.Example in wire format, written by hand."""
    entries = b""
    for name, (kind, packed) in features.items():
        feature = message(kind, b"".join(message(1, part) for part in packed))
        entries += message(1, message(1, name.encode()) + message(2, feature))
    return message(1, entries)


def database(file, samples):
    base = sqlite3.connect(file)
    base.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
    base.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    for client, content in samples:
        base.execute("INSERT INTO examples VALUES ('train', ?, ?)", (client, content))
    for client in {client for client, _ in samples}:
        base.execute("INSERT INTO client_metadata VALUES (?, 'train', 1)", (client,))
    base.commit()
    base.close()


def test_sqlite_examples_give_bytes_floats_and_integers(tmp_path):
    minus_one = bytes([255] * 9 + [1])
    one = example(
        tokens=(1, [b"how to"]), score=(2, [struct.pack("<2f", 0.5, -1)]), label=(3, [bytes([172, 2]) + minus_one])
    )
    database(tmp_path / "a.sqlite", [("u2", one), ("u1", one), ("u2", one)])
    found = dict(read.sqlite(tmp_path / "a.sqlite", "train", ("tokens", "score", "label")))
    assert list(found) == ["u1", "u2"] and found["u2"]["tokens"] == [[b"how to"]] * 2
    assert found["u1"]["score"] == [[0.5, -1.0]] and found["u1"]["label"] == [[300, -1]]
    assert [len(f["tokens"]) for _, f in read.sqlite(tmp_path / "a.sqlite", "train", ("tokens",), limit=1)] == [1, 1]
    assert list(read.sqlite(tmp_path / "a.sqlite", "test", ("tokens",))) == []
    with pytest.raises(InputError, match="a sample of client 'u1' has no 'title'"):
        list(read.sqlite(tmp_path / "a.sqlite", "train", ("title",)))


def test_a_damaged_database_is_named(tmp_path):
    database(tmp_path / "a.sqlite", [("u", example(tokens=(1, [b"how to"]))[:-3])])
    with pytest.raises(InputError, match=r"a\.sqlite.*client 'u' is not a tf.Example"):
        list(read.sqlite(tmp_path / "a.sqlite", "train", ("tokens",)))
    (tmp_path / "b.sqlite").write_bytes(b"this is no database" * 100)
    with pytest.raises(InputError, match=r"b\.sqlite cannot be read as SQLite: file is not a database"):
        list(read.sqlite(tmp_path / "b.sqlite", "train", ("tokens",)))
    with pytest.raises(InputError, match="is not there"):
        list(read.sqlite(tmp_path / "c.sqlite", "train", ("tokens",)))
    assert not (tmp_path / "c.sqlite").exists()


def test_pictures_become_squares_in_colour(tmp_path):
    image = pytest.importorskip("PIL.Image")
    grey = np.zeros((10, 20), np.uint8)
    grey[:, 5:15] = 200  # the middle square
    (tmp_path / "a/b").mkdir(parents=True)
    image.fromarray(grey).save(tmp_path / "a/b/one.png")
    image.new("RGB", (8, 8), (255, 0, 7)).save(tmp_path / "two.png")
    found = read.by_stem(tmp_path)
    x = read.pictures((found["one"], found["two"]), 4)
    assert x.shape == (2, 3, 4, 4) and x[1, :, 0, 0].tolist() == [255, 0, 7]
    assert (x[0] > 150).all()  # a picture squeezed instead of cropped would be dark at its sides
    (tmp_path / "two.png").write_bytes((tmp_path / "two.png").read_bytes()[:40])
    with pytest.raises(InputError, match=r"two\.png"):
        read.picture(tmp_path / "two.png", 4)


def test_celeba_tables_are_read_and_checked(tmp_path):
    people, marks = tmp_path / "identity_CelebA.txt", tmp_path / "list_attr_celeba.txt"
    people.write_text("000001.jpg 2880\n000002.jpg 7\n")
    marks.write_text("2\nBald Smiling\n000001.jpg -1  1\n000002.jpg  1 -1\n")
    assert read.identities(people) == {"000001.jpg": 2880, "000002.jpg": 7}
    assert read.attribute(marks, "Smiling") == {"000001.jpg": 1, "000002.jpg": 0}
    with pytest.raises(InputError, match="does not name 'Young'"):
        read.attribute(marks, "Young")
    marks.write_text("2\nBald Smiling\n000001.jpg -1\n")
    with pytest.raises(InputError, match="line 3"):
        read.attribute(marks, "Smiling")
    people.write_text("000001.jpg\n")
    with pytest.raises(InputError, match="line 1"):
        read.identities(people)
