"""What tables, figures and pages say about their numbers: in one place, so that all of them say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

from ...tasks import TASKS
from ..stats import Arm

WHOLE = "on the test set"
CLIENT_HEADS = {"client_accuracy": "clients", "client_accuracy_worst": "worst tenth"}
CLIENTS_ARE = "Accuracies are means over seeds, on the client's own test rows; the lowest client comes first."
COST_BOUND = "'>' marks means in which seeds that did not reach the target count with their whole run"


def listed(words: Iterable[str]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    names = list(words)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def tested(arms: Sequence[Arm]) -> str:
    """Which test samples the arms are measured on.

    >>> tested([Arm("a", None, [], [], config={"eval_samples": 2000})])
    'on a fixed draw of 2,000 test samples'
    """
    kinds = list(dict.fromkeys(_tested(arm.config) for arm in arms))
    return kinds[0] if len(kinds) == 1 else "on test samples that differ between the algorithms"


def _tested(config: Mapping[str, Any]) -> str:
    wanted = config.get("eval_samples")
    whole = wanted is None or config.get("tested", {}).get("samples", wanted) < wanted  # there are not so many
    return WHOLE if whole else f"on a fixed draw of {wanted:,} test samples"


def measured(arms: Sequence[Arm], metric: str) -> str:
    """On which samples the numbers that the arms are judged by were measured."""
    if metric == "train_loss":
        return "Losses are those of training, since there are no test samples"
    return f"{'Accuracies' if metric == 'accuracy' else 'Losses'} are {tested(arms)}"


def base_of(arms: Sequence[Arm]) -> tuple[str, float] | None:
    """The most frequent training label, and what always predicting it would score; None where that is not known."""
    known = arms[0].config.get("tested", {})
    return (str(known["base_label"])[:40], known["base_rate"]) if "base_rate" in known else None


def base_rate(arms: Sequence[Arm]) -> list[str]:
    """What a model would score that looks at no input, as far as the configuration knows it."""
    if (base := base_of(arms)) is None:
        return []
    label, score = base
    return [f"Always predicting the most frequent training label ({label}) would score {score:.4f} on the same samples"]


def worst_tenth(arms: Sequence[Arm]) -> str:
    """How many clients the worst tenth is.

    >>> worst_tenth([Arm("a", None, [], [], config={"tested": {"clients": 12}})])
    'the worst tenth (1 of 12 clients)'
    """
    clients = arms[0].config.get("tested", {}).get("clients")
    return "the worst tenth" + ("" if clients is None else f" ({max(1, clients // 10):,} of {clients:,} clients)")


def has_clients(arms: Sequence[Arm]) -> bool:
    """Whether some arm was tested on each client's own samples."""
    return any(arm.mean_last("client_accuracy") is not None for arm in arms)


def by_client(arms: Sequence[Arm]) -> list[str]:
    """What the columns about clients are, where the table has them."""
    if not has_clients(arms):
        return []
    each = ", in each seed by itself," if len(arms[0].histories) > 1 else ","
    own = f"means over all clients, and over {worst_tenth(arms)}{each} on their own test samples"
    return [f"'clients' and 'worst tenth' are {own}; fedkeel compare DIR --clients lists every client by name"]


def same_rows(arms: Sequence[Arm]) -> list[str]:
    """That seeds do not change which samples are held out, where a share was drawn and intervals might be read so."""
    config = arms[0].config
    if not config.get("tested", {}).get("drawn") or len(arms[0].finals) < 2:
        return []
    name = str(config["task"]).partition(":")[0]
    named = name in TASKS and "seed" in signature(TASKS[name]).parameters
    other = f"another seed of the task, such as {name}:...,seed=1" if named else "another seed of held_out or from_csv"
    same = "± is over seeds of the training, which are all tested on the same held-out samples"
    return [f"{same}; to draw others, give {other}"]


def cut_short(arms: Sequence[Arm]) -> list[str]:
    """How many clients a deadline cuts short; those that do some of their steps are neither late nor lost."""
    config = arms[0].config
    if "cut" not in config:
        return []
    limit = f"The deadline of {config['deadline_seconds']:.4g} simulated seconds"
    share = f"{100 * config['cut']:.0f} % of all clients from doing all steps of FedAvg's round"
    return [f"{limit} keeps {share} (devices of seed {config['seed']})"]


def bounds(arms: Sequence[Arm]) -> list[str]:
    """What '>' and '<' mean, where the table has them."""
    seeds, said = len(arms[0].histories), []
    if any(0 < arm.missed < seeds for arm in arms):
        said.append(COST_BOUND)
    gains = [arm.speedup(arms[0]) for arm in arms[1:]]
    if any(gain.less_than is not None for gain in gains):
        said.append("'<' before a speed-up is an upper bound, because seeds of that algorithm missed the target")
    if any(gain.more_than is not None for gain in gains):
        said.append(f"'>' before a speed-up is a lower bound, because seeds of {arms[0].name} missed the target")
    return said


def momentum(arms: Sequence[Arm]) -> list[str]:
    """The client momentum of all arms, where one that guesses (GEL) has some and one that does not has another.

    +gel gives clients momentum, so such arms differ in more than the guesses; labels of arms say nothing about it.
    """
    known = {arm.name: found for arm in arms if (found := _momentum(arm)) is not None}
    guess = {arm.name for arm in arms if any(r.get("name") == "guess" for r in _parameters(arm).get("rules", []))}
    brought = {value for name, value in known.items() if name in guess and value}
    if not any(value != other for value in brought for name, other in known.items() if name not in guess):
        return []
    parts: list[str] = []
    for value in sorted(set(known.values()), reverse=True):
        names = [name for name, own in known.items() if own == value]
        what = "none" if not value else f"client momentum {value:g}" if not parts else f"{value:g}"
        parts.append(f"{listed(names)} {'has' if len(names) == 1 else 'have'} {what}")
    return [", ".join(parts)]


def not_begun(arms: Sequence[Arm]) -> list[str]:
    """Arms whose GHBM had no momentum in any round: with warmup=zero it begins after tau of them."""
    said = []
    for arm in arms:
        rounds = max((history[-1]["round"] for history in arm.histories if history), default=0)
        for rule in _parameters(arm).get("rules", []):
            if rule.get("name") == "ghbm" and rule.get("warmup") == "zero" and rounds <= rule["tau"]:
                said.append(f"{arm.name} is FedAvg so far: GHBM's momentum begins after tau = {rule['tau']} rounds")
    return said


def _parameters(arm: Arm) -> Mapping[str, Any]:
    found: Mapping[str, Any] = arm.config.get("parameters", {})
    return found


def _momentum(arm: Arm) -> float | None:
    """Of the clients' SGD; None of other optimizers."""
    found: float | None = _parameters(arm).get("client", {}).get("momentum")
    return found


def notes(arms: Sequence[Arm], metric: str) -> list[str]:
    """Sentences below a table: where its numbers come from, and what its marks mean."""
    where = [] if metric == "train_loss" else [measured(arms, metric)]
    base = base_rate(arms) if metric == "accuracy" else []
    return [f"{text}." for text in (*where, *base, *marks(arms))]


def marks(arms: Sequence[Arm]) -> list[str]:
    """What stands below every table: the meaning of its marks and columns, and what an arm's name does not say."""
    return [*bounds(arms), *same_rows(arms), *by_client(arms), *cut_short(arms), *momentum(arms), *not_begun(arms)]
