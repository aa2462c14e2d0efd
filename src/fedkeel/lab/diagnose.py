"""Why does a method win or fail? Measures of one round, taken beside the training and never in it.

    the true gradient here, and how clients disagree about it      Field, Slope
    where averaging after every step would have led                shadow_sequence
    the round once more, watched and then thrown away              witness; drift, spread, alignment
    what the method remembers, against the true gradient           momentum_error
    how much each local gradient counts                            response.coefficients, bound

The round is replayed from counted randomness on the same state, so the training does not change by a bit. Means over
clients weigh by samples, p_i = n_i / sum n: one yardstick for all methods, the papers' where clients hold equally many.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..aggregate import Uniform, Weights, collect
from ..algorithm import Algorithm
from ..data.batches import Batch
from ..engine import Engine
from ..engine.worker import Worker
from ..local import arrive, train_clients
from ..messages import Broadcast, Memory, Plan, Update, Work
from ..optim import SGD, Adaptive, Optimizer
from ..response import coefficients
from ..round import Job, State, invite
from ..rule import End, Me, Objective, Rule, Tensors, Up
from ..rules import (
    GHBM,
    AdaBest,
    Contrastive,
    Fathom,
    FedADC,
    FedCM,
    FedDyn,
    FedHBM,
    Guess,
    LocalGHBM,
    Mime,
    MimeLite,
    OwnClasses,
    Proximal,
    Scaffold,
    Schedule,
    SelfDistillation,
)
from ..rules.heavy_ball import scaling
from ..run.history import History
from ..survey import survey
from ..tables import nearest
from ..world import Ints

EVERYBODY = 100  # up to so many clients, all are asked for the true gradient; with more of them, the cohort is
COLUMNS = (
    "drift", "spread", "dissimilarity", "dissimilarity_ratio", "gradient_norm", "sampling_error", "cosine_mean",
    "cosine_min", "update_norm_mean", "update_norm_max", "momentum_error", "momentum_cosine", "coefficient_norm",
    "coefficient_first", "coefficient_last", "bound_tau_eff", "bound_A", "bound_B", "bound_C", "diagnostic_gradients",
)  # fmt: skip


@torch.no_grad()
def diagnose(job: Job, state: State, engine: Engine) -> dict[str, float | None]:
    """The columns of round `state.round + 1`, before it is played; None where a measure has no meaning."""
    algorithm, (broadcast, work) = job.algorithm, invite(job, state)
    if len(work.clients) == 0:
        return dict.fromkeys(COLUMNS) | {"diagnostic_gradients": 0}
    longest, plan = int(work.steps.max()), broadcast.plan
    field = Field(job, state, engine, broadcast, work.clients)
    here, shadow = field.at(state.x), None
    if not algorithm.client.finds_rate:  # where clients each find their rate, the shadow sequence has none
        shadow = shadow_sequence(state.x, here.mean, lambda y: field.at(y).mean, algorithm.client, plan.lr, longest)

    anchor = state.x.expand(longest, -1) if shadow is None else shadow
    seen = replay(job, engine, broadcast, work, anchor)

    found: dict[str, Any] = here.columns() | {"diagnostic_gradients": field.spent + seen.gradients}
    if len(seen.samples):
        found |= {"drift": None if shadow is None else seen.drift, "spread": seen.spread}
        found |= combination(job, plan, seen)
        memory = server_memory(algorithm.server, state.optimizer) if seen.remembered is None else seen.remembered
        found |= {} if memory is None else momentum_error(memory.double(), here.mean)
    return {name: _plain(found.get(name)) for name in COLUMNS}


def _plain(value: Any) -> float | None:
    """A number for JSON, which has no infinity."""
    if value is None or isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def means(histories: Sequence[History]) -> dict[str, float]:
    """Every measure's mean over diagnosed rounds and seeds; measures that never had a value are left out.

    >>> means([History([{"round": 1, "drift": 1.0}, {"round": 2, "drift": 3.0}, {"round": 3}])])
    {'drift': 2.0}
    """
    found = {name: [row[name] for h in histories for row in h if row.get(name) is not None] for name in COLUMNS}
    return {name: statistics.mean(values) for name, values in found.items() if values}


@dataclass(frozen=True)
class Slope:
    """The clients' exact gradients at one point: their mean, their mean square, the mean of recent cohorts.

    >>> slope = Slope(torch.tensor([3.0, 4.0]), 35.0, None)
    >>> slope.norm, slope.dissimilarity
    (5.0, 10.0)
    """

    mean: Tensor
    square: float
    recent: Tensor | None

    @property
    def norm(self) -> float:
        """||g||, g = sum_i p_i g_i."""
        return float(torch.linalg.vector_norm(self.mean))

    @property
    def dissimilarity(self) -> float:
        """G^2 = sum_i p_i ||g_i - g||^2 = sum_i p_i ||g_i||^2 - ||g||^2 (GHBM, assumption 4.3)."""
        return at_least(self.square - self.norm**2, 0.0)

    @property
    def ratio(self) -> float | None:
        """sum_i p_i ||g_i||^2 / ||g||^2: the beta^2 of GEL's assumption 3 where kappa = 0."""
        return at_least(self.square / self.norm**2, 1.0) if self.norm else None

    @property
    def sampling_error(self) -> float | None:
        """||g_recent - g||^2 / ||g||^2: the left side of GHBM's lemma 4.7, by the true gradient's square."""
        if self.recent is None or not self.norm:
            return None
        return float((self.recent - self.mean).square().sum()) / self.norm**2

    def columns(self) -> dict[str, float | None]:
        return {
            "dissimilarity": self.dissimilarity,
            "dissimilarity_ratio": self.ratio,
            "gradient_norm": self.norm,
            "sampling_error": self.sampling_error,
        }


