"""Why does a method win or fail? Measures of one round, taken beside the training and never in it.

    the true gradient here, and how clients disagree about it      Field, Slope
    where averaging after every step would have led                shadow_sequence
    the round once more, watched and then thrown away              witness; drift, spread, alignment
    what the method remembers, against the true gradient           momentum_error
    how much each local gradient counts                            weights.coefficients, bound

The round is replayed from counted randomness on the same state, so the training does not change by a bit. Means over
clients weigh by samples, p_i = n_i / sum n: one yardstick for all methods, the papers' where clients hold equally many.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .algorithm import Algorithm, At, Plan, Rows, Rule
from .client import arrive, naming
from .engine.local import Engine, Worker
from .job import Job, Message, State
from .optim import Optimizer
from .round import broadcast, gather, invite, local_update
from .run.history import History
from .run.memory import Memories
from .weights import Weights, coefficients
from .wire import Part, Slots
from .world import Ints

EVERYBODY = 100  # up to so many clients, all are asked for the true gradient; with more of them, the cohort is
COLUMNS = (
    "drift", "spread", "dissimilarity", "dissimilarity_ratio", "gradient_norm", "sampling_error", "cosine_mean",
    "cosine_min", "update_norm_mean", "update_norm_max", "momentum_error", "momentum_cosine", "coefficient_norm",
    "coefficient_first", "coefficient_last", "bound_tau_eff", "bound_A", "bound_B", "bound_C", "diagnostic_gradients",
)  # fmt: skip


@torch.no_grad()
def diagnose(job: Job, state: State, engine: Engine) -> dict[str, float | None]:
    """The columns of round `state.round + 1`, before it is played; None where a measure has no meaning."""
    algorithm, (plan, cohort, steps) = job.algorithm, invite(job, state)
    if len(cohort) == 0:
        return dict.fromkeys(COLUMNS) | {"diagnostic_gradients": 0}
    longest = int(steps.max())
    field = Field(job, state, engine, plan, cohort)
    here, shadow = field.at(state.x), None
    if not algorithm.client.finds_rate:  # where clients each find their rate, the shadow sequence has none
        shadow = shadow_sequence(state.x, here.mean, lambda y: field.at(y).mean, algorithm.client, plan.lr, longest)

    anchor = state.x.expand(longest, -1) if shadow is None else shadow
    seen = replay(job, state, engine, anchor)

    told: dict[str, Any] = here.columns() | {"diagnostic_gradients": field.spent + seen.gradients}
    if len(seen.samples):
        told |= {"drift": None if shadow is None else seen.drift, "spread": seen.spread}
        told |= combination(job, plan, seen)
        memory = algorithm.server.remembered(state.optimizer) if seen.remembered is None else seen.remembered
        told |= {} if memory is None else momentum_error(memory.double(), here.mean)
    return {name: _plain(told.get(name)) for name in COLUMNS}


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

    def __init__(self, job: Job, state: State, engine: Engine, plan: Plan, cohort: Ints) -> None:
        self.engine, self.population, self.spent = engine, len(job.task.data), 0
        all_of_them = self.population <= EVERYBODY
        self.clients = np.arange(self.population) if all_of_them else cohort
        self.recent = recent_clients(job, state.round + 1, cohort) if all_of_them else None
        bare = replace(job, algorithm=replace(job.algorithm, rules=()))
        self.message, _ = broadcast(bare, state, state.round + 1, len(cohort), plan)

    def at(self, point: Tensor) -> Slope:
        """Exact gradients there: one pass over the data of everybody who is asked."""
        message = replace(self.message, at=self.message.at | {"x": point})
        once, nothing = np.ones(len(self.clients), dtype=np.int64), Memories(self.population)
        part = self.engine.reduce(partial(slopes, recent=self.recent), message, self.clients, once, nothing)
        self.spent += part.counts["gradients"]
        mean, square, lately = (part.sums["", name, "sum"] for name in ("mean", "square", "recent"))
        samples, theirs = part.sums["", "samples", "sum"]
        return Slope(mean / samples, float(square / samples), None if self.recent is None else lately / theirs)


def recent_clients(job: Job, t: int, cohort: Ints) -> Ints:
    """S_tau, who was invited in rounds t - tau + 1 to t (lemma 4.7); tau is GHBM's, 1 for methods without one."""
    data = job.task.data
    tau = max((getattr(rule, "tau", None) or 1 for rule in job.algorithm.rules), default=1)
    before = [job.world.who(k, len(data), job.seed, data.sizes) for k in range(max(1, t - tau + 1), t)]
    return np.unique(np.concatenate([cohort, *before]))


