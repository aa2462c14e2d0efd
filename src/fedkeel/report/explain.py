"""`fedkeel explain`: an algorithm as its paper's box, put together from its parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import grammar, recipes
from ..algorithm import Algorithm
from ..data import FederatedData
from ..task import Task
from ..world import FixedSteps, World

TOY = 8  # parameters of the toy model on which traffic is counted


def explain(text: str) -> str:
    """The update in paper notation, what is kept where, what is sent, and whom to cite.

    >>> print(explain("fedprox").splitlines()[0])
    fedprox: clients stay near the model they received
    """
    algorithm = recipes.algorithm(text)
    names = [name for name, _ in grammar.parse(text)]
    titles = ", and ".join(recipes.RECIPES[name].summary for name in names)
    out = [f"{text}: {titles}", ""]
    out += ["  x the global model, y a client's copy, g a batch gradient at y, J_i the steps client i really does", ""]
    out += ["  server, before the round"] * bool(lines := _lines(algorithm, "plan") + _lines(algorithm, "send")) + lines
    out += ["  client i: y <- x, then J_i times"]
    out += _lines(algorithm, "loss")
    out += ["      g <- gradient of the loss on the next batch, at y", *_lines(algorithm, "gradient")]
    out += _knobs(algorithm)
    out += [f"      {line}" for line in algorithm.client.box(server=False)] + _lines(algorithm, "after_step")
    out += ["    and then"] * bool(lines := _lines(algorithm, "extra") + _lines(algorithm, "finish")) + lines
    out += ["  server", f"      {algorithm.weighing.formula},   Delta_i = y_i - x"]
    out += _lines(algorithm, "server_step") + _lines(algorithm, "update")
    rate = f"        lr = {algorithm.server.lr}"
    out += [f"      {line}{rate if 'lr' in line else ''}" for line in algorithm.server.box(server=True)]
    return "\n".join(
        [*out, "", *_keeps(algorithm), *_traffic(algorithm), *_keys(names), *_references(names, algorithm)]
    )


def _lines(algorithm: Algorithm, place: str) -> list[str]:
    return [f"      {line}" for rule in algorithm.rules for line in rule.formulas.get(place, "").splitlines() if line]


def _knobs(algorithm: Algorithm) -> list[str]:
    client = algorithm.client
    clip = [f"      g <- g min(1, {client.clip:g} / ||g||)"] if client.clip is not None else []
    return clip + ([f"      g <- g + {client.weight_decay:g} y"] if client.weight_decay else [])


def _keeps(algorithm: Algorithm) -> list[str]:
    task, world = _toy()
    toy = algorithm.resolve(task, world)
    x = torch.zeros(TOY)
    server = ["x", *toy.server.init(x)] + [f"{r.slot}.{n}" for r in toy.rules for n in r.keeps.get("server", ())]
    clients = [f"{r.slot}.{name}" for r in toy.rules for name in r.keeps.get("client", ())]
    return [f"  kept on the server: {', '.join(server)}; on each client: {', '.join(clients) or 'nothing'}"]


def _traffic(algorithm: Algorithm) -> list[str]:
    """Counted in a real run on a toy, so that it cannot differ from what the history says."""
    from ..training import train

    task, world = _toy()
    run = train(task, algorithm, world, rounds=8, engine="serial")
    before, after = run.history[-2], run.history[-1]
    units = [(after[k] - before[k]) / (after["clients"] * TOY * 4) for k in ("bytes_down", "bytes_up")]
    notes = [note for rule in algorithm.rules if (note := rule.keeps.get("traffic"))]
    times = f"{sum(units) / 2:g}x FedAvg"
    return [
        f"  sent per client and round, in models: {units[0]:g} down, {units[1]:g} up ({times}, counted in a toy run)"
    ] + [f"    {note}" for note in notes]


def _keys(names: list[str]) -> list[str]:
    own = {key: value for name in names for key, value in recipes.RECIPES[name].keys.items()}
    told = ", ".join(f"{k}={'none' if v is None else v}" for k, v in own.items()) or "none of its own"
    return [f"  parameters: {told}; everywhere: {', '.join(recipes.COMMON)}"]


def _references(names: list[str], algorithm: Algorithm) -> list[str]:
    cited = [recipes.RECIPES[name].reference for name in names] + [rule.reference for rule in algorithm.rules]
    cited += [part.reference for part in (algorithm.client, algorithm.server) if type(part).__name__ != "SGD"]
    return [f"  {line}" for line in dict.fromkeys(filter(None, cited))]


class _Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(TOY))

    def represent(self, centre: Tensor) -> Tensor:
        return self.point - centre

    def classify(self, z: Tensor) -> Tensor:
        return z

    def forward(self, centre: Tensor) -> Tensor:
        return self.classify(self.represent(centre))


def _toy() -> tuple[Task, World]:
    data = FederatedData.from_arrays(torch.arange(4.0)[:, None].repeat(1, TOY), torch.zeros(4), clients=[0, 1, 2, 3])
    task = Task(model=_Point, loss=lambda output, _: output.square().mean(-1), data=data, lr=0.01)
    return task, World(cohort=2, budget=FixedSteps(2), expected_steps=4, sampler="cyclic")