class Field:
    """The true gradient wherever it is asked for, by the plain loss: no rule adds to it."""

    def __init__(self, job: Job, state: State, engine: Engine, broadcast: Broadcast, cohort: Ints) -> None:
        self.engine, self.population, self.spent = engine, len(job.task.data), 0
        all_of_them = self.population <= EVERYBODY
        self.clients = np.arange(self.population) if all_of_them else cohort
        self.recent = recent_clients(job, state.round + 1, cohort) if all_of_them else None
        self.plain = replace(job.algorithm, rules=())
        self.broadcast = replace(broadcast, slots={})

    def at(self, point: Tensor) -> Slope:
        """Exact gradients there: one pass over the data of everybody who is asked."""
        once = np.ones(len(self.clients), dtype=np.int64)
        work = Work(self.broadcast.version, self.clients, once)
        do = partial(slopes, self.plain, self.recent)
        total = collect(self.engine.run(do, replace(self.broadcast, x=point), work, Uniform()), Uniform())
        self.spent += total.counts["gradients"]
        mean, square, lately, samples = (
            total.sums["", name, "mean"] for name in ("mean", "square", "recent", "samples")
        )
        recent = None if self.recent is None else lately / samples[1]
        return Slope(mean / samples[0], float(square / samples[0]), recent)


def recent_clients(job: Job, t: int, cohort: Ints) -> Ints:
    """S_tau, who was invited in rounds t - tau + 1 to t (lemma 4.7); tau is GHBM's, 1 for methods without one."""
    data = job.task.data
    tau = max((getattr(rule, "tau", None) or 1 for rule in job.algorithm.rules), default=1)
    before = [job.world.who(k, len(data), job.seed, data.sizes) for k in range(max(1, t - tau + 1), t)]
    return np.unique(np.concatenate([cohort, *before]))


def slopes(
    plain: Algorithm, recent: Ints | None, worker: Worker, broadcast: Broadcast, work: Work, memory: Memory
) -> Update:
    """A group of clients gives its exact gradients at `x`, by samples; nobody trains."""
    group = arrive(plain, worker, broadcast, work, memory, [])
    g, n = group.site.full_gradient(broadcast.x).double(), group.me.samples.double()
    lately = torch.from_numpy(np.isin(work.clients, [] if recent is None else recent)).to(n)[:, None] * n
    rows = {"mean": n * g, "square": n * g.square().sum(1, keepdim=True), "recent": lately * g}
    rows["samples"] = torch.cat([n, lately], 1)
    counts, none = {"gradients": int(group.site.extra_gradients.sum())}, work.clients[:0]
    return Update(work.version, work.clients, none, n, group.me.steps, None, n, mean={"": rows}, counts=counts)


