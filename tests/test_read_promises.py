"""Files that promise more than they hold, link to other files, or hold what is not expected: refused before they are
read, in one line that names them."""

import bz2
import gzip
import io
import json
import sqlite3
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

from fedkeel import InputError
from fedkeel.data import read
from fedkeel.data.unpack import unpack


def refused(why, do, file, *given):
    with pytest.raises(InputError, match=why) as caught:
        list(do(file, *given))
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_gzipped_header_may_not_promise_more_than_the_file_can_become(tmp_path):
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 2**32 - 1) + bytes(1000)))
    refused("its header promises 4,294,967,295 bytes in memory; 268,435,456 are allowed", read.idx, file)


def test_more_axes_than_numpy_has_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"\0\0\x08\xff" + struct.pack(">255I", *[1] * 255) + b"x")
    refused("cannot be read as IDX", read.idx, tmp_path / "a")


def test_a_gzip_bomb_stops_at_the_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("fedkeel.data.read.files.FREE", 10_000)
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"1,2\n" * 1_000_000))
    refused("unpacks to more than", read.rows, tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1 3000000000:1", "1 rows of 3,000,000,000 features need"),
        ("1 99999999999999999999:1", "not a whole number"),
        ("1 -3:1", "feature -3; the first is 1"),
        ("1 2:1 2:3", "feature 2 twice"),
        ("1 2:nan", "'nan' is not a finite number"),
        ("1 2:1e39", "does not fit float32"),
        ("inf 2:1", "'inf' is not a finite number"),
    ],
)
def test_libsvm_features_and_values_have_bounds(tmp_path, line, why):
    (tmp_path / "a").write_text(f"{line}\n")
    refused(why, read.libsvm, tmp_path / "a")


def test_numbers_of_tables_are_finite_and_question_marks_are_the_only_gaps(tmp_path):
    (tmp_path / "a.data").write_text("1,1e400\n")
    refused("'1e400' is not a finite number", read.uci, tmp_path / "a.data", 2)
    (tmp_path / "a.arff").write_text("@attribute a numeric\n@data\nnan\n")
    refused("'nan' is not a finite number", read.arff, tmp_path / "a.arff")


def test_one_long_text_does_not_widen_all_rows_of_an_arff(tmp_path):
    (tmp_path / "a.arff").write_text("@attribute a {x}\n@data\n" + "x\n" * 1000 + "y" * 1_000_000 + "\n")
    assert read.arff(tmp_path / "a.arff")["a"].nbytes < 10_000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[" * 100_000, "recursion"),
        ('{"users": "a", "user_data": {"a": {}}}', "not a list"),
        ('{"users": [["a"]], "user_data": {}}', "has no data"),
        ('{"users": ["a", "a"], "user_data": {"a": {"x": [], "y": []}}}', "listed twice"),
        ('{"users": ["a"], "user_data": {"a": {"x": "no", "y": [1, 2]}}}', "no lists 'x' and 'y'"),
        ('{"users": ["a"], "num_samples": [], "user_data": {"a": {"x": [], "y": []}}}', "one number for each user"),
    ],
)
def test_leaf_files_of_another_shape_are_refused(tmp_path, content, why):
    (tmp_path / "a.json").write_text(content)
    refused(why, read.leaf, tmp_path / "a.json")


def hdf5(file, make):
    h5py = pytest.importorskip("h5py")
    with h5py.File(file, "w") as out:
        make(h5py, out.create_group("examples/w"))
    return file


def virtual(h5py, group):
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
    group.create_virtual_dataset("a", layout)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda h5py, group: group.create_dataset("a", (2**40, 784), "f4"), "its fields need"),
        (lambda h5py, group: group.create_group("a"), "'/examples/w/a' is not a dataset of this file"),
        (lambda h5py, group: group.__setitem__("a", h5py.SoftLink("/examples")), "not a dataset of this file"),
        (
            lambda h5py, group: group.create_dataset("a", (9,), "i1", external=[("s", 0, 9)]),
            "not a dataset of this file",
        ),
        (virtual, "not a dataset of this file"),
        (lambda h5py, group: group.create_dataset("a", data=3), "has 0 axes"),
        (lambda h5py, group: group.create_dataset("a", (2,), np.dtype([("b", "i4")])), "numbers or texts are needed"),
    ],
)
def test_hdf5_fields_must_be_datasets_of_the_file_that_fit_it(tmp_path, make, why):
    refused(why, read.hdf5, hdf5(tmp_path / "a.h5", make), ("a",))


def test_hdf5_links_to_other_files_are_not_followed(tmp_path):
    hdf5(tmp_path / "secret.h5", lambda h5py, group: group.create_dataset("a", data=[1, 2]))
    link = hdf5(
        tmp_path / "a.h5",
        lambda h5py, group: group.__setitem__("a", h5py.ExternalLink(str(tmp_path / "secret.h5"), "/examples/w/a")),
    )
    refused("not a dataset of this file", read.hdf5, link, ("a",))


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_hdf5_texts_may_not_claim_to_be_longer_than_the_file(tmp_path, chunks):
    def texts(h5py, group):
        group.create_dataset("a", data=["x" * 1000, "y", "z"], dtype=h5py.string_dtype(), chunks=chunks)

    file = hdf5(tmp_path / "a.h5", texts)
    assert [len(text) for text in dict(read.hdf5(file, ("a",)))["w"]["a"]] == [1000, 1, 1]
    content, length = file.read_bytes(), struct.pack("<I", 1000)
    places = [at for at in range(len(content) - 16) if content[at : at + 4] == length]
    said = []
    for at in places:  # the entry of the text, and its object in the heap
        file.write_bytes(content[:at] + b"\xff" * 4 + content[at + 4 :])
        with pytest.raises(InputError) as error:
            list(read.hdf5(file, ("a",)))
        said.append(str(error.value))
    assert sum("a text of 4,294,967,295 bytes, more than the file" in text for text in said) == 1


