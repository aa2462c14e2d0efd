from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel import grammar
from fedkeel.recipes import COMMON, RECIPES, nameable, rebuild

# What CONTRACT section 3 fixes for the recipes of issue [A]: own keys with defaults, and weights.
ADAPTIVE = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "v_init": None, "bias_correction": False}
CONTRACT = {
    "fedavg": ({}, fk.Samples), "sgd": ({}, fk.Samples), "fedavgcm": ({}, fk.Samples),
    "fedavgm": ({"beta": 0.9}, fk.Samples), "fedprox": ({"mu": 0.01}, fk.Samples),
    "fednova": ({"tau_eff": "norm"}, fk.Nova),
    "fedadagrad": (ADAPTIVE | {"beta1": 0.0}, fk.Samples),
    "fedadam": (ADAPTIVE, fk.Samples), "fedyogi": (ADAPTIVE, fk.Samples),
    "gel": ({"steps": "remaining", "proxy": None}, fk.Samples),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRACT)
def test_keys_defaults_and_weights_are_the_contracts(name):
    keys, weights = CONTRACT[name]
    assert dict(RECIPES[name].keys) == keys
    assert type(fk.algorithm(name).weights) is weights


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_an_adaptive_server_starts_its_second_moment_at_eps_squared(name):
    assert fk.algorithm(name).server.lr == 0.01
    assert fk.algorithm(name).server.v_init == 1e-6
    assert fk.algorithm(f"{name}:eps=0.1").server.v_init == pytest.approx(0.01)


def test_client_momentum_is_off_except_where_the_contract_says():
    for name in RECIPES:
        client = fk.algorithm(name).client
        if name in CONTRACT:
            assert client.momentum == (0.9 if name in ("fedavgcm", "gel") else 0.0)
    assert fk.algorithm("fedprox+gel").client.momentum == 0.9
    assert fk.algorithm("fedprox:momentum=0.5+gel").client.momentum == 0.5
    assert fk.algorithm("fedprox+gel:momentum=0.5").client.momentum == 0.5
    assert fk.algorithm("fedyogi:momentum=0.9").client.momentum == 0.9


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, recipe in RECIPES.items() for key in recipe.keys])
def test_a_default_typed_out_changes_nothing(name, key):
    typed = grammar.write([(name, {key: RECIPES[name].keys[key]})])
    assert fk.algorithm(typed).parameters() == fk.algorithm(name).parameters()


@pytest.mark.parametrize(
    ("name", "key"),
    [("scaffold", "rebuild"), ("feddyn", "adaptive"), ("ghbm", "nesterov_push"), ("sps", "smooth")],
)
@pytest.mark.parametrize("value", ["no", "0", "none"])
def test_a_switch_is_true_or_false_and_nothing_else(name, key, value):
    with pytest.raises(fk.InputError, match=f"'{key}' parameter of .* must be true or false"):
        fk.algorithm(f"{name}:{key}={value}")


def test_gel_alone_is_client_momentum_with_guesses():
    assert fk.algorithm("gel").parameters() == fk.algorithm("fedavgcm+gel").parameters()


def test_gel_with_adam_is_the_first_version():
    algorithm = fk.algorithm("gel:client=adam")
    assert algorithm.rules[0].proxy_for(algorithm.client) == "last"
    assert isinstance(algorithm.weights, fk.Uniform)
    assert isinstance(fk.algorithm("gel:client=adam,weights=samples").weights, fk.Samples)


SET = {
    "lr": (0.5, "client", "lr"), "momentum": (0.5, "client", "momentum"), "nesterov": (False, "client", "nesterov"),
    "weight_decay": (0.1, "client", "weight_decay"), "clip": (2, "client", "clip"), "client": ("sgd", "client", "name"),
    "server_lr": (0.5, "server", "lr"), "weights": ("uniform", "weights", "name"),
}  # fmt: skip


@pytest.mark.parametrize("key", SET)
@pytest.mark.parametrize("name", CONTRACT)
def test_every_recipe_passes_the_common_keys_on(name, key):
    assert key in COMMON
    value, part, field = SET[key]
    assert fk.algorithm(f"{name}:{key}={str(value).lower()}").parameters()[part][field] == value


