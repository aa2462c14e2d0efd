"""The engine that a text names: a mode of the local one, or another place with its settings (`NAME:key=value,...`)."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib import import_module
from typing import Any, cast

from .. import grammar
from ..errors import InputError, check, unknown
from . import Place
from .threads import MODES, Local

# By name, the class in the module of that name, which is imported on use.
ELSEWHERE: dict[str, str] = {"flower": "Flower", "ray": "Ray"}
MUST = "'auto', 'serial', 'batched', 'probe' or 'ray', as in 'ray:workers=4'"


def place_of(
    text: str,
    workers: int | None = None,
    chunk: int | None = None,
    compile: bool = False,
    why: str | None = None,
) -> Place:
    """The place that a text names; the other arguments are those of `Local`, for settings that the text does not have.

    >>> place_of("serial", workers=2)
    Local(mode='serial', workers=2, chunk=None, compile=False, why=None)
    """
    if text.partition(":")[0] not in ELSEWHERE:
        return Local(text, workers, chunk, compile, why)
    (name, keys), *more = grammar.parse(text)
    if more:
        raise InputError(f"Cannot read the engine '{text}': write NAME:key=value,key=value.")
    kind = getattr(import_module(f".{name}", __package__), ELSEWHERE[name])
    known = [one.name for one in fields(kind)]
    for key in keys:
        if key not in known:
            raise unknown(f"key of the engine {name}", key, known)
    shared = {"workers": workers, "chunk": chunk, "compile": compile, "why": why}
    given = {key: value for key, value in shared.items() if key in known and value not in (None, False)} | keys
    return cast(Place, kind(**given))


def moved(place: Place, engine: str | Place) -> Place:
    """Another place for a run that was begun at this one, with the same bits: in its mode and its chunks.

    >>> moved(Local("serial", chunk=2), "auto")
    Local(mode='serial', workers=None, chunk=2, compile=False, why=None)
    """
    other = place_of(engine) if isinstance(engine, str) else engine
    check(is_place(other), "resume", "engine", f"{MUST} or a Local", engine)
    begun, new = cast(Any, place), cast(Any, other)
    if begun.name != new.name and "flower" in (begun.name, new.name):
        raise InputError(
            "What the clients of a run on devices remember is on the devices; a run cannot move to or from them."
        )
    same = ["mode", "chunk", "compile", "why"]
    if not (hasattr(begun, "mode") and hasattr(new, "mode")):  # a device's work is not cut by us
        return other
    if isinstance(begun, Local) and isinstance(new, Local) and new.workers is None:
        same.append("workers")
    return cast(Place, replace(new, **{name: getattr(begun, name) for name in same}))


def is_place(engine: Any) -> bool:
    """Whether this is an engine that can be started, such as `Local()`; its class is not."""
    return isinstance(engine, Place) and not isinstance(engine, type)


def may_be_named(text: Any) -> bool:
    """Whether a text names an engine; a key of it that is not right is an error of its own."""
    if not isinstance(text, str) or text in MODES:
        return isinstance(text, str)
    return text.partition(":")[0] in ELSEWHERE and is_place(place_of(text))
