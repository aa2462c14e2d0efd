"""What every named algorithm must satisfy, alone and with guesses, in both engine modes.

A recipe without an entry in `TABLE` fails: say there what makes it FedAvg, what it is with one step, and so on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel import conformance
from fedkeel.conformance import MODES, toy, toy_exits, toy_world
from fedkeel.engine.threads import Local
from fedkeel.recipes import RECIPES

# FedHBM's settings here are unstable in the long run, which its warning says; these runs are short.
pytestmark = pytest.mark.filterwarnings("ignore::fedkeel.StabilityWarning")


def slope_of(model, task, scale):
    """`scale` times the gradient of the mean loss over everybody's samples, left in .grad."""
    model.zero_grad()
    (scale * task.loss(model(task.data.x), task.data.y).mean()).backward()


class TorchYogi(torch.optim.Optimizer):
    """Yogi from its paper, written a second time: torch has none."""

    def __init__(self, params, lr, betas, eps, v_init):
        super().__init__(params, {})
        self.lr, self.betas, self.eps, self.v_init = lr, betas, eps, v_init

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            s = self.state.setdefault(p, {"m": torch.zeros_like(p), "v": torch.full_like(p, self.v_init)})
            s["m"] = self.betas[0] * s["m"] + (1 - self.betas[0]) * p.grad
            square = p.grad**2
            smaller = s["v"] < square
            s["v"] = s["v"] + (1 - self.betas[1]) * torch.where(smaller, square, -square)
            p -= self.lr * s["m"] / (s["v"].sqrt() + self.eps)


LR = 0.1  # of clients; with one step each, Delta = -LR * (mean gradient)


@dataclass(frozen=True)
class Entry:
    """What is due of a recipe; None or empty where a claim does not apply, with the reason in a comment."""

    neutral: str | None  # settings that make it FedAvg bit for bit
    central: tuple[str, Callable[[Any], torch.optim.Optimizer], float] | None  # settings, optimizer, gradient scale
    near: tuple[str, str] | None = None  # (text, equals) to rounding
    knobs: str = ""  # settings under which every knob is alive
    others: Mapping[str, Any] = field(default_factory=dict)  # as in check_knobs
    gel: str | None = "+gel"  # the part that adds guesses; None where guesses make no sense or are there already
    penalties: Mapping[str, Any] = field(default_factory=dict)  # by rule slot; NOT_A_SLOPE where there is none
    rounds: int = 2  # that it takes every knob to show
    quiet: tuple[str, ...] = ()  # keys that change traffic or what is evaluated, and no parameter; or bounds not met
    task: Callable[[], fk.Task] = toy
    seeds: bool = True  # False where batches or budgets are the method's own choice, or check_seeds' model will not do


def sgd(scale=1.0, settings="", **keys):
    return (f"lr={LR}" + (settings and f",{settings}"), lambda p: torch.optim.SGD(p, lr=LR, **keys), scale)


NOT_A_SLOPE = None  # it rescales or replaces the gradient, or keeps it: worked numbers cover it


def linear(*, memory=(), sent=()):
    """Penalty <c, y> of a rule that adds c: the named vectors with their signs; and what puts them in place."""

    def prepare(me):
        shape = torch.arange(1.0, 1 + len(me.x), dtype=me.x.dtype)
        received = {name: i * shape for i, (name, _) in enumerate(sent, 2)}
        kept = {name: i * shape.expand(len(me.steps), -1) for i, (name, _) in enumerate(memory, 5)}
        return replace(me, sent=received, memory=kept)

    def penalty(y, me):
        vectors = [sign * me.memory[name] for name, sign in memory]
        vectors += [sign * me.sent[name] for name, sign in sent]
        return sum((vector * y).sum(1, keepdim=True) for vector in vectors)

    return penalty, prepare


def feddyn_penalty():
    pull, prepare = linear(memory=[("gi", -1)])
    return lambda y, me: pull(y, me) + 0.005 * ((y - me.x) ** 2).sum(1, keepdim=True), prepare


def no_loss(y, me):
    return torch.zeros(len(y), 1, dtype=y.dtype)


def half_square(y, me):
    return 0.5 * 0.3 * ((y - me.x) ** 2).sum(1, keepdim=True)  # mu = .3, as in test_a_gradient_term_...


