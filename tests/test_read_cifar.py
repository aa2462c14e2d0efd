"""The binary version of CIFAR."""

import numpy as np
import pytest

from fedkeel import InputError
from fedkeel.data import read


def test_files_are_read_one_after_the_other_with_labels_first(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (5, 3073), dtype=np.uint8)
    rows[:, 0] = [3, 1, 4, 1, 5]
    for number, part in enumerate((rows[:2], rows[2:])):
        (tmp_path / f"{number}.bin").write_bytes(part.tobytes())
    x, y = read.cifar10(tmp_path / "0.bin", tmp_path / "1.bin")
    assert y.tolist() == [3, 1, 4, 1, 5]
    np.testing.assert_array_equal(x[4, 2, 31], rows[4, -32:])  # the last row of the last colour


def test_cifar100_gives_fine_and_coarse_labels(tmp_path):
    rows = np.zeros((2, 3074), np.uint8)
    rows[:, :2] = [[19, 99], [0, 42]]
    (tmp_path / "train.bin").write_bytes(rows.tobytes())
    x, fine, coarse = read.cifar100(tmp_path / "train.bin")
    assert x.shape == (2, 3, 32, 32) and fine.tolist() == [99, 42] and coarse.tolist() == [19, 0]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "0 bytes"), (bytes(3072), "not a whole number of rows"), (b"\x0a" + bytes(3072), "label 10")],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, why):
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(InputError, match=why):
        read.cifar10(tmp_path / "data_batch_1.bin")
