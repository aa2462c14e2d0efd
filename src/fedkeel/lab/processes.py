"""Whole runs side by side in processes of this machine, each run with one worker and one torch thread.

Threads of one process wait for each other where layers are small, because Python runs one of them at a time. Processes
do not, and give the same bits.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ..errors import FedkeelError, InputError
from ..run.signals import TERMINAL, handling

Stop = Callable[..., bool]  # called with every row of a run: whether the run is to stop after it
Work = Callable[[Any, Stop], str]  # does one job; gives how its run ended
End = Callable[[int, str], Any]  # called with each job that has ended, and how
Look = Callable[[int], Any]  # called now and then with each job that is under way
PATIENCE = 600.0  # seconds a process has for the round it is in when all is stopped; a second Ctrl-C does not wait
PAUSE = 1.0  # seconds between two looks


def carry_out(processes: int, work: Work, jobs: Sequence[Any], end: End, look: Look, names: Sequence[str]) -> None:
    """Call `work` for all jobs, in so many processes at a time. Each process has its own copy of `work`, and does one
    job after the other with it; names: of the jobs, for messages.

    The parent talks to each child through a pipe and sends a job at a time. While a run goes on nothing is sent, so a
    child that finds its pipe readable knows that it is to stop: the parent closed it, or is gone. Its run then ends
    after the round, saved, and the next call continues it.
    """
    left, busy, children = deque(range(len(jobs))), dict[Connection, int](), list[tuple[BaseProcess, Connection]]()

    def give(pipe: Connection) -> None:
        busy[pipe] = left.popleft()
        pipe.send(jobs[busy[pipe]])

    try:
        for _ in range(min(processes, len(jobs))):
            children.append(_start(work))
            give(children[-1][1])
        while busy:
            for ready in wait(list(busy), timeout=PAUSE):
                assert isinstance(ready, Connection)
                index = busy.pop(ready)
                end(index, _answer(ready, names[index]))
                if left:
                    give(ready)
            for index in busy.values():
                look(index)
    finally:
        for _, pipe in children:
            pipe.close()
        for process, _ in children:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()


def do(work: Work, job: Any, stop: Stop) -> tuple[str, str]:
    """A job in a process that may be elsewhere: (what happened, what it says)."""
    try:
        return "ended", work(job, stop)
    except KeyboardInterrupt:
        return "stopped", ""
    except (FedkeelError, OSError) as error:
        return "input" if isinstance(error, InputError) else "failed", str(error)


def outcome(answer: tuple[str, str], name: str) -> str:
    """How the run of a job ended, or the error it ended with."""
    kind, text = answer
    if kind == "stopped":  # by a file `stop` in its folder: the other runs are not wanted either
        raise KeyboardInterrupt
    if kind != "ended":
        raise (InputError if kind == "input" else FedkeelError)(f"{name}: {text}")
    return text


def _start(work: Work) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, theirs), daemon=True)
    # Ctrl-C goes to every process of a terminal. A child inherits that it is ignored, and is stopped by its pipe.
    with handling(TERMINAL, signal.SIG_IGN):
        process.start()
    theirs.close()
    return process, ours


def _answer(pipe: Connection, name: str) -> str:
    try:
        answer = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise FedkeelError(f"The process of {name} died; the other runs are kept.") from None
    return outcome(answer, name)


def _serve(work: Work, pipe: Connection) -> None:
    """What a child does: one job after the other, until its pipe closes."""

    def stop(*row: Any) -> bool:
        return pipe.poll()

    with suppress(EOFError, OSError):
        while True:
            pipe.send(do(work, pipe.recv(), stop))