def shadow_sequence(
    x: Tensor, g: Tensor, gradient: Callable[[Tensor], Tensor], client: Optimizer, lr: float, steps: int
) -> Tensor:
    """theta^1 ... theta^J, as if gradients were averaged after every local step (GHBM, definition 3.1), `[J, params]`.

        theta^j = theta^{j-1} - lr sum_i p_i g_i(theta^{j-1}),      theta^0 = x,   g the first mean gradient

    The paper prints no rate. Clients with momentum, or Adam, have a shadow that steps as they do.

    >>> import fedkeel as fk
    >>> one = torch.ones(1)
    >>> shadow_sequence(one, one, lambda y: y, fk.SGD(0.5), 0.5, 3).flatten().tolist()
    [0.5, 0.25, 0.125]
    """
    y, places = x[None].clone(), []
    rate = y.new_full((1, 1), lr)
    state = client.init(y, rate)
    for j in range(steps):
        g = gradient(y[0]) if j else g
        client.apply(y, g[None].to(y).clone(), state, rate)  # clipping works in place
        places.append(y[0].clone())
    return torch.stack(places)


@dataclass(frozen=True, repr=False)
class Path(Rule):
    """Notes where clients are after every local step, as the last rule; moves nothing."""

    anchor: Tensor

    keeps_linear: ClassVar[bool] = True

    def start(self, me: Me) -> Tensors:
        return {"path": me.x.new_zeros((len(me.steps), *self.anchor.shape))}

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        found = go(y, batch)
        me.notes["path"][:, batch.step] = y
        return found

    def finish(self, y: Tensor, end: End, me: Me) -> Up:
        off = deviations(me.notes["path"], self.anchor, me.steps)
        pulled = (me.samples / me.steps)[:, :, None] * off
        # as scalars, because a shadow sequence may go to infinity where the client itself does not
        return Up(scalars={"apart": drift(off, me.steps), "off": pulled.flatten(1)})


def witness(
    algorithm: Algorithm, anchor: Tensor, worker: Worker, broadcast: Broadcast, work: Work, memory: Memory
) -> Update:
    """The same training once more, and where it went, seen from `anchor`, `[longest, params]`; nobody remembers it."""
    order = np.argsort(-work.steps, kind="stable")
    group = arrive(algorithm, worker, broadcast, work.rows(order), memory.rows(order), [])
    pairs = zip(group.rules, group.views, strict=True)
    held = [m.expand_as(group.site.y) for rule, me in pairs if (m := client_memory(rule, me)) is not None]
    total = torch.stack(held).sum(0)[torch.from_numpy(np.argsort(order))] if held else None
    watched = replace(algorithm, rules=[*algorithm.rules, Path(anchor)])
    update = train_clients(watched, worker, broadcast, work, memory)
    kept = {} if total is None else {"": {"memory": total[torch.from_numpy(np.isin(work.clients, update.clients))]}}
    return replace(update, memory={}, mean=kept)


@dataclass(frozen=True)
class Seen:
    """A watched round: a row per client whose update is finite, and how far from the anchor they were on average."""

    rows: dict[str, Tensor]
    off: Tensor  # sum_i (n_i / J_i) (theta_i^j - theta^j), `[longest, params]`
    gradients: int

    @property
    def samples(self) -> Tensor:
        return self.rows["samples"]

    @property
    def p(self) -> Tensor:
        """p_i = n_i / sum n."""
        return self.samples / self.samples.sum()

    @property
    def drift(self) -> float:
        """eps = sum_i p_i eps_i."""
        return float((self.p * self.rows["apart"]).sum())

    @property
    def spread(self) -> float:
        shares = step_shares(self.p, self.rows["steps"], len(self.off))
        return spread(self.drift, self.off / self.samples.sum(), shares)

    @property
    def remembered(self) -> Tensor | None:
        """The clients' mean memory, of methods whose clients have one."""
        return (self.p * self.rows["memory"]).sum(0) if "memory" in self.rows else None


def replay(job: Job, engine: Engine, broadcast: Broadcast, work: Work, anchor: Tensor) -> Seen:
    """The next round, watched; nothing of it is kept in the state."""
    spent: dict[str, int] = {}
    if job.algorithm.hooks["survey"]:
        broadcast, spent = survey(job.algorithm, engine, broadcast, work)
    gradients, off = spent.get("gradients", 0), torch.zeros(anchor.shape, dtype=torch.float64)
    parts: dict[str, list[Tensor]] = {}
    for update in engine.run(partial(witness, job.algorithm, anchor), broadcast, work):
        assert isinstance(update, Update) and update.delta is not None
        gradients += update.counts["gradients"]
        rows = {"samples": update.samples, "steps": update.steps, "update": update.delta}
        rows |= {"apart": update.scalars["path"]["apart"]} | update.mean.get("", {})
        for name, value in rows.items():
            parts.setdefault(name, []).append(value.double())
        off += update.scalars["path"]["off"].sum(0).view(anchor.shape).double().cpu()
    return Seen({name: torch.cat(values) for name, values in parts.items()}, off, gradients)


