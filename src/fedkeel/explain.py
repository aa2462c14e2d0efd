"""`fedkeel explain`: an algorithm in paper notation, assembled from its parts.

`notation.py` has the parts, keyed by class. A rule without an entry, such as a user's own, is printed by name only.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import torch

from . import grammar, recipes
from .advice import ADVICE
from .aggregate import Uniform
from .algorithm import Algorithm
from .capacity import Capacity
from .errors import StabilityWarning
from .notation import EXPLAINED, OPTIMIZERS_EXPLAINED, SYMBOLS, WEIGHTS_EXPLAINED, Explained
from .optim import Adaptive, Optimizer
from .pace import Buffered, Pace, Synchronous
from .reasons import BUFFERED
from .rule import Rule
from .rules import Guess
from .tables import nearest
from .toys import toy, toy_world

# The control of a guess: on the server, and for Adam on clients.
MATCHED = {
    True: "match-gel = E ||a_i with guesses||_1 / E ||a_i||_1 over the budgets, where Delta_i = -lr sum_k a_ik g_k: a\n"
    "step as long as GEL's in the mean, without guesses (1.91 for budgets of 4:13 and 18 expected steps)",
    False: "match-gel = the task's rate times (u + g) / u for u steps and g guesses: as long a way, without guesses",
}


def explain(given: str | Algorithm) -> str:
    """The update in paper notation, what is kept where, what is sent, and the references.

    >>> print(explain("fedprox").splitlines()[0])
    fedprox: clients stay near the model they received
    """
    algorithm = recipes.algorithm(given) if isinstance(given, str) else given
    text = given if isinstance(given, str) else given.spec
    names = [name for name, _ in grammar.parse(text)] if text else []
    summaries = ", and ".join(recipes.KNOWN[name].summary for name in names)
    out = [f"{text}: {summaries}" if text else algorithm.title, ""]
    out += [
        "  x the global model, y a client's copy, g a batch gradient at y, J_i the steps client i really does,",
        "  S the clients of round t, N all there are, C = |S|/N, n_i the samples client i holds",
        "",
    ]
    out += _headed("  server, before the round", _lines(algorithm, "plan") + _lines(algorithm, "send"))
    start = _lines(algorithm, "start")
    out += ["  client i: y <- x", *start, "    then J_i times"] if start else ["  client i: y <- x, then J_i times"]
    out += _lines(algorithm, "loss")
    out += ["      g <- gradient of the loss on the next batch, at y", *_lines(algorithm, "gradient")]
    out += _knobs(algorithm.client)
    out += _apart(_optimizer(algorithm.client, server=False), "client", algorithm) + _lines(algorithm, "step")
    out += _headed("    and then", _lines(algorithm, "walk") + _lines(algorithm, "finish"))
    out += ["  server", f"      {_weighing(algorithm)},   Delta_i = y_i - x", *_least(algorithm), *_serve(algorithm)]
    out += _apart(_optimizer(algorithm.server, server=True), "server", algorithm) + _asynchrony(algorithm)
    same = replace(algorithm, pace=Synchronous())  # which keeps and sends the same, like another aggregation
    same = replace(same, weights=Uniform()) if algorithm.weighing.stacks else same
    out += ["", *_kept(algorithm, same.resolve(toy(), toy_world())), *_traffic(same)]
    out += _keys(text) if text else []
    out += _departures(algorithm)
    out += _advice(names)
    return "\n".join([*out, *_references(names, algorithm)])


def explained(part: Rule | Capacity) -> Explained:
    """The entry of this rule or capacity; an empty one if it has none."""
    return nearest(EXPLAINED, type(part)) or Explained()


def reference(kind: type) -> str:
    """The paper to cite for a rule, an optimizer or a capacity; each on a line of its own where there are several.

    >>> from fedkeel import FedCM
    >>> reference(FedCM)
    'Xu et al. 2021, FedCM (arXiv 2106.10874)'
    """
    entry = nearest(EXPLAINED, kind) or nearest(OPTIMIZERS_EXPLAINED, kind)
    return entry.reference if entry else ""


def _departures(algorithm: Algorithm) -> list[str]:
    """Where the defaults are not what a paper's text says."""
    entries = [(explained(rule), _owner(rule)) for rule in algorithm.rules]
    found = [line for entry, owner in entries for line in _apart(entry.departs.splitlines(), owner, algorithm)]
    for owner in ("client", "server"):
        optimizer = nearest(OPTIMIZERS_EXPLAINED, type(getattr(algorithm, owner)))
        found += _apart(optimizer.departs.splitlines(), owner, algorithm) if optimizer else []
    lines = dict.fromkeys(found)
    return _headed("  where the defaults are not the paper's text:", [f"    {line}" for line in lines])


