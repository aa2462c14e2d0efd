"""Functions of the user that watch a run, and how errors in user code say where they occurred."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import ClientError, FedkeelError, check, reason
from .history import Row

Callback = Callable[[Row], Any]  # sees every row; a true answer stops the run after it


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Errors of user code in a rule, a metric or a callback say where they occurred."""
    try:
        yield
    except (FedkeelError, Warning, BrokenPipeError):  # the command has an answer of its own to a closed pipe
        raise
    except Exception as error:
        raise ClientError(f"{where}: {reason(error)}") from error


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse what is no list of functions."""
    good = isinstance(callbacks, list | tuple) and all(map(callable, callbacks))
    check(good, "train", "callbacks", "a list of functions of a history row", callbacks)


def notify(callbacks: Sequence[Callback], event: str, value: Any, where: str, failed: list[Exception]) -> list[Any]:
    """Call the callbacks with a row, or their `begin(config)` or `end(status)`; errors are added to `failed`."""
    answers = []
    for callback in callbacks:
        name = getattr(callback, "__name__", type(callback).__name__)
        try:
            with naming(f"{where}, the callback {name}"):
                answers.append(getattr(callback, event, lambda value: None)(value))
        except Exception as error:
            failed.append(error)
    return answers