FEDOPT = "lr=0.1,server_lr=0.02,v_init=0,bias_correction=true"
TABLE = {
    "fedavg": Entry(neutral="", central=sgd(), knobs="momentum=0.5"),
    "sgd": Entry(neutral="", central=sgd(), knobs="momentum=0.5"),
    "fedavgcm": Entry(neutral="momentum=0", central=sgd()),
    "fedavgm": Entry(neutral="beta=0", central=(f"lr={LR}", lambda p: torch.optim.SGD(p, LR, momentum=0.9), 1.0)),
    "fedprox": Entry(neutral="mu=0", central=sgd(), penalties={"proximal": half_square}),
    "fednova": Entry(
        neutral=None,  # divides and multiplies by the norms, so equal only to rounding
        near=("fednova:lr=0.1", "fedavg:lr=0.1"),
        central=sgd(),
        knobs="momentum=0.5",  # without momentum the norm is the number of steps
        others={"weights.tau_eff": "steps"},
    ),
    "fedadagrad": Entry(
        neutral=None,  # an adaptive server has no setting that is FedAvg
        central=(
            "lr=0.1,server_lr=0.02",
            lambda p: torch.optim.Adagrad(p, 0.02, initial_accumulator_value=1e-6, eps=1e-3),
            LR,
        ),
        knobs="beta1=0.5",  # with beta1 = 0 there is no bias to correct
        quiet=("beta2",),  # named in the contract's row for its siblings' sake
    ),
    "fedadam": Entry(
        neutral=None,  # as above
        # with eps far below every root it does not matter whether eps meets the corrected one
        central=(f"{FEDOPT},eps=1e-30", lambda p: torch.optim.Adam(p, 0.02, (0.9, 0.99), 1e-30), LR),
    ),
    "fedyogi": Entry(
        neutral=None,  # as above
        central=("lr=0.1,server_lr=0.02", lambda p: TorchYogi(p, 0.02, (0.9, 0.99), 1e-3, 1e-6), LR),
    ),
    "gel": Entry(
        neutral=None,  # its neutral setting is FedAvgCM: test_guessing_no_step_changes_no_bit
        central=("lr=0.1,steps=3", lambda p: torch.optim.SGD(p, LR), (1 - 0.9**4) / (1 - 0.9)),
        others={"guess.steps": 2, "guess.proxy": "last"},
        gel=None,
        penalties={"guess": no_loss},
    ),
}
DRIFTS = {
    "scaffold": Entry(
        neutral=None,  # its control variates are there from round 2 on
        central=None,  # with unequal clients uniform weights are not the mean loss; Example A has the numbers
        others={"scaffold.control": "gradient_mean", "scaffold.option": 1},
        knobs="weight_decay=0.1",  # both controls agree without it
        gel=None,  # refused: guesses need momentum
        penalties={"scaffold": linear(memory=[("ci", -1)], sent=[("c", 1)])},
        quiet=("rebuild",),
    ),
    "feddyn": Entry(
        neutral=None,  # alpha > 0
        central=None,  # as scaffold
        others={"feddyn.evaluate": "cohort"},
        penalties={"feddyn": feddyn_penalty()},
        quiet=("evaluate",),
    ),
    "adabest": Entry(
        neutral="mu=0,beta=0,weights=samples",
        central=None,  # as scaffold
        penalties={"adabest": linear(memory=[("hi", -1)])},
    ),
    "mime": Entry(
        neutral=None,  # its gradients are corrected from the first step on
        central=sgd(settings="weights=samples"),
        penalties={"mime": NOT_A_SLOPE},
        others={"mime.convention": "paper"},
        quiet=("convention",),  # beta = 0 here
    ),
    "mimemom": Entry(
        neutral=None,  # beta = 0 is Mime
        central=sgd(settings="weights=samples", momentum=0.9),
        others={"mime.convention": "paper"},
        penalties={"mime": NOT_A_SLOPE},
    ),
    "mimelite": Entry(
        neutral="weights=samples",
        central=sgd(settings="weights=samples"),
        penalties={"mimelite": no_loss},
        others={"mimelite.convention": "paper"},
        quiet=("convention",),  # beta = 0 here
    ),
    "mimelitemom": Entry(
        neutral="beta=0,weights=samples",
        central=sgd(settings="weights=samples", momentum=0.9),
        others={"mimelite.convention": "paper"},
        penalties={"mimelite": NOT_A_SLOPE},
    ),
    "fedcm": Entry(neutral="alpha=1", central=None, penalties={"fedcm": NOT_A_SLOPE}),  # scales g; I2 has its equal
    "fedadc": Entry(
        neutral=None,  # divides by lr
        near=("fedadc:beta_local=0,beta_global=0,lr=0.1", "fedavg:lr=0.1"),
        central=sgd(momentum=0.9),
        penalties={"fedadc": linear(sent=[("m", 0.9)])},
    ),
    "ghbm": Entry(
        neutral="beta=0",
        central=(f"lr={LR},tau=1", lambda p: torch.optim.SGD(p, LR, momentum=0.9), 1.0),
        knobs="tau=2",
        others={"ghbm.warmup": "clamp"},
        rounds=4,
    ),
    "localghbm": Entry(
        neutral="beta=0",
        central=sgd(momentum=0.9),  # everybody, every round: the anchor is the last model
        others={"localghbm.scale": "elapsed"},
        rounds=4,
    ),
    "fedhbm": Entry(
        neutral="beta=0",
        central=None,  # anchors are the clients' own models, so it is no centralised method
        others={"fedhbm.scale": "elapsed", "fedhbm.first": "shared"},
        rounds=4,
    ),
}


