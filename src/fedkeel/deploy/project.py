"""The small Flower app that `fedkeel deploy init` writes; the user owns it from then on."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .. import recipes, tasks
from ..errors import InputError
from ..files import write_text
from ..world import World
from .app import refuse
from .sites import DATA, PREPARATION, Sites, is_table, write_sites

ROUNDS = 10  # a round takes seconds of starting processes, so fewer than a simulation has

APP = '''"""A Flower app: {algorithm} on {task}. Change what you like; pyproject.toml has the settings."""

import fedkeel as fk
from fedkeel.deploy import App


def task(node):
    """The model, its loss and the data. On a device `node` is its --node-config, on the server it is None.

    A named task deals its data by itself: the device with partition-id=3 has those of client 3. For data of your own,
    return fk.Task(model=..., loss=..., data=...): on a device with all of its samples as one client, on the server with
    a test set and at least one sample, whose values do not matter.
    """
    return fk.tasks.get({quoted})


'''

APP_OF_SITES = '''"""A Flower app: {algorithm} on {task}. Change what you like; pyproject.toml has the settings."""

from pathlib import Path

import fedkeel as fk
from fedkeel.deploy import App
from fedkeel.deploy.sites import own_rows
from fedkeel.tasks.own import table_task

PREPARATION = Path(__file__).with_name("{preparation}")  # the same for all, so that columns mean the same


def task(node):
    """The model, its loss and the data. On a device `node` is its --node-config, which names its own CSV as `file`.

    On the server `node` is None. It holds no rows; with test-file in pyproject.toml it has those of the test.
    For another model, return fk.Task(model=..., loss=..., data=data).
    """
    data = fk.FederatedData.from_preparation(PREPARATION) if node is None else own_rows(node, PREPARATION)
    return table_task(data, hidden={hidden}, name={name})


'''

BOTH_HALVES = """app = App(task)
server = app.server()
client = app.client()
"""

PROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "{algorithm} on {task}"
license = "Apache-2.0"
dependencies = []  # fedkeel is installed where SuperLink and SuperNodes run; nothing is installed at run time

[tool.flwr.app]
publisher = "local"
fab-include = {sent}  # what is sent to the devices

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]  # each can be changed for one run: flwr run . --run-config "rounds=5"
algorithm = {quoted}
rounds = {rounds}
seed = 0
out = "run"        # the server's directory of this training; the same directory again goes on with it
nodes = {nodes:<10} # round 1 waits for so many
cohort = "all"     # clients of a round: a number, a share, or all that are there
min-clients = 1    # no server step with fewer usable replies
time-limit = 0     # seconds a device has for its local steps; 0: it does them all
grace = 30         # seconds the server waits beyond that
budget = ""        # local steps: 10, 4:13 or 2e; empty: the task's
expected-steps = ""
batch-size = ""
lr = ""
target = ""
eval-every = 1
test-file = ""     # a CSV on the server with rows to test the model on, where devices read tables of their own
"""


def write_project(folder: Path, task: str, algorithm: str) -> Sites | None:
    """Write the app into a new folder; refuses a task or an algorithm that does not exist, or that does not
    run on devices.

    Devices of a task `csv:...` read files of their own, and what is known of them is given.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose another directory.")
    tasks.find(task)
    refuse(recipes.algorithm(algorithm), World())
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "app"
    sites = write_sites(folder, task) if is_table(task) else None
    if sites is None:
        nodes, sent = 2, ["/*.py"]
        app = APP.format(task=task, algorithm=algorithm, quoted=json.dumps(task))
    else:
        task, nodes, sent = "tables of the devices' own", len(sites.clients), ["/*.py", f"/{PREPARATION}"]
        named = {"preparation": PREPARATION, "hidden": sites.hidden, "name": json.dumps(name)}
        app = APP_OF_SITES.format(task=task, algorithm=algorithm, **named)
    settings = {"quoted": json.dumps(algorithm), "nodes": nodes, "sent": json.dumps(sent), "rounds": ROUNDS}
    write_text(folder / "app.py", app + BOTH_HALVES)
    write_text(folder / "pyproject.toml", PROJECT.format(name=name, task=task, algorithm=algorithm, **settings))
    write_text(folder / ".gitignore", f"/.deploy/\n/{DATA}/\n/run*/\n__pycache__/\n")
    return sites
