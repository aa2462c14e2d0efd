"""Every part of an algorithm as its paper prints it, what it keeps where, and its reference: the tables of `explain`.

Rules, optimizers, weights and capacities hold the formulas that compute; those that are printed stand here, by class. A
subclass is explained as its nearest ancestor with an entry. To explain a part of your own, add an entry:

    fedkeel.notation.EXPLAINED[MyRule] = Explained("Me 2026", {"gradient": "g <- sign(g)"})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from . import rules
from .aggregate import Nova, Samples, Uniform, Weights
from .algorithm import Algorithm
from .capacity import Capacity, Exits, Widths
from .errors import is_number
from .optim import SGD, SPS, Adagrad, Adam, Adaptive, DeltaSGD, Optimizer, Yogi
from .robust import Krum, Median, MultiKrum, Trimmed
from .rule import Rule
from .rules.guess import WITH_LEVELS

# Symbols that papers use for different things: where two parts have one of them, `explain` adds the part's name to it.
SYMBOLS = ("alpha", "beta", "tau", "eps", "gamma", "mu", "c", "h", "m", "q", "s", "v", "M")
Lines = dict[str, str]  # by place: plan, send, start, loss, gradient, step, walk, finish, serve; "\n" between lines

EXITS_PAPER = "Ilhan, Su & Liu 2023, ScaleFL: resource-adaptive federated learning (CVPR)"
GEL_PAPERS = (
    "Dhasade, Kermarrec & Pires 2021, Guess what? You can boost federated learning for free (arXiv 2110.11486)\n"
    "Boukhari et al. 2025, Boosting resource-constrained federated learning systems with guessed updates (TPDS)"
)
GHBM_PAPER = (
    "Zaccone, Masone & Ciccone, Communication-Efficient Heterogeneous Federated Learning with Generalized Heavy-Ball "
    "Momentum (arXiv 2311.18578; TMLR 2025); the authors' code: github.com/RickZack/GHBM, commit 41da4a9"
)
MIME_PAPER = "Karimireddy et al. 2021, Breaking the centralized barrier: Mime (arXiv 2008.03606)"
WIDTHS_PAPER = "Diao, Ding & Tarokh 2021, HeteroFL (arXiv 2010.01264)"
SCALES = {"participation": "s = C", "elapsed": "s = 1 / (t - t_i)"}
LAST_VISIT = "the round t_i of its last visit"
SCALE_DEPARTS = "The text scales by the rounds elapsed (scale=elapsed); s = C is what the authors' code does."


@dataclass(frozen=True)
class Explained:
    """What is printed of a rule or a capacity.

    reference: a paper on each line. formulas: its lines by place, or a function (part, algorithm) -> lines where
    parameters change them. server, client: the names of what it keeps there. traffic: a note on what is sent. stateful:
    whether the rule, with its parameters, keeps these and has that note. departs: where the defaults are not what the
    paper's text says, and why; a sentence on each line.

    >>> EXPLAINED[rules.Proximal].formulas
    {'gradient': 'g <- g + mu (y - x)'}
    """

    reference: str = ""
    formulas: Lines | Callable[[Any, Algorithm], Lines] = field(default_factory=dict)
    server: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    traffic: str = ""
    stateful: Callable[[Any], bool] = lambda rule: True
    departs: str = ""


def _scaffold(rule: rules.Scaffold, algorithm: Algorithm) -> Lines:
    rates = "(sum of eta over the J_i steps)" if algorithm.client.finds_rate else "(J_i lr)"
    new = {
        (2, "difference"): f"c_i - c + (x - y) / {rates}",
        (2, "gradient_mean"): "mean of the J_i gradients g before c - c_i was added",
        (1, "difference"): "full gradient of f_i at x",
    }[rule.option, rule.control]
    sent = "" if rule.rebuild else "send c_i' - c_i;   "
    rebuilt = f"c_i' - c_i = -Delta_i / {rates} - c        (worked out by the server)\n"
    return {
        "gradient": "g <- g + (c - c_i)",
        "finish": f"c_i' = {new};   {sent}c_i <- c_i'",
        "serve": rebuilt * rule.rebuild + "c <- c + (1/N) sum_i (c_i' - c_i)",
    }


def _feddyn(rule: rules.FedDyn, algorithm: Algorithm) -> Lines:
    alpha = "alpha_i" if rule.adaptive else "alpha"
    meaning = "        alpha_i = alpha (mean of n) / n_i" if rule.adaptive else ""
    return {
        "gradient": f"g <- g - g_i + {alpha} (y - x){meaning}",
        "finish": f"g_i <- g_i - {alpha} (y - x)",
        "serve": "h <- h - (alpha / N) sum_i (y_i - x)        (the paper's bracket leaves x outside the sum)\n"
        "Delta <- Delta - h / alpha",
    }


def _mixed(rule: rules.Mime | rules.MimeLite, q: str) -> str:
    """The momentum of Mime and MimeLite, in their convention."""
    if not rule.beta:
        return q
    return f"beta m + {q}" if rule.convention == "torch" else f"beta m + (1 - beta) {q}"


def _mime(rule: rules.Mime, algorithm: Algorithm) -> Lines:
    lines = {
        "send": "clients send G_i, the full gradient at x, and receive c, the mean of G_i, weighted like Delta",
        "gradient": f"q = g - g(x; same batch) + c;   g <- {_mixed(rule, 'q')}",
    }
    return lines | ({"serve": f"m <- {_mixed(rule, 'c')}"} if rule.beta else {})


def _mimelite(rule: rules.MimeLite, algorithm: Algorithm) -> Lines:
    if not rule.beta:
        return {}
    return {
        "gradient": f"g <- {_mixed(rule, 'g')}",
        "finish": "send G_i, the full gradient at x",
        "serve": f"c = mean of G_i, weighted like Delta;   m <- {_mixed(rule, 'c')}",
    }


def _ghbm(rule: rules.GHBM, algorithm: Algorithm) -> Lines:
    early = {"zero": "0", "clamp": "(x - x^0) / tau", "truncate": "(x - x^0) / (t - 1)"}[rule.warmup]
    push = "y <- y + (beta / J_i) M"
    value = f"        beta = {rule.beta:g}"
    tau = rule.tau or "round(1/C) by default: after so many rounds every client has taken part once, on average"
    return {
        "send": f"M <- (x - x^{{t-tau-1}}) / tau        (x = x^{{t-1}} in round t; while t <= tau: M <- {early})\n"
        f"tau = {tau}",
        "start": push + value if rule.nesterov_push else "",
        "step": push + ("        (not after the last step)" if rule.nesterov_push else value),
    }


def _localghbm(rule: rules.LocalGHBM, algorithm: Algorithm) -> Lines:
    return {
        "start": f"M_i <- s (x - a_i)        ({SCALES[rule.scale]}; 0 at the first visit)",
        "step": f"y <- y + (beta / J_i) M_i        beta = {rule.beta:g}",
        "finish": "a_i <- x",
    }


def _fedhbm(rule: rules.FedHBM, algorithm: Algorithm) -> Lines:
    first = {"none": "d = 0", "shared": "a_i = x_0", "random": "a_i is a draw of the initialiser"}[rule.first]
    return {
        "gradient": f"d <- y - a_i        (first visit: {first})",
        "step": f"y <- y + (beta s / J_i) d        beta = {rule.beta:g}, {SCALES[rule.scale]}",
        "finish": "a_i <- y",
    }


def _fathom(rule: rules.Fathom, algorithm: Algorithm) -> Lines:
    paper = rule.eq12 == "paper"
    after = "phi_i <- min(phi_i, cos(gradient at y on the first batch, x - y))"
    return {
        "plan": f"J_i = max(1, {rule.steps}(E n_i / B)) steps with rate lr on batches of B",
        "step": "phi_i <- min(phi_i, cos(g, x - y))" + "        (y before the step; not in the first one)" * paper,
        "finish": after * paper,
        "serve": f"h = cos(-Delta, s),  phi = {'lr ' * paper}sum_i p_i phi_i\n"
        "lr <- lr exp(gamma_lr h),  E <- E exp(gamma_epochs (h + phi)),  B <- B exp(-gamma_batch phi)\n"
        "s <- (1 - smoothing) (-Delta) + smoothing s",
    }


def _guess(rule: rules.Guess, algorithm: Algorithm) -> Lines:
    client, steps = algorithm.client, str(rule.steps)
    q = {"remaining": "the steps the server expects - J_i, at least 0", "inf": "infinity"}.get(steps, steps)
    q += f" ({WITH_LEVELS} where that is not known)" if steps == "remaining" and algorithm.capacity else ""
    q += " of J_i" if steps.endswith("%") else ""
    zero = rule.proxy_for(client) == "zero"
    if zero and isinstance(client, SGD):
        a = "a^2" if client.nesterov else "a"
        walk = f"y <- y + c(q) v,   c(q) = {a} (1 - a^q) / (1 - a)"
    else:
        walk = f"q more steps like these, with {'g = 0' if zero else 'the last g'} in place of a new gradient"
    return {"walk": f"{walk}        q = {q}"}


def _schedule(rule: rules.Schedule, algorithm: Algorithm) -> Lines:
    if callable(rule.decay):
        return {"plan": "lr of round t = lr * decay(t, R)        R rounds in all"}
    meaning = {
        "step": "lr, lr / 10 when t > R / 2, lr / 100 when t > 3 R / 4        R rounds in all",
        "cosine": "lr (1 + cos(pi (t - 1) / R)) / 2        R rounds in all",
    }
    known = meaning[rule.decay] if isinstance(rule.decay, str) else f"lr * {rule.decay}^(t - 1)"
    return {"plan": f"lr of round t = {known}"}


LEVELS = {
    "send": "client i receives x_i = x[index of its level]",
    "serve": "element by element, over the clients that trained it; Delta = 0 where none did",
}


def _widths(capacity: Widths, algorithm: Algorithm) -> Lines:
    rates = ", ".join(f"{rate:g}" for rate in capacity.rates)
    scaled = "\nactivations divided by the rate before each normalisation" if capacity.scaler else ""
    send = f"client i receives x_i = x[the first ceil(rate w) of the w channels of each layer], rates {rates}"
    return LEVELS | {"send": send, "start": f"normalisation by the batch alone{scaled}"}


def _guard(rule: rules.Guard, algorithm: Algorithm) -> Lines:
    bound = f"B = {rule.k:g} median of the last {rule.window} rounds' median ||Delta_i|| (in round 1 of its own)"
    limit = "Delta_i <- Delta_i min(1, B / ||Delta_i||)" if rule.action == "clip" else "drop i where ||Delta_i|| > B"
    return {"serve": f"before the mean: {limit}\n{bound}"}


UNSET = {  # by key, what a recipe does without a value for it
    "tau": "round(1/C), C the share of clients in a round",
    "v_init": "eps^2",
    "proxy": "`last` with Adam clients, else `zero`",
    "max": "no upper bound",
    "shares": "as many clients of every level",
    "ratios": "the model's own",
    "a": "0.5 with `staleness=poly`, 10 with `hinge`",
    "alpha": "updates are averaged, not mixed as FedAsync does",
    "count": "by `share`",
    "keep": "n - bad - 2 of n clients",
}
EXPLAINED: dict[type[Rule] | type[Capacity], Explained] = {
    rules.Proximal: Explained(
        "Li et al. 2020, Federated optimization in heterogeneous networks (arXiv 1812.06127)",
        {"gradient": "g <- g + mu (y - x)"},
    ),
    rules.Guess: Explained(GEL_PAPERS, _guess),
    rules.GHBM: Explained(
        GHBM_PAPER,
        _ghbm,
        server=("the last tau models",),
        traffic="M is not sent while it is 0",
        departs="The text does not define M while t <= tau; warmup=zero is what the authors' code does.",
    ),
    rules.LocalGHBM: Explained(GHBM_PAPER, _localghbm, client=("a_i", LAST_VISIT), departs=SCALE_DEPARTS),
    rules.FedHBM: Explained(
        GHBM_PAPER,
        _fedhbm,
        client=("a_i", LAST_VISIT),
        departs=f"{SCALE_DEPARTS}\n"
        "Line 6 of Algorithm 1 prints theta^{t,j}, which is not known before line 8; y before the step is used.",
    ),
    rules.FedCM: Explained(
        "Xu et al. 2021, FedCM (arXiv 2106.10874)",
        {
            "gradient": "g <- alpha g + (1 - alpha) D / (lr J_i)        (D = 0 in round 1; lr of the round of D)",
            "serve": "D <- -Delta",
        },
        server=("D",),
    ),
    rules.FedADC: Explained(
        "Ozfatura et al. 2021, FedADC (arXiv 2012.09102)",
        {
            "gradient": "g <- g + beta_local m / J_i        (m = 0 in round 1)",
            "serve": "m <- -Delta / lr + (beta_global - beta_local) m\nDelta <- -a lr m",
        },
        server=("m",),
    ),
    rules.Scaffold: Explained(
        "Karimireddy et al. 2020, SCAFFOLD (arXiv 1910.06378)", _scaffold, server=("c",), client=("c_i",)
    ),
    rules.FedDyn: Explained(
        "Acar et al. 2021, Federated learning based on dynamic regularization (arXiv 2111.04263)",
        _feddyn,
        server=("h",),
        client=("g_i",),
    ),
    rules.AdaBest: Explained(
        "Varno et al. 2022, AdaBest (arXiv 2204.13170)",
        {
            "gradient": "g <- g - h_i",
            "finish": "h_i <- h_i / (t - t_i) + mu (x - y);   t_i <- t        "
            "(t_i the last round client i took part in)",
            "serve": "avg <- x + Delta\nDelta <- Delta + beta (avg - previous avg)",
        },
        server=("avg",),
        client=("h_i", "t_i"),
    ),
    rules.Mime: Explained(
        MIME_PAPER,
        _mime,
        server=("m",),
        traffic="the GHBM paper prints 3x for MimeMom; 3 models down and 2 up in two exchanges are 2.5x",
        stateful=lambda rule: bool(rule.beta),
    ),
    rules.MimeLite: Explained(MIME_PAPER, _mimelite, server=("m",), stateful=lambda rule: bool(rule.beta)),
    rules.Contrastive: Explained(
        "Li, He & Song 2021, Model-contrastive federated learning (arXiv 2103.16257)",
        {"loss": "loss <- loss + mu * -log(e^a / (e^a + e^b)),  a = cos(z, z_received)/T,  b = cos(z, z_previous)/T"},
        client=("previous",),
    ),
    rules.Fathom: Explained(
        "Kan 2022, Federated hypergradient descent; the author's code: github.com/andrewkkan/fathom, commit eda4191",
        _fathom,
        server=("s", "lr", "epochs", "batch", "h", "phi"),
        departs="The text has floor(E n_i / B) steps (steps=floor); ceil is what the author's code does.\n"
        "Equation 12 compares a gradient with the sum of those before it and has a factor lr (eq12=paper).\n"
        "The sum of the author's code includes the gradient itself, and there is no such factor.\n"
        "lr, E and B are kept within bounds (*_min and *_max), the upper ones as in the code; the text has none.",
    ),
    rules.Schedule: Explained(formulas=_schedule),
    rules.OwnClasses: Explained(
        WIDTHS_PAPER,
        {
            "loss": "scores of classes client i has no samples of are 0 in its loss",
            "finish": "rows of the last layer for those classes do not count in the mean",
        },
    ),
    rules.SelfDistillation: Explained(
        EXITS_PAPER,
        {"loss": "loss <- loss + sum_{l<L} l gamma T^2 KL(softmax(z_L/T) || softmax(z_l/T)) / (L (L + 1) / 2)"},
    ),
    rules.Guard: Explained(formulas=_guard, server=("medians",)),
    Capacity: Explained(formulas=LEVELS),
    Widths: Explained(WIDTHS_PAPER, _widths),
    Exits: Explained(
        EXITS_PAPER,
        LEVELS
        | {
            "send": "client i receives x_i = x[exits 1..L, the first floor(ratio w) of the w channels of each layer]",
            "loss": "loss <- sum_l l loss(z_l) / (L (L + 1) / 2),  z_l at exit l of L",
        },
    ),
}


@dataclass(frozen=True)
class ExplainedOptimizer:
    """What is printed of an optimizer: `lines(optimizer, server)`, from g on clients, from Delta on the server."""

    lines: Callable[[Any, bool], list[str]]
    reference: str = ""
    departs: str = ""  # as in `Explained`


def _sgd(optimizer: SGD, server: bool) -> list[str]:
    x, move, b = ("x", "+ server_lr Delta", "beta") if server else ("y", "- lr g", "a")
    if not optimizer.momentum:
        return [f"{x} <- {x} {move}"]
    step, start = f"{b} v {move}" if optimizer.nesterov else "v", "" if server else ", v = 0 at the start of a round"
    return [f"v <- {b} v {move}        {b} = {optimizer.momentum:g}{start}", f"{x} <- {x} + {step}"]


def _adaptive(optimizer: Adaptive, server: bool, second: str) -> list[str]:
    """Adam and its siblings; `second` is the second moment, with G for the gradient and # for the value of beta2."""
    x, move, g = ("x", "+ server_lr", "Delta") if server else ("y", "- lr", "g")
    start = f"eps = {optimizer.eps:g}, v starts at {optimizer.v_init:g}"
    if optimizer.bias_correction:
        start += ", server_lr times sqrt(1 - beta2^t) / (1 - beta1^t)" if server else ", both moments bias-corrected"
    return [
        f"m <- beta1 m + (1 - beta1) {g}        beta1 = {optimizer.beta1:g}",
        second.replace("G", g).replace("#", f"{optimizer.beta2:g}"),
        f"{x} <- {x} {move} m / (sqrt(v) + eps)        {start}",
    ]