class Cut(torch.nn.Sequential):
    """toy's model, cut at its representation."""

    def represent(self, x):
        return self[1](self[0](x))

    def classify(self, z):
        return self[2](z)


def cut_toy():
    return replace(toy(), model=lambda: Cut(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)))


STILL = "gamma_lr=0,gamma_epochs=0,gamma_batch=0"
TUNED = {
    "deltasgd": Entry(
        neutral="delta=0,eps=0,gamma=1000000,lr=0.05,weights=samples",  # never grows, and no curvature is too much
        central=sgd(settings="first_step=eta0,weights=samples"),
        knobs="momentum=0.5,gamma=0.2,lr=0.5",  # gamma so that the curvature decides at some steps
        others={"client.first_step": "eta0", "client.batch_mode": "consecutive"},
    ),
    "sps": Entry(
        neutral=None,  # its steps are its own from the first on
        central=None,  # as above; E10 has the numbers
        knobs="momentum=0.5,smooth=true,lr=3",
        quiet=("smooth",),  # refused without it, because of lr; test_sps has both
        others={"client.max": 0.02},
    ),
    "fathom": Entry(
        neutral=f"lr=0.05,batch_size=4,epochs=10,{STILL}",  # asks for more than the budgets, which cap it
        central=sgd(settings="batch_size=100,gamma_lr=0"),
        knobs="batch_size=4,epochs=0.2,gamma_lr=0.3,gamma_epochs=0.3",
        others={"fathom.steps": "floor", "fathom.eq12": "paper"},
        rounds=6,
        quiet=("lr_min", "lr_max", "epochs_min", "epochs_max", "batch_min", "batch_max"),
        seeds=False,
    ),
    "moon": Entry(
        neutral="mu=0",
        central=None,  # the second visit has a term of its own; test_moon has it by hand
        knobs="momentum=0.5,mu=2",
        rounds=4,
        task=cut_toy,
        seeds=False,
    ),
}
PLAIN = "momentum=0,weight_decay=0,weights=samples"
SIZED = {
    "heterofl": Entry(
        neutral=f"rates=1,clip=none,mask=false,{PLAIN}",
        central=None,  # clients hold some classes only, and say nothing of the others
        knobs="momentum=0.5",
        quiet=("statistics",),  # what is evaluated; test_capacity has it
        rounds=4,
        seeds=False,
    ),
    "scalefl": Entry(
        neutral=None,  # its loss is over all exits: test_capacity has FedAvg on that loss
        central=None,
        knobs="momentum=0.5,gamma=2",
        others={"selfdistillation.mean": "batch"},
        rounds=4,
        task=toy_exits,
        seeds=False,
    ),
}
WHOLE_COHORT = "buffer=4,inflight=4,dispatch=4,staleness=constant"
EVERYBODY = "buffer=7,inflight=7,dispatch=7,weights=samples"
ASYNCHRONOUS = {
    "fedbuff": Entry(
        neutral=f"{WHOLE_COHORT},weights=samples",
        central=sgd(settings=EVERYBODY),
        knobs="momentum=0.5,buffer=2,inflight=4",
        rounds=8,
        quiet=("b",),  # of the hinge; test_pace has its numbers
        seeds=False,  # who is under way is drawn one by one
    ),
    "fedasync": Entry(
        neutral=None,  # (x + Delta) - x is Delta but for rounding
        near=(f"fedasync:{WHOLE_COHORT},alpha=1,weights=samples", "fedavg"),
        central=sgd(settings=EVERYBODY + ",alpha=1"),
        knobs="momentum=0.5,buffer=2,inflight=4",
        rounds=8,
        quiet=("b",),
        seeds=False,
    ),
}
TABLE |= DRIFTS | TUNED | SIZED | ASYNCHRONOUS
OTHER_VALUES = {
    "beta": 0.4, "mu": 0.3, "tau_eff": "steps", "steps": 2, "proxy": "last",
    "beta1": 0.4, "beta2": 0.4, "eps": 0.1, "v_init": 0.1, "bias_correction": "true",
    "option": 1, "control": "gradient_mean", "alpha": 0.4, "adaptive": "true", "convention": "paper",
    "beta_local": 0.4, "beta_global": 0.4, "tau": 1, "warmup": "clamp", "nesterov_push": "true",
    "scale": "elapsed", "first": "shared",
    "delta": 0.4, "gamma": 0.4, "theta": 3, "first_step": "eta0", "batch_mode": "consecutive",
    "c": 0.9, "fstar": 0.1, "max": 0.02, "smooth": "false", "temperature": 0.9,
    "epochs": 0.4, "batch_size": 7, "gamma_lr": 0.9, "gamma_epochs": 0.9, "gamma_batch": 0.9, "smoothing": 0.1,
    "fathom:steps": "floor",
    "eq12": "paper",
    "shares": "1/0/0/0/3", "assign": "dynamic", "rates": "0.9/0.5/0.25/0.125/0.0625", "scaler": "false",
    "mask": "false",
    "scalefl:shares": "1/0/0/1", "ratios": "0.4/0.5/0.75/1", "after": 0.6, "mean": "batch", "detach": "true",
    "scalefl:gamma": 0.7,
    "buffer": 3, "inflight": 6, "dispatch": 2, "staleness": "constant", "fedbuff:a": 2, "fedasync:a": 2, "a": 0.5,
}  # fmt: skip
NAMES = [name for name in RECIPES if name in TABLE]
WHOLE = NAMES + [name + TABLE[name].gel for name in NAMES if TABLE[name].gel]