def _advice(names: list[str]) -> list[str]:
    known = [name for name in names if name in ADVICE]
    return [f"  use {name} when {ADVICE[name].use};\n    not when {ADVICE[name].avoid}" for name in known]


def _headed(head: str, lines: list[str]) -> list[str]:
    return [head, *lines] if lines else []


def _formulas(part: Rule | Capacity, algorithm: Algorithm) -> dict[str, str]:
    formulas = explained(part).formulas
    return formulas(part, algorithm) if callable(formulas) else formulas


def _lines(algorithm: Algorithm, place: str) -> list[str]:
    """What the capacity and the rules do at this place."""
    parts: list[Rule | Capacity] = list(algorithm.rules)
    if algorithm.capacity is not None:
        parts.insert(0, algorithm.capacity)
    boxes = [(_formulas(part, algorithm).get(place, "").splitlines(), _owner(part)) for part in parts]
    return [f"      {line}" for lines, owner in boxes for line in _apart(lines, owner, algorithm)]


def _owner(part: Rule | Capacity) -> str:
    """The name that a part's symbols get where another part has the same; guesses use those of the client optimizer."""
    return "client" if isinstance(part, Guess) else type(part).__name__.lower()


def _apart(lines: list[str], owner: str, algorithm: Algorithm) -> list[str]:
    """These lines of one part, with its name added to the symbols that another part of the algorithm has, too.

    >>> _apart(["c_i' = c_i - c"], "scaffold", recipes.algorithm("mime+scaffold"))
    ["c_scaffold_i' = c_scaffold_i - c_scaffold"]
    >>> _apart(["c_i' = c_i - c"], "scaffold", recipes.algorithm("scaffold"))
    ["c_i' = c_i - c"]
    """
    texts = {"client": _optimizer(algorithm.client, server=False), "server": _optimizer(algorithm.server, server=True)}
    texts |= {"pace": _staleness(algorithm.pace)}
    for rule in algorithm.rules:
        texts[_owner(rule)] = [*texts.get(_owner(rule), []), *_formulas(rule, algorithm).values()]
    for symbol in SYMBOLS:
        has = re.compile(rf"(?<![\w'])({symbol})(?=(_i)?(?!\w))")
        if sum(bool(has.search("\n".join(text))) for text in texts.values()) > 1:
            lines = [has.sub(rf"\1_{owner}", line) for line in lines]
    return lines


def _serve(algorithm: Algorithm) -> list[str]:
    """A line that replaces Delta comes last: all rules see the mean of what clients sent."""
    return sorted(_lines(algorithm, "serve"), key=lambda line: line.strip().startswith("Delta <-"))


def _optimizer(optimizer: Optimizer, server: bool) -> list[str]:
    """The optimizer's own lines; followed by the rate if the algorithm sets one."""
    entry = nearest(OPTIMIZERS_EXPLAINED, type(optimizer))
    if entry is None:
        return [f"      {'x' if server else 'y'} <- a step of {type(optimizer).__name__}"]
    name = "server_lr" if server else "lr"
    rate = "" if optimizer.lr is None or optimizer.finds_rate else f"        {name} = {optimizer.lr}"
    lines = [f"      {line}{rate if f' {name} ' in line else ''}" for line in entry.lines(optimizer, server)]
    return lines + [f"      {line}" for line in MATCHED[server].splitlines() if optimizer.lr == "match-gel"]


def _knobs(client: Optimizer) -> list[str]:
    clip = [f"      g <- g min(1, {client.clip:g} / ||g||)"] if client.clip is not None else []
    return clip + ([f"      g <- g + {client.weight_decay:g} y"] if client.weight_decay else [])


def _weighing(algorithm: Algorithm) -> str:
    kind = type(algorithm.weighing)
    formula = nearest(WEIGHTS_EXPLAINED, kind)
    return formula(algorithm.weighing) if formula else f"Delta = the mean of Delta_i, weighted by {kind.__name__}"


def _least(algorithm: Algorithm) -> list[str]:
    least = algorithm.weighing.least()
    return [f"      x stays as it is in a round with |S| < {least}"] if least > 1 else []


