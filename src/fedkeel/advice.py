"""When to use an algorithm and when not, by its name: `explain` and the pages of the documentation print it.

These are reasons that follow from what a method keeps, sends and assumes; `docs/results` has what was measured.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """use, avoid: a sentence each."""

    use: str
    avoid: str


MOMENTUM = "local steps are noisy already: momentum 0.9 makes a step up to ten times longer, so lower the rate"
SERVER_STEP = "you have no rounds to tune the server's rate, on which these methods depend"
STATEFUL = "most clients take part once or never: what they remember is then old or missing"
WHOLE = "half of the clients or more may be faulty: it bounds what a minority can do"

ADVICE: dict[str, Advice] = {
    "fedavg": Advice(
        "you start: it keeps nothing, sends one model each way, and everything else is compared with it",
        "clients hold different labels and do many local steps: their models drift apart",
    ),
    "sgd": Advice(
        "you look for FedAvg under this name: they are the same", "fedavg is unsuitable, for the same reasons"
    ),
    "fedavgcm": Advice("you want more speed for free: client momentum costs no bytes and no memory", MOMENTUM),
    "fedavgm": Advice(
        "cohorts are small, so that the update changes direction from round to round",
        "few rounds are left: server momentum needs about ten of them to build up",
    ),
    "fedprox": Advice(
        "clients do many local steps on unlike data and training is unstable",
        "local work is short: the pull towards the received model then only slows training down",
    ),
    "fednova": Advice(
        "clients do unequal numbers of local steps: it removes the bias towards those that do many",
        "all do equally many, where it is FedAvg; or clients use Adam or a step size of their own, which it refuses",
    ),
    "fedadagrad": Advice("gradients are sparse, as with words: rare parameters get larger steps", SERVER_STEP),
    "fedadam": Advice("scales of parameters differ much, as in language models", SERVER_STEP),
    "fedyogi": Advice("you would use fedadam, and updates vary much from round to round", SERVER_STEP),
    "scaffold": Advice(
        "data differ between clients and the same clients come back often: it corrects drift as far as "
        "each client's control variate is up to date",
        f"{STATEFUL}; it also sends two vectors each way",
    ),
    "feddyn": Advice(
        "data differ between clients and rounds are many: its fixed point is the optimum",
        f"{STATEFUL}; with few of many clients in a round the model's norm can grow",
    ),
    "adabest": Advice("you would use feddyn with few of many clients in a round: its estimates forget", STATEFUL),
    "mime": Advice(
        "you want the path of a centralised optimizer and can pay a full local gradient in every round",
        "devices are slow or the pace is asynchronous: every round asks clients twice",
    ),
    "mimemom": Advice("you would use mime, with momentum on the server", "mime is unsuitable, for the same reasons"),
    "mimelite": Advice(
        "you would use mime, without its correction: no control variates are sent",
        "devices are slow, as with mime",
    ),
    "mimelitemom": Advice(
        "you would use mimelite, with momentum on the server", "mimelite is unsuitable, for the same reasons"
    ),
    "fedcm": Advice(
        "few of many clients take part and may keep nothing: the server sends the last global direction",
        "data differ so much that the last cohort's direction misleads the next one: ghbm averages over more rounds "
        "(with tau=1, beta=1-alpha and alpha times the rate it is fedcm)",
    ),
    "fedadc": Advice(
        "you would use fedcm, with the direction also in the server's own momentum",
        "you cannot tune two momenta together",
    ),
    "ghbm": Advice(
        "clients hold different labels and few take part: momentum over tau = 1/C rounds has seen more of them than "
        "one cohort (all of them if they take turns; 65 % of them on average under uniform sampling with C = 0.1 and "
        "tau = 10), with no client state",
        "the clients that take part change with time: the last tau rounds then do not represent all of them",
    ),
    "localghbm": Advice("you would use ghbm, and clients can keep a model: nothing more is sent", STATEFUL),
    "fedhbm": Advice(
        "you would use ghbm, and clients can keep their own last model: nothing more is sent",
        f"{STATEFUL}; nor when all take part in every round, with beta=1: it then may diverge",
    ),
    "gel": Advice(
        "devices run out of budget before they have done the steps that you would like",
        "a longer server step alone does as well (compare with fedavgcm:server_lr=match-gel), or clients have no "
        "momentum, on which guesses coast",
    ),
    "deltasgd": Advice(
        "nobody has time to tune a rate, or clients need different ones",
        "gradients are what you pay for: unless batch_mode=consecutive, it computes about two for a step",
    ),
    "sps": Advice(
        "every client can fit its data nearly perfectly, so that the smallest loss is known (0)",
        "labels are noisy: without max= the steps grow too long",
    ),
    "fathom": Advice(
        "rate, epochs and batch size are all unknown and you can afford one long run rather than a sweep",
        "budgets are fixed: it wants to choose the local epochs",
    ),
    "moon": Advice(
        "models have a representation worth comparing (images, a few local epochs)",
        "gradients are what you pay for: two more forward passes in every step, and a model kept on each client",
    ),
    "heterofl": Advice(
        "some devices cannot hold the model: they train a narrower one",
        "all devices can hold it; or the model has buffers or several inputs, which levels refuse",
    ),
    "scalefl": Advice(
        "you would use heterofl, and early exits are useful by themselves",
        "heterofl is unsuitable, for the same reasons",
    ),
    "fedbuff": Advice(
        "slow devices hold up every round and you have many clients: the server does not wait for them",
        "every client matters equally: fast devices report more often",
    ),
    "fedasync": Advice(
        "you would use fedbuff, with a server step at every arrival",
        "updates are noisy or many clients are stale",
    ),
    "median": Advice("some clients may send anything: it takes the median of each parameter", WHOLE),
    "trimmed": Advice("you know a bound on how many clients are bad", WHOLE),
    "krum": Advice(
        "a few clients may be bad and the others agree",
        "data differ much, since it keeps one client's update; or half of the clients or more may be faulty",
    ),
    "multikrum": Advice(
        "you would use krum, with the mean of several updates", "krum is unsuitable, for the same reasons"
    ),
    "guard": Advice(
        "a client may send updates far larger than all others, by mistake",
        "attackers know of it: it looks at norms alone",
    ),
    "buffered": Advice(
        "any algorithm that keeps to the rules of asynchrony should not wait for slow devices",
        "fedbuff is unsuitable, for the same reasons",
    ),
}
