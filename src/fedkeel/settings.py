"""Settings that are described once: a field of a dataclass that also has its range, its help text and its flag.

`RunConfig` and `World` declare their fields with `setting`. Keywords of `train`, flags of the command line and keys of
`config.json` are made from these fields, so a new setting is one new line.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any, TypeVar

from . import ranges
from .errors import InputError, check, unknown
from .ranges import Range

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

# Version 0.1 wrote these keys into every config.json, so a file without one of them is damaged. A file may lack any
# other setting, because an earlier version wrote it.
VERSION_0_1 = ("rounds", "seed", "batch_size", "dtype", "engine", "target", "eval_every", "checkpoint_every")


@dataclass(frozen=True)
class Kind:
    """The values a setting may have.

    read: makes a value from the text of a flag. valid: whether a value is allowed. must: the error says "must be" this.
    """

    read: Callable[[str], Any]
    valid: Callable[[Any], bool]
    must: str


def number(allowed: Range) -> Kind:
    """Numbers in a range."""
    return Kind(int if allowed.whole else float, allowed.__contains__, str(allowed))


def integer(least: int = 1, most: int = 10**9) -> Kind:
    """Integers from `least` to `most`."""
    return number(Range(least, most, whole=True))


NUMBER = number(ranges.NUMBER)
POSITIVE = number(ranges.RATE)
SWITCH = Kind(bool, lambda value: isinstance(value, bool), "true or false")


def one_of(names: Container[str], must: str) -> Kind:
    """One of these texts."""
    return Kind(str, lambda value: isinstance(value, str) and value in names, must)


@dataclass(frozen=True)
class Setting:
    """The description of a setting, besides its name and type.

    keyword: its name in Python, if that differs from the field's. alone: the value of its flag without an argument.
    """

    default: Any
    kind: Kind
    help: str
    metavar: str | None = None
    keyword: str | None = None
    alone: Any = None

    def check(self, owner: object, name: str, value: Any) -> None:
        """Refuse a value that is not allowed; None is allowed where it is the default."""
        good = (value is None and self.default is None) or self.kind.valid(value)
        check(good, owner, name, self.kind.must, value)

    @property
    def text(self) -> str:
        """Its help text with its default."""
        return self.help if self.default is None else f"{self.help}; default {self.default}"


def setting(default: Any, kind: Kind, help: str, metavar: str | None = None, **more: Any) -> Any:
    """Declare a setting as a field of a dataclass; its arguments are the fields of `Setting`.

    >>> @dataclass(frozen=True)
    ... class Example:
    ...     rounds: int = setting(200, integer(), "rounds to train", "N")
    >>> Example().rounds, settings(Example)["rounds"].text
    (200, 'rounds to train; default 200')
    """
    return field(default=default, metadata={"setting": Setting(default, kind, help, metavar, **more)})


def settings(owner: type) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    return {one.name: one.metadata["setting"] for one in fields(owner) if "setting" in one.metadata}


def check_settings(thing: Any, owner: object) -> None:
    """Refuse settings of `thing` that are out of range, and keep numbers of numpy as numbers of Python.

    The error names `owner`.
    """
    for name, one in settings(type(thing)).items():
        one.check(owner, name, getattr(thing, name))
        object.__setattr__(thing, name, ranges.plain(getattr(thing, name)))


def from_file(owner: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `owner` that a configuration file has; those that it lacks get their default."""
    for name in settings(owner):
        if name in VERSION_0_1 and name not in config:
            raise InputError(f"The configuration has no '{name}'.")
    return {name: config.get(name, one.default) for name, one in settings(owner).items()}


def add_flags(parser: argparse.ArgumentParser, owner: type, defaults: Mapping[str, Any] | None = None) -> None:
    """Add a flag for every setting of `owner`; its value is None where the user does not give it.

    defaults: those that a command has of its own, for the help.
    """
    for name, one in settings(owner).items():
        one = replace(one, default=(defaults or {}).get(name, one.default))
        flag = "--" + name.replace("_", "-")
        if one.kind is SWITCH:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=one.text)
        else:
            more: dict[str, Any] = {"help": one.text}
            if one.alone is not None:
                more = {"nargs": "?", "const": one.alone, "help": f"{one.text}; without {one.metavar}: {one.alone}"}
            parser.add_argument(flag, type=_reader(one.kind), metavar=one.metavar, **more)


def _reader(kind: Kind) -> Callable[[str], Any]:
    """`kind.read` for argparse, which hides the message of every error but its own."""

    def read(text: str) -> Any:
        try:
            return kind.read(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    read.__name__ = kind.read.__name__  # argparse says "invalid int value"
    return read


def takes_settings(owner: type) -> Callable[[F], F]:
    """Put the settings of `owner` into the signature of a function with `**settings`, and at SETTINGS into its help."""

    def describe(function: F) -> F:
        signature = inspect.signature(function)
        own = list(signature.parameters.values())
        positional = [known for known in own if known.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        only = [known for known in own if known.kind is inspect.Parameter.KEYWORD_ONLY]
        types = {one.name: one.type for one in fields(owner)}
        keywords = {one.keyword or name: (name, one) for name, one in settings(owner).items()}
        more = [
            inspect.Parameter(keyword, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=types[name])
            for keyword, (name, one) in keywords.items()
            if keyword not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*positional, *more, *only])  # type: ignore[attr-defined]
        lines = "\n".join(f"        {keyword}: {one.text}" for keyword, (_, one) in keywords.items())
        function.__doc__ = (function.__doc__ or "").replace("        SETTINGS", lines)
        return function

    return describe


def refuses_unknown(**meant: str) -> Callable[[type[T]], type[T]]:
    """Let a class say which of its keywords is nearest to an unknown one; meant: what to write for words of others."""

    def describe(kind: type[T]) -> type[T]:
        made: Callable[..., None] = kind.__init__

        @wraps(made)
        def init(self: T, *given: Any, **named: Any) -> None:
            try:
                made(self, *given, **named)
            except TypeError:
                if name := next((name for name in named if name in meant), ""):
                    raise InputError(f"Unknown keyword of {kind.__name__} '{name}'. Write {meant[name]}.") from None
                check_keywords(kind, named)
                raise

        kind.__init__ = init  # type: ignore[assignment]
        return kind

    return describe


def check_keywords(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse keywords that are not in the signature of `function`, and suggest the nearest one that is."""
    known = inspect.signature(function).parameters
    for name in given:
        if name not in known:
            raise unknown(f"keyword of {function.__name__}", name, known)