def _asynchrony(algorithm: Algorithm) -> list[str]:
    """How the server steps in an asynchronous run, and what its rules mean by a round."""
    out = _apart(_staleness(algorithm.pace), "pace", algorithm)
    for rule in algorithm.rules if out else ():
        notes = _apart([nearest(BUFFERED, type(rule)) or ""], _owner(rule), algorithm)
        out += [f"      {rule.slot}: {note}" for note in notes if note]
    return out


def _staleness(pace: Pace) -> list[str]:
    if not isinstance(pace, Buffered):
        return []
    a = pace.a if pace.a is not None else 0.5 if pace.staleness == "poly" else 10.0
    hinge = f"1 if tau <= {pace.b:g}, else 1 / ({a:g} (tau - {pace.b:g}) + 1)"
    factor = {"poly": f"(1 + tau)^-{a:g}", "hinge": hinge, "constant": "1"}[pace.staleness]
    out = [
        f"  asynchronous: {pace.inflight} clients are under way; a round is a server step, made when "
        + ("an update has arrived" if pace.buffer == 1 else f"{pace.buffer} updates have arrived"),
        f"      S the clients that arrived, C = {pace.buffer}/N;   tau_i server steps between dispatch and arrival",
        f"      Delta_i <- s(tau_i) Delta_i before the mean, whose weights stay;   s(tau) = {factor}",
    ]
    if pace.alpha is not None:
        out[2] = f"      Delta_i <- alpha s(tau_i) ((x_v + Delta_i) - x),   s(tau) = {factor}"
        out.append(f"      alpha = {pace.alpha:g},   x_v the model that client i received")
    return out


def _kept(algorithm: Algorithm, known: Algorithm) -> list[str]:
    """What is kept where; `known` has every value filled in."""
    x = torch.zeros(2)
    state = [name for name, value in known.server.init(x, torch.ones(())).items() if value.shape == x.shape]
    server, clients = ["x", *_apart(state, "server", algorithm)], []
    for rule in known.rules:
        entry, owner = explained(rule), _owner(rule)
        if entry.stateful(rule):
            server += [f"{name} ({rule.slot})" for name in _apart(list(entry.server), owner, algorithm)]
            clients += [f"{name} ({rule.slot})" for name in _apart(list(entry.client), owner, algorithm)]
    return [f"  kept on the server: {', '.join(server)}; on each client: {', '.join(clients) or 'nothing'}"]


def _traffic(algorithm: Algorithm) -> list[str]:
    """Measured in a real run on a toy task, so that it agrees with the history."""
    from .run.training import train

    if algorithm.capacity is not None:
        return ["  sent per client and round: its sub-model, down and up; the history counts the bytes of each level"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StabilityWarning)  # it would be about the toy
        run = train(toy(), algorithm, toy_world(), rounds=8, engine="serial")
    before, after = run.history[-2], run.history[-1]
    all_models = (after["clients"] + after["dropped"]) * run.params.nbytes
    down, up = ((after[key] - before[key]) / all_models for key in ("bytes_down", "bytes_up"))
    times = f"{(down + up) / 2:g}x FedAvg"
    notes = [entry.traffic for rule in algorithm.rules if (entry := explained(rule)).traffic and entry.stateful(rule)]
    return [
        f"  sent per client and round, in models: {down:g} down, {up:g} up ({times}, counted in a toy run)",
        *(f"    {note}" for note in notes),
    ]


def _keys(text: str) -> list[str]:
    """Every key in use with its value, ready to be typed; a key without a value is left out."""
    full = []
    for name, given in grammar.parse(text):
        keys = {**recipes.KNOWN[name].keys, **given}
        full.append((name, {key: value for key, value in keys.items() if value is not None}))
    return [f"  in full: {grammar.write(full)}", f"  keys of every algorithm: {', '.join(recipes.COMMON)}"]


def _references(names: list[str], algorithm: Algorithm) -> list[str]:
    """What to cite, in the order of the names, and then for parts that were chosen by a key."""
    cited: list[str] = []
    for name in names:
        alone = recipes.algorithm(name if name in recipes.RECIPES else f"fedavg+{name}")
        cited += [recipes.KNOWN[name].reference, *_cited(alone)]
    cited += _cited(algorithm)
    return [f"  cite: {line}" for line in dict.fromkeys("\n".join(filter(None, cited)).splitlines())]


def _cited(algorithm: Algorithm) -> list[str]:
    parts = [*algorithm.rules, algorithm.capacity, algorithm.client, algorithm.server]
    adaptive = [recipes.ADAPTIVE_SERVERS] if isinstance(algorithm.server, Adaptive) else []
    return [*(reference(type(part)) for part in parts), *adaptive]
