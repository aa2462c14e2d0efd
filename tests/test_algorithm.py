import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.conformance import MODES, Stairs, quadratics, toy, toy_world
from fedkeel.messages import Facts
from fedkeel.recipes import CLIENTS, RECIPES


def test_fedavg_is_the_empty_algorithm():
    runs = [fk.train(toy(), a, toy_world(), 3).params for a in (fk.Algorithm(), "fedavg", "sgd")]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[1], runs[2])


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"weights": "best"}, "weights"), ({"weights": fk.Uniform}, "weights"), ({"client": "sgd"}, "client"),
        ({"server": None}, "server"), ({"rules": fk.Proximal(0.1)}, "rules"), ({"rules": [fk.Proximal]}, "rules"),
        ({"rules": None}, "rules"), ({"buffers": "local?"}, "buffers"),
    ],
)  # fmt: skip
def test_a_part_that_is_none_is_refused_by_name(keys, name):
    with pytest.raises(fk.InputError, match=f"'{name}' parameter of Algorithm must be"):
        fk.Algorithm(**keys)


@pytest.mark.parametrize("mu", [-1, "x", None, float("nan"), True])
def test_a_proximal_rule_wants_a_mu_that_is_not_negative(mu):
    with pytest.raises(fk.InputError, match=r"'mu' parameter of Proximal must be a number in \[0, 1e9\]"):
        fk.Proximal(mu)


@pytest.mark.parametrize("steps", ["some", -1, 2.5, "x%", "-5%", "nan%", True, None])
def test_a_guess_wants_a_number_a_share_or_a_known_word(steps):
    with pytest.raises(fk.InputError, match="'steps' parameter of Guess must be"):
        fk.Guess(steps)


def test_infinity_is_the_same_as_a_number_and_as_a_word():
    assert fk.Guess(math.inf) == fk.Guess("inf")
    with pytest.raises(fk.InputError, match="never settle"):
        fk.Algorithm(client=fk.Adam(), rules=[fk.Guess(math.inf)])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("gel:momentum=0", "Guesses need momentum"),
        ("gel:client=adagrad,proxy=zero", "Guesses need momentum"),
        ("gel:steps=inf,proxy=last", "never settle"),
        ("gel:client=adam,steps=inf", "never settle"),
        ("gel:client=adam,steps=inf,proxy=zero", "closed form"),
        ("fedprox+fedprox", "appears twice"),
        ("gel+gel", "appears twice"),
        ("fedyogi+fedadam", "two server optimizers"),
        ("fedavg:client=adam,momentum=0.5", "belongs to SGD clients"),
        ("fednova:client=adam", "FedNova's weights need"),
    ],
)
def test_an_illegal_combination_says_why(text, word):
    with pytest.raises(fk.InputError, match=word):
        fk.algorithm(text)


class Replaces(fk.Rule):
    def serve(self, server, up, view):
        return server, 0.5 * up.delta


class AlsoReplaces(Replaces):
    pass


class Shows(fk.Rule):
    def models(self, x, server):
        return {"": x + 1}


class AlsoShows(Shows):
    pass


def test_two_rules_that_choose_the_model_to_evaluate_are_refused():
    with pytest.raises(fk.InputError, match="each choose the model"):
        fk.Algorithm(rules=[Shows(), AlsoShows()])


@pytest.mark.parametrize("rules", [[Replaces(), AlsoReplaces()], [fk.FedDyn(), Replaces()], [Replaces(), fk.FedDyn()]])
def test_two_rules_that_replace_the_servers_update_are_refused(rules):
    with pytest.raises(fk.InputError, match="each replace the server's update"):
        fk.train(toy(), fk.Algorithm(rules=rules), toy_world(), 1)


ADVICE = re.compile("use|give|leave|say which")
quietly = pytest.mark.filterwarnings("ignore::fedkeel.errors.StabilityWarning")  # two clients, two rounds: it is known


def refusal(text):
    """The message with which this algorithm is refused, or None."""
    try:
        fk.algorithm(text)
    except fk.InputError as error:
        return str(error)
    return None


def keeps_vectors(rule):
    return rule.slot in ("scaffold", "feddyn", "adabest", "mime", "mimelite", "fedcm", "fedadc", "ghbm", "localghbm",
                         "fedhbm", "contrastive")  # fmt: skip


