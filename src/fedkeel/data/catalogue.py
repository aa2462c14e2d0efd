"""The catalogue of data sets: files, sources, licences, and how to check that files are complete.

Addresses and licences are those of 2026-11; a set without an address has no direct download.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..files import damaged
from . import read

Reader = Callable[[Path], object]


@dataclass(frozen=True)
class DataSet:
    """A data set by name.

    files: groups of file patterns, each with the reader that refuses damaged files; the set is complete if all patterns
    of one group match. sources: address -> SHA-256, where it is known. largest: bytes its archives may unpack to.
    """

    name: str
    title: str
    licence: str
    home: str
    files: tuple[Mapping[str, Reader], ...]
    sources: Mapping[str, str | None] = field(default_factory=dict)
    how: str = ""
    largest: int = 2**32


def _tff(*fields: str) -> Reader:
    return lambda file: _first(file, read.hdf5(file, fields, 1))


def _tff_sqlite(file: Path) -> None:
    _first(file, read.sqlite(file, "train", ("tokens",), 1, 1))


def _first(file: Path, clients: Iterator[object]) -> None:
    """Read the first client only: the files are large."""
    if next(clients, None) is None:
        raise damaged(file, "it has no clients")


PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
IDX = {f"{part}-ubyte.gz": read.idx for part in PARTS}
QMNIST = dict.fromkeys(("qmnist-train-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz"), read.idx)
HEART = {f"processed.{name}.data": partial(read.uci, columns=14)
         for name in ("cleveland", "hungarian", "switzerland", "va")}  # fmt: skip
CIFAR10 = dict.fromkeys((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"), read.cifar10)
AGNEWS = dict.fromkeys(("train.csv", "test.csv"), partial(read.rows, least=2))
LEAF = dict.fromkeys(("train/*.json", "test/*.json"), read.leaf)
WORDS: dict[str, Reader] = {"stackoverflow.word_count": partial(read.vocabulary, most=1)}
TEST: dict[str, Reader] = {"images": read.by_stem, "test.csv": partial(read.named, columns=("image_id", "class"))}
SPLITS = "http://storage.googleapis.com/gresearch/federated-vision-datasets"
PHOTOS = partial(read.named, columns=("user_id", "image_id", "class"))


def _from(place: str, files: Iterable[str], *sums: str) -> dict[str, str | None]:
    addresses = [place + file for file in files]
    return dict(zip(addresses, sums or [None] * len(addresses), strict=True))


SETS: tuple[DataSet, ...] = (
    DataSet("mnist", "MNIST, 70,000 handwritten digits", "usually quoted as CC BY-SA 3.0",
            "http://yann.lecun.com/exdb/mnist/", (IDX,),
            _from("https://storage.googleapis.com/cvdf-datasets/mnist/", IDX,
                  "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                  "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                  "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                  "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6")),
    DataSet("qmnist", "QMNIST labels: who wrote each MNIST digit", "BSD-3-Clause",
            "https://github.com/facebookresearch/qmnist", (QMNIST,),
            _from("https://raw.githubusercontent.com/facebookresearch/qmnist/master/", QMNIST,
                  "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
                  "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06")),
    DataSet("fmnist", "Fashion-MNIST, 70,000 pictures of clothes in 10 classes", "MIT",
            "https://github.com/zalandoresearch/fashion-mnist", (IDX,),
            _from("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", IDX,
                  "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                  "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                  "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                  "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5")),
    DataSet("cifar10", "CIFAR-10, 60,000 colour pictures in 10 classes", "none stated; cite Krizhevsky 2009",
            "https://www.cs.toronto.edu/~kriz/cifar.html", (CIFAR10,),
            _from("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",),
                  "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")),
    DataSet("cifar100", "CIFAR-100, 60,000 colour pictures in 100 classes", "none stated; cite Krizhevsky 2009",
            "https://www.cs.toronto.edu/~kriz/cifar.html", ({"train.bin": read.cifar100, "test.bin": read.cifar100},),
            _from("https://www.cs.toronto.edu/~kriz/", ("cifar-100-binary.tar.gz",),
                  "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec")),
    DataSet("femnist", "Federated EMNIST, 62 classes of characters by 3,400 writers",
            "NIST SD-19, a work of the US government", "https://github.com/TalwalkarLab/leaf",
            (dict.fromkeys(("fed_emnist_train.h5", "fed_emnist_test.h5"), _tff("pixels", "label")), LEAF),
            _from("https://storage.googleapis.com/tff-datasets-public/", ("fed_emnist.tar.bz2",),
                  "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0")),
    DataSet("shakespeare", "Shakespeare's plays by speaking role", "public domain",
            "https://github.com/okfn/shakespeare-material", ({"roles.jsonl": read.roles}, {"*.xml": read.roles}),
            how="get texts/moby/*.xml of https://github.com/okfn/shakespeare-material"),
    DataSet("agnews", "AG News, 127,600 news items of 4 kinds", "for research and other non-commercial use",
            "https://github.com/mhjabreel/CharCnn_Keras/tree/master/data/ag_news_csv", (AGNEWS,),
            _from("https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/", AGNEWS)),
    DataSet("newsgroups", "20 Newsgroups, 18,846 posts of 8,475 authors", "none stated by the collectors",
            "http://qwone.com/~jason/20Newsgroups/",
            ({"20news.jsonl": partial(read.lines, keys=("author",), texts=("split", "group", "text"))},),
            how="write the posts of 20news-bydate.tar.gz (http://qwone.com/~jason/20Newsgroups/) to 20news.jsonl, "
            'a line with "split", "group", "author" and "text" for each'),
    DataSet("sent140", "Sent140, 1.6 million tweets by user",
            "for research; see http://help.sentiment140.com/for-students",
            "https://github.com/TalwalkarLab/leaf/tree/master/data/sent140", (LEAF,),
            how="run LEAF's data/sent140/preprocess.sh (it leaves train/*.json and test/*.json)"),
    DataSet("celeba", "CelebA, 202,599 photographs of 10,177 people", "for non-commercial research",
            "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
            ({"img_align_celeba": read.by_stem, "identity_CelebA.txt": read.identities,
              "list_attr_celeba.txt": partial(read.attribute, wanted="Smiling")},),
            how="get img_align_celeba.zip (unpacked), identity_CelebA.txt and list_attr_celeba.txt from "
            "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"),
    DataSet("stackoverflow", "Stack Overflow, questions and answers by 342,477 users", "CC BY-SA 3.0",
            "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/stackoverflow",
            (WORDS | dict.fromkeys(("stackoverflow_train.h5", "stackoverflow_test.h5"), _tff("tokens")),
             WORDS | {"stackoverflow.sqlite": _tff_sqlite}),
            _from("https://storage.googleapis.com/tff-datasets-public/",
                  ("stackoverflow.tar.bz2", "stackoverflow.word_count.tar.bz2"),
                  "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
                  "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c"),
            largest=2**36),
    DataSet("gldv2", "Google Landmarks v2, 164,172 photographs by 1,262 people", "pictures: CC licences of their own",
            "https://github.com/google-research/google-research/tree/master/federated_vision_datasets",
            (TEST | {"federated_train.csv": PHOTOS},),
            how="get the pictures (https://github.com/cvdfoundation/google-landmark) into a folder images/ and the "
            f"tables of {SPLITS}/landmarks-user-160k.zip beside it"),
    DataSet("inaturalist", "iNaturalist 2017, 120,300 photographs by 9,275 people",
            "pictures: CC licences of their own, most non-commercial",
            "https://github.com/google-research/google-research/tree/master/federated_vision_datasets",
            (TEST | {"federated_train_user_120k.csv": PHOTOS},),
            how="get the pictures (https://github.com/visipedia/inat_comp/tree/master/2017) into a folder images/ "
            f"and the tables of {SPLITS}/inaturalist-user-120k.zip beside"),
    DataSet("heart", "Heart disease in four hospitals, 920 records", "CC BY 4.0",
            "https://archive.ics.uci.edu/dataset/45/heart+disease", (HEART,),
            _from("https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/", HEART,
                  "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
                  "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
                  "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
                  "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f")),
    DataSet("wisdm", "WISDM, activity of 36 phone users, 5,418 windows",
            "none stated; cite Kwapisz, Weiss & Moore 2010", "https://www.cis.fordham.edu/wisdm/dataset.php",
            ({"WISDM_ar_v1.1_transformed.arff": read.arff},),
            _from("https://www.cis.fordham.edu/wisdm/includes/datasets/latest/", ("WISDM_ar_latest.tar.gz",))),
    DataSet("w8a", "w8a, 49,749 sparse rows for convex tests", "none stated; Platt 1998",
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html", ({"w8a": read.libsvm},),
            _from("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/", ("w8a",))),
)  # fmt: skip
KNOWN: dict[str, DataSet] = {one.name: one for one in SETS}
# What their archives, and torchvision, unpack to: found in place where it is complete.
FOLDERS: dict[str, tuple[str, ...]] = {
    "mnist": ("MNIST", "MNIST/raw"),
    "qmnist": ("QMNIST", "QMNIST/raw"),
    "fmnist": ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
    "cifar10": ("cifar-10-batches-bin",),
    "cifar100": ("cifar-100-binary",),
    "femnist": ("fed_emnist", "leaf/data/femnist/data"),
    "agnews": ("ag_news", "ag_news_csv"),
    "newsgroups": ("newsgroups20", "20news"),
    "sent140": ("leaf/data/sent140/data",),
    "celeba": ("CelebA",),
    "heart": ("heart_disease", "heart-disease"),
    "wisdm": ("WISDM_ar_v1.1",),
}
