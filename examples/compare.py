"""Compare algorithms with a model of your own, for a paper: a table for LaTeX, a figure, a page."""

from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import nn

import fedkeel as fk


class MyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x.flatten(1))))


digits = fk.tasks.digits()  # 50 clients with unequal labels, shipped with fedkeel
task = fk.Task(MyNet, fk.cross_entropy, digits.data, name="digits, MyNet", batch_size=10, lr=0.1)
mine = fk.Algorithm(rules=[fk.Proximal(0.1)], server=fk.SGD(momentum=0.5))
world = fk.World(cohort=10, budget=fk.Epochs(1))

out = Path(mkdtemp())
comparison = fk.compare(task, {"FedAvg": "fedavg", "SCAFFOLD": "scaffold", "mine": mine}, world, rounds=6, seeds=3)
comparison.table()
comparison.to_latex(out / "table.tex")
comparison.report(out / "report.html")
comparison.save(out / "runs")  # fedkeel compare, plot and report read it
try:
    comparison.plot(out / "fig.pdf", x="gradients")
except fk.MissingExtra as error:
    print(error)
print("written to", out)