def deviations(path: Tensor, anchor: Tensor, steps: Tensor) -> Tensor:
    """theta_i^j - theta^j for j <= J_i, 0 beyond: `[clients, longest, params]`."""
    done = torch.arange(len(anchor), device=steps.device) < steps
    return (path - anchor) * done[:, :, None]


def drift(off: Tensor, steps: Tensor) -> Tensor:
    """A client's part of the client drift (GHBM, definition 3.1), `[clients, 1]`.

        eps_i = (1 / J_i) sum_j ||theta_i^j - theta^j||^2,      eps = sum_i p_i eps_i

    >>> drift(torch.tensor([[[3.0, 4.0], [0.0, 1.0]]]), torch.tensor([[2.0]])).item()
    13.0
    """
    return off.square().sum((1, 2))[:, None] / steps


def step_shares(p: Tensor, steps: Tensor, longest: int) -> Tensor:
    """c_j = sum of p_i / J_i over the clients that do step j, `[longest]`; all of them sum to one."""
    done = torch.arange(longest, device=steps.device) < steps
    return (done * p / steps).sum(0)


def spread(eps: float, pulled: Tensor, shares: Tensor) -> float:
    """The part of the drift in which clients differ from each other; the rest is a way they all went.

        spread = sum_ij (p_i / J_i) ||theta_i^j - mean_j||^2 = eps - sum_j ||pulled_j||^2 / c_j

    pulled_j = sum_i (p_i / J_i) (theta_i^j - theta^j), `[longest, params]`; c_j as in `step_shares`.
    """
    done = shares > 0
    common = float((pulled[done].square().sum(1) / shares[done]).sum())
    return at_least(eps - common, 0.0)


def at_least(value: float, least: float) -> float:
    """Rounding does not take a square below its least value; what is not a number stays none (`max` would hide it)."""
    return least if value < least else value


def alignment(updates: Tensor, weights: Tensor) -> dict[str, float | None]:
    """Cosines of the clients' updates with their weighted mean, and the updates' norms.

        cos_i = <Delta_i, Delta> / (||Delta_i|| ||Delta||)

    >>> told = alignment(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2, 1))
    >>> round(told["cosine_mean"] ** 2, 6), told["update_norm_max"]
    (0.5, 1.0)
    """
    mean, norms = (weights * updates).sum(0), torch.linalg.vector_norm(updates, dim=1)
    told: dict[str, float | None] = {"update_norm_mean": float(norms.mean()), "update_norm_max": float(norms.max())}
    lengths = norms * torch.linalg.vector_norm(mean)
    if bool((lengths > 0).any()):
        cosines = (updates @ mean)[lengths > 0] / lengths[lengths > 0]
        told |= {"cosine_mean": float(cosines.mean()), "cosine_min": float(cosines.min())}
    return told


def momentum_error(memory: Tensor, gradient: Tensor) -> dict[str, float | None]:
    """How far what a method remembers is from the true gradient (GHBM, lemmas 4.5 to 4.7 together).

        error = min over s >= 0 of ||s m - g||^2 / ||g||^2,      cosine = <m, g> / (||m|| ||g||)

    The lemma divides m by the sum of its coefficients; methods differ in that sum and it changes while a run warms up,
    so the scale that fits best is taken. 0: along the true gradient; 1: nothing of it, no better than no memory.

    >>> momentum_error(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 0.0]))["momentum_cosine"]
    0.6
    """
    square, inner = float(memory.square().sum()), float(memory @ gradient)
    norm = float(gradient.square().sum())
    if not square or not norm or not math.isfinite(square):
        return {}
    s = max(0.0, inner / square)
    error = float((s * memory - gradient).square().sum()) / norm
    return {"momentum_error": error, "momentum_cosine": inner / math.sqrt(square * norm)}


def combination(job: Job, plan: Plan, seen: Seen) -> dict[str, float | None]:
    """How the cohort's updates are put together: of which gradients, and how well they agree."""
    algorithm, samples, steps = job.algorithm, seen.samples, seen.rows["steps"]
    told: dict[str, float | None] = {}
    norms = torch.ones_like(samples)
    if is_combination(algorithm):
        a = coefficients(algorithm.client, algorithm.rules, steps, plan.lr, job.world.expected).to(samples)
        norms = a.sum(1, keepdim=True)
        told |= coefficient_shares(a, steps) | bound(a, samples, steps, algorithm.weighing)
    return told | alignment(seen.rows["update"], algorithm.weighing.each(samples, norms))


