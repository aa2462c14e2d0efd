"""The one function in which serial and batched differ: `gradients(y, batch, loss) -> g, loss`.

serial.py        one client at a time, by the module's own backward pass; any module; the oracle of lockstep
lockstep.py      all clients of a group along the client axis
lean.py          layers of a worker's replica that give the same numbers with fewer passes through memory
"""

from __future__ import annotations

from .lockstep import Lockstep
from .serial import Serial

Gradients = Serial | Lockstep

__all__ = ["Gradients", "Lockstep", "Serial"]
