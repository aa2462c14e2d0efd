"""A CSV file with numbers, texts and blanks: who is readmitted, in five hospitals that may not share their rows."""

import random
from pathlib import Path
from tempfile import mkdtemp

from torch import nn

import fedkeel as fk

random.seed(0)
rows = ["hospital,age,ward,glucose,readmitted"]
for _ in range(900):
    hospital, age, ward = random.choice("ABCDE"), random.randint(20, 90), random.choice(["heart", "lung", "other"])
    glucose = random.gauss(100 + age / 3, 20)
    risk = age / 30 + (ward == "heart") + glucose / 60 + random.gauss(0, 0.5)
    rows.append(f"{hospital},{age},{ward},{glucose if random.random() < 0.9 else ''},{'yes' if risk > 4.5 else 'no'}")
file = Path(mkdtemp(), "patients.csv")
file.write_text("\n".join(rows) + "\n")

# Prints what it does with each column: scales numbers, fills in blanks, makes columns of texts, all by training rows.
data = fk.FederatedData.from_csv(file, client_column="hospital", target_column="readmitted", test=0.2)
task = fk.Task(lambda: nn.Linear(data.x.shape[1], 2), fk.cross_entropy, data, name="readmitted", lr=0.1)
run = fk.train(task, "scaffold", fk.World(cohort="all"), rounds=30)
print(f"accuracy {run.history[-1]['accuracy']:.3f} on {len(data.test[1])} rows of the five hospitals")
