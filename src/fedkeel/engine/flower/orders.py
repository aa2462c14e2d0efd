"""What the server asks of one device, and our messages as Flower records.

A message is one array of bytes in the safetensors format (`wire.py`): its tensors travel as they are, so what is on the
wire can be compared with our counters, and all devices of a round receive the same bytes, which Flower stores once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import InputError, MissingExtra
from ...wire import from_bytes, to_bytes

FORMAT = "fedkeel.safetensors"  # Flower carries it; only we read it
TRAIN, SURVEY = "train", "survey"


def flower() -> Any:
    """Flower's module of messages; the error has the command that installs it."""
    try:
        import flwr.app
    except ImportError as error:
        raise MissingExtra("Flower", "flower", "A deployment") from error
    return flwr.app


@dataclass(frozen=True)
class Order:
    """What one device is to do, besides the broadcast and its work.

    accepted: the version of its last update that the server accepted, -1 if none; what the device remembered with any
    other version does not count. seconds: the time it has, None if it may finish. algorithm: its parameters; None where
    it has parts of the user's own, which the app on the device makes. simulated: the device is a simulated one, beside
    the server.

    >>> Order.read(Order(TRAIN, "a1", 3, 10, -1, 0, "float32").text()).client
    3
    """

    do: str
    training: str  # names this training among others that the device has a memory of
    client: int
    population: int
    accepted: int
    seed: int
    dtype: str
    seconds: float | None = None
    algorithm: dict[str, Any] | None = None
    simulated: bool = False

    def text(self) -> str:
        """The order as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Order:
        """The order of a JSON text."""
        order = cls(**json.loads(text))
        numbers = (order.client, order.population, order.accepted, order.seed)
        named = order.do in (TRAIN, SURVEY) and order.dtype in ("float32", "float64") and order.training.isalnum()
        if not named or not all(type(number) is int for number in numbers):  # they become part of a path
            raise InputError(f"This is no order of a fedkeel server: {text[:200]}")
        return order


def pack(message: Any) -> Any:
    """One of our messages as a Flower record."""
    app, data = flower(), to_bytes(message)
    return app.ArrayRecord({"message": app.Array("uint8", (len(data),), FORMAT, data)})


def unpack(record: Any) -> Any:
    """The message in such a record."""
    array = record["message"]
    if array.stype != FORMAT:
        raise InputError(f"This record is in the format {array.stype!r}, not {FORMAT!r}.")
    return from_bytes(array.data)
