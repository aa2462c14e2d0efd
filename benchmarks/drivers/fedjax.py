"""FedJAX: its own federated averaging; the models in plain JAX (W1) and haiku (W4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from workloads import Data, Workload

from drivers.common import Clock, Losses, Options, main

jax.tree_map = jax.tree_util.tree_map  # the old name, which FedJAX 0.0.17 still uses

# isort: split
import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
from fedjax.algorithms.fed_avg import federated_averaging  # noqa: E402

Model = tuple[Any, Callable[[Any, Any], jax.Array]]  # initial parameters; scores from parameters and inputs


def logistic_regression(sample: Any) -> Model:
    scale = 60**-0.5
    weight = jax.random.uniform(jax.random.PRNGKey(0), (60, 10), minval=-scale, maxval=scale)
    return {"weight": weight, "bias": jnp.zeros(10)}, lambda p, x: x @ p["weight"] + p["bias"]


def last_character(sample: Any) -> Model:
    def scores(x: Any) -> jax.Array:
        y = jnp.swapaxes(hk.Embed(80, 8)(x), 0, 1)
        for _ in range(2):
            cell = hk.LSTM(100)
            y, _state = hk.dynamic_unroll(cell, y, cell.initial_state(x.shape[0]))
        return hk.Linear(80)(y[-1])

    net = hk.without_apply_rng(hk.transform(scores))
    return net.init(jax.random.PRNGKey(0), sample), net.apply


MODELS = {"W1": logistic_regression, "W4": last_character}


def drive(work: Workload, data: Data, clock: Clock, options: Options) -> Losses:
    params, scores = MODELS[work.name](jnp.asarray(data.x[: work.batch]))

    def loss(params: Any, x: Any, y: Any) -> jax.Array:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores(params, x)), y[:, None], axis=1)
        return -chosen.mean()

    own = [slice(data.offsets[c], data.offsets[c + 1]) for c in range(work.clients)]
    users = [fedjax.ClientDataset({"x": data.x[place], "y": data.y[place]}) for place in own]
    algorithm = federated_averaging(
        lambda p, batch, rng: jax.grad(loss)(p, batch["x"], batch["y"]),
        fedjax.optimizers.sgd(work.lr, work.momentum),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.batch, num_epochs=None, num_steps=work.steps, drop_remainder=True
        ),
    )
    state, rng, stop = algorithm.init(params), np.random.default_rng(0), False
    x, y = data.probe()
    before = float(loss(params, x, y))
    while not stop:
        cohort = rng.choice(work.clients, work.cohort, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(clock.rounds), work.cohort)
        state, _ = algorithm.apply(state, [(int(c), users[c], key) for c, key in zip(cohort, keys, strict=True)])
        jax.block_until_ready(state.params)
        stop = clock.round_done()
    return before, float(loss(state.params, x, y))


if __name__ == "__main__":
    main(drive, ["fedjax", "jax", "dm-haiku", "numpy"])