def text(name, settings=""):
    head, plus, rest = name.partition("+")
    return head + (f":{settings}" if settings else "") + plus + rest


def task_of(name):
    return TABLE[name.partition("+")[0].partition(":")[0]].task()


def play(algorithm, mode, task=None, world=None, **settings):
    return fk.train(
        task or toy(), algorithm, world or toy_world(), engine=Local(mode, chunk=3), **{"rounds": 4} | settings
    )


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_an_entry(name):
    assert name in TABLE, f"add '{name}' to TABLE: its neutral setting, its one-step equal, its knobs"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].neutral is not None])
def test_the_neutral_setting_is_fedavg_bit_for_bit(name, mode):
    neutral, fedavg = (play(a, mode, task_of(name)) for a in (text(name, TABLE[name].neutral), "fedavg"))
    assert torch.equal(neutral.params, fedavg.params)
    assert [r["loss"] for r in neutral.history] == [r["loss"] for r in fedavg.history]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].gel])
def test_guessing_no_step_changes_no_bit(name, mode):
    if not fk.algorithm(name).client.coasts:  # +gel brings momentum along
        name = text(name, "momentum=0.9")
    guessed, plain = (play(a, mode, task_of(name)) for a in (f"{name}+gel:steps=0", name))
    assert torch.equal(guessed.params, plain.params)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].near])
