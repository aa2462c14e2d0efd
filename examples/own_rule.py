"""Your own method: both halves in one class, then the checks every method of ours passes.

Clients shrink their gradient if it opposes the last global move, which the server sends.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import fedkeel as fk


@dataclass(frozen=True, repr=False)
class Cautious(fk.Rule):
    """Halve the parts of a gradient that point against the last global move."""

    caution: float = 0.5

    def send(self, server: dict[str, Tensor], view: fk.View) -> dict[str, Tensor]:
        return server  # nothing in round 1; then one vector, which the byte counter sees

    def gradient(self, g: Tensor, y: Tensor, me: fk.Me) -> Tensor:
        if not me.sent or not self.caution:
            return g
        against = (g * me.sent["move"]) > 0
        return torch.where(against, g * (1 - self.caution), g)

    def serve(self, server: dict[str, Tensor], up: fk.Reports, view: fk.View) -> tuple[dict[str, Tensor], Tensor]:
        return {"move": up.delta}, up.delta


task, world = fk.tasks.synthetic(), fk.World(cohort=20)
plain = fk.train(task, fk.Algorithm(client=fk.SGD(0.05)), world, rounds=30)
careful = fk.train(task, fk.Algorithm(client=fk.SGD(0.05), rules=[Cautious()]), world, rounds=30)
neutral = fk.train(task, fk.Algorithm(client=fk.SGD(0.05), rules=[Cautious(0.0)]), world, rounds=30)
print(f"fedavg {plain.history[-1]['accuracy']:.3f}, cautious {careful.history[-1]['accuracy']:.3f}")
print("neutral setting equals FedAvg bit for bit:", bool(torch.equal(plain.params, neutral.params)))
