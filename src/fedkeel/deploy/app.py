"""A Flower app made of a task and an algorithm: both halves, and what its configuration may set."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..algorithm import Algorithm
from ..engine.flower.device import Device, MakeTask, out_folder
from ..engine.flower.nodes import Nodes
from ..engine.flower.orders import flower
from ..engine.flower.server import GRACE, Flower
from ..errors import FedkeelError, InputError, one_line, reason
from ..files import read_json, write_json
from ..pace import Synchronous
from ..recipes import algorithm as read_algorithm
from ..run.config import RunConfig
from ..run.folder import CONFIG
from ..run.training import Run, resume, train
from ..settings import settings
from ..task import Task
from ..world import World

# Settings of a simulation: they split data that devices hold, or need clients on this machine.
REFUSED = ("validation", "client_test", "compile", "device", "engine", "diagnose", "sim_seconds", "checkpoint_every")
log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class App:
    """Both halves of a Flower app.

    task: a function that makes the Task. On a device it is given the node's configuration, and the data are the
    device's own; on the server it is given None, and the data are the test set and at least one sample. A task made by
    `fk.tasks.get` deals its data by itself, and a node's `partition-id` says which client it is. algorithm, world: for
    those that cannot be written in the app's configuration, which has a text for each.

    >>> import fedkeel as fk
    >>> App(lambda node: fk.tasks.get("synthetic")).algorithm is None
    True
    """

    task: MakeTask
    algorithm: Algorithm | None = None
    world: World | None = None

    def client(self, mods: Any = None) -> Any:
        """The ClientApp."""
        flower()
        from flwr.clientapp import ClientApp

        app, device = ClientApp(mods=mods), Device(self.task, self.algorithm, self.world)
        app.query()(device.enroll)
        app.train()(device.answer)
        return app

    def server(self) -> Any:
        """The ServerApp."""
        flower()
        from flwr.serverapp import ServerApp

        app = ServerApp()
        app.main()(self.serve)
        return app

    def serve(self, grid: Any, context: Any) -> None:
        """Train, or go on with a training that was stopped."""
        config = dict(context.run_config)
        out = out_folder(config)
        with _logging(out):
            try:
                run = self._train(grid, config, out)
            except Exception as error:  # Flower shows it in its own way, or not at all
                log.error("%s", one_line(error) if isinstance(error, FedkeelError) else reason(error))
                raise
            log.info("%s after round %d: %s", run.status, run.history[-1]["round"], out)

    def _train(self, grid: Any, config: Mapping[str, Any], out: Path) -> Run:
        task, chosen = (
            with_test_file(self.task(None), str(config.get("test-file") or "")),
            settings_of(config, RunConfig),
        )
        if task.client_test:
            raise InputError("The samples of a client test would have to leave the device; leave out client_test.")
        least = int(config.get("nodes") or 1)
        nodes, training = gathered(grid, task, out.with_name(out.name + ".fleet.json"), least)
        if task.spec is None:
            task = task.of_sizes(nodes.sizes or [nodes.known[key].samples for key in _in_order(nodes)])
        limit = float(config.get("time-limit") or 0) or None
        world = self.world or World.from_parameters(settings_of(config, World))
        place = Flower(nodes, training, limit, float(config.get("grace") or GRACE), world.min_clients)
        if (out / CONFIG).exists():
            return resume(out, task, self.algorithm, self.world, engine=place)
        algorithm = self.algorithm or read_algorithm(str(config["algorithm"]))
        refuse(algorithm, world)
        return train(task, algorithm, world, engine=place, checkpoint=out, every=1, **chosen)


def settings_of(config: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """The settings of `train` or of a World that an app's configuration has; an empty text means the default.

    >>> settings_of({"rounds": 3, "batch-size": "", "lr": "0.1"}, RunConfig)
    {'rounds': 3, 'lr': 0.1}
    >>> settings_of({"budget": 2}, World)  # a budget is a text, such as 4:13
    {'budget': '2'}
    """
    found = {}
    for name, one in settings(owner).items():
        value = config.get(name.replace("_", "-"), "")
        if value == "":
            continue
        if owner is RunConfig and name in REFUSED:
            raise InputError(f"'{name}' has no meaning on devices; leave it out of the app's configuration.")
        as_text = isinstance(value, str) or one.kind.read is str
        found[one.keyword or name] = one.kind.read(value) if as_text else value
    return found


def with_test_file(task: Task, file: str) -> Task:
    """The task with the rows of this CSV on the server as its test set; an empty name leaves it as it is."""
    if not file:
        return task
    if task.spec is not None:
        raise InputError(f"The task {task.spec} has a test set; leave test-file empty.")
    return replace(task, data=task.data.tested_by(Path(file).expanduser()))


def refuse(algorithm: Algorithm, world: World) -> None:
    """Refuse what has no meaning on real devices."""
    if not isinstance(algorithm.pace, Synchronous):
        raise InputError("Devices train in rounds; leave out the buffered pace, which arranges simulated arrivals.")
    if world.fleet is not None:
        raise InputError("A fleet is simulated, and these devices are real; leave it out and give a time-limit.")


def gathered(grid: Any, task: Task, file: Path, least: int) -> tuple[Nodes, str]:
    """The nodes and the name of this training. Nodes with data of their own are numbered once, in the order of their
    `partition-id`, and kept in `file`. Of simulated nodes all take part.
    """
    named, simulated = task.spec is not None, is_simulated(grid)
    known = read_json(file) if file.exists() else None
    sizes = task.data.sizes(range(len(task.data))).tolist() if named else None
    if simulated and known is not None and not named:
        sizes = known["samples"]
    nodes = Nodes(grid, sizes, simulated)
    if known is not None and sizes is None:
        nodes.restore(known["keys"], known["samples"])
    if simulated:
        nodes.wait_for_all()
    else:
        nodes.wait(least)
    if known is not None:
        return nodes, str(known["training"])
    members = [] if named else nodes.number()
    training = secrets.token_hex(8)
    about = {"keys": [node.key for node in members], "samples": [node.samples for node in members]}
    write_json(file, {"training": training, **about})
    return nodes, training


def is_simulated(grid: Any) -> bool:
    """Whether this is the Grid of Flower's simulation."""
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


def _in_order(nodes: Nodes) -> list[str]:
    numbered = [node for node in nodes.known.values() if node.client is not None]
    return [node.key for node in sorted(numbered, key=lambda node: node.client or 0)]


class _logging:
    """What the server has to say about nodes goes to the terminal and to a file beside the run's directory."""

    def __init__(self, out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        self.handlers: list[logging.Handler] = [
            logging.StreamHandler(),
            logging.FileHandler(out.with_name(out.name + ".log")),
        ]

    def __enter__(self) -> None:
        log.setLevel(logging.INFO)
        for handler in self.handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s fedkeel: %(message)s"))
            log.addHandler(handler)

    def __exit__(self, *error: object) -> None:
        for handler in self.handlers:
            log.removeHandler(handler)
            handler.close()
