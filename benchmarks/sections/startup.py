"""How long `import fedkeel` takes in a fresh process, and from there to the end of the first round of W1."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from sections.common import arguments

IMPORT = "import fedkeel"
TORCH = "import torch"  # most of it, and not ours
ROUND = """
import sys
from pathlib import Path
import fedkeel as fk
from models import model, tensors
from workloads import WORKLOADS, load
work = WORKLOADS["W1"]
data = load(work, Path(sys.argv[1]))
task = fk.Task(lambda: model("W1"), fk.cross_entropy, fk.FederatedData(*tensors(data), data.offsets), batch_size=5)
fk.train(task, "fedavgcm", fk.World(cohort=20, budget=fk.FixedSteps(13)), rounds=1)
"""


def seconds(code: str, folder: str, repeats: int = 5) -> float:
    """The median time of a fresh interpreter running this."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, folder], check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    given = arguments()
    kinds = {"import torch": TORCH, "import fedkeel": IMPORT, "import to the end of round 1 (W1)": ROUND}
    print(json.dumps({"rows": [[name, seconds(code, str(given.data))] for name, code in kinds.items()]}))
