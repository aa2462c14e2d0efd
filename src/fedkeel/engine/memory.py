"""What clients remember between rounds: tables that take memory only for the clients actually seen."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..messages import Memory, Slots, Update, select, take_rows
from ..world import Ints

IN_RAM = 2 * 2**30  # bytes the whole population may need before memory moves to a file


class Memories:
    """Per-client vectors by rule and name, in RAM or, for large populations, in memory-mapped files.

    >>> memories = Memories(population=1000)
    >>> memories.write(np.array([3, 7]), {"scaffold": {"ci": torch.tensor([[1.0], [2.0]])}})
    >>> memory = memories.read(np.array([7, 8]))
    >>> memory.slots["scaffold"]["ci"].flatten().tolist(), memory.seen.tolist()
    ([2.0, 0.0], [1, 0])
    """

    def __init__(self, population: int, in_ram: int = IN_RAM) -> None:
        self.population, self.in_ram = population, in_ram
        self.row: dict[int, int] = {}  # client -> row
        self.tables: Slots = {}
        self._folder: Path | None = None

    def __len__(self) -> int:
        """How many clients have been seen."""
        return len(self.row)

    def __del__(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def read(self, clients: Ints) -> Memory:
        """Copies of these clients' rows (zeros for the unseen), and 1 for each client seen before."""
        rows = np.array([self.row.get(int(c), -1) for c in clients], dtype=np.int64)
        seen = (rows >= 0).astype(np.int64)
        index, unseen = torch.from_numpy(np.maximum(rows, 0)), torch.from_numpy(np.flatnonzero(rows < 0))

        def of(table: Tensor) -> Tensor:
            if not seen.any():
                return table.new_zeros(len(rows), table.shape[1])
            found = table.index_select(0, index)
            return found.index_fill_(0, unseen, 0) if len(unseen) else found

        slots = {slot: {name: of(table) for name, table in tables.items()} for slot, tables in self.tables.items()}
        return Memory(slots, seen)

    def write(self, clients: Ints, slots: Slots) -> None:
        """Keep these rows for these clients."""
        for client in clients:
            self.row.setdefault(int(client), len(self.row))
        index = torch.tensor([self.row[int(c)] for c in clients])
        for slot, values in slots.items():
            for name, value in values.items():
                table = self._table(slot, name, value)
                table.index_copy_(0, index, value.to(table))

    def _table(self, slot: str, name: str, like: Tensor) -> Tensor:
        table = self.tables.get(slot, {}).get(name)
        if table is None or len(table) < len(self.row):
            table = self._made(slot, name, like)
            self.tables.setdefault(slot, {})[name] = table
        return table

    def _made(self, slot: str, name: str, like: Tensor) -> Tensor:
        """Zeros, in memory that the system gives when it is written to."""
        width, item = like.shape[1], like.element_size()
        if self.population * width * item <= self.in_ram:  # room for the whole population at once
            zeros = torch.from_numpy(np.zeros(self.population * width * item, dtype=np.uint8))
            return zeros.view(like.dtype).view(self.population, width)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedkeel-memory-"))
        rows = min(self.population, max(64, 2 * len(self.row)))
        file = str(self._folder / f"{slot}.{name}")  # a longer mapping of the same file keeps what is there
        return torch.from_file(file, shared=True, size=rows * width, dtype=like.dtype).view(rows, width)


Remembered = list[tuple[Ints, Slots]]  # clients, and a row for each of them


class Accepted:
    """The memories of an engine's clients, and what they will remember if the server accepts their updates.

    >>> kept = Accepted(Memories(population=10))
    >>> kept.add(5, [(np.array([3]), {"scaffold": {"ci": torch.ones(1, 1)}})])
    >>> kept.commit(5, [3])
    >>> len(kept.memories)
    1
    """

    def __init__(self, memories: Memories) -> None:
        self.memories = memories
        self._pending: dict[int, Remembered] = {}  # by version

    def add(self, version: int, remembered: Remembered) -> None:
        """Keep what clients of this version will remember."""
        self._pending.setdefault(version, []).extend(remembered)

    def commit(self, version: int, clients: Sequence[int]) -> None:
        """See `Engine.commit`."""
        waiting = []
        for owners, slots in self._pending.pop(version, []):
            accepted = np.isin(owners, clients)
            if accepted.all():
                self.memories.write(owners, slots)
                continue
            if accepted.any():
                self.memories.write(*_rows(owners, slots, np.flatnonzero(accepted)))
            waiting.append(_rows(owners, slots, np.flatnonzero(~accepted)))
        if waiting:
            self._pending[version] = waiting

    def discard(self, version: int) -> None:
        """See `Engine.discard`."""
        self._pending.pop(version, None)

    def hold(self, updates: Iterable[Update]) -> None:
        """See `Engine.hold`."""
        for update in updates:
            if update.memory and len(update.clients):
                self.add(update.version, [(update.clients, update.memory)])


def _rows(owners: Ints, slots: Slots, rows: Ints) -> tuple[Ints, Slots]:
    return owners[rows], take_rows(slots, select(rows, len(owners)))
