"""The one grammar for tasks and algorithms: `NAME[:key=value,...][+PART[:key=value,...]]...`"""

from __future__ import annotations

import re
from typing import Any

from .errors import InputError

Segment = tuple[str, dict[str, Any]]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def parse(text: str) -> list[Segment]:
    """Split a text into names and their parameters.

    >>> parse("fedprox:mu=0.01,lr=1e-2+gel:steps=25%")
    [('fedprox', {'mu': 0.01, 'lr': 0.01}), ('gel', {'steps': '25%'})]
    """
    # A plus inside a number (1e+3) does not start a part: parts start with a letter.
    return [_segment(part, text) for part in re.split(r"\+(?=\s*[A-Za-z])", text)]


def _segment(part: str, text: str) -> Segment:
    name, colon, rest = part.strip().partition(":")
    if not NAME.fullmatch(name):
        raise InputError(f"Cannot read '{text}': '{part}' does not start with a name. Write NAME:key=value+PART.")
    values: dict[str, Any] = {}
    for pair in rest.split(",") if colon else []:
        key, equals, value = (s.strip() for s in pair.partition("="))
        if not equals or not key or not value:
            raise InputError(f"Cannot read '{text}': '{pair}' is not key=value.")
        if re.search(r":\s*\w+=", value):
            commas = re.sub(r":\s*(?=\w+=)", ",", value)
            raise InputError(f"Cannot read '{text}': separate keys by commas, '{name}:{key}={commas}'.")
        if key in values:
            raise InputError(f"Cannot read '{text}': '{key}' is given twice.")
        values[key] = value_of(value)
    return name.lower(), values


def value_of(text: str) -> Any:
    """A number, true, false, none, or the text itself.

    >>> [value_of(t) for t in ("5", "1e-3", "true", "none", "inf", "25%")]
    [5, 0.001, True, None, 'inf', '25%']
    """
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        return value if value == value and abs(value) != float("inf") else text.lower()
    return text


def write(segments: list[Segment]) -> str:
    """The canonical text of segments.

    >>> write(parse("FedProx: mu=1e-2 + gel"))
    'fedprox:mu=0.01+gel'
    """
    return "+".join(name + (":" if values else "") + ",".join(f"{k}={_text(v)}" for k, v in values.items())
                    for name, values in segments)  # fmt: skip


def _text(value: Any) -> str:
    return {True: "true", False: "false", None: "none"}.get(value, "") if isinstance(value, bool | None) else str(value)
