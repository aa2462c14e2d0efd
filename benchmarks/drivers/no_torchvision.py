"""An empty torchvision, for peers that import it for data sets we do not use.

Its wheels want the CUDA build of torch, gigabytes that no CPU benchmark needs.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class Absent(ModuleType):
    """A module in which every name is an empty class."""

    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for place in ("", ".transforms", ".transforms.functional", ".datasets", ".datasets.utils", ".models", ".utils"):
    module = Absent("torchvision" + place)
    module.__spec__, module.__path__ = ModuleSpec(module.__name__, None), []
    sys.modules[module.__name__] = module
    if place:
        parent, _, own = module.__name__.rpartition(".")
        setattr(sys.modules[parent], own, module)
