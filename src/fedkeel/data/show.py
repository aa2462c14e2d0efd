"""A picture of how a task's data differ between clients: the labels each holds, and how many samples."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..errors import InputError
from ..task import Task
from ..world import UniformSteps
from .describe import describe, holdings
from .read.files import optional

SHADES = " ░▒▓█"
BARS = " ▏▎▍▌▋▊▉█"
WIDTH, ROWS, BINS = 64, 20, 8


def draw(task: Task, console: Console) -> None:
    """Draw labels by client and the histogram of sizes in the terminal."""
    data, held, sizes = task.data, holdings(task.data), np.diff(task.data.offsets)
    lines = [f"{task.spec or task.name}: {describe(data)}"]
    if held is not None:
        lines.append(label_range((held > 0).sum(1), held.shape[1]))
        lines.append("labels by client (left to right); darker: a larger share of the client's samples")
        lines += shaded(held, console.width)
    lines += ["samples per client", *bars(sizes)]
    if task.batch_size is not None:
        budget = UniformSteps.of_epochs(1, 5, sizes, task.batch_size)
        lines.append(f"one to five epochs of the median client, batch {task.batch_size}: --budget {budget}")
    console.print("\n".join(lines), markup=False, highlight=False)


def label_range(own: NDArray[np.int64], labels: int) -> str:
    """How many of the labels a client holds.

    >>> label_range(np.array([1, 2, 2]), 10), label_range(np.array([2, 2]), 2)
    ('a client holds 1 to 2 of 10 labels, 1.7 on average', 'every client holds 2 of 2 labels')
    """
    if own.min() == own.max():
        return f"every client holds {own.min()} of {labels} labels"
    return f"a client holds {own.min()} to {own.max()} of {labels} labels, {own.mean():.1f} on average"


def shaded(held: NDArray[np.int64], terminal: int = 80) -> list[str]:
    """A row of shades per label (labels beyond 20 in groups), a column per client (or per group of clients).

    >>> shaded(np.array([[4, 0], [1, 3]]))
    ['0 █░', '1  ▓']
    """
    share = held / held.sum(1, keepdims=True)
    width = len(str(held.shape[1] - 1))
    clients = np.array_split(np.arange(len(held)), max(1, min(WIDTH, len(held), terminal - width - 1)))
    labels = np.array_split(np.arange(held.shape[1]), min(ROWS, held.shape[1]))
    rows = []
    for group in labels:
        cells = [share[part][:, group].sum(1).mean() for part in clients]
        # the smallest share must still be visible
        marks = [SHADES[max(int(cell > 0), min(4, round(float(cell) * 4)))] for cell in cells]
        rows.append(f"{group[0]:>{width}} {''.join(marks)}")
    return rows


def bars(sizes: NDArray[np.int64]) -> list[str]:
    """A horizontal histogram.

    >>> bars(np.array([5, 5, 5]))
    ['5  3 ████████████████████████████████████████']
    """
    low, high = int(sizes.min()), int(sizes.max())
    edges = np.unique(np.linspace(low, high + 1, min(BINS, high + 1 - low) + 1).astype(np.int64))
    counts = np.histogram(sizes, edges)[0]
    names = [f"{a:,}" if b - a == 1 else f"{a:,}-{b - 1:,}" for a, b in pairwise(edges)]
    rows = []
    for name, count in zip(names, counts, strict=True):
        length = 320 * int(count) // int(counts.max())
        bar = BARS[8] * (length // 8) + BARS[length % 8].strip()
        rows.append(f"{name:<{max(map(len, names))}}  {count:>{len(str(counts.max()))}} {bar}".rstrip())
    return rows


def save(task: Task, file: Path) -> None:
    """Write the same two pictures as one PNG (or another format, by the file's suffix)."""
    figure_of = optional("matplotlib.figure", "matplotlib", "plot", "Writing a picture")
    held, sizes = holdings(task.data), np.diff(task.data.offsets)
    figure = figure_of.Figure(figsize=(9, 6 if held is not None else 3), layout="constrained")
    axes = figure.subplots(2 if held is not None else 1, 1, squeeze=False)[:, 0]
    if held is not None:
        shown = axes[0].imshow((held / held.sum(1, keepdims=True)).T, aspect="auto", interpolation="nearest",
                               cmap="Blues", vmin=0, origin="lower")  # fmt: skip
        axes[0].set(xlabel="client", ylabel="label", title=task.spec or task.name)
        figure.colorbar(shown, ax=axes[0], label="share of the client's samples")
    low, high = int(sizes.min()), int(sizes.max())
    axes[-1].hist(sizes, bins=40 if high - low > 40 else np.arange(low, high + 2) - 0.5)
    axes[-1].set(xlabel="samples per client", ylabel="clients")
    for axis in [*(one.xaxis for one in axes), *(one.yaxis for one in axes)]:  # all axes are counts
        axis.get_major_locator().set_params(integer=True)
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot write {file}: {error}.") from error
