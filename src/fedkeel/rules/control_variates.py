"""SCAFFOLD: cancel client drift with control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, zeros_like

from ..algorithm import Algorithm, At, Memory, Rule
from ..errors import check
from ..optim import SGD
from ..wire import Reports, Upload


@dataclass(frozen=True, repr=False)
class Scaffold(Rule):
    """Every local step is corrected by c - c_i, where all clients pull less where this one does.

    The new c_i is, with option 2, what the round's steps say the gradient was (`control="difference"`: from the
    distance covered, weight decay included; `"gradient_mean"`: the mean raw gradient) and, with option 1, the full
    gradient at x (one more pass over the client's data). Clients send the change of c_i, never c_i itself;
    `rebuild=True` lets the server work it out from the update (1.5x the traffic of FedAvg instead of 2x).

    >>> Scaffold().option
    2
    """

    option: int = 2
    control: str = "difference"
    rebuild: bool = False

    reference: ClassVar[str] = "Karimireddy et al. 2020, SCAFFOLD (arXiv 1910.06378)"
    averages: ClassVar[tuple[str, ...]] = ("mean",)
    keeps: ClassVar[dict[str, Any]] = {"server": ["c"], "client": ["c_i"]}

    def __post_init__(self) -> None:
        check(self.option in (1, 2), self, "option", "1 or 2", self.option)
        kinds = ("difference", "gradient_mean")
        check(self.control in kinds, self, "control", " or ".join(kinds), self.control)
        check(self.option == 2 or self.control == "difference", self, "control", "left out with option 1", self.control)
        check(isinstance(self.rebuild, bool), self, "rebuild", "true or false", self.rebuild)
        derivable = self.option == 2 and self.control == "difference"
        check(not self.rebuild or derivable, self, "rebuild", "false unless option=2,control=difference", self.rebuild)

    @property
    def formulas(self) -> dict[str, str]:  # type: ignore[override]
        new = {
            (2, "difference"): "c_i - c + (x - y) / (J_i lr)",
            (2, "gradient_mean"): "mean of the J_i raw gradients",
            (1, "difference"): "full gradient of f_i at x",
        }[self.option, self.control]
        return {
            "gradient": "g <- g + (c - c_i)",
            "finish": f"c_i' = {new};   send c_i' - c_i;   c_i <- c_i'",
            "server_step": "c <- c + (1/N) sum_i (c_i' - c_i)",
        }

    def server_init(self, x: Tensor, at: At) -> dict[str, Tensor]:
        return {"c": zeros_like(x)}

    def client_init(self, x: Tensor, at: At) -> Memory:
        return {"ci": zeros_like(x)}

    def send(self, server: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return {"c": server["c"]}

    def start(self, y: Tensor, at: At) -> None:
        at.scratch["correction"] = at.sent["c"] - at.memory["ci"]

    def gradient(self, g: Tensor, y: Tensor, at: At) -> Tensor:
        if self.control == "gradient_mean":
            at.scratch["sum"] = at.scratch["sum"] + g if at.k else g.clone()
        return g.add_(at.scratch["correction"])

    def finish(self, y: Tensor, at: At) -> tuple[Upload, Memory]:
        if self.option == 2 and self.control == "difference":
            assert at.moved is not None
            change = (at.moved / -at.lr_sum).sub_(at.sent["c"])
            new = at.memory["ci"].add_(change)
        else:
            new = at.full_gradient(at.x) if self.option == 1 else at.scratch["sum"] / at.steps
            change = new - at.memory["ci"]
        return Upload(derived={"dc": change}) if self.rebuild else Upload(dc=change), {"ci": new}

    def server_step(self, server: dict[str, Tensor], up: Reports, at: At) -> dict[str, Tensor]:
        return {"c": server["c"] + at.fraction * up.mean("dc")}

    def refuse(self, algorithm: Algorithm) -> str | None:
        client = algorithm.client
        if isinstance(client, SGD) and client.momentum:
            return "SCAFFOLD reads gradients off the distance covered, which momentum stretches; give momentum=0."
        if type(client).__name__ in ("Adam", "Yogi", "Adagrad"):
            return "SCAFFOLD reads gradients off the distance covered; use SGD clients (client=sgd)."
        return None
