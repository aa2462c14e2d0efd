"""What is known against a part of an algorithm: the table REASONS of `legal.py`, keyed by class."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import rules
from .capacity import Exits
from .flat import halves, seeded
from .optim import SGD, SPS, Adagrad, Adam, DeltaSGD, Yogi
from .rule import Rule
from .tables import nearest

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .task import Task
    from .world import World

# A rule whose correction of the gradient does not vanish at x: Mime, around it, would subtract it again.
CORRECTS_AT_X = (rules.Scaffold, rules.FedCM, rules.FedADC, rules.MimeLite, rules.FedDyn, rules.AdaBest)

# Rules that move the model beside the optimizer's step.
PUSHES_MODEL = (rules.GHBM, rules.LocalGHBM, rules.FedHBM, rules.Guess)
NO_SCAFFOLD_WITH_GUESSES = (
    "SCAFFOLD and guesses with proxy=zero cannot be combined: such guesses need client momentum, and SCAFFOLD has "
    "none; use one of them."
)

Reason = Callable[..., str | None]


def nothing(*_: Any) -> None:
    """The entry of a part without refusals or warnings."""


@dataclass(frozen=True)
class Reasons:
    """What is known against a part: functions that give a reason, or None.

    refuses(part, algorithm): why it is refused. unfit(rule, algorithm, task, world): why it cannot work there.
    warns(rule, algorithm, participation, steps): a warning. numbers_only: its hooks keep and send no model vectors.
    sends: what its clients send beside the update and its server half uses, which would bypass a robust aggregation
    or a guard that clips updates. unbuffered: why an asynchronous pace is refused with it ("it ..."); rules that are
    allowed there are in BUFFERED.
    """

    refuses: Reason = nothing
    unfit: Reason = nothing
    warns: Reason = nothing
    numbers_only: bool = False
    sends: str | None = None
    unbuffered: str | None = None


def reasons(part: object) -> Reasons:
    """The entry of this part; an empty one for a part that has none."""
    return nearest(REASONS, type(part)) or Reasons()


def bypass(rule: Rule) -> str | None:
    """What clients send beside the update and the server uses: by the table, or by the hooks that a rule adds.

    >>> bypass(rules.Scaffold()), bypass(rules.FedCM())
    ('changes of control variates', None)
    """
    known: Any = next((kind for kind in type(rule).__mro__ if kind in REASONS), Rule)
    if known is not Rule and REASONS[known].sends:
        return REASONS[known].sends
    if type(rule).survey is not known.survey:
        return "answers to a survey"
    added = type(rule).finish is not known.finish
    return "what its `finish` gives" if added and rule.defines("serve") else None


def _needs_rate(why: str) -> Reason:
    """Refuse clients that find their own rate; `why` may name the rule and the client."""

    def refuse(rule: Rule, algorithm: Algorithm) -> str | None:
        rate = not algorithm.client.finds_rate
        return None if rate else why.format(rule=type(rule).__name__, client=type(algorithm.client).__name__)

    return refuse


def _plain_server(rule: Rule, algorithm: Algorithm) -> str | None:
    server = algorithm.server
    if isinstance(server, SGD) and server.lr == 1 and not server.momentum:
        return None
    return f"{type(rule).__name__} has a server step of its own; leave server_lr=1 and the plain server."


def _refuse_scaffold(rule: rules.Scaffold, algorithm: Algorithm) -> str | None:
    why = "reads gradients off the distance covered" if rule.by_distance else "is defined for plain SGD steps"
    if getattr(algorithm.client, "momentum", 0) and not _guesses_coast(algorithm):
        detail = "which momentum stretches" if rule.by_distance else "without momentum"
        return f"SCAFFOLD {why}, {detail}; give momentum=0."
    if isinstance(algorithm.client, Adam | Yogi | Adagrad):
        return f"SCAFFOLD {why}; use SGD clients (client=sgd)."
    if _guesses_coast(algorithm):
        return NO_SCAFFOLD_WITH_GUESSES
    place = next(i for i, other in enumerate(algorithm.rules) if other is rule)  # by identity, as in `_refuse_mime`
    for i, other in enumerate(algorithm.rules):
        in_gradient = rule.control == "gradient_mean" and i < place and _adds_momentum(other)
        if in_gradient or (rule.by_distance and (_adds_momentum(other) or isinstance(other, PUSHES_MODEL))):
            return (
                f"SCAFFOLD's control variates would count what {_name(other)} adds to local steps as gradients; use "
                f"{_apart_from_scaffold(other)}."
            )
    return None


def _adds_momentum(rule: Rule) -> bool:
    """Whether the rule adds a momentum over rounds to the gradient."""
    return isinstance(rule, rules.FedCM | rules.FedADC) or (
        isinstance(rule, rules.Mime | rules.MimeLite) and rule.beta != 0
    )


def _apart_from_scaffold(rule: Rule) -> str:
    """The combination with SCAFFOLD in which its control variates do not see what this rule adds."""
    if isinstance(rule, rules.Mime):  # it has to be first, so that a mean of gradients would see its momentum
        return f"{_name(rule)}+scaffold:option=1"
    keys = ":proxy=last,momentum=0" if isinstance(rule, rules.Guess) else ""
    return f"scaffold:control=gradient_mean+{_name(rule)}{keys}"


def _guesses_coast(algorithm: Algorithm) -> bool:
    """Whether guesses have no gradient, so that they need client momentum."""
    guesses = [rule for rule in algorithm.rules if isinstance(rule, rules.Guess)]
    return any(rule.proxy_for(algorithm.client) == "zero" for rule in guesses)


def _name(rule: Rule) -> str:
    """The name by which users know a rule: there are two for Mime and for MimeLite.

    >>> _name(rules.Guess()), _name(rules.Mime()), _name(rules.Mime(beta=0.0)), _name(rules.Scaffold())
    ('gel', 'mimemom', 'mime', 'scaffold')
    """
    if isinstance(rule, rules.Mime | rules.MimeLite):
        return f"{rule.slot}mom" if rule.beta else rule.slot
    return "gel" if isinstance(rule, rules.Guess) else rule.slot


def _refuse_mime(rule: rules.Mime, algorithm: Algorithm) -> str | None:
    for other in algorithm.rules:
        if other is rule:  # by identity: rules are compared by value
            return None
        if isinstance(other, CORRECTS_AT_X):
            return (
                f"Mime subtracts the gradient at x, which after {_name(other)} would contain its correction and cancel "
                f"it. Put {_name(rule)} first: use {_name(rule)}+{_name(other)}."
            )
    return None


def _refuse_guess(rule: rules.Guess, algorithm: Algorithm) -> str | None:
    client, name = algorithm.client, type(algorithm.client).__name__
    proxy = rule.proxy_for(client)
    if proxy == "last" and rule.steps == "inf":
        return "Infinitely many guesses with the last gradient never settle; use proxy=zero or a number of steps."
    if proxy == "last" and client.finds_rate:
        return f"{name} clients choose each step size by a new gradient, and a guess has none; use proxy=zero."
    if proxy == "zero" and any(isinstance(other, rules.Scaffold) for other in algorithm.rules):
        return NO_SCAFFOLD_WITH_GUESSES
    if proxy == "zero" and not client.coasts:
        return f"Guesses need momentum to coast on, and {name} clients have none here; give momentum=0.9."
    if rule.steps == "inf" and not isinstance(client, SGD):
        return f"Infinitely many guesses have a closed form for SGD with momentum, not for {name}; use a number."
    return None


def _refuse_distillation(rule: rules.SelfDistillation, algorithm: Algorithm) -> str | None:
    if isinstance(algorithm.capacity, Exits):
        return None
    return "Self-distillation is between early exits; use it with a capacity of exits, as scalefl does."


def _refuse_sps(client: SPS, algorithm: Algorithm) -> str | None:
    for rule in algorithm.rules:
        if (rule.defines("gradient") or rule.defines("objective")) and not rule.defines("penalty"):
            return (
                f"SPS divides the loss by the gradient's norm, and {rule.slot} changes the gradient by something "
                "that belongs to no loss; use client=sgd or client=deltasgd."
            )
    return None


def _refuse_guard(rule: rules.Guard, algorithm: Algorithm) -> str | None:
    for other in algorithm.rules:
        sent = bypass(other)
        if other.defines("survey"):
            return f"Clients of {other.slot} also send {sent}, which no guard sees; leave out the guard."
        if sent and rule.action == "clip":
            return (
                f"Clients of {other.slot} also send {sent}, which a guard does not clip; use guard:action=reject, "
                "which leaves out everything that a client sent."
            )
    return None


def _unfit_contrastive(rule: rules.Contrastive, algorithm: Algorithm, task: Task, world: World) -> str | None:
    module = seeded(0, task.model).eval()
    if task.data.inputs is not None:
        return "MOON cuts a model of one input into represent and classify, and this task's model has several inputs."
    cut = halves(module)
    if cut is not None and isinstance(cut[0], nn.Module) and not list(cut[0].parameters()):
        cut = None  # z would be the input itself, which is not trained
    if cut is None:
        lacks = [name for name in ("represent", "classify") if not callable(getattr(module, name, None))]
        return (
            f"MOON compares representations, and {type(module).__name__} has no {' and no '.join(lacks)}: give the "
            "model represent(x) -> z and classify(z) -> output, with forward(x) = classify(represent(x))."
        )
    represent, classify = cut
    x, like = task.data.x[:2], next(module.parameters())
    x = x.to(like) if x.is_floating_point() else x.to(like.device)
    with torch.no_grad():
        same = torch.allclose(module(x), classify(represent(x)))
    if same:
        return None
    return f"{type(module).__name__}.forward(x) is not classify(represent(x)), which MOON relies on."


def _unfit_fathom(rule: rules.Fathom, algorithm: Algorithm, task: Task, world: World) -> str | None:
    lr = algorithm.client.lr
    low, high = rule.bounds("lr")
    assert isinstance(lr, int | float)  # the caller has filled it in
    if low <= lr <= high:
        return None
    return f"The 'lr' parameter of {type(rule).__name__} must be in [lr_min, lr_max]. Got {lr!r} instead."


def _unfit_own_classes(rule: rules.OwnClasses, algorithm: Algorithm, task: Task, world: World) -> str | None:
    if not task.data.y.is_floating_point():
        return None
    return "A loss masked by class needs classes, and the targets are numbers; use heterofl:mask=false."


def _unfit_guess(rule: rules.Guess, algorithm: Algorithm, task: Task, world: World) -> str | None:
    if rule.steps != "remaining" or world.expected is not None or world.deadline is not None:
        return None
    if algorithm.capacity is not None:
        return None  # `Guess.resolve` fills in the number of GEL's paper
    return (
        "GEL guesses the steps that remain up to what the server expects, and that is not known: "
        "give expected_steps (--expected-steps), a uniform budget such as 4:13, or gel:steps=5."
    )


def _unfit_guard(rule: rules.Guard, algorithm: Algorithm, task: Task, world: World) -> str | None:
    floating = [name for name, value in seeded(0, task.model).named_buffers() if value.is_floating_point()]
    if not floating or algorithm.buffers == "server":
        return None
    return (
        f"A guard looks at the norm of updates, and the model's buffers ({floating[0]}) would bypass it; use "
        "buffers=server, or median, trimmed, krum or multikrum, which treat buffers as they treat updates."
    )


def _warn_ghbm(rule: rules.GHBM, algorithm: Algorithm, participation: float, steps: float) -> str | None:
    rate = algorithm.server.lr
    if not isinstance(rate, int | float) or rate * rule.beta < 1:
        return None
    return (
        f"GHBM with server_lr={rate:g} and beta={rule.beta:g}: the server's momentum is their product "
        f"{rate * rule.beta:g}, and flat directions grow from 1 on."
    )


def _warn_fedhbm(rule: rules.FedHBM, algorithm: Algorithm, participation: float, steps: float) -> str | None:
    s = participation if rule.scale == "participation" else 1.0
    k = math.expm1(steps * math.log1p(rule.beta * s / steps)) if math.isfinite(steps) else math.expm1(rule.beta * s)
    if k >= 1 and rule.scale == "elapsed":
        return (
            f"FedHBM with beta={rule.beta:g}, scale=elapsed: a client that takes part in two successive rounds has "
            f"s = 1 and k = (1 + beta s/J)^J - 1 = {k:.3f} >= 1, so its deviation from the others grows at such "
            f"a visit; use scale=participation, or beta={_calm(s, steps, 1.0):g} or less."
        )
    if k >= 1:
        both = participation / (1 - participation) if participation < 0.5 else 1.0  # k (1/C - 1) < 1, too
        return (
            f"FedHBM with beta={rule.beta:g}, s={s:g}: k = (1 + beta s/J)^J - 1 = {k:.3f} >= 1, so a client's "
            f"deviation from the others grows at every visit; use beta={_calm(s, steps, both):g} or less, or a "
            "smaller cohort."
        )
    cyclic = k * (1 / participation - 1)
    if cyclic >= 1 and rule.scale == "participation":
        calm = _calm(s, steps, participation / (1 - participation))
        return (
            f"FedHBM with beta={rule.beta:g}, C={participation:g}: k (1/C - 1) = {cyclic:.3f} >= 1 may diverge, with "
            f"k = (1 + beta C/J)^J - 1; use beta={calm:g} or less."
        )
    return None


def _calm(s: float, steps: float, k: float) -> float:
    """FedHBM's beta a little below the one with (1 + beta s/J)^J - 1 = k, in hundredths."""
    beta = (steps * math.expm1(math.log1p(k) / steps) if math.isfinite(steps) else math.log1p(k)) / s
    return max(0.0, math.ceil(100 * beta - 1) / 100)


