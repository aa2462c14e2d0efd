"""The `fedkeel` command, one file per command, with the same names as in Python: a task, algorithms, a world.

    run.py, resume.py                       train one algorithm or compare several; continue a stopped run
    compare.py, sweep.py, reproduce.py      tables, searches, the papers' experiments
    report.py, plot.py, export.py           pages: `report` and `ui`; figures; models as files
    list.py, explain.py, data.py, world.py  tasks and algorithms, formulas, data sets, devices
    deploy.py                               Flower: real devices
    flags.py                                flags and output that several commands share

A command imports what it needs when it is called, so that `fedkeel --help` is quick.
"""

from __future__ import annotations

import argparse
import codecs
import io
import signal
import sys
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import FedkeelError, InputError, StabilityWarning
from ..run.signals import ALL, handling
from ..version import __version__
from . import compare, data, deploy, explain, export, plot, report, reproduce, resume, run, submit, sweep, world
from . import list as list_


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {' '.join(message.splitlines())} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def parser() -> Parser:
    """The parser of the whole command; each command sets `do`, a function of the arguments."""
    made = Parser(prog="fedkeel", description="Federated learning on an even keel.")
    made.add_argument("--version", action="version", version=f"fedkeel {__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    known = (run, resume, compare, list_, explain, report, plot, export, sweep, reproduce, submit, data, world, deploy)
    for module in known:
        module.add_command(commands)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 bad input, 3 diverged, 130 interrupted."""
    try:
        with _printing_warnings(), handling(ALL, signal.default_int_handler), _plain_text():
            arguments = parser().parse_args(argv)
            return int(arguments.do(arguments))
    except InputError as error:
        return _fail(error, 2)
    except FedkeelError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has closed the pipe
        sys.stderr.close()
        return 0
    except OSError as error:  # a full disk or a removed folder
        return _fail(f"{error.filename or 'output'}: {error.strerror}", 1)


@contextmanager
def _printing_warnings() -> Iterator[None]:
    """Print our own warnings as one line each, and once only although they recur for every seed."""
    printed: set[str] = set()

    def show(message: Warning | str, *where: Any, **place: Any) -> None:
        if not isinstance(message, StabilityWarning):
            usual(message, *where, **place)
        elif str(message) not in printed:
            printed.add(str(message))
            print(f"fedkeel: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.simplefilter("always", StabilityWarning)
        warnings.showwarning = show
        yield


# What a terminal without UTF-8 gets in the place of other characters, besides the dots of curves.
ASCII = {
    "±": "+-",
    "■": "#",
    "…": "...",
    "·": ".",
    "–": "-",
    "—": "-",
    "×": "x",
    "→": "->",
    "↑": "^",
    "↓": "v",
    "●": "*",
}


@contextmanager
def _plain_text() -> Iterator[None]:
    """Print in ASCII where the output cannot encode more."""
    codecs.register_error("fedkeel", lambda error: (_ascii(error), getattr(error, "end", 0)))
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [(stream, stream.errors) for stream in streams]
    for stream in streams:
        stream.reconfigure(errors="fedkeel")
    try:
        yield
    finally:
        for stream, errors in before:
            stream.reconfigure(errors=errors)


def _ascii(error: UnicodeError) -> str:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = ""
    for letter in error.object[error.start : error.end]:
        dots = 0x2800 <= ord(letter) < 0x2900  # braille, of which the first is empty
        other = (" " if letter == "\u2800" else "*") if dots else ASCII.get(letter)
        text += other or unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?"
    return text


def _fail(error: object, code: int) -> int:
    print(f"fedkeel: {' '.join(str(error).splitlines())}", file=sys.stderr)  # input may have line breaks
    return code