def test_hdf5_texts_are_counted_while_they_are_read(tmp_path, monkeypatch):
    def texts(h5py, group):
        group.create_dataset("a", data=["x" * 1000] * 600, dtype=h5py.string_dtype())

    file = hdf5(tmp_path / "a.h5", texts)
    ((_, found),) = read.hdf5(file, ("a",))
    assert found["a"].shape == (600,) and found["a"][599] == b"x" * 1000
    for name, value in (("FREE", 300_000), ("TIMES", 0)):
        monkeypatch.setattr(f"fedkeel.data.read.files.{name}", value)
    refused("its texts need", read.hdf5, file, ("a",))


def test_a_block_of_zeros_in_hdf5_texts_is_refused_before_the_library_waits_forever(tmp_path):
    def texts(h5py, group):
        group.create_dataset("a", data=["to be", "or"], dtype=h5py.string_dtype())

    file = hdf5(tmp_path / "a.h5", texts)
    content = bytearray(file.read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 16 : heap + 512] = bytes(496)
    file.write_bytes(content)
    refused("its heap of texts at byte", read.hdf5, file, ("a",))


def test_parquet_rows_that_unpack_without_end_are_refused(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("fedkeel.data.read.files.FREE", 1_000_000)
    pq.write_table(pa.table({"a": pa.nulls(1_000_000, pa.int8())}), tmp_path / "rows.parquet")
    refused("its rows need 8,000,000 bytes", read.parquet, tmp_path / "rows.parquet", ("a",))
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000), ["x" * 10_000])
    pq.write_table(pa.table({"a": text}), tmp_path / "texts.parquet", store_schema=False)
    refused("its columns need", read.parquet, tmp_path / "texts.parquet", ("a",))


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["CREATE TABLE examples (client_id)"], "no table 'client_metadata'"),
        (["CREATE TABLE client_metadata (client_id)"], "'client_metadata' has no column 'split_name'"),
        (["CREATE VIEW client_metadata AS SELECT 1 AS client_id, 'train' AS split_name"], "no table 'client_metadata'"),
        (
            [
                "CREATE TABLE client_metadata (client_id, split_name)",
                "CREATE TABLE examples (client_id, split_name, serialized_example_proto AS (zeroblob(9)))",
            ],
            "no column 'serialized_example_proto'",
        ),
        (
            [
                "CREATE TABLE client_metadata (client_id, split_name)",
                "CREATE TABLE examples (client_id, split_name, serialized_example_proto)",
                "INSERT INTO client_metadata VALUES (3, 'train')",
                "INSERT INTO examples VALUES (3, 'train', 'a text')",
            ],
            "a sample of client 3 is not a tf.Example",
        ),
    ],
)
def test_sqlite_tables_must_be_plain_and_have_their_columns(tmp_path, statements, why):
    with sqlite3.connect(tmp_path / "a.sqlite") as base:
        for statement in statements:
            base.execute(statement)
    base.close()
    refused(why, read.sqlite, tmp_path / "a.sqlite", "train", ("tokens",))


def png(width, height):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (10_000, 10_000), (60_000, 60_000)])
def test_pictures_of_too_many_pixels_are_refused_before_they_are_decoded(tmp_path, width, height):
    pytest.importorskip("PIL")
    (tmp_path / "a.png").write_bytes(png(width, height))
    refused("pixels", read.picture, tmp_path / "a.png", 8)


def test_a_picture_in_a_format_that_other_programs_decode_is_refused(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n")
    refused("cannot identify image file", read.picture, tmp_path / "a.jpg", 8)


def test_celeba_pictures_are_named_once_and_lie_in_the_folder(tmp_path):
    for text in ("../../a.jpg 3\n", "a.jpg 3\na.jpg 4\n"):
        (tmp_path / "a.txt").write_text(text)
        refused("named before or not in the same folder", read.identities, tmp_path / "a.txt")


def test_an_encrypted_zip_says_what_to_do(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("a", b"x" * 20)
    content = bytearray(out.getvalue())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(mark) + flags] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    refused("it is encrypted; unpack it", unpack, tmp_path / "a.zip", tmp_path / "out")


def test_a_tar_header_that_promises_gigabytes_is_refused_before_anything_is_written(tmp_path):
    member = tarfile.TarInfo("a")
    member.size = 2**33 - 1
    (tmp_path / "a.tar.bz2").write_bytes(bz2.compress(member.tobuf() + bytes(10_000)))
    refused("unpacks to more than 268,435,456 bytes", unpack, tmp_path / "a.tar.bz2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_a_folder_is_an_error_of_the_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("a", b"x")
        packed.writestr("a/b", b"x")
    refused("is damaged or not an archive", unpack, tmp_path / "a.zip", tmp_path / "out")


def test_json_lines_must_hold_texts_where_texts_are_needed(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"play": ["P"], "role": "R", "speeches": []}) + "\n")
    refused("line 1 has no text under 'play'", read.roles, tmp_path / "a.jsonl")
