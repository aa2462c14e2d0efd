"""Partitions of one data set among clients.

Every function takes one value per sample (a label, or an id for `natural`) and gives one client number per
sample: an exact cover, in bounded time, with no client empty. The one exception is `dirichlet_repeated`, whose paper
draws with replacement: it gives a list of sample indices per client. All are functions of their seed.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import draws
from ..errors import InputError, check
from ..ranges import CLIENTS, COEFFICIENT, COUNT, REPEATS, SEED, check_memory
from ..world import Ints

Floats = NDArray[np.float64]


def natural(ids: ArrayLike) -> Ints:
    """The clients the data came with, numbered by sorted id.

    >>> natural(["wan", "ada", "wan"]).tolist()
    [1, 0, 1]
    """
    _, owner = np.unique(_column(ids, "ids"), return_inverse=True)
    return owner.astype(np.int64)


def iid(labels: ArrayLike, clients: int, seed: int = 0) -> Ints:
    """The same mixture for every client: shuffle, then cut into sizes that differ by at most one.

    >>> np.bincount(iid([0, 1] * 5, clients=4)).tolist()
    [3, 3, 2, 2]
    """
    owner, _ = _start("iid", labels, clients, seed)
    sizes = _even(len(owner), clients)
    return draws.generator(seed, "iid").permutation(np.repeat(np.arange(clients), sizes))


def shards(labels: ArrayLike, clients: int, per_client: int = 2, seed: int = 0) -> Ints:
    """Sort by label, cut into `clients * per_client` contiguous shards, deal them out at random (McMahan et al. 2017).

    A client sees at most `per_client` labels when no shard straddles two, that is when the shard size divides the
    number of samples of every label; shard sizes differ by at most one.

    >>> labels = np.repeat([0, 1, 2, 3], 6)
    >>> owner = shards(labels, clients=4)
    >>> [len(set(labels[owner == c])) <= 2 for c in range(4)], np.bincount(owner).tolist()
    ([True, True, True, True], [6, 6, 6, 6])
    """
    check(per_client in COUNT, "shards", "per_client", str(COUNT), per_client)
    classes, _ = _start("shards", labels, clients, seed, per_client)
    generator, count = draws.generator(seed, "shards"), clients * per_client
    mixed = generator.permutation(len(classes))  # randomises which samples of a label share a shard
    by_label = mixed[np.argsort(classes[mixed], kind="stable")]
    holder = generator.permutation(np.repeat(np.arange(clients), per_client))
    owner = np.empty(len(classes), dtype=np.int64)
    owner[by_label] = np.repeat(holder, _even(len(classes), count))
    return owner


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Ints:
    """A mixture of labels of its own for every client, all of the same size (Hsu, Qi & Brown 2019, arXiv 1909.06335).

        q_i ~ Dir(alpha p),   p the label shares of the data;   client i draws n/N samples by q_i, without replacement

    A label that has run out leaves the mixture, and the rest is scaled up. `alpha=0` is one label per client, as sorted
    contiguous shards of n/N; a large alpha is close to IID, but the last clients take what is left. Sizes differ by at
    most one.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> owner = dirichlet(labels, clients=20, alpha=0)
    >>> {len(set(labels[owner == c])) for c in range(20)}
    {1}
    >>> np.bincount(dirichlet(labels, clients=20, alpha=0.1)).tolist() == [50] * 20
    True
    """
    _check_alpha("dirichlet", alpha, zero=True)
    if alpha == 0:
        return shards(labels, clients, 1, seed)
    classes, left = _start("dirichlet", labels, clients, seed)
    generator, prior = draws.generator(seed, "dirichlet"), left / left.sum()
    left, counts = left.copy(), np.zeros((clients, len(left)), dtype=np.int64)
    for client, size in enumerate(_even(len(classes), clients)):
        mixture = _mixture(generator, alpha * prior, prior)
        while (missing := size - counts[client].sum()) > 0:  # every pass but the last empties a label
            # If all labels of the mixture have run out, draw from the remaining ones.
            share = mixture * (left > 0)
            share = share if share.sum() > 0 else left.astype(np.float64)
            taken = np.minimum(generator.multinomial(missing, share / share.sum()), left)
            counts[client] += taken
            left -= taken
    return _deal(classes, counts, generator)


def dirichlet_balanced(labels: ArrayLike, clients: int, alpha: float, seed: int = 0, tries: int = 100) -> Ints:
    """The split that the code of the GHBM paper makes: each label spread over clients, then sizes made equal.

        q_c ~ Dir(alpha 1_N) over the clients that still hold less than n/N, for every label c

    Of `tries` draws the one with the smallest spread of sizes is kept; then random samples move from clients above n/N
    to clients below. `alpha=0` is the same as in `dirichlet`. Sizes differ by at most one.

    >>> owner = dirichlet_balanced(np.repeat(np.arange(10), 100), clients=20, alpha=0.5)
    >>> np.bincount(owner).tolist() == [50] * 20
    True
    """
    _check_alpha("dirichlet_balanced", alpha, zero=True)
    check(tries in REPEATS, "dirichlet_balanced", "tries", str(REPEATS), tries)
    if alpha == 0:
        return shards(labels, clients, 1, seed)
    classes, held = _start("dirichlet_balanced", labels, clients, seed)
    generator, quota = draws.generator(seed, "dirichlet-balanced"), _even(len(classes), clients)
    best = min((_spread(generator, held, clients, alpha) for _ in range(tries)), key=lambda c: float(c.sum(1).std()))
    return _deal(classes, _rebalance(generator, best, quota), generator)


def dirichlet_by_label(
    labels: ArrayLike, clients: int, alpha: float, minimum: int = 10, seed: int = 0, tries: int = 1000
) -> Ints:
    """The split of the FedNova paper's code, which the GEL paper uses: each label spread over clients, unequal sizes.

        q_c ~ Dir(alpha 1_N) over the clients that still hold less than n/N, for every label c

    Drawn again until every client holds at least `minimum` samples; after `tries` draws, random samples of the largest
    clients go to those with fewer.

    >>> sizes = np.bincount(dirichlet_by_label(np.repeat(np.arange(10), 100), clients=20, alpha=0.1))
    >>> int(sizes.sum()), bool(sizes.min() >= 10), bool(sizes.max() > 60)
    (1000, True, True)
    """
    _check_alpha("dirichlet_by_label", alpha)
    check(minimum in COUNT, "dirichlet_by_label", "minimum", str(COUNT), minimum)
    check(tries in REPEATS, "dirichlet_by_label", "tries", str(REPEATS), tries)
    classes, held = _start("dirichlet_by_label", labels, clients, seed, minimum)
    generator = draws.generator(seed, "dirichlet-by-label")
    for _ in range(tries):
        counts = _spread(generator, held, clients, alpha)
        if counts.sum(1).min() >= minimum:
            return _deal(classes, counts, generator)
    quota = np.maximum(counts.sum(1), minimum)
    while quota.sum() > len(classes):
        quota[quota.argmax()] -= 1
    return _deal(classes, _rebalance(generator, counts, quota), generator)


def dirichlet_repeated(
    labels: ArrayLike, clients: int, alpha: float, samples: int = 500, literal: bool = False, seed: int = 0
) -> list[Ints]:
    """The Delta-SGD paper's clients, drawn with replacement: a sample may belong to several or none.

        q_i ~ Dir(alpha 1_K);   round(samples * q_ic) of label c, what is missing from the last label

    Gives the sample indices of each client, shuffled. `literal=True` repeats what the paper's code does: the list is
    sorted by label and cut after its first 90 %, so that the highest labels are partly lost, and rounding may leave a
    few samples more.

    >>> held = dirichlet_repeated(np.repeat(np.arange(10), 100), clients=3, alpha=0.1)
    >>> [len(h) for h in held]
    [500, 500, 500]
    """
    _check_alpha("dirichlet_repeated", alpha)
    check(samples in COUNT, "dirichlet_repeated", "samples", str(COUNT), samples)
    check(isinstance(literal, bool), "dirichlet_repeated", "literal", "True or False", literal)
    classes, held = _start("dirichlet_repeated", labels, 1, seed)
    check(clients in CLIENTS, "dirichlet_repeated", "clients", str(CLIENTS), clients)
    check_memory(f"{clients:,} clients of {samples:,} samples", 8 * clients * samples, "use fewer of either")
    by_label = np.split(np.argsort(classes, kind="stable"), np.cumsum(held)[:-1])
    indices = []
    for client in range(clients):
        generator = draws.generator(seed, "dirichlet-repeated", client=client)
        share = _mixture(generator, np.full(len(held), float(alpha)), np.full(len(held), 1 / len(held)))
        counts = np.rint(samples * share).astype(np.int64)
        counts[-1] = max(0, samples - counts[:-1].sum())
        drawn = np.concatenate([generator.choice(own, n) for own, n in zip(by_label, counts, strict=True)])
        if not literal:  # rounding may have drawn a few too many
            drawn = generator.permutation(drawn)[:samples]
        indices.append(drawn[: max(1, len(drawn) * 9 // 10)] if literal else drawn)
    return indices


def quantity(
    labels: ArrayLike, clients: int, spread: float = 1.0, law: str = "lognormal", minimum: int = 1, seed: int = 0
) -> Ints:
    """The same mixture of labels for every client, but very different amounts.

        n_i = minimum + (n - N minimum) w_i / sum w,    w_i ~ LogNormal(0, spread)   or   w ~ Dir(spread 1_N)

    A large `spread` makes log-normal sizes more unequal, Dirichlet sizes more equal.

    >>> sizes = np.bincount(quantity(np.zeros(1000), clients=10, spread=2.0, minimum=5))
    >>> int(sizes.sum()), bool(sizes.min() >= 5), bool(sizes.max() > 200)
    (1000, True, True)
    """
    check(law in ("lognormal", "dirichlet"), "quantity", "law", "'lognormal' or 'dirichlet'", law)
    good = spread in COEFFICIENT and (spread > 0 or law == "lognormal")
    check(good, "quantity", "spread", f"{COEFFICIENT}, and above 0 for Dirichlet sizes", spread)
    check(minimum in COUNT, "quantity", "minimum", str(COUNT), minimum)
    classes, _ = _start("quantity", labels, clients, seed, minimum)
    generator, even = draws.generator(seed, "quantity"), np.full(clients, 1 / clients)
    if law == "lognormal":
        logs = spread * generator.standard_normal(clients)
        weights = np.exp(logs - logs.max())
    else:
        weights = _mixture(generator, np.full(clients, float(spread)), even)
    sizes = minimum + _apportion(weights, len(classes) - clients * minimum)
    return generator.permutation(np.repeat(np.arange(clients), sizes))


ALL: tuple[Callable[..., Any], ...] = (
    natural, iid, shards, dirichlet, dirichlet_balanced, dirichlet_by_label, dirichlet_repeated, quantity,
)  # fmt: skip
PARTITIONS = {make.__name__: make for make in ALL}
# What each does, for people who mean different things by one alpha; `natural` leaves the data as they are.
WORDS = {
    iid: "at random, in equal sizes",
    shards: "sorted by label and cut into shards of equal size, {per_client} per client, as in McMahan et al. 2017",
    dirichlet: "each client's labels by Dir({alpha:g} p), p the shares of the labels, in equal sizes, "
               "as in Hsu et al. 2019",
    dirichlet_balanced: "each label over the clients by Dir({alpha:g}, ..., {alpha:g}), then sizes made equal, "
                        "as in the code of the GHBM paper",
    dirichlet_by_label: "each label over the clients by Dir({alpha:g}, ..., {alpha:g}), in unequal sizes of at least "
                        "{minimum}, as in the code of FedNova",
    dirichlet_repeated: "each client's labels by Dir({alpha:g}, ..., {alpha:g}), {samples} samples drawn with "
                        "replacement, as in the code of the Delta-SGD paper",
    quantity: "labels at random, in {law} sizes of spread {spread:g}",
}  # fmt: skip


def in_words(clients: Any) -> str:
    """What a partition with its parameters does; empty for anything else that says who holds a sample.

    >>> in_words(partial(dirichlet, clients=100, alpha=0.1))
    "partition dirichlet: each client's labels by Dir(0.1 p), p the shares of the labels, in equal sizes, \
as in Hsu et al. 2019"
    """
    values = in_values(clients)
    if not values:
        return ""
    one_label = values.get("alpha") == 0
    words = "sorted by label, one block of equal size per client" if one_label else WORDS[clients.func].format(**values)
    return f"partition {clients.func.__name__}{' at alpha 0' if one_label else ''}: {words}"


def in_values(clients: Any) -> dict[str, Any]:
    """The name of a partition and its parameters; empty for anything else that says who holds a sample.

    >>> in_values(partial(iid, clients=100))
    {'partition': 'iid', 'clients': 100, 'seed': 0}
    """
    if not isinstance(clients, partial) or clients.func not in list(WORDS):  # which may have no hash
        return {}
    given = inspect.signature(clients.func).bind(None, *clients.args, **clients.keywords)
    given.apply_defaults()
    return {"partition": clients.func.__name__} | dict(list(given.arguments.items())[1:])  # the first are the labels


def _start(owner: str, labels: ArrayLike, clients: int, seed: int, each: int = 1) -> tuple[Ints, Ints]:
    """(class number of every sample, samples of every class), when there are at least `each` samples per client."""
    check(clients in CLIENTS, owner, "clients", str(CLIENTS), clients)
    check(seed in SEED, owner, "seed", str(SEED), seed)
    values = _column(labels, "labels")
    if len(values) < clients * each:
        need = f"{clients} clients" + (f" with at least {each} samples each" if each > 1 else "")
        raise InputError(f"{need} need {clients * each} samples; there are {len(values)}.")
    _, classes, held = np.unique(values, return_inverse=True, return_counts=True)
    return classes.astype(np.int64), held.astype(np.int64)


def _column(values: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must have one entry per sample. Got an array of shape {array.shape}.")
    return array


def _check_alpha(owner: str, alpha: float, zero: bool = False) -> None:
    good = alpha in COEFFICIENT and (zero or alpha > 0)
    check(good, owner, "alpha", f"{COEFFICIENT}{'' if zero else ', and above 0'}", alpha)


def _even(total: int, parts: int) -> Ints:
    """Sizes that add up to `total` and differ by at most one, the larger ones first."""
    sizes = np.full(parts, total // parts, dtype=np.int64)
    sizes[: total % parts] += 1
    return sizes


def _apportion(weights: Floats, total: int) -> Ints:
    """Whole numbers that add up to `total`, nearest to the weights (largest remainders)."""
    exact = weights / weights.sum() * total
    counts: Ints = np.floor(exact).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts


def _mixture(generator: np.random.Generator, concentration: Floats, limit: Floats) -> Floats:
    """A Dirichlet draw; if the concentration underflows, its limit: one class, drawn by the shares `limit`."""
    if concentration.min() > 1e-290:  # below, its beta variates are NaN
        share: Floats = generator.dirichlet(concentration)
        if np.isfinite(share).all() and share.sum() > 0:
            return share
    share = np.zeros(len(limit))
    share[generator.choice(len(limit), p=limit)] = 1
    return share


def _spread(generator: np.random.Generator, held: Ints, clients: int, alpha: float) -> Ints:
    """Counts `[clients, classes]`: every class over the clients that hold less than their share so far."""
    counts, even = np.zeros((clients, len(held)), dtype=np.int64), np.full(clients, 1 / clients)
    quota, sizes = held.sum() / clients, np.zeros(clients, dtype=np.int64)
    for label, total in enumerate(held):
        room = sizes < quota
        share = _mixture(generator, np.full(clients, float(alpha)), even) * room
        counts[:, label] = _apportion(share if share.sum() > 0 else room.astype(np.float64), int(total))
        sizes += counts[:, label]
    return counts


def _rebalance(generator: np.random.Generator, counts: Ints, quota: Ints) -> Ints:
    """Move random samples from clients above their quota to clients below."""
    counts, extra = counts.copy(), counts.sum(1) - quota
    spare = []
    for client in np.flatnonzero(extra > 0):
        given = generator.multivariate_hypergeometric(counts[client], int(extra[client]))
        counts[client] -= given
        spare.append(np.repeat(np.arange(counts.shape[1]), given))
    if spare:
        labels = generator.permutation(np.concatenate(spare))
        np.add.at(counts, (np.repeat(np.arange(len(quota)), np.maximum(-extra, 0)), labels), 1)
    return counts


def _deal(classes: Ints, counts: Ints, generator: np.random.Generator) -> Ints:
    """Client numbers such that client i holds `counts[i, c]` random samples of class c."""
    owner, clients = np.empty(len(classes), dtype=np.int64), np.arange(len(counts))
    by_class = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts.sum(0))[:-1])
    for label, samples in enumerate(by_class):
        owner[samples] = generator.permutation(np.repeat(clients, counts[:, label]))
    return owner
