"""LEAF Synthetic, against the numbers of the specification and numpy's own path."""

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.tasks import get


def test_the_data_have_the_papers_sizes():
    data = fk.tasks.synthetic().data
    sizes = data.sizes(np.arange(len(data)))
    assert (len(data), len(data.x), len(data.test[0])) == (1000, 96_374, 11_179)
    assert (np.median(sizes), sizes.min()) == (22.5, 4)
    labels = np.concatenate([data.y.numpy(), data.test[1].numpy()])
    assert len(labels) == 107_553
    assert np.round(np.bincount(labels) / len(labels), 3).tolist() == [0.154, 0.144, 0.215, 0.333, 0.154]


def test_the_model_has_305_parameters_and_the_papers_settings():
    task = fk.tasks.synthetic()
    assert len(fk.train(task, "fedavg", rounds=1).params) == 305
    assert (task.batch_size, task.budget, task.target) == (5, fk.UniformSteps(4, 13), 0.85)


def test_the_first_users_are_numpys_multivariate_normal_bit_for_bit():
    """LEAF's steps written out once more, with the call that LEAF makes."""
    np.random.seed(931231)
    sizes = np.minimum(np.random.lognormal(3, 2, 1000).astype(int) + 5, 1000)
    np.random.seed(931231)
    mixing = np.random.normal(0, 1, (61, 5, 1))
    sigma = np.diag([(j + 1) ** -1.2 for j in range(60)])
    mean = np.random.normal(np.random.normal(0, 1), 1, 1)
    data = fk.tasks.synthetic().data
    for user in range(3):
        np.random.choice(1, p=[1.0])
        centre = np.random.normal(np.random.normal(0, 1), 1, 60)
        x = np.random.multivariate_normal(centre, sigma, sizes[user])
        weights = mixing @ np.random.normal(mean, 0.1, 1)
        noise = np.random.normal(0, 0.1, (sizes[user], 5))
        y = np.argmax(np.hstack([np.ones((len(x), 1)), x]) @ weights + noise, 1)
        cut = max(1, int(0.9 * len(x)))
        own = slice(data.offsets[user], data.offsets[user + 1])
        assert np.array_equal(data.x[own].numpy(), x[:cut])
        assert np.array_equal(data.y[own].numpy(), y[:cut])


def test_making_it_leaves_numpys_generator_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    fk.tasks.synthetic(users=7, seed=11)
    assert np.random.get_state()[1].tolist() == before


def test_other_users_and_seeds_are_other_data_named_so():
    small = fk.tasks.synthetic(users=5, seed=1)
    assert (len(small.data), small.spec) == (5, "synthetic:users=5,seed=1")
    assert get(small.spec).data.x.shape == small.data.x.shape
    assert fk.tasks.synthetic().spec == "synthetic"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("synthetik", "Unknown task 'synthetik'. Did you mean 'synthetic'?"),
        ("synthetic:user=5", "Unknown parameter of task synthetic 'user'. Did you mean 'users'?"),
        ("synthetic:users=0", "The 'users' parameter of synthetic must be"),
        ("synthetic:seed=-1", "The 'seed' parameter of synthetic must be"),
        ("synthetic+gel", "is not one task"),
    ],
)
def test_a_bad_task_name_gets_one_clear_line(text, word):
    with pytest.raises(fk.InputError) as caught:
        get(text)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
