"""Runs of a study side by side in processes, each with one worker and one torch thread.

The parent talks to each child through a pipe and sends a run at a time. While a run goes on nothing is sent, so a
child that finds its pipe readable knows that it is to stop: the parent closed it, or is gone. Its run then ends after
the round, saved, and the next call continues it.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ...errors import FedkeelError, InputError
from ...run.history import Row
from ..study import Study, one_run

Item = tuple[str, int, str]  # algorithm, seed, folder
PATIENCE = 60.0  # seconds a child has for the round it is in when all is stopped


def run_all(config: dict[str, Any], todo: Sequence[Item], jobs: int, tell: Callable[[Item, str], None]) -> None:
    """Carry out these runs of the study that `config` describes; `tell` hears of each that has ended."""
    left, busy, children = deque(todo), dict[Connection, Item](), list[tuple[BaseProcess, Connection]]()
    try:
        for _ in range(min(jobs, len(todo))):
            children.append(_start(config))
            pipe = children[-1][1]
            busy[pipe] = left.popleft()
            pipe.send(busy[pipe])
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                item = busy.pop(ready)
                tell(item, _answer(ready, item))
                if left:
                    busy[ready] = left.popleft()
                    ready.send(busy[ready])
    finally:
        _stop(children)


def _start(config: dict[str, Any]) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(config, theirs), daemon=True)
    # Ctrl-C goes to every process of a terminal. A child inherits that it is ignored, and is stopped by its pipe.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()
    return process, ours


def _answer(pipe: Connection, item: Item) -> str:
    try:
        kind, text = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise FedkeelError(f"The process of {item[0]}, seed {item[1]}, died; the other runs are kept.") from None
    if kind == "stopped":  # by a file `stop` in its folder: the other runs are not wanted either
        raise KeyboardInterrupt
    if kind != "ended":
        raise (InputError if kind == "input" else FedkeelError)(f"{item[0]}, seed {item[1]}: {text}")
    return str(text)


def _stop(children: Sequence[tuple[BaseProcess, Connection]]) -> None:
    for _, pipe in children:
        pipe.close()
    for process, _ in children:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _work(config: dict[str, Any], pipe: Connection) -> None:
    """What a child does: one run after the other, until its pipe closes."""
    study = replace(Study.from_config(config), why=config.get("engine_reason"), workers=1)

    def stop(algorithm: str, seed: int, row: Row) -> bool:
        return pipe.poll()

    with suppress(EOFError, OSError):
        task = None
        while True:
            text, seed, folder = pipe.recv()
            try:
                task = task or study.made_task()
                _, status = one_run(study, task, text, seed, Path(folder), stop)
                pipe.send(("ended", status))
            except KeyboardInterrupt:
                pipe.send(("stopped", ""))
            except (FedkeelError, OSError) as error:
                pipe.send(("input" if isinstance(error, InputError) else "failed", str(error)))