def slopes(
    worker: Worker, message: Message, clients: Ints, steps: Ints, memory: Slots, seen: Ints, *, recent: Ints | None
) -> Part:
    """A group of clients gives its exact gradients at `x`; nobody trains."""
    with naming(message, clients):
        at, _, _ = arrive(worker, message, clients, steps, memory, seen, np.arange(len(clients)))
        g, n = at.full_gradient(at.x).double(), at.samples.double()
    lately = torch.from_numpy(np.isin(clients, [] if recent is None else recent)).to(n)[:, None] * n
    part = Part()
    part.put("", "mean", "sum", (n * g).sum(0))
    part.put("", "square", "sum", (n * g.square().sum(1, keepdim=True)).sum())
    part.put("", "recent", "sum", (lately * g).sum(0))
    part.put("", "samples", "sum", torch.stack([n.sum(), lately.sum()]))
    part.count("gradients", int(at.scalars["extra_gradients"].sum()))
    return part


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
    state, at = client.init(y), At(x=x, x0=x, optimizer=client)
    at.scalars = Rows({"lr": y.new_full((1, 1), lr)})
    for j in range(steps):
        g = gradient(y[0]) if j else g
        client.step(y, g[None].to(y).clone(), state, at)  # clipping works in place
        places.append(y[0].clone())
    return torch.stack(places)


class Path(Rule):
    """Notes where clients are after every local step, as the last rule; moves nothing."""

    def after_step(self, y: Tensor, at: At) -> None:
        at.scratch["path"][:, at.k] = y

    def shadow(self, s: Tensor) -> Tensor:
        return torch.zeros_like(s)


def witness(
    worker: Worker, message: Message, clients: Ints, steps: Ints, memory: Slots, seen: Ints, *, anchor: Tensor
) -> Part:
    """`visit` once more: the same training, and where it went, seen from `anchor`, `[longest, params]`."""
    order = np.argsort(-steps, kind="stable")
    algorithm = message.job.algorithm
    with naming(message, clients) as where:
        at, y, batches = arrive(worker, message, clients, steps, memory, seen, order)
        where.append(at)
        path = y.new_zeros((len(y), *anchor.shape))
        at.scratch_all[Path().slot] = Rows({"path": path})
        remembered = [m for rule in algorithm.rules if (m := rule.remembered(at.of(rule))) is not None]
        local_update(at, y, batches, worker.gradients, algorithm)
    off, fine = deviations(path, anchor, at.steps), torch.isfinite(y).all(1)
    off[~fine] = 0  # the round would drop them, and so does its diagnosis
    rows = {"samples": at.samples, "steps": at.steps, "apart": drift(off, at.steps), "update": y - at.x}
    if remembered:
        rows["remembered"] = torch.stack([m.expand_as(y) for m in remembered]).sum(0)
    back = torch.from_numpy(np.argsort(order)).to(y.device)
    back = back[fine[back]]
    part = Part(scalars=[{"": {name: row[back].double() for name, row in rows.items()}}])
    part.put("", "off", "sum", ((at.samples / at.steps)[:, :, None] * off).sum(0).double())
    part.count("gradients", int(steps.sum()) + int(at.scalars["extra_gradients"].sum()))
    return part


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
        return (self.p * self.rows["remembered"]).sum(0) if "remembered" in self.rows else None


def replay(job: Job, state: State, engine: Engine, anchor: Tensor) -> Seen:
    """The next round, watched; nothing of it is kept in the state."""
    watched = replace(job, algorithm=replace(job.algorithm, rules=[*job.algorithm.rules, Path()]))
    known = replace(state, rules=state.rules | {Path().slot: {}})
    part, _, _ = gather(watched, known, engine, partial(witness, anchor=anchor))
    rows = {name: torch.cat([slots[""][name] for slots in part.scalars]) for name in part.scalars[0][""]}
    return Seen(rows, part.sums["", "off", "sum"], part.counts["gradients"])


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
    straight = all(rule.shadow(torch.zeros(1, 1)) is not None for rule in algorithm.rules)
    return algorithm.client.linear and straight


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
