"""IDX files: what is written is read, and damage is named."""

import gzip
import struct

import numpy as np
import pytest

from fedkeel import InputError
from fedkeel.data import read

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def as_idx(array: np.ndarray) -> bytes:
    kind = array.dtype.str[1:]
    head = bytes([0, 0, CODES[kind], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_number_type_comes_back_as_written(tmp_path, kind, zipped):
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    file = tmp_path / "values"
    file.write_bytes(gzip.compress(as_idx(array)) if zipped else as_idx(array))
    back = read.idx(file)
    assert back.dtype == array.dtype and back.dtype.isnative
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "does not start like IDX"),
        (b"\x1f\x8bnot gzip at all", "cannot be read as IDX"),
        (b"\0\0\x07\1" + bytes(8), "does not start like IDX"),
        (b"\0\0\x08\2" + bytes(4), "ends inside its header"),
        (as_idx(np.zeros(9, np.uint8))[:-1], "promises 9 bytes of values, it has 8"),
        (as_idx(np.zeros(9, np.uint8)) + b"x", "promises 9 bytes of values, it has more"),
        (b"\0\0\x0e\3" + struct.pack(">3I", 2**31, 2**31, 2**31), "its header promises"),
        (gzip.compress(as_idx(np.arange(5000, dtype="i4")))[:-200], "cannot be read as IDX"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, content, why):
    file = tmp_path / "labels.gz"
    file.write_bytes(content)
    with pytest.raises(InputError, match=why) as caught:
        read.idx(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        read.idx(tmp_path / "nothing")