ONE_RATE = _needs_rate(
    "{rule} divides by the clients' rate, and {client} clients each find their own; use SGD clients, or ghbm instead."
)
TUNES_RATE = _needs_rate("FATHOM tunes a rate that {client} clients find by themselves; use SGD clients.")
REASONS: dict[type, Reasons] = {
    SGD: Reasons(),
    Adam: Reasons(),
    Adagrad: Reasons(),
    Yogi: Reasons(),
    DeltaSGD: Reasons(),
    SPS: Reasons(_refuse_sps),
    rules.Proximal: Reasons(),
    rules.Guess: Reasons(_refuse_guess, _unfit_guess),
    rules.GHBM: Reasons(warns=_warn_ghbm),
    rules.LocalGHBM: Reasons(),
    rules.FedHBM: Reasons(warns=_warn_fedhbm),
    rules.FedCM: Reasons(ONE_RATE),
    rules.FedADC: Reasons(ONE_RATE),
    rules.Scaffold: Reasons(_refuse_scaffold, sends="changes of control variates"),
    rules.FedDyn: Reasons(_plain_server, sends="their updates to a plain mean"),
    rules.AdaBest: Reasons(_plain_server),
    rules.Mime: Reasons(
        _refuse_mime,
        sends="full gradients in a first exchange",
        unbuffered="asks the clients of a round for gradients before they train, and there is no such round",
    ),
    rules.MimeLite: Reasons(sends="full gradients"),
    rules.Contrastive: Reasons(unfit=_unfit_contrastive),
    rules.Fathom: Reasons(
        TUNES_RATE,
        _unfit_fathom,
        numbers_only=True,
        sends="cosines that set the next rate",
        unbuffered="compares the updates of successive plans, and updates of several plans arrive together",
    ),
    rules.Schedule: Reasons(_needs_rate("{client} clients find their own rate; leave out decay.")),
    rules.OwnClasses: Reasons(
        unfit=_unfit_own_classes,
        numbers_only=True,
        sends="which elements of their updates count",
        unbuffered="averages each element over the clients of a round that count for it",
    ),
    rules.SelfDistillation: Reasons(
        _refuse_distillation, unbuffered="is between early exits, of levels, which need rounds"
    ),
    rules.Guard: Reasons(_refuse_guard, _unfit_guard),
}
BUFFERED: dict[type[Rule], str] = {  # what a rule means by "round" in an asynchronous run, unless it is refused there
    rules.Proximal: "x is the model that the client received, however old it is by now",
    rules.Guess: "guesses fill up what the client was asked for when it was dispatched",
    rules.GHBM: "tau counts server steps, by default round(N / buffer); M is of the version that the client received",
    rules.LocalGHBM: "t and t_i are versions: the server steps before a client was dispatched; C = buffer / N",
    rules.FedHBM: "t and t_i are versions: the server steps before a client was dispatched; C = buffer / N",
    rules.FedCM: "D is the last server step before the client was dispatched, scaled by staleness as it was made",
    rules.FedADC: "m is that of the version the client received; the server adds Delta as scaled by staleness",
    rules.Scaffold: "c moves by the plain sum of the changes that arrived, not scaled by staleness, so that it stays "
    "the mean of c_i",
    rules.FedDyn: "h sums how far clients moved from the versions that they received, not scaled by staleness",
    rules.AdaBest: "t and t_i are versions; avg is x plus the scaled Delta, although clients moved from older versions",
    rules.MimeLite: "m is that of the version the client received; full gradients count by staleness, like Delta",
    rules.Contrastive: "the received model is the version that the client was dispatched with",
    rules.Schedule: "t and R count server steps",
    rules.Guard: "norms are of updates as they are scaled by staleness; medians are of those that arrived together",
}
