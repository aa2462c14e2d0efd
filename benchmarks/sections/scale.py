"""Registered clients and cohorts: seconds per round and peak memory, W1's model, five samples per client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from models import model

import fedkeel as fk
from sections.common import arguments, round_seconds

REGISTERED, COHORTS, HELD, STEPS = (10**3, 10**4, 10**5, 10**6), (20, 100, 1000), 5, 13


def one(clients: int, cohort: int, seconds: float) -> dict[str, float]:
    """A round's length and this process's peak resident memory."""
    x = torch.randn(clients * HELD, 60)
    data = fk.FederatedData(x, torch.arange(len(x)) % 10, np.arange(clients + 1) * HELD)
    task = fk.Task(lambda: model("W1"), fk.cross_entropy, data, batch_size=5)
    world = fk.World(cohort=cohort, budget=fk.FixedSteps(STEPS))
    length = round_seconds(task, "fedavgcm:lr=0.01", world, seconds)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "clients": clients,
        "cohort": cohort,
        "round_s": length,
        "steps_per_s": cohort * STEPS / length,
        "peak_mb": int(peak.split()[1]) / 1024,
        "data_mb": x.nbytes / 2**20,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "one":  # in a process of its own, so that its peak is its own
        print(json.dumps(one(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
        raise SystemExit
    given = arguments()
    pairs = [(clients, 100) for clients in REGISTERED] + [(1000, cohort) for cohort in COHORTS if cohort != 100]
    rows = []
    for clients, cohort in pairs:
        asked = [sys.executable, "-m", "sections.scale", "one", str(clients), str(cohort), str(given.seconds)]
        done = subprocess.run(asked, capture_output=True, text=True, env=dict(os.environ))
        if done.returncode:
            raise SystemExit(f"{clients} clients: {done.stderr.strip().splitlines()[-1]}")
        rows.append(json.loads(done.stdout))
    print(json.dumps({"rows": rows}))
