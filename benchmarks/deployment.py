"""What a round on real devices costs on this machine: its seconds against the simulated clock, its bytes against our
counter, and large models.

    python benchmarks/deployment.py                      # a model of 4 MB, devices that take 5 s for their steps
    python benchmarks/deployment.py --megabytes 200 --rounds 1 --nodes 2

Nodes reach the SuperLink through a relay that counts bytes, without TLS. Needs the extra `flower`.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

import fedkeel as fk
from fedkeel.deploy.local import HOST, Deployment, train_on
from fedkeel.deploy.project import write_project

SAMPLES, BATCH, STEPS, INPUTS = 100, 10, 5, 1000
APP = """import sys
import time

sys.path.insert(0, {here!r})
import deployment

import fedkeel as fk
from fedkeel.deploy import App


def slow(output, target):
    time.sleep({seconds} * len(target))
    return fk.cross_entropy(output, target)


app = App(lambda node: deployment.make_task({outputs}, 1, fk.cross_entropy if node is None else slow))
server = app.server()
client = app.client()
"""


def make_task(outputs: int, clients: int, loss: Any = fk.cross_entropy) -> fk.Task:
    """A linear model; every client has the same samples."""
    x, y = torch.ones(SAMPLES * clients, INPUTS), torch.zeros(SAMPLES * clients, dtype=torch.int64)
    owners = [number // SAMPLES for number in range(SAMPLES * clients)]
    data = fk.FederatedData.from_arrays(x, y, clients=owners, test=(x[:2], y[:2]))
    return fk.Task(model=lambda: torch.nn.Linear(INPUTS, outputs), loss=loss, data=data, batch_size=BATCH)


class Relay:
    """Passes connections on to a port, and counts what goes up (to it) and down."""

    def __init__(self, port: int) -> None:
        self.port, self.up, self.down = port, 0, 0
        self.socket = socket.create_server((HOST, 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            here, _ = self.socket.accept()
            try:
                there = socket.create_connection((HOST, self.port))
            except OSError:
                here.close()
                continue
            threading.Thread(target=self.copy, args=(here, there, "up"), daemon=True).start()
            threading.Thread(target=self.copy, args=(there, here, "down"), daemon=True).start()

    def copy(self, source: socket.socket, target: socket.socket, name: str) -> None:
        try:
            while block := source.recv(2**16):
                setattr(self, name, getattr(self, name) + len(block))
                target.sendall(block)
        except OSError:
            pass
        for one in (source, target):
            one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=4, help="size of the model")
    parser.add_argument("--seconds", type=float, default=0.1, help="what a sample takes on a device")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    outputs = max(2, round(given.megabytes * 1e6 / 4 / (INPUTS + 1)))

    world = {"cohort": "all", "budget": fk.FixedSteps(STEPS)}
    fleet = fk.Fleet(seconds=given.seconds, down=1e6, up=1e6, latency=0.0)
    task = make_task(outputs, given.nodes)
    simulated = fk.train(task, "fedavg:lr=0.001", fk.World(**world, fleet=fleet), rounds=given.rounds, engine="serial")
    rows: list[dict[str, Any]] = []
    wire = [(0, 0)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder / "app", "synthetic", "fedavg:lr=0.001")
        text = APP.format(here=str(Path(__file__).parent), seconds=given.seconds, outputs=outputs)
        (folder / "app" / "app.py").write_text(text)
        deployment = Deployment(folder / "deployment", given.nodes)
        relay = Relay(deployment.port)
        for node in deployment.all[1:]:
            address = f"{HOST}:{relay.socket.getsockname()[1]}"
            node.command = [address if part == f"{HOST}:{deployment.port}" else part for part in node.command]

        def note(row: dict[str, Any]) -> None:
            rows.append(row)
            if row["round"]:  # a row is read a little later than it is written, when the next round may have begun
                wire.append((relay.down, relay.up))

        config = {"rounds": given.rounds, "nodes": given.nodes, "budget": str(STEPS), "algorithm": "fedavg:lr=0.001"}
        with deployment:
            train_on(deployment, folder / "app", folder / "run", config, note)
    print("| round | seconds | simulated | down, MB | counted | up, MB | counted |\n|---|---|---|---|---|---|---|")
    for t in range(1, given.rounds + 1):
        real, sim = rows[t]["wall_seconds"] - rows[t - 1]["wall_seconds"], simulated.history
        took = sim[t]["sim_seconds"] - sim[t - 1]["sim_seconds"]
        cells = [f"{t}", f"{real:.1f}", f"{took:.1f}"]
        for place, column in enumerate(("bytes_down", "bytes_up")):
            counted = rows[t][column] - rows[t - 1][column]
            cells += [f"{(wire[t][place] - wire[t - 1][place]) / 1e6:.3f}", f"{counted / 1e6:.3f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
