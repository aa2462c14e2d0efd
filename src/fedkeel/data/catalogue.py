"""The catalogue of data sets: files, sources, licences, and how to check that files are complete.

Addresses and licences are those of 2026-11; a set without an address has no direct download.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import read


@dataclass(frozen=True)
class Source:
    """One file to download; without a known SHA-256 only the set's `check` applies."""

    url: str
    sha256: str | None = None

    @property
    def file(self) -> str:
        """The name under which it is stored."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DataSet:
    """A data set by name.

    files: groups of file patterns; the set is complete if all patterns of one group match. check: reads enough
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
HEART = tuple(f"processed.{hospital}.data" for hospital in ("cleveland", "hungarian", "switzerland", "va"))
CIFAR10 = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def _each(reader: Callable[[Path], object], pattern: str = "*") -> Callable[[Path], object]:
    def check(folder: Path) -> None:
        for file in sorted(folder.glob(pattern)):
            reader(file)

    return check


def _either(file: str, one: Callable[[Path], object], other: Callable[[Path], object]) -> Callable[[Path], object]:
    """The check of a set that comes in two forms: which one depends on whether `file` exists."""
    return lambda folder: one(folder) if (folder / file).exists() else other(folder)


def _leaf(folder: Path) -> None:
    for part in ("train", "test"):
        read.leaf(folder / part)


def _stackoverflow(folder: Path) -> None:
    read.vocabulary(folder / "stackoverflow.word_count", 1)
    for file in folder.glob("*.h5"):
        next(read.hdf5(file, ("tokens",), 1))
    for file in folder.glob("*.sqlite"):
        next(read.sqlite(file, "train", ("tokens",), 1, 1))


