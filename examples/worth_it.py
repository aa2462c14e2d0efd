"""Is federated learning worth it? Each hospital alone, all together, and all rows in one place, on the same tests."""

import random
from dataclasses import replace
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

# A fifth of every hospital's rows is its own test: no arm trains on them.
whole = fk.FederatedData.from_csv(file, "hospital", "readmitted", verbose=False)
data = whole.held_out(0.2, part="client_test")
task = fk.Task(lambda: nn.Linear(data.x.shape[1], 2), fk.cross_entropy, data, name="readmitted", lr=0.1)
world, rounds = fk.World(cohort="all", budget=fk.Epochs(1)), 30
xt, yt = data.client_test


def one_holder(rows: slice, test: slice) -> float:
    """The accuracy on these test rows, after as many epochs by one who holds these training rows."""
    x, y = data.x[rows], data.y[rows]
    held = fk.FederatedData.from_arrays(x, y, clients=np.zeros(len(x), int), test=(xt[test], yt[test]))
    return fk.train(replace(task, data=held), "fedavg", world, rounds=rounds).history[-1]["accuracy"]


train_rows, test_rows = ([slice(a, b) for a, b in pairwise(ends)] for ends in (data.offsets, data.client_test_offsets))
alone = [one_holder(rows, test) for rows, test in zip(train_rows, test_rows, strict=True)]
together = fk.train(task, "fedavg", world, rounds=rounds).history[-1]
pooled = one_holder(slice(None), slice(None))
for name, accuracy in zip(data.client_ids, alone, strict=True):
    print(f"hospital {name} alone: {accuracy:.3f}")
print(f"mean over hospitals: alone {np.mean(alone):.3f}, federated {together['client_accuracy']:.3f}")
print(f"over all test rows: federated {together['accuracy']:.3f}, all rows in one place {pooled:.3f}")
