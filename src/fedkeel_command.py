"""The `fedkeel` command's entry, outside the package: Ctrl-C while torch is imported waits until that is done.

Raised inside the import it could be lost, since torch goes on without a numpy that it could not import.
"""

import signal
import sys
from typing import Any


def main() -> int:
    """Import the command and run it."""
    seen: list[int] = []

    def note(number: int, frame: Any) -> None:
        seen.append(number)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note)
    from fedkeel.cli import main as command

    signal.signal(signal.SIGINT, before)
    if seen:
        print("fedkeel: interrupted", file=sys.stderr)
        return 130
    return command()
