"""`fedkeel deploy`: train on devices with Flower."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import flags

EXAMPLES = """examples:
  fedkeel deploy init hearts synthetic fedhbm
  fedkeel deploy local hearts --nodes 3 --tls
  fedkeel deploy init hospitals csv:file=patients.csv,client=hospital,target=readmitted fedavg
  fedkeel deploy keys keys --host fl.example.org --nodes 5
  fedkeel deploy local hearts --nodes 3 --set rounds=20 --set algorithm=scaffold --out hearts/run-scaffold

`init` writes a small Flower app that is yours to change; `flwr run` takes it, too. `local` starts a server and nodes on
this machine, trains, and stops them; the same --out again goes on with a training that was stopped. Of a table (csv)
`init` writes what was fitted on it, and every device reads a file of its own."""


def add_command(commands: Any) -> None:
    """Add `deploy` to the command's parser."""
    deploy = flags.add_command(commands, "deploy", None, "train on devices with Flower", EXAMPLES)
    parts = deploy.add_subparsers(required=True, metavar="COMMAND", parser_class=type(deploy))
    init = flags.add_command(parts, "init", init_app, "write a small Flower app")
    init.add_argument("folder", metavar="DIR", type=Path, help="a new directory")
    init.add_argument("task", metavar="TASK", help="a task's name, see fedkeel list tasks")
    init.add_argument("algorithm", metavar="ALGORITHM", help="such as fedhbm or fedprox:mu=0.01+gel")
    keys = flags.add_command(
        parts, "keys", make_keys, "make a certificate authority, a server certificate and node keys"
    )
    keys.add_argument("folder", metavar="DIR", type=Path, help="a new directory")
    keys.add_argument(
        "--host", action="append", default=[], metavar="NAME", help="the server's name or address; repeat"
    )
    keys.add_argument("--nodes", type=int, default=3, metavar="N", help="how many node keys; default 3")
    local = flags.add_command(parts, "local", run_here, "run an app with server and nodes on this machine")
    local.add_argument("folder", metavar="DIR", type=Path, help="the app's directory")
    local.add_argument(
        "--nodes", type=int, metavar="N", help="how many nodes to start; default 3, or one for each client of a table"
    )
    local.add_argument("--tls", action="store_true", help="with TLS and node keys, as between machines")
    local.add_argument("--out", type=Path, metavar="DIR", help="directory of the training; default DIR/run")
    local.add_argument("--overwrite", action="store_true", help="remove an earlier training there first")
    local.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the app's pyproject.toml"
    )
    local.add_argument("--json", action="store_true", help="one JSON document on stdout at the end")


def init_app(arguments: argparse.Namespace) -> int:
    """`fedkeel deploy init DIR TASK ALGORITHM`."""
    from ..deploy.project import ROUNDS, write_project
    from ..deploy.sites import DATA, PREPARATION

    folder = arguments.folder
    sites = write_project(folder, arguments.task, arguments.algorithm)
    trains = f"It trains {ROUNDS} rounds; change rounds in pyproject.toml, or give local --set rounds=100."
    if sites is None:
        print(f"Wrote {folder}/app.py and pyproject.toml. {trains} Try it: fedkeel deploy local {folder}")
        return 0
    print(
        f"Wrote {folder}/app.py, pyproject.toml and {PREPARATION}, and below {folder}/{DATA} a file for each client, as"
    )
    print(f"its site would have it. {trains} Try it: fedkeel deploy local {folder}\n\n{sites}", end="")
    return 0


def make_keys(arguments: argparse.Namespace) -> int:
    """`fedkeel deploy keys DIR`."""
    from ..deploy.keys import LOOPBACK, make_certificates, make_node_key

    if arguments.folder.exists() and any(arguments.folder.iterdir()):
        raise InputError(f"{arguments.folder} is not empty; choose another directory.")
    make_certificates(arguments.folder, [*arguments.host, *LOOPBACK])
    for number in range(arguments.nodes):
        make_node_key(arguments.folder / f"node-{number}")
    print(f"Wrote ca.crt, server.pem, server.key and {arguments.nodes} node keys below {arguments.folder}.")
    return 0


def run_here(arguments: argparse.Namespace) -> int:
    """`fedkeel deploy local DIR`."""
    import sys

    from ..deploy.local import Deployment, clear, log_of, train_on
    from ..deploy.sites import DATA, TEST, site_files
    from ..run.folder import OUTCOME

    app, out = arguments.folder, (arguments.out or arguments.folder / "run").absolute()
    if not (app / "pyproject.toml").exists():
        raise InputError(f"{app} has no pyproject.toml; write an app with fedkeel deploy init {app} TASK ALGORITHM.")
    files = site_files(app)
    number = arguments.nodes if arguments.nodes is not None else len(files) or 3
    if number < 1 or (files and number > len(files)):
        most = f"1..{len(files)}, as {app / DATA} has files of so many clients" if files else "at least 1"
        raise InputError(f"--nodes must be {most}. Got {number} instead.")
    if arguments.overwrite:
        clear(out)
    if (out / OUTCOME).exists():
        raise InputError(f"The training in {out} has ended; choose another --out, or --overwrite it.")
    tested = {"test-file": str(app.absolute() / DATA / TEST)} if files and (app / DATA / TEST).exists() else {}
    config = {"nodes": number} | tested | dict(map(_pair, arguments.set))
    rows: list[dict[str, Any]] = []
    own = {place: f"file='{file}'" for place, file in enumerate(files)}
    made = Deployment(app / ".deploy", number, arguments.tls, own)  # refuses to begin without Flower
    said = f"Logs and keys are in {app / '.deploy'}; what the server says about nodes is in {log_of(out)}."
    print(said, file=sys.stderr)

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        print(line(row), file=sys.stderr, flush=True)

    with made as deployment:
        status = train_on(deployment, app, out, config, show)
    if arguments.json:
        print(json.dumps({"out": str(out), "status": status, "history": rows}))
    else:
        print(f"{status.capitalize()}. The model and its history are in {out}.")
    return 3 if status == "diverged" else 0


def line(row: dict[str, Any]) -> str:
    """A history row for people.

    >>> line({"round": 2, "loss": 0.5, "accuracy": 0.875, "clients": 3, "dropped": 0, "wall_seconds": 4.5, "lost": 1})
    'round 2: loss 0.5000, accuracy 0.8750, 3 clients, 1 lost, 4.5 s'
    """
    parts = [f"{name} {row[name]:.4f}" for name in ("loss", "accuracy") if row.get(name) is not None]
    parts += [f"{row['clients']} clients"] if row["round"] else []
    parts += [f"{row[name]} {name}" for name in ("dropped", "late", "lost") if row.get(name)]
    parts.append(f"{row['wall_seconds']:.1f} s")
    return f"round {row['round']}: {', '.join(parts)}"


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set takes KEY=VALUE. Got {text!r} instead.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
