"""Named algorithms: one line each, on top of FedAvg."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from . import grammar, rules
from .aggregate import WEIGHTS, Nova, Uniform, Weights
from .algorithm import Algorithm
from .capacity import CAPACITIES, Capacity, Exits, Widths, only
from .errors import InputError, unknown
from .optim import SGD, SPS, Adagrad, Adam, DeltaSGD, Optimizer, Yogi
from .pace import Buffered, Synchronous
from .robust import AGGREGATIONS, Krum, Median, MultiKrum, Trimmed
from .rule import Rule
from .rules import RULES

Part = TypeVar("Part")
CLIENTS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adagrad": Adagrad, "sps": SPS, "deltasgd": DeltaSGD}
OPTIMIZERS: dict[str, type[Optimizer]] = CLIENTS | {"yogi": Yogi}
COMMON = {
    "lr": "client learning rate (default: the task's, else 0.01; with Adam clients also match-gel)",
    "decay": "client learning rate by round: step (a tenth after 50 %, a hundredth after 75 %), cosine (down to almost "
    "0 in the last round) or a number such as 0.999 (its factor from round to round)",
    "momentum": "client momentum of SGD",
    "nesterov": "Nesterov's momentum on SGD clients",
    "weight_decay": "coupled weight decay on clients",
    "clip": "largest norm of a client gradient",
    "client": f"client optimizer: {', '.join(CLIENTS)}",
    "server_lr": "server learning rate (a number or match-gel)",
    "weights": f"{', '.join(WEIGHTS)}",
    "buffers": "average or server",
    "level": "all clients train this sub-model: a to e (width), or 1 to 4 where the task has early exits",
}
OTHER_WORDS = {
    **dict.fromkeys(("learning_rate", "eta"), "The client learning rate is lr, the server's server_lr."),
    **dict.fromkeys(
        ("epochs", "steps", "local_epochs", "local_steps"),
        "Local work belongs to the world: --budget 2e for two epochs, --budget 5 for five steps; in Python "
        "fk.World(budget='2e').",
    ),
}  # what keys of other libraries are called here, where an algorithm has none of this name
YIN_PAPER = "Yin et al. 2018, Byzantine-robust distributed learning (arXiv 1803.01498)"
KRUM_PAPER = "Blanchard et al. 2017, Machine learning with adversaries: Byzantine tolerant gradient descent (NeurIPS)"
ADAPTIVE = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "v_init": None, "bias_correction": False}


@dataclass(frozen=True)
class Recipe:
    """What a name adds to FedAvg: parts, each a class or a function of the recipe's keys, and defaults of common keys.

    own: keys beside the parameters of these classes, or other defaults for those.
    """

    summary: str
    rule: Callable[..., Rule | None] | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    server: Callable[..., Optimizer] | None = None
    weights: type[Weights] | None = None
    client: type[Optimizer] | None = None
    capacity: type[Capacity] | None = None
    pace: type[Buffered] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of common keys
    reference: str = ""  # beside those of its parts

    @property
    def keys(self) -> dict[str, Any]:
        """Its own keys and their defaults."""
        found: dict[str, Any] = {}
        for part in (self.capacity, self.rule, self.client, self.server, self.weights, self.pace):
            if is_dataclass(part):
                found |= {f.name: f.default for f in fields(part) if f.name not in COMMON}
        return {**found, **self.own}


def _make(maker: Callable[..., Part], keys: dict[str, Any]) -> Part:
    """A part of a recipe: a class gets the keys that are its parameters, a function gets all of them."""
    names = {f.name for f in fields(maker)} if is_dataclass(maker) else keys.keys()
    return maker(**{name: value for name, value in keys.items() if name in names})


AVERAGING = "McMahan et al. 2017 (arXiv 1602.05629)"
FEDBUFF_PAPER = "Nguyen et al. 2022 (arXiv 2106.06639)"
ADAPTIVE_SERVERS = "Reddi et al. 2021, Adaptive federated optimization (arXiv 2003.00295)"
RECIPES: dict[str, Recipe] = {
    "fedavg": Recipe("local SGD, averaged by samples", reference=AVERAGING),
    "sgd": Recipe("another name for fedavg", reference=AVERAGING),
    "fedavgcm": Recipe("FedAvg with client momentum, reset every round", defaults={"momentum": 0.9}),
    "fedavgm": Recipe(
        "FedAvg with server momentum",
        own={"beta": 0.9},
        server=lambda beta: SGD(momentum=beta),
        reference="Hsu et al. 2019 (arXiv 1909.06335)",
    ),
    "fedprox": Recipe("clients stay near the model they received", rules.Proximal),
    "fednova": Recipe(
        "updates normalised by the steps behind them", weights=Nova, reference="Wang et al. 2020 (arXiv 2007.07481)"
    ),
    "fedadagrad": Recipe(
        "Adagrad on the server",
        own=ADAPTIVE | {"beta1": 0.0},
        server=Adagrad,
        defaults={"server_lr": 0.01},
        reference=ADAPTIVE_SERVERS,
    ),
    "fedadam": Recipe(
        "Adam on the server", own=ADAPTIVE, server=Adam, defaults={"server_lr": 0.01}, reference=ADAPTIVE_SERVERS
    ),
    "fedyogi": Recipe(
        "Yogi on the server", own=ADAPTIVE, server=Yogi, defaults={"server_lr": 0.01}, reference=ADAPTIVE_SERVERS
    ),
    "scaffold": Recipe("control variates cancel client drift", rules.Scaffold, weights=Uniform),
    "feddyn": Recipe("dynamic regularisation makes local and global optima agree", rules.FedDyn, weights=Uniform),
    "adabest": Recipe("a bias estimate that fades, and an extrapolated average", rules.AdaBest, weights=Uniform),
    "mime": Recipe("local steps mimic centralised SGD", rules.Mime, {"beta": 0.0}, weights=Uniform),
    "mimemom": Recipe("local steps mimic centralised SGD with momentum", rules.Mime, weights=Uniform),
    "mimelite": Recipe(
        "Mime without correction or momentum: FedAvg with uniform weights",
        rules.MimeLite,
        {"beta": 0.0},
        weights=Uniform,
    ),
    "mimelitemom": Recipe("frozen server momentum in every local step", rules.MimeLite, weights=Uniform),
    "fedcm": Recipe("last round's direction in every local step", rules.FedCM),
    "fedadc": Recipe("server momentum spent inside the local steps", rules.FedADC),
    "ghbm": Recipe("heavy-ball momentum over the last tau rounds", rules.GHBM),
    "localghbm": Recipe("GHBM from the model a client received last, no extra traffic", rules.LocalGHBM),
    "fedhbm": Recipe(
        "heavy-ball momentum from a client's own last model, no extra traffic",
        lambda first, **keys: rules.FedHBM(first=first or "none", **keys),  # the grammar reads none as no value
        {"beta": 1.0, "scale": "participation", "first": "none"},
    ),
    "gel": Recipe("clients guess the steps they had no budget for", rules.Guess, defaults={"momentum": 0.9}),
    "deltasgd": Recipe("clients find their step sizes from their own curvature", client=DeltaSGD, weights=Uniform),
    "sps": Recipe("clients take Polyak's step sizes", client=SPS, weights=Uniform),
    "fathom": Recipe(
        "the server tunes rate, epochs and batch size while it trains", rules.Fathom, defaults={"lr": 0.1}
    ),
    "moon": Recipe("representations stay near the received model's", rules.Contrastive),
    "heterofl": Recipe(
        "weak clients train narrower copies of the model",
        lambda mask, **keys: rules.OwnClasses() if mask else None,
        {"mask": True},
        capacity=Widths,
        defaults={"weights": "uniform", "momentum": 0.9, "weight_decay": 5e-4, "clip": 1.0},
    ),
    "scalefl": Recipe(
        "weak clients train narrower and shallower copies, which end in early exits",
        rules.SelfDistillation,
        capacity=Exits,
        defaults={"weights": "uniform", "momentum": 0.9, "weight_decay": 5e-4},
    ),
    "fedbuff": Recipe(
        "asynchronous: the server steps whenever a few updates have arrived",
        weights=Uniform,
        pace=Buffered,
        reference=FEDBUFF_PAPER,
    ),
    "fedasync": Recipe(
        "asynchronous: the server mixes every model that arrives into its own",
        own={"buffer": 1, "alpha": 0.6},
        weights=Uniform,
        pace=Buffered,
        reference="Xie, Koyejo & Gupta 2019 (arXiv 1903.03934)",
    ),
}

PARTS: dict[str, Recipe] = {  # for any algorithm: against bad clients, and another pace
    "median": Recipe("the median of every coordinate instead of the mean", weights=Median, reference=YIN_PAPER),
    "trimmed": Recipe(
        "the mean of every coordinate without its smallest and largest values", weights=Trimmed, reference=YIN_PAPER
    ),
    "krum": Recipe(
        "the one update that is nearest to its neighbours instead of the mean", weights=Krum, reference=KRUM_PAPER
    ),
    "multikrum": Recipe(
        "the mean of the updates that are nearest to their neighbours", weights=MultiKrum, reference=KRUM_PAPER
    ),
    "guard": Recipe("updates far larger than the running median are clipped or rejected", rules.Guard),
    "buffered": Recipe("the server steps whenever a few updates have arrived", pace=Buffered, reference=FEDBUFF_PAPER),
}
KNOWN = ChainMap(PARTS, RECIPES)  # a view of both: what is added to one of them is known


def algorithm(text: str) -> Algorithm:
    """The algorithm of this name, or of several put together.

    >>> algorithm("fedprox:mu=0.1+gel").rules
    (Proximal(mu=0.1), Guess(steps='remaining', proxy=None))
    >>> algorithm("fedavgg")
    Traceback (most recent call last):
    fedkeel.errors.InputError: Unknown algorithm 'fedavgg'. Did you mean 'fedavg'?
    """
    segments = grammar.parse(text)
    common: dict[str, Any] = {}
    owned: list[tuple[Recipe, dict[str, Any]]] = []
    for name, given in segments:
        if name not in KNOWN:
            raise unknown("algorithm", name, KNOWN)
        recipe = KNOWN[name]
        for key in given:
            if key not in recipe.keys and key not in COMMON:
                raise _unknown_key(name, key, [*recipe.keys, *COMMON])
        for key in given.keys() & COMMON.keys() - recipe.keys.keys():
            if common.setdefault(key, given[key]) != given[key]:
                raise InputError(f"'{text}' gives {key} twice: {common[key]} and {given[key]}.")
        owned.append((recipe, {key: given.get(key, default) for key, default in recipe.keys.items()}))

    made = [_make(recipe.rule, keys) for recipe, keys in owned if recipe.rule]
    chosen = [rule for rule in made if rule is not None]
    servers = [_make(recipe.server, keys) for recipe, keys in owned if recipe.server]
    if len(servers) > 1:
        raise InputError(f"'{text}' names two server optimizers; use one of them.")
    asked = [_make(recipe.weights, keys) for recipe, keys in owned if recipe.weights]
    weights = _without_uniform(asked, common, text)
    weights.sort(key=lambda one: not one.needs_norm)  # FedNova's first: it may be refused with the other parts
    defaults: dict[str, Any] = {}
    for recipe, _ in owned:
        defaults |= recipe.defaults
    settings = defaults | common

    client = _client(settings, common, text, [(recipe.client, keys) for recipe, keys in owned if recipe.client])
    if settings.get("decay") is not None:
        chosen.append(rules.Schedule(settings["decay"]))
    server = servers[0] if servers else SGD()
    if "server_lr" in settings:
        server = replace(server, lr=settings["server_lr"])
    guesses = any(isinstance(rule, rules.Guess) for rule in chosen)
    plain = guesses and isinstance(client, Adam)  # the first GEL paper, with Adam clients, takes the plain mean
    usual = settings.get("weights") or ("uniform" if plain else "samples")
    weighing: Any = common.get("weights") or (weights[0] if weights else usual)
    capacities = [_make(recipe.capacity, keys) for recipe, keys in owned if recipe.capacity]
    capacities += [only(settings["level"])] if settings.get("level") is not None else []
    if len(capacities) > 1:
        raise InputError(f"'{text}' gives clients levels twice; use one of heterofl, scalefl and level=.")
    buffers, levels = settings.get("buffers", "average"), capacities[0] if capacities else None
    paces = [_make(recipe.pace, keys) for recipe, keys in owned if recipe.pace]
    if len(paces) > 1:
        raise InputError(f"'{text}' gives two asynchronous paces; use one of fedbuff, fedasync and +buffered.")
    pace = paces[0] if paces else Synchronous()
    parts = Algorithm(client, chosen, server, weighing, buffers, levels, pace, spec=grammar.write(segments))
    if len(set(weights)) > 1 and "weights" not in common:
        kinds = dict.fromkeys(f"weights={_word(one)}" for one in weights)
        raise InputError(f"'{text}' asks for {' and '.join(kinds)}{' twice' * (len(kinds) == 1)}; give one of them.")
    return parts


def _word(weights: Weights) -> str:
    return type(weights).__name__.lower()


def _unknown_key(name: str, key: str, known: list[str]) -> InputError:
    if key in OTHER_WORDS:
        return InputError(f"Unknown parameter of {name} '{key}'. {OTHER_WORDS[key]}")
    return unknown(f"parameter of {name}", key, known)


def _without_uniform(weights: list[Weights], given: dict[str, Any], text: str) -> list[Weights]:
    """The weights that recipes ask for; a robust aggregation replaces uniform ones, because it counts clients alike."""
    robust = [one for one in weights if one.robust]
    if not robust:
        return weights
    if "weights" in given:
        raise InputError(
            f"'{text}' gives weights, but {_word(robust[0])} counts every client the same; leave out weights."
        )
    others = [one for one in weights if one != robust[0] and not isinstance(one, Uniform)]
    if others:
        raise InputError(f"'{text}' asks for {_word(robust[0])} and {_word(others[0])}; use one of them.")
    return robust


def _client(
    settings: dict[str, Any], given: dict[str, Any], text: str, named: list[tuple[type[Optimizer], Any]]
) -> Optimizer:
    name = settings.get("client", "sgd")
    if name not in CLIENTS:
        raise unknown("client optimizer", str(name), CLIENTS)
    kind, keys = named[0] if named else (CLIENTS[name], {})
    if len(named) > 1 or ("client" in given and CLIENTS[name] is not kind):
        raise InputError(f"'{text}' names two client optimizers; use one of them.")
    own = ("lr", "weight_decay", "clip") + (("momentum", "nesterov") if issubclass(kind, SGD) else ())
    for key in ("momentum", "nesterov"):
        if key in given and key not in own:
            raise InputError(f"'{text}' gives {key}, which belongs to SGD clients; {name} clients have their own.")
    if kind.finds_rate and "lr" not in given:  # do not use another recipe's default rate
        own = own[1:]
    return kind(**keys, **{key: settings[key] for key in own if key in settings})


def rebuild(parameters: dict[str, Any], spec: str | None = None) -> Algorithm:
    """The algorithm of a configuration's `parameters`, value for value.

    >>> fedprox = algorithm("fedprox")
    >>> rebuild(fedprox.parameters(), fedprox.spec) == fedprox
    True
    """
    return Algorithm(
        client=part(OPTIMIZERS, parameters["client"]),
        rules=[part(RULES, values) for values in parameters["rules"]],
        server=part(OPTIMIZERS, parameters["server"]),
        weights=part(AGGREGATIONS, parameters["weights"]),
        buffers=parameters["buffers"],
        capacity=capacity(parameters["capacity"]) if parameters.get("capacity") else None,
        pace=Buffered(**parameters["pace"]) if parameters.get("pace") else Synchronous(),
        spec=spec,
    )


def part(table: Mapping[str, Any], values: dict[str, Any]) -> Any:
    """A part from its `parameters`."""
    return table[values["name"]](**{k: v for k, v in values.items() if k != "name"})


def capacity(values: dict[str, Any]) -> Capacity:
    """A capacity from its `parameters`.

    >>> capacity(Widths(shares="1/1/0/0/1").parameters()).shares
    (1.0, 1.0, 0.0, 0.0, 1.0)
    """
    made: Capacity = part(CAPACITIES, values)
    return made


def nameable(parts: Algorithm) -> bool:
    """Whether every part is one of ours, so that the algorithm can be saved and built again."""
    tables: list[tuple[Any, Mapping[str, Any]]] = [(rule, RULES) for rule in parts.rules]
    tables += [(parts.capacity, CAPACITIES)] if parts.capacity is not None else []
    tables += [(parts.client, OPTIMIZERS), (parts.server, OPTIMIZERS), (parts.weighing, AGGREGATIONS)]
    return all(
        type(part) is table.get(part.parameters()["name"]) and not any(map(callable, vars(part).values()))
        for part, table in tables
    )
