"""`fedkeel explain`: an algorithm as its paper's box, put together from its parts."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from .. import grammar, recipes
from ..algorithm import Algorithm
from ..data import FederatedData
from ..errors import StabilityWarning
from ..optim import Optimizer
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
    out += [
        "  x the global model, y a client's copy, g a batch gradient at y, J_i the steps client i really does,",
        "  S the clients of round t, N all there are, C = |S|/N, n_i the samples client i holds",
        "",
    ]
    out += ["  server, before the round"] * bool(lines := _lines(algorithm, "plan") + _lines(algorithm, "send")) + lines
    start = _lines(algorithm, "start")
    out += ["  client i: y <- x", *start, "    then J_i times"] if start else ["  client i: y <- x, then J_i times"]
    out += _lines(algorithm, "loss")
    out += ["      g <- gradient of the loss on the next batch, at y", *_lines(algorithm, "gradient")]
    out += _knobs(algorithm)
    out += _step(algorithm.client, server=False) + _lines(algorithm, "after_step")
    out += ["    and then"] * bool(lines := _lines(algorithm, "extra") + _lines(algorithm, "finish")) + lines
    out += ["  server", f"      {algorithm.weighing.formula},   Delta_i = y_i - x"]
    out += _lines(algorithm, "server_step") + _lines(algorithm, "update")
    out += _step(algorithm.server, server=True)
    return "\n".join([*out, "", *_keeps(algorithm), *_traffic(algorithm), *_keys(text), *_references(names, algorithm)])


def _step(optimizer: Optimizer, server: bool) -> list[str]:
    """The optimizer's own lines; a rate that is known (a client's is often the task's) stands behind its line."""
    name = "server_lr" if server else "lr"
    told = "" if optimizer.lr is None or optimizer.finds_rate else f"        {name} = {optimizer.lr}"
    return [f"      {line}{told if f' {name} ' in line else ''}" for line in optimizer.box(server)]


def _lines(algorithm: Algorithm, place: str) -> list[str]:
    boxes = [algorithm.capacity.box().get(place, "")] if algorithm.capacity is not None else []
    boxes += [rule.box(algorithm).get(place, "") for rule in algorithm.rules]
    return [f"      {line}" for box in boxes for line in box.splitlines()]


def _knobs(algorithm: Algorithm) -> list[str]:
    client = algorithm.client
    clip = [f"      g <- g min(1, {client.clip:g} / ||g||)"] if client.clip is not None else []
    return clip + ([f"      g <- g + {client.weight_decay:g} y"] if client.weight_decay else [])


def _keeps(algorithm: Algorithm) -> list[str]:
    task, world = _toy()
    toy = algorithm.resolve(task, world)
    x = torch.zeros(TOY)
    server = ["x", *(name for name, value in toy.server.init(x).items() if value.shape == x.shape)]
    server += [f"{name} ({rule.slot})" for rule in toy.rules for name in rule.keeps.get("server", ())]
    clients = [f"{name} ({rule.slot})" for rule in toy.rules for name in rule.keeps.get("client", ())]
    return [f"  kept on the server: {', '.join(server)}; on each client: {', '.join(clients) or 'nothing'}"]


def _traffic(algorithm: Algorithm) -> list[str]:
    """Counted in a real run on a toy, so that it cannot differ from what the history says."""
    from ..run.training import train

    if algorithm.capacity is not None:
        return ["  sent per client and round: its sub-model, down and up; the history counts the bytes of each level"]
    task, world = _toy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StabilityWarning)  # what it would say is about the toy
        run = train(task, algorithm, world, rounds=8, engine="serial")
    before, after = run.history[-2], run.history[-1]
    units = [(after[k] - before[k]) / (after["clients"] * TOY * 4) for k in ("bytes_down", "bytes_up")]
    notes = [note for rule in algorithm.rules if (note := rule.keeps.get("traffic"))]
    times = f"{sum(units) / 2:g}x FedAvg"
    return [
        f"  sent per client and round, in models: {units[0]:g} down, {units[1]:g} up ({times}, counted in a toy run)"
    ] + [f"    {note}" for note in notes]


def _keys(text: str) -> list[str]:
    """Every key in use with its value, as one may type it."""
    full = [(name, {**recipes.RECIPES[name].keys, **given}) for name, given in grammar.parse(text)]
    return [f"  in full: {grammar.write(full)}", f"  keys of every algorithm: {', '.join(recipes.COMMON)}"]


def _references(names: list[str], algorithm: Algorithm) -> list[str]:
    cited = [recipes.RECIPES[name].reference for name in names] + [rule.reference for rule in algorithm.rules]
    cited += [algorithm.capacity.reference] if algorithm.capacity is not None else []
    cited += [part.reference for part in (algorithm.client, algorithm.server) if type(part).__name__ != "SGD"]
    return [f"  cite: {line}" for line in dict.fromkeys(filter(None, cited))]


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
    data = FederatedData.from_arrays(torch.arange(4.0)[:, None].repeat(1, TOY), [0] * 4, clients=[0, 1, 2, 3])
    task = Task(model=_Point, loss=lambda output, _: output.square().mean(-1), data=data, lr=0.01)
    return task, World(cohort=2, budget=FixedSteps(2), expected_steps=4, sampler="cyclic")
