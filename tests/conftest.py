"""What several test files share: quadratics on which every step is known, a small network, a rule that watches."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedkeel as fk
from fedkeel import files
from fedkeel.data.batches import Batch
from fedkeel.optim import Optimizer
from fedkeel.rule import Me, Objective


def _let_end(folder: Path, rounds: int) -> None:
    config = files.read_json(folder / "config.json") | {"rounds": rounds}
    files.write_json(folder / "config.json", config)
    for file in (folder / "checkpoint").glob("*.safetensors"):
        about = files.check_tensors(file)
        files.write_tensors(file, load_file(file), about | {"config": config})


class Bowl(nn.Module):
    """One point p; for a sample (a, b) the output is .5 sum a (p - b)^2."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, sample: Tensor) -> Tensor:
        return 0.5 * (sample[:, 0] * (self.point - sample[:, 1]) ** 2).sum(1)


class Net(nn.Module):
    """A small network that shows its representation."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(4, 3), nn.Linear(3, 3)

    def represent(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def classify(self, z: Tensor) -> Tensor:
        return self.last(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.represent(x))


class Trace(fk.Rule):
    """Watches every step: the rate used and the point reached, by round and client."""

    keeps_linear: ClassVar[bool] = True

    def __init__(self) -> None:
        self.rates: dict[tuple[int, int], list[float]] = {}
        self.points: dict[tuple[int, int], list[Tensor]] = {}
        self.state: dict[tuple[int, int], dict[str, Tensor]] = {}

    def parameters(self) -> dict[str, Any]:
        return {"name": self.slot}

    def step(self, go: Objective, me: Me, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        found = go(y, batch)
        state, rates = _inside(go)
        for row in range(len(y)):
            key = me.facts.round, int(me.site.clients[row])
            self.rates.setdefault(key, []).append(rates[row].item())
            self.points.setdefault(key, []).append(y[row].clone())
            self.state[key] = {name: value[row].clone() for name, value in state.items()}
        return found


def _inside(go: Any) -> tuple[dict[str, Tensor], Tensor]:
    """(state, rates) of the optimizer's own step, under the rules that wrap it; rules themselves cannot read them."""
    while not isinstance(go.func.__self__, Optimizer):
        go = go.args[0]
    _, state, rates = go.args
    return state, rates


@pytest.fixture(params=["serial", "batched"])
def mode(request: pytest.FixtureRequest) -> str:
    """Both engine modes."""
    return str(request.param)


@pytest.fixture
def bowls() -> Callable[..., fk.Task]:
    """`bowls(a, b, n, x0)`: client i holds n_i equal samples of .5 sum a_i (x - b_i)^2."""

    def make(a: Any, b: Any, n: Any, x0: Any) -> fk.Task:
        owner = np.repeat(np.arange(len(n)), n)
        pairs = np.stack([np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)], 1)
        data = fk.FederatedData.from_arrays(pairs[owner], np.zeros(len(owner)), clients=owner)
        return fk.Task(lambda: Bowl(x0), lambda output, target: output, data, batch_size=None)

    return make


@pytest.fixture
def small() -> fk.Task:
    """Three classes, six unequal clients, 27 parameters."""
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), [3, 6, 9, 12, 15, 18])
    y = (random.integers(0, 2, len(owner)) + owner) % 3
    x = random.normal(size=(len(owner), 4)) + np.eye(4)[y]
    data = fk.FederatedData.from_arrays(x, y, clients=owner, test=(x[::3], y[::3]))
    return fk.Task(Net, fk.cross_entropy, data, batch_size=4, lr=0.1, budget=fk.UniformSteps(1, 5))


@pytest.fixture
def play() -> Callable[..., tuple[fk.Run, Trace]]:
    """Train in float64 with a `Trace`, everybody taking part unless a world says otherwise."""

    def run(task: fk.Task, text: str, steps: Any = None, mode: str = "serial", rounds: int = 1, **more: Any) -> Any:
        known, trace = fk.algorithm(text), Trace()
        watched = fk.Algorithm(known.client, [*known.rules, trace], known.server, known.weights)
        budget = fk.FixedSteps(steps) if isinstance(steps, int) else steps
        world = more.pop("world", fk.World(cohort="all", budget=budget))
        played = fk.train(task, watched, world, rounds, engine=mode, dtype=torch.float64, **more)
        assert played.config["engine"] == mode
        return played, trace

    return run


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """A headless Chromium that has seen nothing yet."""
    yield chromium
    chromium.get("about:blank")  # a live page would go on asking
    chromium.get_log("browser")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Headless Chromium; tests that need it are skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := which(name))), None)
    driver = which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no chromium with its chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,1000",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield started
    started.quit()


def pytest_configure() -> None:
    """Children get the usual answer to an interrupt, also where the tests run in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def let_end() -> Callable[[Path, int], None]:
    """Lets a stopped run end after a round, as if it had been planned so."""
    return _let_end
