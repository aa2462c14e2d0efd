"""`fedkeel explain`: an algorithm in paper notation."""

from __future__ import annotations

import argparse
from typing import Any

from . import flags


def add_command(commands: Any) -> None:
    """Add `explain` to the command's parser."""
    help = "an algorithm in paper notation: updates, state, traffic, references"
    explain = flags.add_command(commands, "explain", do, help)
    explain.add_argument("algorithm", metavar="ALGORITHM", help="for example ghbm:tau=10+gel")


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel explain ALGORITHM`."""
    from ..explain import explain

    print(explain(arguments.algorithm))
    return 0
