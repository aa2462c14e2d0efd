"""How the API reference reads docstrings: an extension of griffe, which mkdocstrings takes them from.

Examples become blocks of code, and functions with `takes_settings` show the settings and defaults that they have when
they run, which their source does not spell out.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from griffe import Docstring, Extension, Function, Parameter, ParameterKind, Parameters

KINDS = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only,
}


class Readable(Extension):
    """Docstrings as people read them."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.is_function and any("takes_settings" in str(one.value) for one in obj.decorators):
            fill_in(obj)
        if obj.docstring is not None:
            obj.docstring.value = with_code(obj.docstring.value)


def fill_in(function: Function) -> None:
    """Give a function the settings that `takes_settings` puts into its signature and its docstring."""
    made = getattr(import_module(function.module.path), function.name)
    function.docstring = Docstring(inspect.getdoc(made) or "", parent=function)
    function.parameters = Parameters(*map(parameter, inspect.signature(made).parameters.values()))


def parameter(one: inspect.Parameter) -> Parameter:
    """A parameter with its value, not with the name of the value."""
    default = None if one.default is inspect.Parameter.empty else repr(one.default)
    return Parameter(one.name, annotation=str(one.annotation), kind=KINDS[one.kind], default=default)


def with_code(text: str) -> str:
    """The examples of a docstring, up to a blank line each, as blocks of code."""
    return re.sub(r"^>>> .*(?:\n.+)*", lambda found: f"\n```pycon\n{found[0]}\n```", text, flags=re.MULTILINE)
