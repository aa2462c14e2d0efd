"""Is federated learning worth it? Every hospital alone, federated, and all rows in one place, on the same tests."""

import random
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from torch import nn

import fedkeel as fk

random.seed(0)
lines = ["hospital,age,ward,glucose,readmitted"]
for _ in range(900):
    hospital, age, ward = random.choice("ABCDE"), random.randint(20, 90), random.choice(["heart", "lung", "other"])
    glucose = random.gauss(100 + age / 3, 20)
    risk = age / 30 + (ward == "heart") + glucose / 60 + random.gauss(0, 0.5)
    lines.append(f"{hospital},{age},{ward},{glucose},{'yes' if risk > 4.5 else 'no'}")
file = Path(mkdtemp(), "patients.csv")
file.write_text("\n".join(lines) + "\n")

whole = fk.FederatedData.from_csv(file, "hospital", "readmitted", verbose=False)
world, rounds, splits = fk.World(cohort="all", budget=fk.Epochs(1)), 30, 3


def model_of(data):
    """The model that is trained on these data; one holder of rows is one client, with as many epochs."""
    task = fk.Task(lambda: nn.Linear(data.x.shape[1], 2), fk.cross_entropy, data, name="readmitted", lr=0.1)
    return fk.train(task, "fedavg", world, rounds=rounds, eval_every=rounds).model()


def one_holder(data, rows):
    x, y = data.x[rows], data.y[rows]
    return fk.FederatedData.from_arrays(x, y, clients=np.zeros(len(x), int), test=data.client_test)


scores, test_rows = [], []
for seed in range(splits):  # each draws another fifth of every hospital's rows as its own test: no model trains on them
    data = whole.held_out(0.2, seed, part="client_test")
    train, test = ([slice(*ends) for ends in pairwise(of)] for of in (data.offsets, data.client_test_offsets))
    federated, pooled = model_of(data), model_of(one_holder(data, slice(None)))
    x, y = data.client_test
    for own, tested in zip(train, test, strict=True):
        models = model_of(one_holder(data, own)), federated, pooled
        scores.append([(model(x[tested].float()).argmax(1) == y[tested]).double().mean().item() for model in models])
        test_rows.append(len(y[tested]))

means = np.reshape(scores, (splits, -1, 3)).mean(0)
print(f"Accuracy of every hospital, mean over {splits} splits\nhospital  test rows  alone  federated  pooled")
for name, rows, (alone, federated, pooled) in zip(data.client_ids, test_rows, means, strict=False):
    print(f"{name:8}  {rows:9}  {alone:.3f}  {federated:9.3f}  {pooled:6.3f}")
print("{:8}  {:9}  {:.3f}  {:9.3f}  {:6.3f}".format("mean", "", *means.mean(0)))
