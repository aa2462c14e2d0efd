"""Which parts can be combined: refusals with reasons, and warnings about legal settings known to misbehave.

refuse_illegal   when an algorithm is put together
check_fit        when its task and world are known
warnings_of      before it runs

Parts hold formulas only; the table REASONS, keyed by class, holds the reasons. Each of our parts has an entry, so none
is forgotten. A subclass inherits its nearest ancestor's, and a user's own rule may get one:

    fedkeel.legal.REASONS[MyRule] = Reasons(refuses=lambda rule, algorithm: "Use SGD clients." if ... else None)

`algorithm.py` imports this module when the first algorithm is made, because every rule is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import rules
from .capacity import Exits
from .errors import InputError
from .flat import halves, seeded
from .optim import SGD, SPS, Adagrad, Adam, DeltaSGD, Yogi
from .rule import Rule
from .tables import nearest

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .task import Task
    from .world import World

REPLACES_DELTA = (rules.FedDyn, rules.AdaBest, rules.FedADC)  # rules whose `serve` returns another Delta
ONCE: dict[str, Callable[[Rule], bool]] = {  # what one rule of an algorithm may do
    "replace the server's update": lambda rule: isinstance(rule, REPLACES_DELTA),
    "choose the elements that count": lambda rule: isinstance(rule, rules.OwnClasses),
    "set the rate of a round": lambda rule: rule.defines("plan"),
    "choose the model to evaluate": lambda rule: rule.defines("models"),
    "screen the updates": lambda rule: rule.defines("screen"),
}

# A rule whose correction of the gradient does not vanish at x: Mime, around it, would subtract it again.
CORRECTS_AT_X = (rules.Scaffold, rules.FedCM, rules.FedADC, rules.MimeLite, rules.FedDyn, rules.AdaBest)

VECTOR_HOOKS = ("remember", "survey", "send", "finish", "models")  # hooks that keep or send vectors of the model


def refuse_illegal(algorithm: Algorithm) -> None:
    """Raise an error that says why these parts do not go together, and what to use instead.

    >>> from fedkeel import Algorithm
    >>> refuse_illegal(Algorithm(client=SGD(momentum=0.9), rules=[rules.Guess()]))
    >>> refuse_illegal(Algorithm(rules=[rules.Guess()]))
    Traceback (most recent call last):
    fedkeel.errors.InputError: Guesses need momentum to coast on, and SGD clients have none here; give momentum=0.9.
    """
    _refuse_repetition(algorithm)
    _refuse_bent_updates(algorithm)
    _refuse_whole_models(algorithm)
    _refuse_bypasses(algorithm)
    for part in (algorithm.client, *algorithm.rules):
        if why := reasons(part).refuses(part, algorithm):
            raise InputError(why)


def check_fit(algorithm: Algorithm, task: Task, world: World) -> None:
    """Raise an error that says why the algorithm, its clients' rate filled in, cannot work on this task or world."""
    _refuse_small_cohorts(algorithm, task, world)
    for rule in algorithm.rules:
        if why := reasons(rule).unfit(rule, algorithm, task, world):
            raise InputError(why)


def warnings_of(algorithm: Algorithm, participation: float, steps: float) -> list[str]:
    """Warnings about settings known to misbehave. steps: a client's largest budget; infinity if it is not known.

    >>> from fedkeel import Algorithm
    >>> warnings_of(Algorithm(rules=[rules.FedHBM()]), participation=1.0, steps=8)
    ['FedHBM with beta=1, s=1: k=1.566 >= 1, so deviations grow at every visit.']
    """
    found = [reasons(rule).warns(rule, algorithm, participation, steps) for rule in algorithm.rules]
    return [text for text in found if text]


def _refuse_repetition(algorithm: Algorithm) -> None:
    slots = [rule.slot for rule in algorithm.rules]
    for slot in slots:
        if slots.count(slot) > 1:
            raise InputError(f"'{slot}' appears twice in one algorithm; each rule may be used once.")
    for does, applies in ONCE.items():
        several = [rule.slot for rule in algorithm.rules if applies(rule)]
        if len(several) > 1:
            raise InputError(f"{' and '.join(several)} each {does}; use one of them.")


def _refuse_bent_updates(algorithm: Algorithm) -> None:
    if not algorithm.weighing.needs_norm:
        return
    bent = [rule.slot for rule in algorithm.rules if not rule.linear]
    if not algorithm.client.linear:
        bent.append(type(algorithm.client).__name__)
    if bent:
        raise InputError(
            f"FedNova's weights need updates that are a fixed combination of gradients, which {bent[0]} "
            "does not give; use weights=samples or weights=uniform."
        )


