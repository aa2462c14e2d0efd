"""Which parts can be combined: refusals with reasons, and warnings about legal settings known to misbehave.

refuse_illegal   when an algorithm is put together
check_fit        when its task and world are known
warnings_of      before it runs

Parts hold formulas only; these tables, keyed by class, hold the reasons. Each of our parts has an entry, so none is
forgotten. A subclass inherits its nearest ancestor's, and a user's own rule may get one:

    fedkeel.legal.REFUSES[MyRule] = lambda rule, algorithm: "Use SGD clients." if ... else None

`algorithm.py` imports this module when the first algorithm is made, because every rule is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import rules
from .capacity import Exits
from .errors import InputError
from .flat import halves, seeded
from .optim import SGD, SPS, Adagrad, Adam, DeltaSGD, Yogi
from .tables import nearest

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .rule import Rule
    from .task import Task
    from .world import World

REPLACES_DELTA = (rules.FedDyn, rules.AdaBest, rules.FedADC)  # rules whose `serve` returns another Delta
GIVES_COVER = (rules.OwnClasses,)  # rules whose `finish` says which elements of an update count
ONCE_BY_CLASS = {  # what one rule of an algorithm may do, and the rules that do it
    "replace the server's update": REPLACES_DELTA,
    "choose the elements that count": GIVES_COVER,
}
ONCE_BY_HOOK = {  # the same, for actions that a hook implies
    "set the rate of a round": "plan",
    "choose the model to evaluate": "models",
}

# A rule whose correction of the gradient does not vanish at x: Mime, around it, would subtract it again.
CORRECTS_AT_X = (rules.Scaffold, rules.FedCM, rules.FedADC, rules.MimeLite, rules.FedDyn, rules.AdaBest)

VECTOR_HOOKS = ("remember", "survey", "send", "finish", "models")  # hooks that keep or send vectors of the model
NEEDS_WHOLE_MODEL: dict[type, bool] = {  # whether a rule keeps or sends such vectors, which sub-models do not have
    rules.Scaffold: True,
    rules.FedDyn: True,
    rules.AdaBest: True,
    rules.Mime: True,
    rules.MimeLite: True,
    rules.FedCM: True,
    rules.FedADC: True,
    rules.GHBM: True,
    rules.LocalGHBM: True,
    rules.FedHBM: True,
    rules.Contrastive: True,
    rules.Proximal: False,
    rules.Guess: False,
    rules.Schedule: False,
    rules.SelfDistillation: False,
    rules.Fathom: False,  # clients receive and send numbers
    rules.OwnClasses: False,  # its `finish` says which elements count, which each level knows of itself
}


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
    for part in (algorithm.client, *algorithm.rules):
        refusal = nearest(REFUSES, type(part))
        if refusal and (why := refusal(part, algorithm)):
            raise InputError(why)


def check_fit(algorithm: Algorithm, task: Task, world: World) -> None:
    """Raise an error that says why the algorithm, its clients' rate filled in, cannot work on this task or world."""
    for rule in algorithm.rules:
        unfit = nearest(UNFIT, type(rule))
        if unfit and (why := unfit(rule, algorithm, task, world)):
            raise InputError(why)


def warnings_of(algorithm: Algorithm, participation: float, steps: float) -> list[str]:
    """Warnings about settings known to misbehave. steps: a client's largest budget; infinity if it is not known.

    >>> from fedkeel import Algorithm
    >>> warnings_of(Algorithm(rules=[rules.FedHBM()]), participation=1.0, steps=8)
    ['FedHBM with beta=1, s=1: k=1.566 >= 1, so deviations grow at every visit.']
    """
    found = []
    for rule in algorithm.rules:
        warning = nearest(WARNS, type(rule))
        if warning and (text := warning(rule, algorithm, participation, steps)):
            found.append(text)
    return found


def _refuse_repetition(algorithm: Algorithm) -> None:
    slots = [rule.slot for rule in algorithm.rules]
    for slot in slots:
        if slots.count(slot) > 1:
            raise InputError(f"'{slot}' appears twice in one algorithm; each rule may be used once.")
    for does, kinds in ONCE_BY_CLASS.items():
        _refuse_several(does, [rule for rule in algorithm.rules if isinstance(rule, kinds)])
    for does, hook in ONCE_BY_HOOK.items():
        _refuse_several(does, algorithm.hooks[hook])


