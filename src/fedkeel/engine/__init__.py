"""Where clients run. One contract, several places.

places.py     the engine that a text such as `--engine serial` names
threads.py    on this machine, a worker per core
worker.py     what a worker does for a group of clients, wherever it lives; chunks.py: for a part of a cohort
memory.py     what clients remember
ray.py        on a cluster: actors.py deals chunks out to workers in processes, remote.py; packing.py: what goes there
flower/       real devices
gradients/    one client at a time, or many in lockstep
choose.py     which of the two; probe.py tries both
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..aggregate import Sums, Weights
    from ..capacity import Capacity
    from ..flat import FlatModel
    from ..messages import Broadcast, Memory, Update, Work
    from ..task import Task
    from ..world import Ints
    from .memory import Memories
    from .worker import Worker

# What a worker does with a group of clients. It may have to travel to another process, so it is a function of a module,
# or `functools.partial` of one with plain values, such as `partial(train_clients, algorithm)`; never a closure.
Do = Callable[["Worker", "Broadcast", "Work", "Memory"], "Update"]


@runtime_checkable
class Place(Protocol):
    """Where clients are to run, before anything is started: `fk.Local(...)` and its like; a frozen dataclass."""

    @property
    def compile(self) -> bool:
        """Whether C kernels are asked for."""

    @property
    def name(self) -> str:
        """Its name as `--engine` takes it, without `compile`."""

    def start(
        self, task: Task, model: FlatModel, seed: int, capacity: Capacity | None = None, own_loss: bool = False
    ) -> Engine:
        """Workers for this task; ends with `close`. own_loss: a rule makes another loss of the task's."""


Available = Callable[["Ints"], "NDArray[np.bool_]"]  # which of some clients can be asked now


@runtime_checkable
class Remote(Protocol):
    """An engine whose clients are devices that come and go."""

    def available(self) -> Available | None:
        """Wait until enough clients can be asked for a round; then who can. None means all can."""


class Engine(Protocol):
    """Run this work from this broadcast, and give the updates, or their sums, in cohort order.

    An engine owns its clients' memories: those of a version count once the server has accepted it.
    name: what names it in the configuration, with the mode that was chosen. compiled: whether C kernels are used.
    """

    name: str
    mode: str
    reason: str
    chunk: int
    compiled: bool

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