def _refuse_whole_models(algorithm: Algorithm) -> None:
    if algorithm.capacity is None:
        return
    if algorithm.weighing.stacks:
        raise InputError(
            f"{type(algorithm.weighing).__name__} compares the updates of all clients, and clients that train parts of "
            "the model have updates of different size; use weights=samples or weights=uniform with levels."
        )
    for rule in algorithm.hooks["screen"]:
        raise InputError(
            f"{rule.slot} compares the updates of all clients, and clients that train parts of the model have updates "
            "of different size; use it without levels."
        )
    for rule in algorithm.rules:
        if needs_whole_model(rule):
            raise InputError(
                f"{rule.slot} keeps or sends vectors of the whole model, which clients that train a part of it "
                "have no rule for; use it without levels, or use fedprox, gel or a server optimizer with them."
            )


def needs_whole_model(rule: Rule) -> bool:
    """Whether the rule keeps or sends vectors of the whole model: by its hooks, unless these send numbers only.

    >>> needs_whole_model(rules.Scaffold()), needs_whole_model(rules.Fathom())
    (True, False)
    """
    base = next((kind for kind in type(rule).__mro__ if kind in REASONS and REASONS[kind].numbers_only), Rule)
    return any(getattr(type(rule), hook) is not getattr(base, hook) for hook in VECTOR_HOOKS)


def _refuse_bypasses(algorithm: Algorithm) -> None:
    if not algorithm.weighing.robust:
        return
    name = type(algorithm.weighing).__name__.lower()
    for rule in algorithm.rules:
        if sent := bypass(rule):
            raise InputError(
                f"Clients of {rule.slot} also send {sent}, which a bad client could use to get around the {name}; "
                f"use {name} with an algorithm that reads updates alone, such as fedavgm, fedprox or ghbm."
            )


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


def _refuse_small_cohorts(algorithm: Algorithm, task: Task, world: World) -> None:
    size, weights = world.largest(len(task.data)), algorithm.weighing
    if size < weights.least():
        raise InputError(
            f"{weights} needs at least {weights.least()} clients in a round, and the cohort has {size}; "
            "give a larger cohort."
        )
    if size < world.min_clients:
        raise InputError(
            f"With min_clients={world.min_clients} no round would make a server step, because the cohort has {size}; "
            "give a larger cohort or a smaller min_clients."
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
    or a guard that clips updates.
    """

    refuses: Reason = nothing
    unfit: Reason = nothing
    warns: Reason = nothing
    numbers_only: bool = False
    sends: str | None = None


def reasons(part: object) -> Reasons:
    """The entry of this part; an empty one for a part that has none."""
    return nearest(REASONS, type(part)) or Reasons()


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
    client = algorithm.client
    if getattr(client, "momentum", 0):
        return "SCAFFOLD reads gradients off the distance covered, which momentum stretches; give momentum=0."
    if isinstance(client, Adam | Yogi | Adagrad):
        return "SCAFFOLD reads gradients off the distance covered; use SGD clients (client=sgd)."
    return None


def _refuse_mime(rule: rules.Mime, algorithm: Algorithm) -> str | None:
    for other in algorithm.rules:
        if other is rule:  # by identity: rules are compared by value
            return None
        if isinstance(other, CORRECTS_AT_X):
            return (
                f"Mime subtracts the gradient at x, which after {other.slot} would contain {other.slot}'s correction "
                f"and cancel it. Put mime first: use mime+{other.slot}."
            )
    return None


def _refuse_guess(rule: rules.Guess, algorithm: Algorithm) -> str | None:
    client, name = algorithm.client, type(algorithm.client).__name__
    proxy = rule.proxy_for(client)
    if proxy == "last" and rule.steps == "inf":
        return "Infinitely many guesses with the last gradient never settle; use proxy=zero or a number of steps."
    if proxy == "last" and client.finds_rate:
        return f"{name} clients choose each step size by a new gradient, and a guess has none; use proxy=zero."
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
    if rule.steps != "remaining" or world.expected is not None:
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
    if k >= 1:
        return f"FedHBM with beta={rule.beta:g}, s={s:g}: k={k:.3f} >= 1, so deviations grow at every visit."
    cyclic = k * (1 / participation - 1)
    if cyclic >= 1 and rule.scale == "participation":
        return f"FedHBM with beta={rule.beta:g}, C={participation:g}: k (1/C - 1) = {cyclic:.3f} >= 1 may diverge."
    return None


ONE_RATE = _needs_rate(
    "{rule} divides by the clients' rate, and {client} clients each find their own; use sgd, or ghbm."
)
TUNES_RATE = _needs_rate("FATHOM tunes a rate that {client} clients find by themselves; use sgd.")
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
    rules.Mime: Reasons(_refuse_mime, sends="full gradients in a first exchange"),
    rules.MimeLite: Reasons(sends="full gradients"),
    rules.Contrastive: Reasons(unfit=_unfit_contrastive),
    rules.Fathom: Reasons(TUNES_RATE, _unfit_fathom, numbers_only=True, sends="cosines that set the next rate"),
    rules.Schedule: Reasons(_needs_rate("{client} clients find their own rate; leave out decay.")),
    rules.OwnClasses: Reasons(
        unfit=_unfit_own_classes, numbers_only=True, sends="which elements of their updates count"
    ),
    rules.SelfDistillation: Reasons(_refuse_distillation),
    rules.Guard: Reasons(_refuse_guard, _unfit_guard),
}
