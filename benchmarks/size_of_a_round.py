"""How much of the package one round goes through: functions, files, and calls from one file to another.

    python benchmarks/size_of_a_round.py [CHECKOUT] [--rules fedavg scaffold] [--mode batched] [--below one_round]

CHECKOUT is a folder with src/fedkeel; without one it is the checkout that holds this script. A run on `synthetic`, with
one worker and torch alone, is watched by `sys.setprofile` from the row of round 2 to the row of round 3. No evaluation
falls between them. What is counted:

functions   distinct code objects of src/fedkeel that were called. Comprehensions and generator expressions, which have
            frames of their own in Python 3.11, are not counted; lambdas and nested functions are.
files       the files these functions are in.
edges       distinct pairs (caller, callee) of such functions in different files. The caller is the nearest function of
            the package on the stack, so a call by way of torch, numpy, functools or a comprehension is the call of the
            function that went there.

The first line of a rule counts what runs below the function named by `--below`, that function included: this leaves out
the history, the checkpoint and the callbacks. The second line counts everything between the two rows. Where no function
has that name, there is only the second line. Commit 98a2c2d gives 84 functions, 15 files and 81 edges for FedAvg, and
104, 16 and 110 for SCAFFOLD; a count made by other means gave 84, 15, 78 and 105, 16, 109.
"""

from __future__ import annotations

import argparse
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
ROUND = 3  # the one that is watched: by then nothing happens for the first time in the run
Stack = tuple[CodeType, ...]  # the package's functions, the innermost first


class Size(NamedTuple):
    """What a round went through."""

    functions: int
    files: int
    edges: int

    def __str__(self) -> str:
        return f"{self.functions} functions, {self.files} files, {self.edges} cross-file call edges"


def size(stacks: Iterable[Stack], below: str | None = None) -> Size | None:
    """The size of these calls, each given as the stack with the called function first; None if nobody is `below`."""
    functions: set[CodeType] = set()
    edges: set[tuple[CodeType, CodeType]] = set()
    for stack in stacks:
        names = [code.co_name for code in stack]
        if below is not None:
            if below not in names:
                continue
            stack = stack[: len(names) - names[::-1].index(below)]  # what is above the outermost one is left out
        functions.add(stack[0])
        if len(stack) > 1 and stack[1].co_filename != stack[0].co_filename:
            edges.add((stack[1], stack[0]))
    return Size(len(functions), len({code.co_filename for code in functions}), len(edges)) if functions else None


class Watch:
    """A callback of a run that notes the package's calls between two rows."""

    def __init__(self, package: Path) -> None:
        self.package, self.stacks = str(package) + "/", set[Stack]()

    def counts(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self.package) and code.co_name not in COMPREHENSIONS

    def called(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self.counts(frame.f_code):
            stack, above = [frame.f_code], frame.f_back
            while above is not None:
                if self.counts(above.f_code):
                    stack.append(above.f_code)
                above = above.f_back
            self.stacks.add(tuple(stack))

    def __call__(self, row: dict[str, Any]) -> None:
        if row["round"] in (ROUND - 1, ROUND):
            watcher = self.called if row["round"] == ROUND - 1 else None
            threading.setprofile(watcher)
            sys.setprofile(watcher)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--rules", nargs="+", default=["fedavg", "scaffold"])
    parser.add_argument("--mode", choices=("serial", "batched"), default="batched")
    parser.add_argument("--below", default="one_round", help="the function that plays a round")
    given = parser.parse_args(arguments)
    sys.path.insert(0, str(given.checkout.resolve() / "src"))
    warnings.simplefilter("ignore")
    import fedkeel as fk

    package = Path(fk.__file__).parent
    if package != given.checkout.resolve() / "src" / "fedkeel":
        parser.error(f"{given.checkout} has no src/fedkeel; {package} was found in its place")
    for rule in given.rules:
        watch = Watch(package)
        engine = fk.Local(given.mode, workers=1, compile=False)
        fk.train(fk.tasks.synthetic(), rule, rounds=ROUND + 1, engine=engine, eval_every=ROUND + 1, callbacks=[watch])
        inside = size(watch.stacks, given.below)
        print(f"{rule}: {inside}" if inside else f"{rule}: no function is called {given.below}")
        print(f"{rule}, all between two rows: {size(watch.stacks)}")


if __name__ == "__main__":
    main()