def due(one, two):
    """Why this pair of recipes may not be put together, or None: the whole table, from first principles."""
    servers = [name for name in (one, two) if RECIPES[name].server]
    if len(servers) == 2:
        return "two server optimizers"
    if RECIPES[one].capacity and RECIPES[two].capacity:
        return "levels twice"
    kept = [name for name in (one, two) if any(map(keeps_vectors, fk.algorithm(name).rules))]
    if kept and (RECIPES[one].capacity or RECIPES[two].capacity):
        return "vectors of the whole model"
    if one == two and RECIPES[one].rule:
        return "appears twice"
    return None


class Represented(nn.Module):
    """A small network that says what its representation is, for rules that compare them."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def represent(self, x):
        return self.body(x).tanh()

    def classify(self, z):
        return self.head(z)

    def forward(self, x):
        return self.classify(self.represent(x))


def trains(text):
    """One round moves the model."""
    run = fk.train(replace(toy(), model=Represented, exits=Stairs), text, toy_world(), 1)
    return run.status == "done" and not torch.equal(run.params, run.state.x0)


@quietly
@pytest.mark.parametrize("one", RECIPES)
def test_every_pair_of_recipes_trains_or_says_why_not(one):
    for two in RECIPES:
        text = f"{one}+{two}"
        why, refused = due(one, two), refusal(text)
        if refused is None:
            assert why is None, text
            assert trains(text), text
        else:  # a rule may also refuse for reasons of its own, but must say what to do instead
            assert "\n" not in refused
            assert why in refused if why else ADVICE.search(refused), f"{text}: {refused}"


@quietly
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_with_every_client_optimizer_trains_or_says_why_not(name):
    for client in CLIENTS:
        text = f"{name}:client={client}"
        refused = refusal(text)
        if refused is None:
            assert trains(text), text
        else:
            assert client != "sgd" or RECIPES[name].client is not None, refused
            assert ADVICE.search(refused), refused


def test_values_are_resolved_from_the_task_and_the_algorithm_stays_as_it_was():
    algorithm = fk.Algorithm(rules=[fk.Guess()], client=fk.SGD(momentum=0.9))
    run = fk.train(replace(toy(), lr=0.123), algorithm, toy_world(), 1)
    assert run.config["parameters"]["client"]["lr"] == 0.123
    assert run.config["parameters"]["rules"][0]["proxy"] == "zero"
    assert algorithm.client.lr is None
    assert fk.train(replace(toy(), lr=None), "fedavg", toy_world(), 1).config["parameters"]["client"]["lr"] == 0.01


def test_the_control_arm_of_adam_scales_the_clients_rate():
    world = fk.World(4, fk.UniformSteps(4, 13), expected_steps=18)
    config = fk.train(toy(), "fedavg:client=adam,lr=match-gel", world, 1).config
    assert config["parameters"]["client"]["lr"] == pytest.approx(0.05 * 18 / 8.5)


@pytest.mark.parametrize(
    ("text", "world", "word"),
    [
        ("fedavgcm:server_lr=match-gel", fk.World(budget=fk.Epochs(1)), "match-gel needs the distribution"),
        ("fedavgcm:server_lr=match-gel", fk.World(budget=fk.FixedSteps(3)), "match-gel needs the distribution"),
        ("fedavg:server_lr=match-gel", fk.World(budget=fk.UniformSteps(1, 2)), "guesses need momentum"),
    ],
)
def test_a_control_arm_without_its_numbers_is_refused(text, world, word):
    with pytest.raises(fk.InputError, match=word):
        fk.train(toy(), text, world, 1)


class Order(fk.Rule):
    """Writes down in which order methods are called."""

    def __init__(self, log):
        self.log = log

    def init(self, x, lr):
        self.log.append("init")
        assert lr == 0.1
        return {"n": x.new_zeros(())}

    def plan(self, plan, server, facts):
        self.log.append("plan")
        return plan

    def send(self, server, view):
        self.log.append("send")
        return {}

    def remember(self, me):
        self.log.append("remember")
        return {"m": me.x.clone()}

    def survey(self, me):
        self.log.append("survey")
        return {"s": me.memory["m"]}

    def start(self, me):
        self.log.append("start")
        return {"sum": torch.zeros_like(me.memory["m"])}

    def loss(self, f, me, z, output, target):
        self.log.append("loss")
        return f(z, output, target)

    def objective(self, f, me, y, batch):
        self.log.append(f"objective {batch.step}")
        return super().objective(f, me, y, batch)

    def gradient(self, g, y, me):
        self.log.append("gradient")
        assert torch.equal(me.sent["s"], me.x)
        me.notes["sum"].add_(g)
        return g

    def step(self, go, me, y, batch):
        self.log.append(f"step {batch.step}")
        before = y.clone()
        found = go(y, batch)
        self.log.append(f"after step {batch.step}")
        assert not torch.equal(before, y)
        return found

    def walk(self, go, me, y):
        self.log.append("walk")
        end = go(y)
        self.log.append("after walk")
        assert end.lr_sum.item() == pytest.approx(0.2)
        return end

    def finish(self, y, end, me):
        self.log.append("finish")
        assert torch.allclose(end.moved, -0.1 * me.notes["sum"])
        return fk.Up(memory={"m": me.memory["m"]})

    def serve(self, server, up, view):
        self.log.append("serve")
        assert torch.equal(view.answers["s"], view.x)
        return server, up.delta

    def models(self, x, server):
        self.log.append("models")
        return {"": x}

    def report(self, server, up, view):
        self.log.append("report")
        return {"seen": 7.0}


@pytest.mark.parametrize("mode", MODES)
def test_methods_are_called_in_the_order_of_a_round(mode):
    log = []
    task, world = quadratics(a=[1], b=[1], x0=2), fk.World("all", fk.FixedSteps(2))
    run = fk.train(task, fk.Algorithm(client=fk.SGD(0.1), rules=[Order(log)]), world, 1, engine=mode)
    steps = [
        line for k in (0, 1) for line in (f"step {k}", f"objective {k}", "loss", "gradient", f"after step {k}")
    ]  # fmt: skip
    # the survey's memory is not kept: only an accepted round is
    first = ["remember", "start", "survey", "remember", "start"]
    before, after = ["init", "models", "plan", "send"], ["after walk", "finish", "serve", "report"]
    assert log == [*before, *first, "walk", *steps, *after, "models"]
    assert run.history[-1]["seen"] == 7.0


def test_the_evaluated_model_may_be_another_than_the_trained_one():
    task, world = quadratics(a=[2], b=[0], x0=1), fk.World("all", fk.FixedSteps(1))
    run = fk.train(task, fk.Algorithm(client=fk.SGD(0.5), rules=[Shows()]), world, 1)
    assert run.params.item() == 0
    assert run.history[-1]["loss"] == 1.0


def test_a_rule_reads_the_averages_it_sends_for_and_no_others():
    class Half(fk.Rule):
        def finish(self, y, end, me):
            return fk.Up(weighted={"y": y})

        def serve(self, server, up, view):
            up.weighted("y")
            return {"y": up.mean("y")}, up.delta

    with pytest.raises(TypeError, match="averages"):
        fk.Up(averages={"y": torch.zeros(1, 1)})
    with pytest.raises(fk.ClientError, match=r"half sends up no 'y' under Up\(mean=...\)"):
        fk.train(toy(), fk.Algorithm(rules=[Half()]), rounds=1)


def test_rules_correct_the_gradient_in_list_order_before_clipping_and_decay():
    class Add(fk.Rule):
        def gradient(self, g, y, me):
            return g + 10

    class Double(fk.Rule):
        def gradient(self, g, y, me):
            return 2 * g

    def end(rules):
        task, world = quadratics(a=[1], b=[1], x0=2), fk.World("all", fk.FixedSteps(1))
        client = fk.SGD(0.1, clip=16.0, weight_decay=0.5)
        return fk.train(task, fk.Algorithm(client=client, rules=rules), world, 1, dtype=torch.float64).params.item()

    assert end([Add(), Double()]) == pytest.approx(2 - 0.1 * (16 + 0.5 * 2))  # (1 + 10) * 2 = 22, clipped
    assert end([Double(), Add()]) == pytest.approx(2 - 0.1 * (12 + 0.5 * 2))  # 1 * 2 + 10 = 12


class Notes(fk.Rule):
    """Counts a client's steps in its notes, in place, and says what it counted."""

    def __init__(self):
        self.counted = None

    def start(self, me):
        return {"count": torch.zeros_like(me.steps)}

    def step(self, go, me, y, batch):
        assert len(me.notes["count"]) == len(me.steps) == len(y)
        me.notes["count"].add_(1)
        return go(y, batch)

    def finish(self, y, end, me):
        return fk.Up(scalars={"count": me.notes["count"]})

    def serve(self, server, up, view):
        self.counted = up.values("count").flatten().tolist()
        return server, up.delta


