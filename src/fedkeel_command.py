"""The `fedkeel` command's entry: outside the package, so that Ctrl-C while torch is imported is one line, too."""

import sys


def main() -> int:
    """Import the command and run it."""
    try:
        from fedkeel.cli import main as command
    except KeyboardInterrupt:
        print("fedkeel: interrupted", file=sys.stderr)
        return 130
    return command()
