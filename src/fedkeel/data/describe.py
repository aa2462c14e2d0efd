"""What a partition does to the data, in numbers: how many labels a client holds in effect, and how many samples."""

import numpy as np
from numpy.typing import NDArray

from . import FederatedData

CLIENTS = 2000  # whose labels are counted where there are more; sizes are those of all
CELLS = 2**22  # of a table of clients and labels
LABELS = 10_000  # more different whole numbers are not labels


def label_count(data: FederatedData) -> int | None:
    """How many labels there are; None when targets are not labels.

    >>> label_count(FederatedData.from_arrays([[0.0]] * 2, [0, 2], clients=[0, 1]))
    3
    """
    if data.y.is_floating_point() or data.y.ndim != 1 or int(data.y.min()) < 0 or int(data.y.max()) >= LABELS:
        return None
    return int(data.y.max()) + 1


def holdings(data: FederatedData, clients: NDArray[np.int64] | None = None) -> NDArray[np.int64] | None:
    """How many samples of each label each client holds, `[clients, labels]`; None when targets are not labels.

    >>> holdings(FederatedData.from_arrays([[0.0]] * 4, [0, 2, 2, 0], clients=[0, 0, 1, 0])).tolist()
    [[2, 0, 1], [0, 0, 1]]
    """
    labels = label_count(data)
    if labels is None:
        return None
    chosen = np.arange(len(data)) if clients is None else clients
    sizes, y = data.sizes(chosen), data.y.cpu().numpy()
    row = np.repeat(np.arange(len(chosen)), sizes)
    if clients is not None:  # the places of their samples, client after client
        y = y[np.arange(len(row)) + np.repeat(data.offsets[chosen] - np.cumsum(sizes) + sizes, sizes)]
    held = np.bincount(row * labels + y.astype(np.int64), minlength=len(chosen) * labels)
    return held.reshape(len(chosen), labels)


def effective_labels(held: NDArray[np.int64]) -> NDArray[np.float64]:
    """The effective number of labels of each client: the exponential of the entropy of its label shares.

        exp(-sum_c q_c ln q_c):   1 for one label, k for k equally frequent ones

    >>> effective_labels(np.array([[4, 0, 0], [3, 0, 3], [98, 1, 1]])).round(2).tolist()
    [1.0, 2.0, 1.12]
    """
    share = held / held.sum(1, keepdims=True)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(1)
    return np.asarray(np.exp(entropy), dtype=np.float64)


def describe(data: FederatedData) -> str:
    """Clients, partition and sizes in a line; with a partition on labels also what it does to them.

    The effective number of labels and the largest label's share are means over clients, of at most 2,000 of them at
    equal distances.

    >>> from functools import partial
    >>> from fedkeel.data.partition import shards
    >>> y = np.repeat([0, 1, 2, 3], 6)
    >>> print(describe(FederatedData.from_arrays(np.zeros((24, 1)), y, partial(shards, clients=4, per_client=1))))
    4 clients, 24 samples; partition shards: sorted by label and cut into shards of equal size, 1 per client, as in \
McMahan et al. 2017; in effect 1.0 of 4 labels per client, largest share 100 %, sizes 6
    """
    parts = [f"{len(data):,} clients, {len(data.x):,} samples"]
    effect = f"sizes {_sizes(np.diff(data.offsets))}"
    if data.partition:
        parts.append(data.partition)
        if labels := label_count(data):
            effect = f"{_on_labels(data, labels)}, {effect}"
    return "; ".join([*parts, effect])


def _on_labels(data: FederatedData, labels: int) -> str:
    counted = min(len(data), CLIENTS, CELLS // labels)
    held = holdings(data, np.linspace(0, len(data) - 1, counted).astype(np.int64))
    assert held is not None
    effective, largest = effective_labels(held).mean(), (held.max(1) / held.sum(1)).mean()
    some = f" ({counted:,} clients counted)" if counted < len(data) else ""
    return f"in effect {effective:.1f} of {labels} labels per client, largest share {100 * largest:.0f} %{some}"


def _sizes(sizes: NDArray[np.int64]) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    median = f", median {int(np.median(sizes)):,}" if high - low > 1 else ""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}{median}"
