"""Texts to classify: news (AG News, 20 Newsgroups) and tweets (Sent140), with a small model on hashed words."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import FederatedData, read, store
from ..errors import InputError, check
from ..files import reading
from ..models.text import sent140_lstm
from ..task import Task, cross_entropy
from ..world import Epochs, UniformSteps
from .naming import named, takes_model
from .splitting import dealt

BUCKETS = 10_000
WORDS = re.compile(r"[a-z0-9']+")


class WordScores(nn.Module):
    """Softmax regression on a bag of words: the scores of its words added up, over the root of their number.

    Number 0 is no word. Weights start at zero, as the problem is convex.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.bias = nn.Embedding(BUCKETS, classes), nn.Parameter(torch.zeros(classes))
        nn.init.zeros_(self.embedding.weight)

    def forward(self, words: Tensor) -> Tensor:
        real = (words != 0).unsqueeze(-1).to(self.bias.dtype)
        scores: Tensor = (self.embedding(words) * real).sum(-2) / real.sum(-2).clamp(min=1).sqrt() + self.bias
        return scores


def hashed(texts: Sequence[str], length: int) -> NDArray[np.int32]:
    """The first `length` words of each text as numbers 1..9,999 (a hash, so that no dictionary is shared); 0 pads.

    >>> hashed(["Oil prices, oil!"], 4)[0].tolist()
    [4850, 942, 4850, 0]
    """
    out = np.zeros((len(texts), length), np.int32)
    for row, text in zip(out, texts, strict=True):
        words = WORDS.findall(text.lower())[:length]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in words]
    return out


def agnews(
    alpha: float = 0.1, clients: int = 100, partition: str = "dirichlet", length: int = 64, seed: int = 0
) -> Task:
    """AG News, four kinds of news, dealt out to 100 clients; batch size, budget and target of the GEL paper.

    The paper fine-tunes DistilBERT; the model here is softmax regression on hashed words (40,004 parameters).
    """
    return Task(
        **named(agnews, locals()),
        model=partial(WordScores, 4),
        loss=cross_entropy,
        data=_agnews(store.folder("agnews"), alpha, clients, partition, length, seed),
        batch_size=8,
        lr=0.3,
        budget=UniformSteps(10, 25),
        target=0.85,
    )


def newsgroups(
    partition: str = "author", clients: int = 100, alpha: float = 0.1, least: int = 10, length: int = 200, seed: int = 0
) -> Task:
    """20 Newsgroups: which of 20 groups a post was sent to; a client is an author, or posts are dealt out by label.

    partition: "author" (those with at least `least` posts) or one of the partitions by label, for all training posts.
    """
    return Task(
        **named(newsgroups, locals()),
        model=partial(WordScores, 20),
        loss=cross_entropy,
        data=_newsgroups(store.folder("newsgroups"), partition, clients, alpha, least, length, seed),
        batch_size=10,
        lr=3.0,
        budget=Epochs(5),
    )


@takes_model
def sent140(length: int = 32, model: Literal["word_scores", "sent140_lstm"] = "word_scores") -> Task:
    """Sent140 as LEAF splits it by user: is a tweet glad or sad? By default with a stand-in for the papers' LSTM.

    Batch size and target of the first GEL paper. model: "word_scores", softmax regression on hashed words (20,002
    parameters), a stand-in that no paper uses; or "sent140_lstm", the stacked LSTM of the paper (1,173,986 parameters,
    on hashed words in place of a word list), with the paper's rate for Adam clients.
    """
    lstm = model == "sent140_lstm"
    return Task(
        **named(sent140, locals()),
        model=partial(sent140_lstm, BUCKETS) if lstm else partial(WordScores, 2),
        loss=cross_entropy,
        data=_tweets(store.folder("sent140"), length),
        batch_size=10,
        lr=1e-3 if lstm else 1.0,
        target=0.7,
    )


@lru_cache(maxsize=2)
def _agnews(folder: Path, alpha: float, clients: int, how: str, length: int, seed: int) -> FederatedData:
    parts = []
    for name in ("train.csv", "test.csv"):
        table = read.rows(folder / name, 2)
        labels = np.array([_label(folder / name, row[0], 4) for row in table])
        parts.append((hashed([" ".join(row[1:]) for row in table], length), labels))
    return dealt(parts[0], parts[1], clients, how, alpha, seed)


def _label(file: Path, text: str, classes: int) -> int:
    """Labels in files count from 1."""
    check(text in map(str, range(1, classes + 1)), str(file), "class", f"in 1..{classes}", text[:100])
    return int(text) - 1


@lru_cache(maxsize=2)
def _newsgroups(
    folder: Path, how: str, clients: int, alpha: float, least: int, length: int, seed: int
) -> FederatedData:
    file = folder / "20news.jsonl"
    posts = read.lines(file, ("author",), texts=("split", "group", "text"))
    groups = sorted({post["group"] for post in posts})
    if len(groups) > 20:
        raise InputError(f"{file} has posts to {len(groups)} groups; 20 Newsgroups has 20.")
    if not all(isinstance(post["author"], str | int) for post in posts):
        raise InputError(f"{file} has an author that is neither a text nor a whole number.")
    frequent = Counter(post["author"] for post in posts)
    train = [p for p in posts if p["split"] == "train" and (how != "author" or frequent[p["author"]] >= least)]
    test = [p for p in posts if p["split"] == "test"]
    (x, y), held = (
        (hashed([p["text"] for p in part], length), np.array([groups.index(p["group"]) for p in part]))
        for part in (train, test)
    )
    if how == "author":
        return FederatedData.from_arrays(x, y, [p["author"] for p in train], held)
    return dealt((x, y), held, clients, how, alpha, seed)


@lru_cache(maxsize=1)
def _tweets(folder: Path, length: int) -> FederatedData:
    (x, y, users), (tx, ty, _) = (read.leaf(folder / part) for part in ("train", "test"))
    text = 4  # id, date, query, user, text
    with reading(folder, "tweets in LEAF's JSON"):
        train, test = (hashed([str(tweet[text]) for tweet in tweets], length) for tweets in (x, tx))
        signs, test_signs = _signs(y), _signs(ty)
    return FederatedData.from_arrays(train, signs, users, (test, test_signs))


def _signs(y: Sequence[object]) -> NDArray[np.int64]:
    """Sad 0, glad 1 (the original files say 0 and 4)."""
    return np.array([read.whole_number(str(value)) > 0 for value in y], np.int64)
