"""Stack Overflow: the next word, with a client for each user."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import FederatedData, read, store
from ..errors import InputError
from ..files import reading
from ..models.text import stackoverflow_lstm
from ..task import Task
from ..world import Epochs
from .naming import named

PAD, BEGIN, END = 0, 1, 2  # then the words, most frequent first, then a last number for all others


def stackoverflow(
    setting: Literal["ghbm", "fathom"] = "ghbm", clients: int | None = 40_000, limit: int = 500, words: int = 10_000,
    length: int = 20, test: int = 10_000,
) -> Task:  # fmt: skip
    """Next-word prediction at every place of sentences of 20 words; accuracy counts real words only.

    setting: "ghbm" (batches of 16, rate 0.3) or "fathom" (batches of 16, rate 0.32, target 23 %). clients: users, the
    first ones by name; limit: sentences per user at most; test: sentences of the test split.
    """
    return Task(
        **named(stackoverflow, locals()),
        model=partial(stackoverflow_lstm, words + 4),
        loss=next_word_loss,
        data=_data(store.folder("stackoverflow"), clients, limit, words, length, test),
        batch_size=16,
        lr=0.3 if setting == "ghbm" else 0.32,
        budget=Epochs(1),
        metric=partial(word_accuracy, other=words + 3),
        target=0.23 if setting == "fathom" else None,
    )


def next_word_loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy averaged over the real places of each sentence; output is `[batch, words, time]`.

    >>> import torch
    >>> next_word_loss(torch.zeros(1, 4, 3), torch.tensor([[3, 2, 0]])).round(decimals=4)
    tensor([1.3863])
    """
    real = (target != PAD).to(output.dtype)
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return (losses * real).sum(-1) / real.sum(-1).clamp(min=1)


def word_accuracy(output: Tensor, target: Tensor, other: int) -> float:
    """The share of real words (no padding, no end, none outside the vocabulary) that are guessed.

    >>> import torch
    >>> scores = nn.functional.one_hot(torch.tensor([[3, 2, 4]]), 6).movedim(-1, 1).float()
    >>> word_accuracy(scores, torch.tensor([[3, 2, 3]]), other=5)
    0.5
    """
    real = (target != PAD) & (target != BEGIN) & (target != END) & (target != other)
    right = (output.argmax(1) == target) & real
    return float(right.sum() / real.sum().clamp(min=1))


def encode(sentence: str, numbers: dict[str, int], length: int) -> NDArray[np.int32]:
    """BEGIN, the words, END when it fits, padding: length + 1 numbers.

    >>> encode("to be or", {"to": 3, "be": 4}, 6).tolist()
    [1, 3, 4, 5, 2, 0, 0]
    """
    other = len(numbers) + 3
    row = [BEGIN, *(numbers.get(word, other) for word in sentence.split()), END][: length + 1]
    return np.array(row + [PAD] * (length + 1 - len(row)), np.int32)


@lru_cache(maxsize=1)
def _data(folder: Path, clients: int | None, limit: int, words: int, length: int, test: int) -> FederatedData:
    listed = read.vocabulary(folder / "stackoverflow.word_count", words)
    numbers = {word: 3 + place for place, word in enumerate(listed)}

    def rows(sentences: Sequence[str]) -> NDArray[np.int32]:
        return np.stack([encode(sentence, numbers, length) for sentence in sentences])

    train = [(user, rows(said[:limit])) for user, said in _sentences(folder, "train", clients, limit) if said]
    held: list[str] = []
    for _, said in _sentences(folder, "test", None, test):
        held += said[: test - len(held)]
        if len(held) == test:
            break
    if not train or not held:
        raise InputError(f"{folder} has no sentences to {'train' if not train else 'test'} on.")
    x, checked = np.concatenate([part for _, part in train]), rows(held)
    offsets = np.cumsum([0, *(len(part) for _, part in train)])
    users = [user for user, _ in train]
    return FederatedData(x[:, :-1], x[:, 1:], offsets, users, (checked[:, :-1], checked[:, 1:]))


def _sentences(folder: Path, split: str, clients: int | None, limit: int) -> Iterator[tuple[str, list[str]]]:
    base = folder / "stackoverflow.sqlite"
    found: Iterator[tuple[str, Any]] = (
        read.sqlite(base, split, ("tokens",), clients, limit)
        if base.exists()
        else read.hdf5(folder / f"stackoverflow_{split}.h5", ("tokens",), clients)
    )
    for user, fields in found:
        with reading(folder, "sentences"):
            texts = [_text(value) for value in fields["tokens"]]
        yield user, texts


def _text(value: Any) -> str:
    if isinstance(value, list):  # a tf.Example holds lists
        value = value[0]
    if not isinstance(value, bytes):
        raise TypeError(f"a sentence is a {type(value).__name__}, not text")
    return value.decode("utf-8", "replace")
