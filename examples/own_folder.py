"""Pictures in folders, CLIENT/CLASS/picture.png: the folders say who holds what, and what it shows."""

import random
from pathlib import Path
from tempfile import mkdtemp

from torch import nn

import fedkeel as fk

try:
    from PIL import Image
except ImportError:
    print('Reading pictures needs Pillow: pip install ".[images]"')
    raise SystemExit from None

random.seed(0)
root = Path(mkdtemp())
for client in ("train/ada", "train/wan", "train/eve", "test"):
    for number, name in enumerate(("dusk", "noon")):
        folder = root / client / name
        folder.mkdir(parents=True)
        for shot in range(20):
            light = random.randint(20, 140) + 80 * number
            Image.new("RGB", (40, 30), (light, light, 90)).save(folder / f"{shot}.png")

data = fk.FederatedData.from_folder(root / "train", size=16, test=root / "test")
print(len(data), "clients:", ", ".join(data.client_ids), "- classes:", ", ".join(data.class_names or []))
task = fk.Task(lambda: nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(12, 2)), fk.cross_entropy, data, lr=0.5)
run = fk.train(task, "fedavg", fk.World(cohort="all"), rounds=30)
print(f"accuracy {run.history[-1]['accuracy']:.3f} on {len(data.test[1])} pictures")
