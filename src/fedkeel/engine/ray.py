"""The Ray engine: the same workers in actors, on this machine or on a cluster."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from torch import Tensor

from .. import grammar
from ..aggregate import Sums, Weights
from ..capacity import Capacity
from ..errors import FedkeelError, MissingExtra, check
from ..flat import FlatModel
from ..messages import Broadcast, Update, Work
from ..ranges import COUNT, WORKERS, Range, keep
from ..task import Task
from . import Do
from .actors import Cohort, Pool
from .chunks import Order
from .memory import Memories
from .packing import Packed, pack
from .remote import Setup, unpack_answer
from .threads import ONE_WORKER, Local, Threads, cores

MODES = ("auto", "serial", "batched")
HELD = 2**28  # bytes of finished chunks that may wait for one before them in the cohort
STORE = 200 * 2**20  # bytes of the object store of a local cluster, beside three times the data


@dataclass(frozen=True)
class Ray:
    """Clients run in actors of Ray, which needs the extra `ray`; the numbers are those of `Local`, bit for bit.

    address: "local" starts Ray on this machine for this run, also if the environment names a cluster; else the address
    of a cluster, such as "10.0.0.1:6379", or "auto" for the one that this machine belongs to. workers: default one per
    core of the cluster. gpus_per_worker: for runs with device="cuda"; not tested. mode, chunk, compile: as in `Local`.

    >>> Ray(workers=2, mode="serial").name
    'ray:workers=2,mode=serial'
    """

    address: str = "local"
    workers: int | None = None
    gpus_per_worker: float = 0.0
    mode: str = "auto"
    chunk: int | None = None
    compile: bool = False
    why: str | None = None  # who chose the mode, where it was not the caller

    def __post_init__(self) -> None:
        good = isinstance(self.address, str) and bool(self.address) and not set(self.address) & set(",+ ")
        check(good, self, "address", "'local', 'auto' or the address of a cluster", self.address)
        check(self.mode in MODES, self, "mode", "'auto', 'serial' or 'batched'", self.mode)
        check(isinstance(self.compile, bool), self, "compile", "true or false", self.compile)
        keep(self, WORKERS, "workers")
        keep(self, COUNT, "chunk")
        keep(self, Range(0, 1024), "gpus_per_worker")

    @property
    def name(self) -> str:
        """As `--engine` takes it."""
        return self.named(self.mode)

    def named(self, mode: str) -> str:
        """Its name with the mode that was chosen."""
        known = {one.name: one.default for one in fields(self)}
        keys = {key: getattr(self, key) for key in ("address", "workers", "gpus_per_worker")}
        keys |= {"mode": mode}
        return grammar.write([("ray", {key: value for key, value in keys.items() if value != known[key]})])

    def start(
        self, task: Task, model: FlatModel, seed: int, capacity: Capacity | None = None, own_loss: bool = False
    ) -> Actors:
        """Start or join Ray, and make the workers."""
        here = Local(self.mode, None, self.chunk, self.compile, self.why).start(task, model, seed, capacity, own_loss)
        held = sum(t.numel() * t.element_size() for t in (task.data.x, task.data.y))
        cluster = Cluster(self.address, self.workers, STORE + 3 * held)
        try:
            one = Local(here.mode, 1, here.chunk, self.compile, self.why)
            setup = Setup.of(task, model, seed, capacity, own_loss, one)
            return Actors(here, cluster, pack(setup, shared=True), self, model.flat.device)
        except BaseException:
            cluster.close()
            here.close()
            raise


def the_library() -> Any:
    """Ray, without reports of its use."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what later versions do; else it warns
    try:
        return import_module("ray")
    except ImportError as error:
        raise MissingExtra("ray", "ray", "The engine ray") from error


def short_folder() -> str:
    """A new folder with a short path: Ray puts sockets there, whose paths may have 107 characters."""
    long = len(tempfile.gettempdir()) > 30 and os.path.isdir("/tmp")
    return tempfile.mkdtemp(prefix="fedkeel-ray-", dir="/tmp" if long else None)


class Cluster:
    """A connection to Ray: to the one this process is connected to already, to one that is named, or to a new one."""

    def __init__(self, address: str, workers: int | None, store: int) -> None:
        self.ray, self.folder = the_library(), None
        self.ours = not self.ray.is_initialized()
        if self.ours:
            quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
            before = signal.getsignal(signal.SIGTERM)
            if address == "local":  # on the loopback interface, with its files where they can be removed
                self.folder = short_folder()
                own: dict[str, Any] = {
                    "num_cpus": workers or cores(),
                    "object_store_memory": store,
                    "include_dashboard": False,
                }
                own |= {"_node_ip_address": "127.0.0.1", "_temp_dir": self.folder}
                self._init("local", own | quiet)
            else:
                self._init(address, quiet)
            if threading.current_thread() is threading.main_thread():  # Ray puts its own handler there
                signal.signal(signal.SIGTERM, before)
        self.cores = int(self.ray.cluster_resources().get("CPU", 1))

    def _init(self, address: str, settings: dict[str, Any]) -> None:
        try:
            self.ray.init(address, **settings)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            self.close()
            raise FedkeelError(f"Ray cannot be reached at '{address}': {error}") from error

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        if self.ours:
            self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class Actors:
    """An `Engine`: workers in actors of Ray. Clients' memories are in the driver's store."""

    def __init__(self, here: Threads, cluster: Cluster, setup: Packed, place: Ray, device: Any) -> None:
        self.here, self.cluster, self.device = here, cluster, device
        self.mode, self.chunk, self.compiled = here.mode, here.chunk, here.compiled
        self.reason, self.name = here.reason.replace(ONE_WORKER, ""), place.named(here.mode)
        self.pool = Pool(cluster.ray, setup, place.workers or cluster.cores, place.gpus_per_worker)
        self.orders = 0

    def run(self, do: Do, broadcast: Broadcast, work: Work, weights: Weights | None = None) -> Iterator[Sums | Update]:
        """`do` for every client, in chunks: the sums of each chunk or, without weights, updates, in cohort order."""
        self.orders += 1
        window = HELD // max(1, 8 * broadcast.x.numel() * self.chunk)
        chunks, read = self.here.chunks.of(work), self.here.kept.memories.read
        cohort = Cohort(self.pool, self.orders, Order(do, broadcast, weights), chunks, read, window)
        for packed in cohort.answers():
            answer = unpack_answer(packed, self.device)
            self.here.kept.add(work.version, answer.remembered)
            yield from answer.parts

    def commit(self, version: int, clients: Sequence[int]) -> None:
        self.here.commit(version, clients)

    def discard(self, version: int) -> None:
        self.here.discard(version)

    def hold(self, updates: Iterable[Update]) -> None:
        self.here.hold(updates)

    def memories(self) -> Memories:
        return self.here.memories()

    def restore(self, memories: Memories) -> None:
        self.here.restore(memories)

    def evaluate(
        self, task: Task, x: Tensor, buffers: dict[str, Tensor], samples: tuple[Tensor, Tensor] | None
    ) -> dict[str, float | None]:
        """On the driver's own cores, which have the test set and nothing else to do."""
        return self.here.evaluate(task, x, buffers, samples)

    def close(self) -> None:
        self.pool.close()
        self.cluster.close()
        self.here.close()
