"""Where clients run. One contract, several places.

threads.py    on this machine, a worker per core
worker.py     what a worker does for a group of clients, wherever it lives
gradients/    one client at a time, or many in lockstep
choose.py     which of the two; probe.py tries both
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from ..aggregate import Sums, Weights
    from ..messages import Broadcast, Memory, Update, Work
    from ..task import Task
    from .memory import Memories
    from .worker import Worker

Do = Callable[["Worker", "Broadcast", "Work", "Memory"], "Update"]  # what a worker does with a group of clients


class Engine(Protocol):
    """Run this work from this broadcast, and give the updates, or their sums, in cohort order.

    An engine owns its clients' memories: those of a version count once the server has accepted it.
    """

    def run(self, do: Do, broadcast: Broadcast, work: Work, weights: Weights | None = None) -> Iterator[Sums | Update]:
        """Sums of chunks that are fixed by the configuration; updates, if no weights are given."""

    def commit(self, version: int, clients: Sequence[int]) -> None:
        """The server accepted what these clients sent from this version: they remember it from now on."""

    def discard(self, version: int) -> None:
        """The server accepts nothing more from this version: its other clients keep their old memory."""

    def hold(self, updates: Iterable[Update]) -> None:
        """Go on with updates of a checkpoint that have not arrived: their clients' memories wait for `commit`."""

    def memories(self) -> Memories:
        """What clients remember, for a checkpoint."""

    def restore(self, memories: Memories) -> None:
        """Go on with the memories of a checkpoint."""

    def evaluate(
        self, task: Task, x: Tensor, buffers: dict[str, Tensor], samples: tuple[Tensor, Tensor] | None
    ) -> dict[str, float | None]:
        """Test loss and accuracy of a model."""

    def close(self) -> None:
        """Stop the workers and free what they hold."""
