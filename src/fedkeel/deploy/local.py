"""A whole deployment on this machine: a SuperLink, SuperNodes and a run, supervised until the training has ended.

What dies is started again. A run that Flower gives up is submitted again, and goes on from our checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..engine.flower.orders import flower
from ..errors import InputError, one_line
from ..files import write_text
from ..run.folder import CONFIG, HISTORY, MARK, OUTCOME, locked
from . import keys
from .processes import QUIET, Process, free_ports, last_line, program, runs, wait_for_port

HOST = "127.0.0.1"
CONNECTION = "deployment"
# seconds between two starts of a node: for about a minute Flower refuses a key that it takes to be online
RETRY = 10.0
CHECK = 10.0  # seconds between two looks at what Flower says about the run, until the server has begun
RARELY = 60.0  # and from then on
TRIES = 5  # submissions in a row that bring the training no round further


@dataclass
class Deployment:
    """SuperLink and SuperNodes below one folder; `with` starts them and stops all of it.

    config: what is given to each node with --node-config, besides its partition-id.
    """

    folder: Path
    nodes: int
    tls: bool = False
    config: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        flower()  # the error that names the extra comes before any file
        self.folder = self.folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(self.folder, 0o700)
        self.port, *self.node_ports = free_ports(1 + self.nodes)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # they start each other
        self.environment = {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(self.folder / "flwr")}
        secure = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        link = [program("flower-superlink"), "--host", HOST, "--port", str(self.port), "--database", "superlink.db"]
        link += ["--disable-runtime-dependency-installation"]
        link += [*secure, "--enable-supernode-auth"] if self.tls else ["--insecure"]
        self.link = Process("superlink", link, self.folder, self.environment)
        self.all = [self.link, *(self.node(number) for number in range(self.nodes))]
        self.started: dict[str, float] = {}

    def node(self, number: int, key: str | None = None, ca: str = "ca.crt") -> Process:
        """A SuperNode. key, ca: the files of another key, or of another CA, than those that the server knows."""
        command = [program("flower-supernode"), "--superlink", f"{HOST}:{self.port}", "--host", HOST]
        port = self.node_ports[number] if number < self.nodes else free_ports(1)[0]
        config = f"partition-id={number} memory='{self.folder / 'memory'}' {self.config.get(number, '')}"
        command += ["--port", str(port), "--node-config", config.strip()]
        key = f"node-{number}" if key is None else key
        auth = ["--auth-supernode-private-key", key] if key else []
        command += ["--root-certificates", ca, *auth] if self.tls else ["--insecure"]
        return Process(f"node-{number}", command, self.folder, self.environment)

    def __enter__(self) -> Self:
        with ExitStack() as held:
            held.enter_context(locked(self.folder))  # two supervisors would end each other's processes
            held.callback(self.stop)
            self.start()
            self.held = held.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.held.close()

    def start(self) -> None:
        """Make keys, start the SuperLink, register the nodes and start them."""
        if self.tls and not (self.folder / "ca.crt").exists():
            keys.make_certificates(self.folder)
        secure = f'root-certificates = "{self.folder / "ca.crt"}"' if self.tls else "insecure = true"
        connection = f'[superlink.{CONNECTION}]\naddress = "{HOST}:{self.port}"\n{secure}\n'
        write_text(self.folder / "flwr" / "config.toml", f'[superlink]\ndefault = "{CONNECTION}"\n\n{connection}')
        for file in self.folder.glob("superlink.db*"):
            file.unlink()  # Flower would start runs again that an interrupt left there; ours go on from the checkpoint
        self.link.start()
        wait_for_port(self.port, self.link)
        files = [self.folder / f"node-{number}" for number in range(self.nodes)] if self.tls else []
        for file in files:
            if not file.exists():
                keys.make_node_key(file)
        with ThreadPoolExecutor() as pool:  # each is a process that takes seconds to start
            list(pool.map(lambda file: self.flwr("supernode", "register", f"{file}.pub", CONNECTION), files))
        for node in self.all[1:]:
            node.start()

    def stop(self) -> None:
        """Stop everything that was started, nodes first."""
        for process in self.all[1:]:
            process.ask_to_stop()
        for process in reversed(self.all):
            process.stop()

    def tend(self) -> None:
        """Start again what has died."""
        for process in self.all:
            waited = time.monotonic() - self.started.get(process.name, -RETRY)
            if not process.is_alive() and (waited >= RETRY or process is self.link):
                self.started[process.name] = time.monotonic()
                process.start()
                if process is self.link:
                    wait_for_port(self.port, self.link)

    def flwr(self, *arguments: str) -> str:
        """The output of a `flwr` command."""
        command = [program("flwr"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder)
        if done.returncode:
            raise InputError(f"flwr {' '.join(arguments[:2])} fails: {one_line(done.stdout + done.stderr)[-300:]}")
        return done.stdout

    def submit(self, app: Path, config: Mapping[str, Any]) -> str:
        """Submit a run of the app with these changes to its configuration; gives its number."""
        changes = " ".join(f"{name}={_value(value)}" for name, value in config.items())
        said = self.flwr("run", str(app.absolute()), CONNECTION, "--run-config", changes, "--format", "json")
        found = json.loads(said[said.index("{") :])
        if not found.get("success"):
            raise InputError(f"Flower did not take the run: {one_line(found)}")
        return str(found["run-id"])

    def status(self, run: str) -> str:
        """What Flower says about a run, such as "running" or "finished:failed"."""
        try:
            known = json.loads(self.flwr("list", CONNECTION, "--format", "json")).get("runs", [])
        except (InputError, ValueError):  # the SuperLink is just starting again
            return "unknown"
        return next((str(one["status"]) for one in known if str(one["run-id"]) == run), "unknown")


def train_on(
    deployment: Deployment, app: Path, out: Path, config: Mapping[str, Any], row: Callable[[dict[str, Any]], Any]
) -> str:
    """Run an app until its training has ended, whatever dies meanwhile; gives "done" or "diverged".

    row: called with every history row.
    """
    if _server_lives(out):
        raise InputError(f"A process trains in {out} already.")
    _end_server(out)  # an earlier one, which was killed, is still named there
    run = deployment.submit(app, {**config, "out": str(out)})
    checked, shown, tries = time.monotonic(), 0, 0
    began = 0  # rows when the run was submitted
    while True:
        deployment.tend()
        for one in _rows(out)[shown:]:
            shown += 1
            row(one)
        if (out / OUTCOME).exists():
            return str(json.loads((out / OUTCOME).read_text())["status"])
        alive = _server_lives(out)
        if time.monotonic() - checked > (RARELY if alive else CHECK):
            given_up = (not run or "finished" in deployment.status(run)) and not (out / OUTCOME).exists()
            alive, checked = (False if given_up else alive), time.monotonic()
        if alive is False:
            tries = tries + 1 if shown <= began else 1
            if tries > TRIES:
                said = f"The server fails again and again: {last_line(log_of(out))}"
                raise InputError(f"{said}; see {deployment.link.log} and {log_of(out)}.")
            _end_server(out)
            began, checked = shown, time.monotonic()
            try:
                run = deployment.submit(app, {**config, "out": str(out)})
            except InputError:  # as above: the next look finds no run, and tries again
                run = ""
        time.sleep(0.2)


def log_of(out: Path) -> Path:
    """The file with what the server says about nodes; the last line of it says why a run ended."""
    return out.with_name(out.name + ".log")


def _rows(out: Path) -> list[dict[str, Any]]:
    file = out / HISTORY
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def _server_lives(out: Path) -> bool | None:
    """Whether the process that writes the run's directory is there; None if none has begun."""
    try:
        return runs(int(json.loads((out / MARK).read_text())["pid"]))
    except (OSError, ValueError, KeyError):
        return None


def _end_server(out: Path) -> None:
    """End a server that Flower has given up; the next one names itself in the directory when it has begun."""
    if _server_lives(out):
        os.kill(int(json.loads((out / MARK).read_text())["pid"]), signal.SIGKILL)
    if (out / MARK).exists():
        (out / MARK).write_text("{}\n")


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)


def clear(out: Path) -> None:
    """Remove an earlier training, with what is beside its directory."""
    if out.exists() and not (out / CONFIG).exists():
        raise InputError(f"{out} is not the directory of a run; remove it yourself.")
    for folder in (out, out.with_name(out.name + ".memory")):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (log_of(out), out.with_name(out.name + ".fleet.json")):
        file.unlink(missing_ok=True)


__all__ = ["Deployment", "clear", "last_line", "log_of", "train_on"]
