"""Federated data as packed arrays: the samples of client i are the slice `offsets[i]:offsets[i+1]`.

There is no Python object per client: a million registered clients are one array of offsets.
"""

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .. import draws
from ..errors import InputError, check
from ..inputs import Inputs
from ..ranges import Range
from . import convert, csv_files, picture_folders, prepared
from .arrays import Clients, held_by, ids_of, index_lists, indices_of, inputs_of, tensor_of
from .partition import in_values, in_words
from .scaling import PIXELS, Scaling
from .table import Preparation, Table

Pair = tuple[Tensor, Tensor]
SHARE = Range(0.001, 0.9)


BLOCK = 2**16  # samples that are looked at together


class FederatedData:
    """Samples packed by client, and a test set.

    >>> data = FederatedData.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], clients=["b", "a", "b"])
    >>> len(data), data.client_ids.tolist(), data.sizes([0, 1]).tolist()
    (2, ['a', 'b'], [1, 2])
    >>> data.x.flatten().tolist()
    [1.0, 0.0, 2.0]
    """

    def __init__(
        self, x: Any, y: Any, offsets: ArrayLike, client_ids: ArrayLike | None = None,
        test: tuple[Any, Any] | None = None, partition: str = "", inputs: Inputs | None = None,
    ) -> None:  # fmt: skip
        self.partition = partition  # in words; empty where the clients came with the data
        self.dealt: dict[str, Any] = {}  # the same by its name and parameters
        self.inputs = inputs  # how a sample is cut, where a model has several inputs
        self.class_names: list[str] | None = None  # by class number, where targets were texts or folders
        self.table: Table | None = None  # what inputs were made of, where they come from a table
        self.scaling: Scaling | None = None  # of raw inputs, where all of them were scaled
        self.x, self.y = tensor_of(x, "x"), tensor_of(y, "y")
        self.offsets = np.asarray(offsets, dtype=np.int64)
        ids = np.arange(len(self.offsets) - 1) if client_ids is None else np.asarray(client_ids)
        self.client_ids: NDArray[Any] = ids
        if test is not None and not (isinstance(test, list | tuple) and len(test) == 2):
            raise InputError(f"test must be a pair (inputs, targets). Got {type(test).__name__} instead.")
        self.test = None if test is None else (inputs_of(test[0], "test x", inputs)[0], tensor_of(test[1], "test y"))
        self.validation: Pair | None = None  # see `held_out`
        self.client_test: Pair | None = None  # the same, with the clients' own parts in `client_test_offsets`
        self.client_test_offsets: NDArray[np.int64] | None = None
        self.sources: NDArray[np.int64] | None = None  # which sample each row is a copy of, where some have several
        self.test_drawn = False  # test samples, or those of clients, are a share that `held_out` drew
        self._validate()

    def __repr__(self) -> str:
        held = f"{len(self)} clients, {len(self.y):,} samples of shape {tuple(self.x.shape[1:])}"
        return f"<FederatedData of {held}, {0 if self.test is None else len(self.test[1]):,} for the test>"

    @classmethod
    def from_arrays(cls, x: Any, y: Any, clients: Clients, test: tuple[Any, Any] | None = None) -> Self:
        """Group samples by client; clients are numbered by sorted id.

        x: an array with an entry per sample; for a model with several inputs a dict of arrays, by the arguments of its
        `forward`, or a tuple of arrays, by their places.
        clients: the id beside each sample; or a list of arrays, the sample indices of each client (a sample may occur
        twice or never); or a function of the targets that gives either, such as those of `fedkeel.data.partition`.
        test: inputs and targets for evaluation; without them the history has no test loss and no accuracy.

        >>> from functools import partial
        >>> from fedkeel.data.partition import shards
        >>> data = FederatedData.from_arrays(torch.zeros(8, 3), [0, 0, 0, 0, 1, 1, 1, 1], partial(shards, clients=2))
        >>> data.sizes([0, 1]).tolist()
        [4, 4]
        """
        (x, inputs), y = inputs_of(x, "x"), tensor_of(y, "y")
        held, words = index_lists(held_by(clients, y)), in_words(clients)
        lists = isinstance(held, list | tuple) and all(isinstance(own, np.ndarray) and own.ndim == 1 for own in held)
        if lists and held:
            order = indices_of(held, len(x))
            made = cls(x[order], y[order], np.cumsum([0, *map(len, held)]), None, test, words, inputs)
            made.dealt = in_values(clients)
            sources = order.numpy()
            made.sources = sources if len(np.unique(sources)) < len(sources) else None
            return made
        ids = ids_of(held)
        if ids.ndim != 1 or not len(x) == len(y) == len(ids):
            raise InputError(
                f"x, y and clients must have one entry per sample. Got {len(x)}, {len(y)} and {ids.shape} entries."
            )
        try:
            unique, owner, counts = np.unique(ids, return_inverse=True, return_counts=True)
        except TypeError as error:
            raise InputError(
                f"Client ids must be all numbers or all texts, so that they can be sorted: {error}."
            ) from error
        if ids.dtype.kind == "f" and not np.isfinite(ids).all():
            raise InputError("A client id is NaN or infinite; give every sample the id of its client.")
        if (np.diff(owner) < 0).any():  # else they are grouped already, and the arrays are used without a copy
            order = torch.from_numpy(np.argsort(owner, kind="stable"))
            x, y = x[order], y[order]
        made = cls(x, y, np.concatenate([[0], np.cumsum(counts)]), unique, test, words, inputs)
        made.dealt = in_values(clients)
        return made

    @classmethod
    def from_torch(cls, dataset: Any, partition: Clients, test: Any = None, target: str = "labels") -> Self:
        """A torch data set of (input, target) pairs, read once into memory; `test` is another one.

        An input may be a dict or a tuple, for models with several; an item may also be a dict with the target under the
        key `target` and the model's inputs under all others. A transform is applied once; random changes from step to
        step belong in `Task(augment=)`.
        partition: as `clients` of `from_arrays`.

        >>> from functools import partial
        >>> from fedkeel.data.partition import iid
        >>> dataset = torch.utils.data.TensorDataset(torch.randn(10, 3), torch.zeros(10, dtype=torch.int64))
        >>> len(FederatedData.from_torch(dataset, partition=partial(iid, clients=5)))
        5
        """
        held_out = None if test is None else convert.torch_pairs(test, "The test data set", target)
        return cls.from_arrays(*convert.torch_pairs(dataset, "The data set", target), partition, held_out)

    @classmethod
    def from_huggingface(
        cls, dataset: Any, x: str | Sequence[str] | Mapping[str, str], y: str, client_column: str | None = None,
        partition: Clients | None = None, test: Any = None,
    ) -> Self:  # fmt: skip
        """A `datasets.Dataset`, or the name of one on the hub (its split "train"), with a client column or a partition.

        x: the input column (numbers, lists of one length, or images, which become `[channels, height, width]` in 0..1),
        or several columns of numbers side by side, or for a model with several inputs a dict from the arguments of its
        `forward` to columns. y: the target column; texts become class numbers in sorted order. test: another
        Dataset, or the name of a split when `dataset` is a name.

        >>> class Columns(dict):  # in the place of a datasets.Dataset
        ...     column_names = property(list)
        >>> rows = Columns(text=[[5, 0], [7, 2], [1, 1]], label=["spam", "ham", "spam"], user=["wan", "ada", "wan"])
        >>> data = FederatedData.from_huggingface(rows, x="text", y="label", client_column="user")
        >>> data.client_ids.tolist(), data.y.tolist()
        (['ada', 'wan'], [0, 1, 1])
        """
        if (client_column is None) == (partition is None):
            raise InputError("from_huggingface needs either client_column= or partition=.")
        train = convert.hub_dataset(dataset, "train")
        raw = convert.plain(convert.hub_column(train, y))
        names, held_out = np.unique(raw), None
        if test is not None:
            other = convert.hub_dataset(*((dataset, test) if isinstance(test, str) else (test, "test")))
            found = convert.targets(convert.plain(convert.hub_column(other, y)), names, "test")
            held_out = (convert.hub_inputs(other, x), found)
        clients = partition if client_column is None else convert.plain(convert.hub_column(train, client_column))
        assert clients is not None
        made = cls.from_arrays(convert.hub_inputs(train, x), convert.targets(raw, names, "training"), clients, held_out)
        made.class_names = convert.class_names(names)
        return made

    @classmethod
    def from_csv(
        cls, path: str | os.PathLike[str], client_column: str | None = None, target_column: str | None = None,
        test: str | os.PathLike[str] | float | None = None, *, drop: str | Sequence[str] = (),
        categories: str | Sequence[str] = (), scale: bool = True, seed: int = 0, verbose: bool = True,
        preparation: str | os.PathLike[str] | None = None,
    ) -> Self:  # fmt: skip
        """A CSV file with a header line; every other column is a feature.

        Numbers are scaled to mean 0 and deviation 1 and blanks become the mean (`scale=False` leaves numbers as they
        are); a text becomes a column of 0 and 1 for each of its values. A column of which at least half the values are
        numbers, but not all, is refused. All this is fitted on training rows only, and printed on stderr (`verbose`);
        `data.table` keeps it, and `fedkeel export` gives it away with the model.

        test: another file with the same columns, of which the client column may be missing; or the share of every
        client's rows that are kept for the test, drawn by `seed`; 0 or None for no test set. drop: columns to leave
        out. categories: columns of numbers that are names; both may be a list, or a text with `|` between names.
        Targets that are texts, or are named in categories, become class numbers in sorted order.

        preparation: a file of `save_preparation`, or the `about.json` of `fedkeel export`. Nothing is fitted then: this
        file's rows become inputs as those of the file that was fitted, which also says what the target is. Without a
        client column all rows are one client's.

        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "hearts.csv")
        ...     _ = path.write_text("hospital,age,sex,ill\\nA,60,f,no\\nB,40,m,yes\\nA,,f,no\\n")
        ...     data = FederatedData.from_csv(path, client_column="hospital", target_column="ill", verbose=False)
        >>> data.client_ids.tolist(), data.y.tolist(), data.x.tolist()
        (['A', 'B'], [0, 0, 1], [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
        """
        share, other = (test, None) if isinstance(test, int | float) else (0, test)
        good = share in SHARE or (share == 0 and test is not False)
        check(good, "from_csv", "test", f"a file, or a share of every client's rows: 0 or {SHARE}", test)
        if preparation is not None:
            fixed = not drop and not categories and scale and target_column is None
            check(
                fixed, "from_csv", "preparation", "given without target_column, drop, categories and scale", preparation
            )
            rows = csv_files.prepared_rows(path, client_column, other, prepared.read_preparation(preparation))
        elif client_column is None or target_column is None:
            raise InputError("from_csv needs client_column and target_column, or a preparation.")
        else:
            rows = csv_files.csv_rows(path, client_column, target_column, other, drop, categories, scale)
        with convert.naming(path):
            made = cls._from_rows(rows)
        if share:
            sizes = np.diff(made.offsets)
            if not kept_of(sizes, share).any():
                raise csv_files.too_small(path, client_column or "(none)", sizes, share)
            made = made.held_out(share, seed, "test")
        if verbose:
            print(csv_files.csv_summary(path, made), file=sys.stderr)
        return made

    @classmethod
    def from_preparation(cls, preparation: str | os.PathLike[str]) -> Self:
        """The data of a server that holds no rows: blank ones stand for the shapes of those that devices read by this
        preparation (`from_csv`)."""
        return cls._from_rows(csv_files.no_rows(prepared.read_preparation(preparation)))

    @classmethod
    def _from_rows(cls, rows: csv_files.Rows) -> Self:
        held_out = None if rows.test_y is None else (rows.table.inputs("test"), rows.test_y)
        made = cls.from_arrays(np.arange(len(rows.y)), rows.y, rows.clients, held_out)
        made.class_names = rows.class_names
        made.table = replace(rows.table, raw=rows.table.raw | {"train": rows.table.raw["train"][made.x]})
        made._prepare()
        return made

    def save_preparation(self, path: str | os.PathLike[str]) -> None:
        """Write what was fitted on the training rows of a table as a small JSON file, for `from_csv(preparation=)`.

        It holds the names of the columns and of the target, means and deviations, the texts of columns of texts and the
        names of classes; no row.
        """
        prepared.write_preparation(Path(path), self._prepared().preparation)

    def tested_by(self, path: str | os.PathLike[str]) -> Self:
        """The same data with the rows of this CSV file as the test set, prepared as the training rows are."""
        table, same = self._prepared(), copy.copy(self)
        raw, y = csv_files.rows_by(table.preparation, path, "test")
        same.table = replace(table, raw=table.raw | {"test": raw})
        same.test = (same.table.inputs("test"), tensor_of(y, "test y"))
        same._validate()
        return same

    def _prepared(self) -> Table:
        if self.table is None:
            raise InputError("These data have no preparation of a table; make them by from_csv or from_preparation.")
        return self.table

    @classmethod
    def from_folder(
        cls, path: str | os.PathLike[str], size: int, partition: Clients | None = None,
        test: str | os.PathLike[str] | None = None,
    ) -> Self:  # fmt: skip
        """Pictures in folders: `CLIENT/CLASS/picture.png`, or `CLASS/picture.png` with a partition.

        They become `[3, size, size]` in 0..1: the largest square in the middle, scaled. Classes are numbered by sorted
        name. test: a folder `CLASS/picture.png`. Reading pictures needs Pillow, the extra `images`.

        >>> FederatedData.from_folder("/nowhere", size=32)
        Traceback (most recent call last):
        fedkeel.errors.InputError: /nowhere is not a folder.
        """
        found = picture_folders.read_folder(path, size, partition is None)
        tested = None if test is None else picture_folders.read_folder(test, size, False, found.classes)
        held_out = None if tested is None else (tested.x, tested.y)
        made = cls.from_arrays(found.x, found.y, found.clients if partition is None else partition, held_out)
        made.class_names, made.scaling = found.classes, PIXELS
        return made

    @property
    def preparation(self) -> Preparation | Scaling | None:
        """What makes inputs of raw ones, where it is known; an exported model has it inside."""
        return self.scaling if self.table is None else self.table.preparation

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    def sizes(self, clients: ArrayLike) -> NDArray[np.int64]:
        """How many samples each of these clients holds."""
        clients = np.asarray(clients, dtype=np.int64)
        held: NDArray[np.int64] = self.offsets[clients + 1] - self.offsets[clients]
        return held

    def cast(self, dtype: torch.dtype, device: str) -> Self:
        """The same data with floating tensors in `dtype`, integer targets as int64, on `device`."""

        def pair(x: Tensor, y: Tensor) -> Pair:
            y = y.to(device, dtype if y.is_floating_point() else torch.int64)
            return x.to(device, dtype if x.is_floating_point() else x.dtype), y

        same = copy.copy(self)
        same.x, same.y = pair(self.x, self.y)
        for part in ("test", "validation", "client_test"):
            held = getattr(self, part)
            setattr(same, part, None if held is None else pair(*held))
        if (same.x.dtype, same.y.dtype) != (self.x.dtype, self.y.dtype):  # the cast may overflow
            same._check_finite()
        return same

    def placed(self, client: int, population: int) -> Self:
        """All samples as those of one client of a population; the others' samples are on their own devices.

        >>> data = FederatedData.from_arrays(torch.zeros(3, 1), [0, 1, 1], clients=[0, 0, 0])
        >>> data.placed(client=1, population=4).sizes([0, 1, 2, 3]).tolist()
        [0, 3, 0, 0]
        """
        return self._owned(np.repeat([0, len(self.x)], [client + 1, population - client]))

    def of_sizes(self, sizes: ArrayLike) -> Self:
        """The view of a server whose clients keep their samples: it knows how many each of them holds, and the first
        sample here stands for all, so it takes no memory.

        >>> data = FederatedData.from_arrays(torch.zeros(3, 1), [0, 1, 1], clients=[0, 0, 0])
        >>> data.of_sizes([1000, 200]).sizes([0, 1]).tolist()
        [1000, 200]
        """
        same = self._owned(np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]))
        same.x, same.y = (part[:1].expand(same.offsets[-1], *part.shape[1:]) for part in (self.x, self.y))
        same.sources = None
        same._validate()
        return same

    def _owned(self, offsets: NDArray[np.int64]) -> Self:
        same = copy.copy(self)
        same.offsets, same.client_ids = offsets, np.arange(len(offsets) - 1)
        return same

    def for_workers(self) -> Self:
        """The same data without what only the server needs, such as test and validation sets."""
        same = copy.copy(self)
        same.test = same.validation = same.client_test = same.table = same.sources = None
        return same

    def tested_on(self, samples: int) -> Self:
        """The same data with a fixed draw of so many test samples, the same for every seed and algorithm."""
        same = copy.copy(self)
        if self.test is not None and samples < len(self.test[0]):
            drawn = np.sort(draws.generator(0, "eval-samples").permutation(len(self.test[0]))[:samples])
            index = torch.from_numpy(drawn)
            same.test = self.test[0][index], self.test[1][index]
        return same

    def held_out(self, share: float, seed: int = 0, part: str = "validation") -> Self:
        """The same data with floor(share n_i) samples of every client kept for another use, never its last one.

        Which ones depends on the seed, the client and the use alone. Where a sample was dealt out several times, as by
        `dirichlet_repeated`, its other copies are not trained on either. part: "validation", "client_test" or "test";
        the clients' test samples together are the test set where there is no other. What was fitted on training rows
        (`from_csv`) is fitted anew on those that are left.

        >>> data = FederatedData.from_arrays(torch.arange(12.0)[:, None], [0] * 12, clients=[0] * 10 + [1, 1])
        >>> data.held_out(0.25).sizes([0, 1]).tolist(), len(data.held_out(0.25).validation[0])
        ([8, 2], 2)
        """
        sizes, what = np.diff(self.offsets), part.replace("_", " ")
        counts = kept_of(sizes, share)
        kept = np.ones(len(self.x), dtype=bool)
        owners = np.flatnonzero(counts)
        if not len(owners):
            most = f"no client holds more than {sizes.max():,}, and there are {len(self):,} of them"
            raise InputError(f"A {what} share of {share:g} keeps no sample: {most}.")
        for client, generator in zip(owners, draws.generators(seed, part, 0, owners), strict=True):
            kept[self.offsets[client] + generator.permutation(sizes[client])[: counts[client]]] = False
        other = torch.from_numpy(np.flatnonzero(~kept))
        same = copy.copy(self)
        if self.sources is not None:
            kept &= ~np.isin(self.sources, self.sources[~kept])
            same.sources = self.sources[kept]
        train = torch.from_numpy(np.flatnonzero(kept))
        same.x, same.y = self.x[train], self.y[train]
        same.offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        if (empty := np.flatnonzero(np.diff(same.offsets) == 0)).size:
            raise InputError(
                f"With a {what} share of {share:g}, client {self.client_ids[empty[0]]} has nothing left to train on: "
                "it holds copies of samples that are kept from other clients. Use a smaller share, or a partition that "
                "gives every sample to one client."
            )
        if part == "client_test":
            same.client_test_offsets = np.concatenate([[0], np.cumsum(counts)])
        parts = ("client_test", "test") if part == "client_test" and self.test is None else (part,)
        same.test_drawn = self.test_drawn or part != "validation"
        for name in parts:
            setattr(same, name, (self.x[other], self.y[other]))
        if self.table is not None:
            same.table = self.table.split(train, other, parts)
            same._prepare()
        return same

    def _prepare(self) -> None:
        """Make all inputs of the table, by what is fitted on its training rows."""
        assert self.table is not None
        self.x = self.table.inputs("train")
        for part in self.table.raw.keys() - {"train"}:
            setattr(self, part, (self.table.inputs(part), getattr(self, part)[1]))

    def _validate(self) -> None:
        offsets = self.offsets
        if len(offsets) < 2:
            raise InputError("The data have no client.")
        if offsets[0] != 0 or not offsets[-1] == len(self.x) == len(self.y):
            raise InputError(f"offsets must run from 0 to the {len(self.x)} samples of x and {len(self.y)} of y.")
        if len(self.client_ids) != len(offsets) - 1:
            raise InputError(f"{len(self.client_ids)} client ids for {len(offsets) - 1} clients.")
        empty = np.flatnonzero(np.diff(offsets) <= 0)
        if len(empty):
            raise InputError(f"Client {self.client_ids[empty[0]]} has no samples ({len(empty)} such). Leave it out.")
        self._check_finite()

    def _check_finite(self) -> None:
        tensors = {"x": self.x, "y": self.y}
        if self.test is not None:
            tensors |= {"test x": self.test[0], "test y": self.test[1]}
            if len(self.test[0]) != len(self.test[1]) or not len(self.test[0]):
                raise InputError(f"The test set has {len(self.test[0])} inputs and {len(self.test[1])} targets.")
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not _is_finite(tensor):
                bad = int((~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1)).nonzero()[0])
                raise InputError(
                    f"{name} has non-finite values, the first in sample {bad}; leave such samples out or fill them in."
                )


def kept_of(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many samples of clients with so many are kept for another use.

    >>> kept_of(np.array([10, 4, 1]), 0.25).tolist()
    [2, 1, 0]
    """
    kept: NDArray[np.int64] = np.minimum(np.floor(share * sizes + 1e-9).astype(np.int64), sizes - 1)
    return kept


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are; in blocks, so that the check takes no memory of the data's size."""
    return all(bool(torch.isfinite(part).all()) for part in torch.split(tensor, BLOCK))
