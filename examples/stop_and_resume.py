"""Stop a run and resume it: the result is that of an uninterrupted run, bit for bit, memories included."""

import tempfile

import torch

import fedkeel as fk

task, world = fk.tasks.synthetic(), fk.World(cohort=10)
with tempfile.TemporaryDirectory() as folder:
    fk.train(task, "scaffold", world, rounds=20, stop_after=9, checkpoint=folder)
    resumed = fk.resume(folder)
straight = fk.train(task, "scaffold", world, rounds=20)
print("same bits:", bool(torch.equal(resumed.params, straight.params)), "after round", resumed.history[-1]["round"])
