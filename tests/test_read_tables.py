"""Tables of text: CSV, JSON lines, ARFF, LIBSVM, UCI, word lists; and LEAF JSON."""

import gzip
import json

import numpy as np
import pytest

from fedkeel import InputError
from fedkeel.data import read


def refused(reader, file, why):
    with pytest.raises(InputError, match=why) as caught:
        reader(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_csv_keeps_commas_quotes_and_line_breaks_inside_fields(tmp_path):
    (tmp_path / "a.csv").write_text('"1","say ""hi"", now","two\nlines"\n\n"2",x,y\n')
    assert read.rows(tmp_path / "a.csv", 3) == [["1", 'say "hi", now', "two\nlines"], ["2", "x", "y"]]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "no rows"), (b"1,2\n3\n", "row 2 has 1 fields"), (b'1,"cut', "end of data"), (b"\xff\xfe,1\n", "utf-8")],
)
def test_a_damaged_csv_is_named(tmp_path, content, why):
    (tmp_path / "a.csv").write_bytes(content)
    refused(lambda f: read.rows(f, 2), tmp_path / "a.csv", why)


def test_named_columns_must_be_there(tmp_path):
    (tmp_path / "a.csv").write_text("user_id,image_id,class\nu,i,3\n")
    assert read.named(tmp_path / "a.csv", ("class",)) == [{"user_id": "u", "image_id": "i", "class": "3"}]
    refused(lambda f: read.named(f, ("label",)), tmp_path / "a.csv", "does not name the column 'label'")
    (tmp_path / "a.csv").write_text("user_id,class\nu\n")
    refused(lambda f: read.named(f, ("class",)), tmp_path / "a.csv", "row 2 has 1 fields")


def test_json_lines_must_be_objects_with_the_keys(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2, "b": 3}\n')
    assert [line["a"] for line in read.lines(file, ("a",))] == [1, 2]
    refused(lambda f: read.lines(f, ("a", "b")), file, "line 1 has no 'b'")
    for content, why in (('{"a": 1}\n{"a": ', "JSON in line 2"), ("[1]\n", "line 1 is not a JSON object")):
        file.write_text(content)
        refused(lambda f: read.lines(f, ("a",)), file, why)


def test_arff_gives_numbers_with_nan_and_names_with_quotes(tmp_path):
    file = tmp_path / "a.arff"
    file.write_text(
        '% a comment\n@relation "r"\n@attribute "user" {"3" , "4"}\n@ATTRIBUTE X0 numeric\n'
        '@attribute class{ "Walking" , "Jogging" }\n@data\n3,1.5,Walking\n4,?,"Jogging"\n'
    )
    columns = read.arff(file)
    assert list(columns) == ["user", "X0", "class"]
    assert columns["user"].tolist() == ["3", "4"] and columns["class"].tolist() == ["Walking", "Jogging"]
    np.testing.assert_array_equal(columns["X0"], [1.5, np.nan])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("@attribute a numeric\n", "no @data"),
        ("@attribute a numeric\n@data\n1,2\n", "line 3 has 2 values for 1 attributes"),
        ("@attribute a numeric\n@data\nx\n", "could not convert"),
        ("@attribute\n@data\n1\n", "line 1 is not an attribute"),
    ],
)
def test_a_damaged_arff_is_named(tmp_path, content, why):
    (tmp_path / "a.arff").write_text(content)
    refused(read.arff, tmp_path / "a.arff", why)


def test_uci_numbers_have_nan_where_a_question_mark_stands(tmp_path):
    (tmp_path / "a.data").write_text("63.0,1,?\n44,-9,2\n")
    np.testing.assert_array_equal(read.uci(tmp_path / "a.data", 3), [[63, 1, np.nan], [44, -9, 2]])
    refused(lambda f: read.uci(f, 14), tmp_path / "a.data", "row 1 has 3 values, 14 are needed")


def test_libsvm_rows_may_be_empty_and_features_count_from_one(tmp_path):
    (tmp_path / "a").write_text("-1 1:0.5 3:2\n+1\n")
    x, y = read.libsvm(tmp_path / "a")
    assert x.tolist() == [[0.5, 0, 2], [0, 0, 0]] and y.tolist() == [-1, 1]
    assert read.libsvm(tmp_path / "a", features=5)[0].shape == (2, 5)
    refused(lambda f: read.libsvm(f, features=2), tmp_path / "a", "feature 3; features are 1..2")


@pytest.mark.parametrize(("content", "why"), [("", "no rows"), ("1 0:1\n", "feature 0"), ("1 a:1\n", "line 1")])
def test_a_damaged_libsvm_is_named(tmp_path, content, why):
    (tmp_path / "a").write_text(content)
    refused(read.libsvm, tmp_path / "a", why)


def test_a_word_list_is_read_to_the_wanted_length(tmp_path):
    (tmp_path / "w").write_text("the\t100\nto 50\na 10\n")
    assert read.vocabulary(tmp_path / "w", 2) == ["the", "to"]


def leaf_text(**changes):
    content = {"users": ["b", "a"], "num_samples": [1, 2]}
    content |= {"user_data": {"a": {"x": [[1.0], [2.0]], "y": [0, 1]}, "b": {"x": [[3.0]], "y": [1]}}} | changes
    return json.dumps(content)


def test_leaf_files_of_a_folder_are_joined(tmp_path):
    (tmp_path / "1.json").write_text(leaf_text())
    (tmp_path / "2.json").write_bytes(gzip.compress(leaf_text().replace('"a"', '"c"').encode()))
    x, y, users = read.leaf(tmp_path)
    assert users == ["b", "a", "a", "b", "c", "c"] and y == [1, 0, 1, 1, 0, 1] and x[1] == [1.0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"users": ["a"', "LEAF JSON"),
        ("[]", "no 'users'"),
        (leaf_text(users=["z"], num_samples=[1]), "user 'z' is listed but has no data"),
        (leaf_text(num_samples=[1, 5]), "user 'a' has 2 inputs and 2 targets, 5 are announced"),
        (leaf_text(user_data={"a": {"x": []}, "b": {"x": [], "y": []}}), "announced|'y'"),
    ],
)
def test_a_damaged_leaf_file_is_named(tmp_path, content, why):
    (tmp_path / "a.json").write_text(content)
    refused(read.leaf, tmp_path / "a.json", why)


def test_an_empty_leaf_folder_is_named(tmp_path):
    refused(read.leaf, tmp_path, "no .json file")