def is_combination(algorithm: Algorithm) -> bool:
    """Whether an update is a fixed combination of its client's gradients, as GEL's theorem 2 asks (clipping aside)."""
    return algorithm.client.linear and all(rule.linear for rule in algorithm.rules)


def coefficient_shares(a: Tensor, steps: Tensor) -> dict[str, float | None]:
    """Means over the cohort of ||a_i||_1, and of the first and the last gradient's share of it.

    >>> coefficient_shares(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0]]))
    {'coefficient_norm': 4.0, 'coefficient_first': 0.75, 'coefficient_last': 0.25}
    """
    norms, last = a.sum(1, keepdim=True), a.gather(1, steps.long() - 1)
    shares = {"norm": norms, "first": a[:, :1] / norms, "last": last / norms}
    return {f"coefficient_{name}": float(value.mean()) for name, value in shares.items()}


def bound(a: Tensor, samples: Tensor, steps: Tensor, weights: Weights) -> dict[str, float | None]:
    """The constants of GEL's theorem 2 for this cohort of m clients (equations 10 to 14).

        tau_eff = sum_i p_i ||a_i||_1,   w_i = p_i ||a_i||_1 / tau_eff        (FedNova: w_i = p_i)
        A = m tau_eff sum_i w_i^2 ||a_i||_2^2 / ||a_i||_1^2        B = sum_i w_i (||a_i||_2^2 - last_i^2)
        C = max_i (||a_i||_1^2 - ||a_i||_1 last_i)

    Here p_i are the algorithm's own weights: tau_eff w_i is what multiplies a client's mean gradient.
    """
    norms, squares, last = a.sum(1, keepdim=True), a.square().sum(1, keepdim=True), a.gather(1, steps.long() - 1)
    pull = weights.each(samples, norms) * norms * weights.scale(samples, norms, steps)
    tau_eff, w = pull.sum(), pull / pull.sum()
    return {
        "bound_tau_eff": float(tau_eff),
        "bound_A": float(len(a) * tau_eff * (w**2 * squares / norms**2).sum()),
        "bound_B": float((w * (squares - last**2)).sum()),
        "bound_C": float((norms**2 - norms * last).max()),
    }


def client_memory(rule: Rule, me: Me) -> Tensor | None:
    """The momentum that a rule's clients start the round with, as a gradient of any length; None without one."""
    known = nearest(CLIENT_MEMORY, type(rule))
    return known(rule, me) if known else None


def server_memory(server: Optimizer, state: Tensors) -> Tensor | None:
    """The momentum in the server optimizer's state, as a gradient of any length; None without one."""
    if isinstance(server, SGD):
        return -state["v"] if server.momentum else None
    return state["m"] if isinstance(server, Adaptive) and server.beta1 else None


def _ghbm(rule: GHBM, me: Me) -> Tensor | None:
    return -me.sent["M"] if me.sent else None


def _localghbm(rule: LocalGHBM, me: Me) -> Tensor | None:
    return scaling(rule.scale, me) * (me.memory["anchor"] - me.x) if rule.beta else None


def _fedhbm(rule: FedHBM, me: Me) -> Tensor | None:
    known = 1 - me.first if rule.first == "none" else 1.0
    return known * scaling(rule.scale, me) * (me.memory["anchor"] - me.x) if rule.beta else None


def _nothing(rule: Rule, me: Me) -> None:
    return None


CLIENT_MEMORY: dict[type[Rule], Callable[[Any, Me], Tensor | None]] = {
    **dict.fromkeys((Proximal, Guess, Scaffold, FedDyn, AdaBest, Contrastive, Fathom, Schedule), _nothing),
    **dict.fromkeys((OwnClasses, SelfDistillation), _nothing),
    GHBM: _ghbm,
    LocalGHBM: _localghbm,
    FedHBM: _fedhbm,
    FedCM: lambda rule, me: me.sent.get("D"),
    FedADC: lambda rule, me: me.sent.get("m"),
    Mime: lambda rule, me: me.sent.get("m"),
    MimeLite: lambda rule, me: me.sent.get("m"),
}