def _self_tuned(optimizer: Any, server: bool, size: Callable[[Any], str]) -> list[str]:
    """SGD with a step size of its own, whose numbers are listed below it."""
    shared = {f.name for f in fields(SGD)}
    names = ["lr", *(f.name for f in fields(optimizer) if f.name not in shared)]
    numbers = {name: value for name in names if is_number(value := getattr(optimizer, name))}
    values = (f"{'theta_0' if name == 'theta' else name} = {value:g}" for name, value in numbers.items())
    steps = [line.replace("lr", "eta") for line in _sgd(optimizer, server)]
    return [*size(optimizer).splitlines(), *steps, ", ".join(values)]


def _curvature(optimizer: DeltaSGD) -> str:
    grown = optimizer.first_step == "grown"
    last = {
        "same": "the gradient at y_last on the same batch, with the same dropout masks",
        "new_masks": "the gradient at y_last on the same batch, with new dropout masks",
        "consecutive": "the last step's gradient",
    }[optimizer.batch_mode]
    first = "eta' <- eta sqrt(1 + delta theta), as wherever a norm is 0" if grown else "eta' <- eta, and theta stays"
    return (
        "eta' <- min(eta sqrt(1 + delta theta), gamma ||y - y_last|| / (2 ||g - g_last||)) + eps\n"
        "theta <- eta' / eta,   eta <- eta'        eta starts a round at lr, theta at theta_0\n"
        f"y_last is y before the last step, g_last {last}\n"
        f"in a round's first step, which has no y_last: {first}"
        + "\nmomentum is ours, not the paper's"
        * bool(optimizer.momentum)
    )