@pytest.mark.parametrize("mode", MODES)
def test_notes_keep_what_was_written_while_a_client_was_in_view(mode):
    rule, budgets = Notes(), (2, 5, 1)
    world = fk.World("all", lambda t, i: budgets[i])
    fk.train(quadratics([1, 1, 1], [1, 2, 3]), fk.Algorithm(rules=[rule]), world, 1, engine=mode)
    assert rule.counted == [2, 5, 1]


def test_a_view_of_the_first_clients_writes_to_the_notes_of_all():
    column = torch.ones(3, 1)
    me = fk.Me(torch.zeros(1), Facts(), column, column, column, column, None, notes={"a": torch.zeros(3, 1)})
    me.head(2).notes["a"].add_(1)
    me.head(1).notes["a"].copy_(torch.full((1, 1), 5.0))
    assert me.notes["a"].flatten().tolist() == [5, 1, 0]
    assert me.head(2).head(1).steps.shape == (1, 1)


def normed():
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_floating_buffers_are_averaged_by_samples_and_integers_come_from_the_first_client():
    task = replace(toy(), model=normed, batch_size=None)
    run = fk.train(task, "fedavg", fk.World([[0, 3]], lambda t, i: 1 + (i == 3)), 1, dtype=torch.float64)
    data = task.cast(torch.float64, "cpu").data
    own = [data.x[data.offsets[i] : data.offsets[i + 1]] for i in (0, 3)]
    means = [0.1 * own[0].mean(0), 0.19 * own[1].mean(0)]  # one step of momentum .1, and two
    want = (len(own[0]) * means[0] + len(own[1]) * means[1]) / (len(own[0]) + len(own[1]))
    assert torch.allclose(run.state.buffers["0.running_mean"], want, atol=1e-12)
    assert run.state.buffers["0.num_batches_tracked"].item() == 1
    assert torch.equal(run.model()[0].running_mean, run.state.buffers["0.running_mean"])


