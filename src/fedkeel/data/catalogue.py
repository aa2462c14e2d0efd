"""What is known about each data set: files, where they come from, licence, and how to see that they are whole.

Addresses and licences are facts as of 2026-11; a set without an address has no direct download.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import read


@dataclass(frozen=True)
class Source:
    """One file to download; without a known SHA-256 the set's own check must do."""

    url: str
    sha256: str | None = None

    @property
    def file(self) -> str:
        """The name to keep it under."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DataSet:
    """A data set by name.

    files: groups of file patterns; the set is complete when all patterns of one group are met. check: reads enough
    of a complete folder to refuse damaged files. largest: bytes its archives may unpack to.
    """

    name: str
    title: str
    home: str
    licence: str
    files: tuple[tuple[str, ...], ...]
    check: Callable[[Path], object]
    sources: tuple[Source, ...] = ()
    how: str = ""
    largest: int = 2**32


IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
QMNIST = ("qmnist-train-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz")
CIFAR10 = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def _each(reader: Callable[[Path], object], pattern: str = "*") -> Callable[[Path], object]:
    def check(folder: Path) -> None:
        for file in sorted(folder.glob(pattern)):
            reader(file)

    return check


def _from(place: str, files: tuple[str, ...], *sums: str) -> tuple[Source, ...]:
    known: tuple[str | None, ...] = sums or (None,) * len(files)
    return tuple(Source(place + file, value) for file, value in zip(files, known, strict=True))


SETS: tuple[DataSet, ...] = (
    DataSet(
        "mnist",
        "MNIST, 70,000 handwritten digits",
        "http://yann.lecun.com/exdb/mnist/",
        "usually quoted as CC BY-SA 3.0",
        (IDX,),
        _each(read.idx, "*ubyte.gz"),
        _from(
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            IDX,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    DataSet(
        "qmnist",
        "QMNIST labels: who wrote each MNIST digit",
        "https://github.com/facebookresearch/qmnist",
        "BSD-3-Clause",
        (QMNIST,),
        _each(read.idx, "*int.gz"),
        _from(
            "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
            QMNIST,
            "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
            "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
        ),
    ),
    DataSet(
        "fmnist",
        "Fashion-MNIST, 70,000 pictures of clothes in 10 classes",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        (IDX,),
        _each(read.idx, "*ubyte.gz"),
        _from(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            IDX,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    DataSet(
        "cifar10",
        "CIFAR-10, 60,000 colour pictures in 10 classes",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated; cite Krizhevsky 2009",
        (CIFAR10,),
        _each(read.cifar10, "*.bin"),
        _from(
            "https://www.cs.toronto.edu/~kriz/",
            ("cifar-10-binary.tar.gz",),
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    DataSet(
        "cifar100",
        "CIFAR-100, 60,000 colour pictures in 100 classes",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated; cite Krizhevsky 2009",
        (("train.bin", "test.bin"),),
        _each(read.cifar100, "*.bin"),
        _from(
            "https://www.cs.toronto.edu/~kriz/",
            ("cifar-100-binary.tar.gz",),
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
)
KNOWN: dict[str, DataSet] = {one.name: one for one in SETS}
