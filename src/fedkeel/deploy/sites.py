"""A table of one's own on the machines of its clients: each reads its own CSV, by a preparation that all share.

`fedkeel deploy init` writes the preparation, and for a trial on this machine a file for each client, as its site would
have it.
"""

from __future__ import annotations

import csv
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from .. import tasks
from ..data import FederatedData
from ..data.convert import plain
from ..data.csv_files import read_csv
from ..errors import InputError, one_line
from ..files import write_text, writing
from ..tasks import own

PREPARATION, DATA, TEST, ABOUT = "preparation.json", "data", "test.csv", "README.md"
Columns = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Sites:
    """The clients of a table by their partition-id, the training rows of each, and the columns that all need.

    hidden: the width of the model's hidden layer. tested: whether there are rows that the task is tested on.
    """

    clients: Sequence[str]
    rows: Sequence[int]
    columns: Sequence[str]
    hidden: int | None = None
    tested: bool = True

    def __str__(self) -> str:
        """Who is who and what each has to do, as Markdown."""
        width = max(len("client"), *map(len, self.clients))
        lines = [f"| partition-id | {'client':<{width}} | training rows | file |", "|---|---|---|---|"]
        for number, (client, rows) in enumerate(zip(self.clients, self.rows, strict=True)):
            lines.append(f"| {number:<12} | {client:<{width}} | {rows:<13} | {own_name(number)} |")
        known = {"columns": ", ".join(self.columns), "preparation": PREPARATION}
        known |= {"rows": WITH_TEST if self.tested else WITHOUT_TEST}
        known |= {"trial": f"In the trial it is {TEST}." if self.tested else "The trial has none (test=0)."}
        return "\n".join(lines) + "\n\n" + STEPS.format(**known)


WITH_TEST = "the rows that the task trains on, by client, and in test.csv\nthose that it is tested on."
WITHOUT_TEST = "the rows that the task trains on, by client."
STEPS = """These files are for a trial on this machine: {rows}
Between machines nobody needs them, nor the file they come from:

- Each site has fedkeel and Flower (pip install ".[flower]" in a clone of fedkeel) and a CSV of its own rows with the
  columns {columns}. Others are not read.
  It starts its SuperNode with --node-config "partition-id=0 file='/path/to/own.csv'", with its own number.
- The server needs no rows. With test-file in pyproject.toml, a CSV on the server with these columns, the history has
  loss and accuracy; whoever runs the server sees those rows. {trial}
- {preparation} is sent to every site with the app. It holds no row, but it was fitted on rows of all clients: it
  tells everybody the names of columns and classes, means and deviations, and every text that some client has.
"""


def is_table(task: str) -> bool:
    """Whether this is a task of a CSV file, whose clients have rows of their own."""
    return tasks.find(task)[0] is own.csv


def write_sites(folder: Path, task: str) -> Sites:
    """Write the preparation of a task `csv:...` and, below `data`, the rows of each client and those of the test."""
    make, values = tasks.find(task)
    if "pretrained" in values:
        raise InputError("Every device would need the pretrained file; leave it out here, and add it to app.py.")
    data, given = tasks.get(task).data, _arguments(make, values)
    about = None if data.table is None else data.table.preparation
    assert about is not None and about.target is not None
    columns = [*(column.name for column in about.columns), about.target.name]
    pooled, other = read_csv(os.path.expanduser(given["file"])).columns, isinstance(given["test"], str)
    share = 0 if other else given["test"] or 0
    rows, tested = _rows_of_clients(plain(pooled[given["client"]]), share, given["seed"])
    data.save_preparation(folder / PREPARATION)
    (folder / DATA).mkdir(mode=0o700)
    for number, held in enumerate(rows):
        _write_csv(folder / DATA / own_name(number), pooled, pooled, held)
    test = read_csv(os.path.expanduser(given["test"])).columns if other else pooled
    if other or tested:
        _write_csv(folder / DATA / TEST, test, columns, range(len(test[columns[0]])) if other else tested)
    names, sizes = [one_line(client) for client in data.client_ids], list(map(len, rows))
    sites = Sites(names, sizes, columns, given["hidden"], other or bool(tested))
    write_text(folder / DATA / ABOUT, f"# Who is who\n\n{sites}")
    return sites


def own_name(number: int) -> str:
    """The name of the file of a client."""
    return f"client-{number}.csv"


def site_files(app: Path) -> list[Path]:
    """The clients' files of a trial, by partition-id; none where the app has another task."""
    return list(takewhile(Path.exists, (app.absolute() / DATA / own_name(number) for number in count())))


def own_rows(node: Mapping[str, Any], preparation: Path) -> FederatedData:
    """The rows of this device's own CSV, which its configuration names as `file`, as those of one client.

    What is wrong in the file is said here alone: the message may hold a value, and the server would see it.
    """
    if not node.get("file"):
        raise InputError("This node names no file: --node-config \"partition-id=0 file='/path/to/own.csv'\".")
    try:
        return FederatedData.from_csv(str(node["file"]), preparation=preparation, verbose=False)
    except InputError as error:
        print(f"fedkeel: {one_line(error)}", file=sys.stderr, flush=True)
        raise InputError("The file of this site cannot be used; the output of its SuperNode says why.") from None


def _arguments(make: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(make).bind(**values)
    bound.apply_defaults()
    return dict(bound.arguments)


def _rows_of_clients(clients: Any, share: float, seed: int) -> tuple[list[list[int]], list[int]]:
    """The places of each client's training rows in the file, and of the test rows, split as the task does it."""
    places = FederatedData.from_arrays(np.arange(len(clients)), np.zeros(len(clients)), clients)
    places = places.held_out(share, seed, "test") if share else places
    tested = [] if places.test is None else places.test[0].tolist()
    return [held.tolist() for held in np.split(places.x.numpy(), places.offsets[1:-1])], tested


def _write_csv(file: Path, columns: Columns, names: Iterable[str], rows: Iterable[int]) -> None:
    """Write some columns and rows of a table."""
    names = list(names)
    with writing(file) as beside, open(beside, "w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(names)
        lines.writerows([columns[name][row] for name in names] for row in rows)