def test_buffers_may_stay_the_servers():
    run = fk.train(replace(toy(), model=normed), "fedavg:buffers=server", toy_world(), 2)
    assert run.state.buffers["0.num_batches_tracked"].item() == 0
    assert not run.state.buffers["0.running_mean"].any()


def test_guesses_leave_buffers_alone():
    task = replace(toy(), model=normed)
    runs = [fk.train(task, name, toy_world(), 1) for name in ("fedavgcm", "fedavgcm+gel")]
    assert torch.equal(*(run.state.buffers["0.running_mean"] for run in runs))
    assert not torch.equal(*(run.params for run in runs))


class Echo(fk.Rule):
    """What the server sends, the batch at hand, and a draw of the initialiser."""

    def init(self, x, lr):
        return {"c": torch.ones_like(x)}

    def send(self, server, view):
        return server

    def remember(self, me):
        return {"drawn": me.site.draw_models()}

    def objective(self, f, me, y, batch):
        g, value = f(y, batch)
        assert batch.x.shape[:2] == (len(y), batch.y.shape[1])
        assert me.site.batch is batch
        assert me.memory["drawn"].shape == y.shape
        return g + 0 * me.sent["c"], value


@pytest.mark.parametrize("mode", ["serial", "batched"])
def test_a_rule_may_send_without_looking_and_read_the_batch(mode):
    run = fk.train(toy(), fk.Algorithm(rules=[Echo()]), rounds=2, engine=mode)
    assert run.history[-1]["bytes_down"] == 2 * run.history[-1]["bytes_up"]
