"""Ctrl-C, `kill` and a terminal that closes: a run finishes its round and is saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

TERMINAL = [getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)]  # to all its processes
ALL = [*TERMINAL, signal.SIGTERM]


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, Any], Any] | int) -> Iterator[None]:
    """Handle these signals, but for those that are ignored (by nohup, say); only the main thread can."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        kept = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handler) for number in kept}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def finishing_the_round(wanted: bool) -> Iterator[list[int]]:
    """Record the first signal instead of ending, so that the round ends and is saved; a second one interrupts."""
    seen: list[int] = []

    def note(number: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    with handling(ALL if wanted else (), note):
        yield seen