def _polyak(optimizer: SPS) -> str:
    polyak = "max(0, f(y) - fstar) / (c ||g||^2 + 1e-8)"
    caps = ["2^(1/500) eta"] * optimizer.smooth + ["max"] * (optimizer.max is not None)
    return f"eta <- min({', '.join([polyak, *caps])})" if caps else f"eta <- {polyak}"


OPTIMIZERS_EXPLAINED: dict[type[Optimizer], ExplainedOptimizer] = {
    SGD: ExplainedOptimizer(_sgd),  # the plain step needs no citation
    Adam: ExplainedOptimizer(
        partial(_adaptive, second="v <- beta2 v + (1 - beta2) G^2        beta2 = #"),
        "Kingma & Ba 2015, Adam (arXiv 1412.6980)",
    ),
    Yogi: ExplainedOptimizer(
        partial(_adaptive, second="v <- v - (1 - beta2) G^2 sign(v - G^2)        beta2 = #"),
        "Zaheer et al. 2018, Adaptive methods for nonconvex optimization (NeurIPS)",
    ),
    Adagrad: ExplainedOptimizer(
        partial(_adaptive, second="v <- v + G^2"),
        "Duchi et al. 2011, Adaptive subgradient methods for online learning (JMLR)",
    ),
    DeltaSGD: ExplainedOptimizer(
        partial(_self_tuned, size=_curvature),
        "Kim et al. 2023, Adaptive federated learning with auto-tuned clients (arXiv 2306.11201); the authors' code: "
        "github.com/jlylekim/auto-tuned-FL, commit 15ba33c",
        "The text takes a round's first step with eta_0 (first_step=eta0); the authors' code lets it grow first.\n"
        "gamma = 2 and eps = 1e-8 are the code's; the text gives delta, eta_0 and theta_0.",
    ),
    SPS: ExplainedOptimizer(
        partial(_self_tuned, size=_polyak), "Loizou et al. 2021, Stochastic Polyak step-size for SGD (arXiv 2002.10542)"
    ),
}