def _refuse_several(does: str, several: Sequence[Rule]) -> None:
    if len(several) > 1:
        raise InputError(f"{' and '.join(rule.slot for rule in several)} each {does}; use one of them.")


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
    for rule in algorithm.rules:
        if needs_whole_model(rule):
            raise InputError(
                f"{rule.slot} keeps or sends vectors of the whole model, which clients that train a part of it "
                "have no rule for; use it without levels, or use fedprox, gel or a server optimizer with them."
            )


def needs_whole_model(rule: Rule) -> bool:
    """Whether the rule keeps or sends vectors of the whole model: by the table, or by the hooks that it adds.

    >>> needs_whole_model(rules.Scaffold()), needs_whole_model(rules.Fathom())
    (True, False)
    """
    known = next((kind for kind in type(rule).__mro__ if kind in NEEDS_WHOLE_MODEL), None)
    if known is None:
        return any(map(rule.defines, VECTOR_HOOKS))
    adds = any(getattr(type(rule), hook) is not getattr(known, hook) for hook in VECTOR_HOOKS)
    return NEEDS_WHOLE_MODEL[known] or adds


def nothing(*_: Any) -> None:
    """The entry of a part without refusals or warnings."""


def _plain_server(rule: Rule, algorithm: Algorithm) -> str | None:
    server = algorithm.server
    if isinstance(server, SGD) and server.lr == 1 and not server.momentum:
        return None
    return f"{type(rule).__name__} has a server step of its own; leave server_lr=1 and the plain server."


def _one_rate(rule: Rule, algorithm: Algorithm) -> str | None:
    if not algorithm.client.finds_rate:
        return None
    name, client = type(rule).__name__, type(algorithm.client).__name__
    return f"{name} divides by the clients' rate, and {client} clients each find their own; use sgd, or ghbm."


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


def _refuse_fathom(rule: rules.Fathom, algorithm: Algorithm) -> str | None:
    if algorithm.client.finds_rate:
        return f"FATHOM tunes a rate that {type(algorithm.client).__name__} clients find by themselves; use sgd."
    return None


def _refuse_schedule(rule: rules.Schedule, algorithm: Algorithm) -> str | None:
    name = type(algorithm.client).__name__
    return f"{name} clients find their own rate; leave out decay." if algorithm.client.finds_rate else None


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


REFUSES: dict[type, Callable[[Any, Algorithm], str | None]] = {
    SGD: nothing,
    Adam: nothing,
    Adagrad: nothing,
    Yogi: nothing,
    DeltaSGD: nothing,
    SPS: _refuse_sps,
    rules.Proximal: nothing,
    rules.Guess: _refuse_guess,
    rules.GHBM: nothing,
    rules.LocalGHBM: nothing,
    rules.FedHBM: nothing,
    rules.FedCM: _one_rate,
    rules.FedADC: _one_rate,
    rules.Scaffold: _refuse_scaffold,
    rules.FedDyn: _plain_server,
    rules.AdaBest: _plain_server,
    rules.Mime: _refuse_mime,
    rules.MimeLite: nothing,
    rules.Contrastive: nothing,
    rules.Fathom: _refuse_fathom,
    rules.Schedule: _refuse_schedule,
    rules.OwnClasses: nothing,
    rules.SelfDistillation: _refuse_distillation,
}


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


UNFIT: dict[type, Callable[[Any, Algorithm, Task, World], str | None]] = {
    rules.Guess: _unfit_guess,
    rules.Contrastive: _unfit_contrastive,
    rules.Fathom: _unfit_fathom,
    rules.OwnClasses: _unfit_own_classes,
    **dict.fromkeys(
        (
            rules.Proximal,
            rules.GHBM,
            rules.LocalGHBM,
            rules.FedHBM,
            rules.FedCM,
            rules.FedADC,
            rules.Scaffold,
            rules.FedDyn,
            rules.AdaBest,
        ),
        nothing,
    ),
    **dict.fromkeys((rules.Mime, rules.MimeLite, rules.Schedule, rules.SelfDistillation), nothing),
}


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


WARNS: dict[type, Callable[[Any, Algorithm, float, float], str | None]] = {
    rules.GHBM: _warn_ghbm,
    rules.FedHBM: _warn_fedhbm,
    **dict.fromkeys(
        (
            rules.Proximal,
            rules.Guess,
            rules.LocalGHBM,
            rules.FedCM,
            rules.FedADC,
            rules.Scaffold,
            rules.FedDyn,
            rules.AdaBest,
            rules.Mime,
            rules.MimeLite,
        ),
        nothing,
    ),
    **dict.fromkeys(
        (rules.Contrastive, rules.Fathom, rules.Schedule, rules.OwnClasses, rules.SelfDistillation), nothing
    ),
}
