"""The engines that are compared: which driver, in which environment, with which options, on which workloads."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")
KERNELS = ("W1", "W2", "W3", "W5", "W6")  # with C kernels: --compile is refused where there are none


@dataclass(frozen=True)
class Engine:
    """One row of the tables."""

    name: str
    driver: str
    options: dict[str, str] = field(default_factory=dict)
    peer: str | None = None  # its own virtual environment; None: the project's
    workloads: tuple[str, ...] = ALL
    passes: int | None = None  # slow ones, far from the top, run in the first passes only; None: in all


NAIVE = ("naive, 1 thread", "naive, 2 threads")
FLOOR, LIMIT = "arithmetic alone", "large products alone"
ENGINES = {
    engine.name: engine
    for engine in (
        Engine(NAIVE[0], "naive", {"threads": "1"}),
        Engine(NAIVE[1], "naive", {"threads": "2"}),
        Engine("fedkeel", "fedkeel"),
        Engine("fedkeel, any model", "fedkeel", {"mode": "batched", "model": "any"}, workloads=("W1",)),
        Engine("fedkeel, --compile", "fedkeel", {"compile": "yes"}, workloads=KERNELS),
        Engine("pfl, 2 processes", "pfl", {"processes": "2"}, "pfl"),
        Engine("fedjax", "fedjax", {}, "fedjax", ("W1", "W4")),
        Engine("pfl, 1 process", "pfl", {"processes": "1"}, "pfl", passes=1),
        Engine("fedlab", "fedlab", {}, "fedlab", passes=1),
        Engine("fluke", "fluke", {}, "fluke", passes=1),
        Engine("flwr", "flwr", {}, "flwr", passes=1),
        Engine(FLOOR, "floor", workloads=ALL[1:]),
        Engine(LIMIT, "products", workloads=ALL[1:]),
    )
}
SHORT = {
    engine.name.replace(", ", "-").replace("---", "-").replace(" ", ""): engine.name for engine in ENGINES.values()
}


def named(text: str) -> str:
    """An engine by its name or by the name without spaces, as on a command line.

    >>> named("naive-1thread")
    'naive, 1 thread'
    >>> named("fedkeel-compile")
    'fedkeel, --compile'
    """
    return SHORT.get(text, text)