def _nova(weights: Nova) -> str:
    steps = "A_i" if weights.tau_eff == "norm" else "J_i"
    norm = "A_i = ||a_i||_1 where Delta_i = -lr sum_k a_ik g_k"
    return f"Delta = tau_eff sum_i p_i Delta_i / A_i,   tau_eff = sum_i p_i {steps},   {norm}"


def _trimmed(weights: Trimmed) -> str:
    cut = f"{weights.count}" if weights.count else f"ceil({weights.share:g} |S|)"
    return f"Delta = mean_i of Delta_i without the {cut} smallest and largest, coordinate by coordinate"


def _score(weights: Krum | MultiKrum) -> str:
    return f"score_i = sum of ||Delta_i - Delta_j||^2 over the |S| - {weights.bad + 2} nearest j"


def _krum(weights: Krum) -> str:
    return f"Delta = Delta_i of the least score,   {_score(weights)}"


def _multikrum(weights: MultiKrum) -> str:
    keep = weights.keep or f"|S| - {weights.bad + 2}"
    return f"Delta = mean of the {keep} Delta_i of the least scores,   {_score(weights)}"


WEIGHTS_EXPLAINED: dict[type[Weights], Callable[[Any], str]] = {
    Samples: lambda weights: "Delta = sum_i p_i Delta_i,   p_i = n_i / sum_j n_j",
    Uniform: lambda weights: "Delta = (1/|S|) sum_i Delta_i",
    Nova: _nova,
    Median: lambda weights: "Delta = median_i of Delta_i, coordinate by coordinate",
    Trimmed: _trimmed,
    Krum: _krum,
    MultiKrum: _multikrum,
}
