"""`fedkeel world`: fleets of devices, and how long a round takes on them."""

from __future__ import annotations

import argparse
from typing import Any

from . import flags

EXAMPLES = """examples:
  fedkeel world show
  fedkeel world show phones
  fedkeel world show phones --task mnist-writers --deadline p80
  fedkeel world show devices.csv --task synthetic --deadline 30"""


def add_command(commands: Any) -> None:
    """Add `world` and its own commands to the command's parser."""
    from ..world import BUDGET, DEADLINE

    world = flags.add_command(commands, "world", None, "fleets of devices, and how long a round takes", EXAMPLES)
    own = world.add_subparsers(required=True, metavar="COMMAND")
    show = flags.add_command(own, "show", do, "who is how fast, and who would be late", EXAMPLES)
    show.add_argument("fleet", nargs="?", metavar="FLEET", help="a name or a CSV file; default: the names")
    show.add_argument("--task", metavar="TASK", help="also show a round of FedAvg on this task")
    show.add_argument("--deadline", type=DEADLINE.read, metavar="S|pNN", help="who would be late with this one")
    show.add_argument("--budget", type=BUDGET.read, metavar="A:B|N|Ee", help="steps of that round; default the task's")
    show.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw; default 0")


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel world show [FLEET]`."""
    from ..errors import InputError
    from ..lab.report import fleets
    from ..ranges import SEED
    from ..world import World

    if arguments.seed not in SEED:
        raise InputError(f"--seed must be {SEED}. Got {arguments.seed} instead.")
    console = flags.terminal()
    if arguments.fleet is None:
        fleets.names(console)
        return 0
    given = {"fleet": arguments.fleet, "deadline": arguments.deadline, "budget": arguments.budget}
    world = World.from_parameters({name: value for name, value in given.items() if value is not None})
    if arguments.task is None and (arguments.deadline is not None or arguments.budget is not None):
        raise InputError("How long a round takes depends on the task; give --task.")
    if arguments.task is None:
        fleets.devices(world, 1000, arguments.seed, console)
        return 0
    from .. import tasks

    task = tasks.get(arguments.task)
    fleets.devices(world, len(task.data), arguments.seed, console)
    fleets.rounds(world, task, arguments.seed, console)
    return 0
