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

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import rules
from .errors import InputError
from .pace import Buffered
from .reasons import REASONS, Reasons, bypass, reasons
from .rule import Rule

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .task import Task
    from .world import World

__all__ = [
    "ONCE", "REASONS", "REPLACES_DELTA", "Reasons", "bypass", "check_fit", "needs_whole_model", "refuse_illegal",
    "warnings_of",
]  # fmt: skip

REPLACES_DELTA = (rules.FedDyn, rules.AdaBest, rules.FedADC)  # rules whose `serve` returns another Delta
ONCE: dict[str, Callable[[Rule], bool]] = {  # what one rule of an algorithm may do
    "replace the server's update": lambda rule: isinstance(rule, REPLACES_DELTA),
    "choose the elements that count": lambda rule: isinstance(rule, rules.OwnClasses),
    "set the rate of a round": lambda rule: rule.defines("plan"),
    "choose the model to evaluate": lambda rule: rule.defines("models"),
    "screen the updates": lambda rule: rule.defines("screen"),
}

VECTOR_HOOKS = ("remember", "survey", "send", "finish", "models")  # hooks that keep or send vectors of the model


def refuse_illegal(algorithm: Algorithm) -> None:
    """Raise an error that says why these parts do not go together, and what to use instead.

    >>> from fedkeel import SGD, Algorithm
    >>> refuse_illegal(Algorithm(client=SGD(momentum=0.9), rules=[rules.Guess()]))
    >>> refuse_illegal(Algorithm(rules=[rules.Guess()]))
    Traceback (most recent call last):
    fedkeel.errors.InputError: Guesses need momentum to coast on, and SGD clients have none here; give momentum=0.9.
    """
    _refuse_repetition(algorithm)
    _refuse_bent_updates(algorithm)
    _refuse_whole_models(algorithm)
    _refuse_bypasses(algorithm)
    _refuse_asynchrony(algorithm)
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
    >>> print(*warnings_of(Algorithm(rules=[rules.FedHBM()]), participation=1.0, steps=8))  # doctest: +ELLIPSIS
    FedHBM with beta=1, s=1: k = (1 + beta s/J)^J - 1 = 1.566 >= 1, ...; use beta=0.72 or less, or a smaller cohort.
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
            "does not give; use weights=samples or weights=uniform instead."
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
                f"Clients of {rule.slot} also send {sent}, which a bad client could use to bypass {name}; "
                f"use {name} with an algorithm that reads updates alone, such as fedavgm, fedprox or ghbm."
            )


def _refuse_asynchrony(algorithm: Algorithm) -> None:
    if not isinstance(algorithm.pace, Buffered):
        return
    if algorithm.capacity is not None:
        raise InputError(
            "Levels average each element over the clients of a round that train it, which is not tested for an "
            "asynchronous pace; use heterofl, scalefl and level= without it."
        )
    for rule in algorithm.rules:
        why = reasons(rule).unbuffered
        if why is None and rule.defines("survey"):
            why = "asks the clients of a round before they train, and an asynchronous run has no such round"
        if why is None and algorithm.pace.alpha is not None and isinstance(rule, REPLACES_DELTA):
            why = "replaces the server's update, which FedAsync mixes models by; use buffered without alpha"
        if why is not None:
            raise InputError(f"An asynchronous pace is refused with {rule.slot}: it {why}.")


def _refuse_small_cohorts(algorithm: Algorithm, task: Task, world: World) -> None:
    size, weights, where = world.largest(len(task.data)), algorithm.weighing, "cohort"
    if isinstance(algorithm.pace, Buffered):
        size, where = algorithm.pace.buffer, "buffer"
        if world.sampler != "uniform":
            raise InputError(f"An asynchronous run draws its clients uniformly; leave out sampler={world.sampler}.")
    if size < weights.least():
        raise InputError(
            f"{type(weights).__name__.lower()} needs at least {weights.least()} clients in a round, and the {where} "
            f"has {size}; give a larger {where}."
        )
    if size < world.min_clients:
        raise InputError(
            f"With min_clients={world.min_clients} no round would make a server step, because the {where} has {size}; "
            f"give a larger {where} or a smaller min_clients."
        )