def _mapping(folder: Path, table: str) -> None:
    read.named(folder / table, ("user_id", "image_id", "class"))
    read.named(folder / "test.csv", ("image_id", "class"))
    read.by_stem(folder / "images")


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
    DataSet(
        "femnist",
        "Federated EMNIST, 62 classes of characters by 3,400 writers",
        "https://github.com/TalwalkarLab/leaf",
        "NIST SD-19, a work of the US government",
        (("fed_emnist_train.h5", "fed_emnist_test.h5"), ("train/*.json", "test/*.json")),
        _either("train", _leaf, lambda f: [next(read.hdf5(x, ("pixels", "label"), 1)) for x in f.glob("*.h5")]),
        _from(
            "https://storage.googleapis.com/tff-datasets-public/",
            ("fed_emnist.tar.bz2",),
            "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
        ),
    ),
    DataSet(
        "shakespeare",
        "Shakespeare's plays by speaking role",
        "https://github.com/okfn/shakespeare-material",
        "public domain",
        (("roles.jsonl",), ("*.xml",)),
        _either("roles.jsonl", lambda f: read.roles(f / "roles.jsonl"), read.roles),
        how="get texts/moby/*.xml of https://github.com/okfn/shakespeare-material",
    ),
    DataSet(
        "agnews",
        "AG News, 127,600 news items of 4 kinds",
        "https://github.com/mhjabreel/CharCnn_Keras/tree/master/data/ag_news_csv",
        "for research and other non-commercial use",
        (("train.csv", "test.csv"),),
        _each(partial(read.rows, least=2), "*.csv"),
        _from(
            "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
            ("train.csv", "test.csv"),
        ),
    ),
    DataSet(
        "newsgroups",
        "20 Newsgroups, 18,846 posts of 8,475 authors",
        "http://qwone.com/~jason/20Newsgroups/",
        "none stated by the collectors",
        (("20news.jsonl",),),
        _each(partial(read.lines, keys=("split", "group", "author", "text")), "*.jsonl"),
        how="write the posts of 20news-bydate.tar.gz (http://qwone.com/~jason/20Newsgroups/) to 20news.jsonl, a line "
        'with "split", "group", "author" and "text" for each',
    ),
    DataSet(
        "sent140",
        "Sent140, 1.6 million tweets by user",
        "https://github.com/TalwalkarLab/leaf/tree/master/data/sent140",
        "for research; see http://help.sentiment140.com/for-students",
        (("train/*.json", "test/*.json"),),
        _leaf,
        how="run LEAF's data/sent140/preprocess.sh (it leaves train/*.json and test/*.json)",
    ),
    DataSet(
        "celeba",
        "CelebA, 202,599 photographs of 10,177 people",
        "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        "for non-commercial research",
        (("img_align_celeba", "identity_CelebA.txt", "list_attr_celeba.txt"),),
        lambda f: (read.identities(f / "identity_CelebA.txt"), read.attribute(f / "list_attr_celeba.txt", "Smiling")),
        how="get img_align_celeba.zip (unpacked), identity_CelebA.txt and list_attr_celeba.txt from "
        "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    ),
    DataSet(
        "stackoverflow",
        "Stack Overflow, questions and answers by 342,477 users",
        "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/stackoverflow",
        "CC BY-SA 3.0",
        (
            ("stackoverflow_train.h5", "stackoverflow_test.h5", "stackoverflow.word_count"),
            ("stackoverflow.sqlite", "stackoverflow.word_count"),
        ),
        _stackoverflow,
        _from(
            "https://storage.googleapis.com/tff-datasets-public/",
            ("stackoverflow.tar.bz2", "stackoverflow.word_count.tar.bz2"),
            "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
            "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
        ),
        largest=2**36,
    ),
    DataSet(
        "gldv2",
        "Google Landmarks v2, 164,172 photographs by 1,262 people",
        "https://github.com/google-research/google-research/tree/master/federated_vision_datasets",
        "pictures: CC licences of their own",
        (("images", "federated_train.csv", "test.csv"),),
        lambda f: _mapping(f, "federated_train.csv"),
        how="get the pictures (https://github.com/cvdfoundation/google-landmark) into a folder images/ and the "
        "tables of http://storage.googleapis.com/gresearch/federated-vision-datasets/landmarks-user-160k.zip beside it",
    ),
    DataSet(
        "inaturalist",
        "iNaturalist 2017, 120,300 photographs by 9,275 people",
        "https://github.com/google-research/google-research/tree/master/federated_vision_datasets",
        "pictures: CC licences of their own, most non-commercial",
        (("images", "federated_train_user_120k.csv", "test.csv"),),
        lambda f: _mapping(f, "federated_train_user_120k.csv"),
        how="get the pictures (https://github.com/visipedia/inat_comp/tree/master/2017) into a folder images/ and the "
        "tables of http://storage.googleapis.com/gresearch/federated-vision-datasets/inaturalist-user-120k.zip beside",
    ),
    DataSet(
        "heart",
        "Heart disease in four hospitals, 920 records",
        "https://archive.ics.uci.edu/dataset/45/heart+disease",
        "CC BY 4.0",
        (HEART,),
        _each(partial(read.uci, columns=14), "*.data"),
        _from(
            "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
            HEART,
            "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
            "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
            "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
        ),
    ),
    DataSet(
        "wisdm",
        "WISDM, activity of 36 phone users, 5,418 windows",
        "https://www.cis.fordham.edu/wisdm/dataset.php",
        "none stated; cite Kwapisz, Weiss & Moore 2010",
        (("WISDM_ar_v1.1_transformed.arff",),),
        _each(read.arff, "*.arff"),
        _from("https://www.cis.fordham.edu/wisdm/includes/datasets/latest/", ("WISDM_ar_latest.tar.gz",)),
    ),
    DataSet(
        "w8a",
        "w8a, 49,749 sparse rows for convex tests",
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html",
        "none stated; Platt 1998",
        (("w8a",),),
        _each(read.libsvm),
        _from("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/", ("w8a",)),
    ),
)
KNOWN: dict[str, DataSet] = {one.name: one for one in SETS}