def test_the_near_neutral_setting_is_fedavg_to_rounding(name, mode, dtype, tolerance):
    equal_steps = fk.World(cohort=4, budget=fk.FixedSteps(3))
    near, plain = (play(a, mode, world=equal_steps, dtype=dtype).params for a in TABLE[name].near)
    assert (near - plain).norm() <= tolerance * plain.norm()


@pytest.mark.parametrize("mode", MODES)
def test_fednova_is_not_fedavg_when_steps_differ(mode):
    one, two = (play(a, mode, dtype=torch.float64).params for a in TABLE["fednova"].near)
    assert not torch.allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].central])
def test_one_step_of_everybody_is_the_centralised_optimizer(name, mode):
    settings, optimizer, scale = TABLE[name].central
    task = toy().cast(torch.float64, "cpu")
    world = fk.World(cohort="all", budget=fk.FixedSteps(1))
    run = play(text(name, settings), mode, task, world, rounds=5, batch_size=100, dtype=torch.float64)
    model = task.adopt(0, torch.float64, "cpu").module
    central = optimizer(list(model.parameters()))
    for _ in range(5):
        slope_of(model, task, scale)
        central.step()
    want = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(run.params, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_every_knob_of_a_recipe_changes_the_result(name):
    entry = TABLE[name]
    slots = [rule.slot for rule in fk.algorithm(name).rules]
    quiet = [f"{slot}.{key}" for slot in ("server", *slots) for key in entry.quiet]
    conformance.check_knobs(text(name, entry.knobs), entry.others, quiet, entry.task(), rounds=entry.rounds)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_a_recipe_reaches_the_result(name):
    """The same through the grammar: a key that is read but not passed on would be dead there only."""
    settings = dict(pair.split("=") for pair in TABLE[name].knobs.split(",") if pair)
    rounds = TABLE[name].rounds
    task = task_of(name)
    first = play(text(name, TABLE[name].knobs), "batched", task, rounds=rounds, dtype=torch.float64).params
    for key, default in RECIPES[name].keys.items():
        if key in TABLE[name].quiet:
            continue
        assert key in OTHER_VALUES, f"say another value of {name}:{key} in OTHER_VALUES"
        other = OTHER_VALUES.get(f"{name}:{key}", OTHER_VALUES[key])
        assert other != default
        given = settings | {key: other}
        changed = text(name, ",".join(f"{k}={v}" for k, v in given.items()))
        moved = not torch.equal(first, play(changed, "batched", task, rounds=rounds, dtype=torch.float64).params)
        assert moved, f"{name}:{key} is a dead key"


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_term_is_the_slope_of_its_penalty(name):
    for rule in fk.algorithm(text(name, "mu=0.3" if "mu" in RECIPES[name].keys else "")).rules:
        if rule.defines("gradient") or rule.defines("objective") or rule.slot in TABLE[name].penalties:
            assert rule.slot in TABLE[name].penalties, f"say the penalty of {rule.slot}, or NOT_A_SLOPE"
            known = TABLE[name].penalties[rule.slot]
            if known is not NOT_A_SLOPE:
                conformance.check_gradient(rule, *(known if isinstance(known, tuple) else (known,)))


@pytest.mark.parametrize("name", WHOLE)
def test_serial_and_batched_gradients_agree(name):
    conformance.check_modes_agree(name, task_of(name))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WHOLE)
def test_the_number_of_workers_changes_no_bit(name, mode):
    conformance.check_workers(name, mode, task_of(name))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WHOLE)
def test_a_resumed_run_ends_in_the_same_bits(name, mode):
    conformance.check_resume(name, mode, task_of(name))


@pytest.mark.parametrize("name", [name for name in WHOLE if TABLE[name.partition("+")[0]].seeds])
def test_seeds_decide_every_random_choice_and_algorithms_none(name):
    conformance.check_seeds(name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WHOLE)
def test_reported_bytes_are_those_of_serialized_messages(name, mode):
    conformance.check_bytes(name, mode, task_of(name))


@pytest.mark.parametrize("mode", MODES)
def test_fp32_fedavg_sends_two_models_per_client_and_round(mode):
    run = play("fedavg", mode)
    size = 4 * len(run.params)
    assert [row["bytes_down"] for row in run.history] == [4 * t * size for t in range(5)]
    assert [row["bytes_up"] for row in run.history] == [4 * t * size for t in range(5)]