@pytest.mark.parametrize("name", CONTRACT)
def test_every_recipe_takes_a_policy_for_buffers(name):
    assert fk.algorithm(f"{name}:buffers=server").parameters()["buffers"] == "server"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("fedavgg", "Unknown algorithm 'fedavgg'. Did you mean 'fedavg"),
        ("fedavg+gell", "Unknown algorithm 'gell'. Did you mean 'gel'?"),
        ("fedprox:momentun=1", "Unknown parameter of fedprox 'momentun'. Did you mean 'momentum'?"),
        ("fedavg:mu=1", "Unknown parameter of fedavg 'mu'"),
        ("fedavg:client=adan", "Unknown client optimizer 'adan'. Did you mean 'adam'?"),
        ("fedprox:mu=-1", "The 'mu' parameter of Proximal must be a number in [0, 1e9]. Got -1 instead."),
        ("fedavg:lr=0", "The 'lr' parameter of SGD must be a number in [1e-30, 1e38]. Got 0 instead."),
        ("fedavg:weights=best", "The 'weights' parameter of Algorithm must be one of samples, uniform, nova"),
        ("fedavg:lr=0.1+gel:lr=0.2", "gives lr twice"),
        ("fedavg:lr=0.1,lr=0.1", "'lr' is given twice"),
        ("", "does not start with a name"),
        ("fedavg+", "does not start with a name"),
        ("fedavg:", "is not key=value"),
        ("fedavg:lr", "is not key=value"),
        ("fedavg:lr=", "is not key=value"),
        ("fedavg:=1", "is not key=value"),
        ("0.1", "does not start with a name"),
        ("fedadam:bias_correction=maybe", "must be true or false"),
    ],
)
def test_bad_text_gets_one_clear_line(text, word):
    with pytest.raises(fk.InputError) as caught:
        fk.algorithm(text)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


names = st.from_regex(r"[a-z][a-z0-9_.-]{0,6}", fullmatch=True)
values = st.one_of(
    st.integers(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(),
    st.sampled_from(["remaining", "25%", "inf", "match-gel"]),
)  # fmt: skip
segments = st.lists(st.tuples(names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=3)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(segments)
def test_what_the_grammar_writes_it_reads_back(parts):
    assert grammar.parse(grammar.write(parts)) == parts


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.text("fedavgl:+=,.0159e-% \n", max_size=25))
def test_whatever_is_typed_is_an_algorithm_or_an_input_error(text):
    with suppress(fk.InputError):  # anything else fails
        assert isinstance(fk.algorithm(text), fk.Algorithm)


def test_the_canonical_text_makes_the_same_algorithm():
    for text in ("FedProx: mu=1e-1 , lr=1e+0 + GEL:steps=25%", "fedyogi:beta2=0.5+gel", "fedadam:v_init=none"):
        algorithm = fk.algorithm(text)
        again = fk.algorithm(algorithm.spec)
        assert again == algorithm
        assert again.spec == algorithm.spec


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_rebuilt_from_its_parameters(name):
    algorithm = fk.algorithm(name)
    assert nameable(algorithm)
    assert rebuild(algorithm.parameters(), algorithm.spec) == algorithm


class OwnWeights(fk.Uniform):
    pass


class OwnOptimizer(fk.SGD):
    pass


class OwnRule(fk.Rule):
    pass


class Proximal(fk.Rule):  # not ours, although it is called so
    pass


@pytest.mark.parametrize(
    "parts",
    [
        {"weights": OwnWeights()},
        {"client": OwnOptimizer()},
        {"server": OwnOptimizer()},
        {"rules": [OwnRule()]},
        {"rules": [Proximal()]},
    ],
)
def test_an_algorithm_with_parts_of_the_users_own_is_not_nameable(parts):
    assert not nameable(fk.Algorithm(**parts))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fedprox:mi=0.1", "Unknown parameter of fedprox 'mi'. Did you mean 'mu'?"),
        ("fedavg:learning_rate=0.1", "'learning_rate'. The client learning rate is lr, the server's server_lr."),
        ("fedavg:epochs=2", "'epochs'. Local work belongs to the world: --budget 2e for two epochs"),
        ("fedprox:mu=0.1:lr=0.1", "separate keys by commas, 'fedprox:mu=0.1,lr=0.1'."),
    ],
)
def test_a_key_as_others_write_it_is_refused_with_ours(text, told):
    with pytest.raises(fk.InputError) as caught:
        fk.algorithm(text)
    assert told in str(caught.value)
