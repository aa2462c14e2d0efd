"""The small Flower app that `fedkeel deploy init` writes; the user owns it from then on."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .. import recipes, tasks
from ..errors import InputError
from ..files import write_text

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


app = App(task)
server = app.server()
client = app.client()
'''

PROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "{algorithm} on {task}"
license = "Apache-2.0"
dependencies = []  # fedkeel is installed where SuperLink and SuperNodes run; nothing is installed at run time

[tool.flwr.app]
publisher = "local"
fab-include = ["/*.py"]  # what is sent to the devices

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]  # each can be changed for one run: flwr run . --run-config "rounds=5"
algorithm = {quoted}
rounds = 10
seed = 0
out = "run"        # the server's directory of this training; the same directory again goes on with it
nodes = 2          # round 1 waits for so many
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
"""


def write_project(folder: Path, task: str, algorithm: str) -> None:
    """Write the app into a new folder; refuses a task or an algorithm that does not exist."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose another directory.")
    tasks.find(task)
    recipes.algorithm(algorithm)
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "app"
    for file, text, quoted in (("app.py", APP, task), ("pyproject.toml", PROJECT, algorithm)):
        filled = text.format(name=name, task=task, algorithm=algorithm, quoted=json.dumps(quoted))
        write_text(folder / file, filled)
    write_text(folder / ".gitignore", "/.deploy/\n/run*/\n__pycache__/\n")
