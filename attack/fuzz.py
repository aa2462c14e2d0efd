"""Random algorithms, flags, sweeps and configurations: each works, or is refused in one line, in bounded time."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutate import value
from play import Ended, here

from fedkeel import recipes

MEMORY = 16 * 2**30  # bytes of address space a command may ask for
PATIENCE = 60  # seconds a command may take
VALUES = [
    "0", "1", "-1", "0.5", "-0.5", "2", "3", "1e-300", "1e30", "1e300", "-1e30", "nan", "inf", "-inf", "", " ", "x",
    "true", "false", "none", "99999999999999999999999", "1e400", "0x10", "1_0", "\u0663", "0.1.2", "=", ":", "+",
    "4:13", "match-gel", "auto", "all", "10%", "1000000000000", "-0", "1e-9", "100", "é", "\x00", "a" * 5000, "[" * 50,
    "a\nb", "\u2028",
]  # fmt: skip
ENDS = ["1e9", "1e38", "1e-30", "0.999999999", "1000000000", "1e-6", "1/1e-6", "1/1e9", "0/1/0/0/0"]  # of ranges
KEYS = [
    "lr", "momentum", "nesterov", "weight_decay", "clip", "client", "server_lr", "weights", "beta", "mu", "alpha",
    "tau", "delta", "gamma", "eps", "beta1", "beta2", "v_init", "option", "control", "rebuild", "adaptive",
    "convention", "a", "beta_local", "beta_global", "warmup", "scale", "first", "temperature", "theta", "c", "max",
    "epochs", "batch_size", "gamma_lr", "smoothing", "lr_min", "lr_max", "epochs_max", "batch_max", "level",
    "tau_eff", "steps", "proxy", "zzz",
]  # fmt: skip
FLAGS = {
    "--rounds": ["1", "2"], "--seed": ["0", "7"], "--seeds": ["1", "2"], "--batch-size": ["5", "100"],
    "--lr": ["0.1"], "--target": ["0.8"], "--eval-every": ["1", "3"], "--eval-samples": ["10"], "--engine": ["serial"],
    "--device": ["cpu", "meta", "cuda"], "--dtype": ["float64"], "--checkpoint-every": ["1"], "--diagnose": ["1"],
    "--cohort": ["2", "all", "0.5"], "--budget": ["2e", "4:6", "3"], "--expected-steps": ["9"], "--sampler": ["cyclic"],
}  # fmt: skip
BUDGETS = [
    "1e300e", "1:1000000000000", "99999999999999999999999", "0e", "-1e", "nane", "3:2", "0", "1:2:3", "e", "1e-9e",
    "1e8e", "0:10000001", "2e:per_epoch", "1.5e:per_epoch", "2e:drop_last", "infe",
]  # fmt: skip
TASKS = {  # tasks that are made quickly, and their parameters
    "synthetic": ["users", "seed"],
    "synthetic-fedprox": ["users", "alpha", "beta", "iid", "seed"],
    "blobs-deep": ["seed"],
    "digits": ["alpha", "clients", "partition", "seed"],
}
PARTITIONS = [
    "iid",
    "shards",
    "dirichlet",
    "dirichlet_balanced",
    "dirichlet_by_label",
    "dirichlet_repeated",
    "quantity",
]


class Hang(BaseException):
    """A command took too long."""


@dataclass
class Counts:
    """What became of random input of one kind."""

    kind: str
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)


def _alarm(number: int, frame: Any) -> None:
    raise Hang


def judge(counts: Counts, shown: str, ended: Ended | None, seconds: float) -> None:
    """Count a case; None: it hung."""
    counts.cases += 1
    if ended is None:
        counts.failures.append(f"{shown}: no end after {seconds:.0f} s")
    elif ended.crashed:
        counts.failures.append(f"{shown}: {ended.err[-400:]}")
    elif ended.code in (0, 3):
        counts.accepted += 1
    elif ended.code != 2:
        counts.failures.append(f"{shown}: exit code {ended.code}: {ended.err[-400:]}")
    else:
        counts.refused += 1
        lines = [line for line in ended.err.strip().splitlines() if "warning" not in line]
        if len(lines) != 1:
            counts.failures.append(f"{shown}: {len(lines)} lines: {ended.err[:300]}")


def timed(words: list[str]) -> tuple[Ended | None, float]:
    """A command with an alarm clock."""
    began = time.monotonic()
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(PATIENCE)
    try:
        return here(words), time.monotonic() - began
    except Hang:
        return None, time.monotonic() - began
    finally:
        signal.alarm(0)


def grammar(draw: random.Random, folder: Path) -> tuple[list[str], str]:
    """A random algorithm, trained for a round."""
    parts = []
    names = [draw.choice(list(recipes.RECIPES))]
    names += [draw.choice(list(recipes.PARTS))] if draw.random() < 0.25 else []
    names += ["gel"] if draw.random() < 0.3 else []
    for name in names:
        own = [*recipes.KNOWN[name].keys] * 2 + [*recipes.COMMON] if draw.random() < 0.8 else KEYS
        keys = [f"{draw.choice(own)}={draw.choice(VALUES + ENDS)}" for _ in range(draw.choice([0, 1, 1, 2]))]
        parts.append(name + (":" + ",".join(keys) if keys else ""))
    text = "+".join(parts)
    if draw.random() < 0.2:
        at = draw.randrange(len(text) + 1)
        text = text[:at] + draw.choice(VALUES) + text[at:]
    return ["run", "synthetic:users=3", text, "--rounds", "1", "--out", str(folder)], text


def task(draw: random.Random) -> str:
    """A task, half of the time with random parameters."""
    if draw.random() < 0.5:
        return "synthetic:users=4"
    name = draw.choice(list(TASKS))
    keys = draw.sample(TASKS[name], min(len(TASKS[name]), draw.randint(1, 2)))
    return f"{name}:" + ",".join(f"{key}={draw.choice(VALUES + PARTITIONS * (key == 'partition'))}" for key in keys)


def flags(draw: random.Random, folder: Path) -> tuple[list[str], str]:
    """Random flags, half of them sensible."""
    words = ["run", task(draw), "fedavg", "--out", str(folder)]
    given = draw.sample(list(FLAGS), draw.randint(1, 4))
    for flag in given:
        words += [flag, draw.choice(FLAGS[flag] if draw.random() < 0.5 else VALUES + BUDGETS)]
    words += [] if "--rounds" in given else ["--rounds", "1"]
    words += [] if "--budget" in given else ["--budget", "3"]
    return words, " ".join(words[1:])[:300]


def sweep(draw: random.Random, folder: Path) -> tuple[list[str], str]:
    """A sweep over random values; most are refused, since one bad value refuses all."""
    words = ["sweep", "synthetic:users=4", draw.choice(["fedavg", "fedprox+gel", "ghbm"]), "--rounds", "1", "--grid"]
    sensible = draw.random() < 0.01  # such a sweep starts processes, which takes seconds
    for key in draw.sample(["lr", "server_lr"] if sensible else [*KEYS, "gel.steps", "x.y"], draw.randint(1, 2)):
        few = draw.sample(["0.1", "1", "1e9", "1e38"] if sensible else VALUES, 2)
        words.append(f"{key}=" + ("," if sensible else draw.choice([",", ",", "..", "="])).join(few))
    if draw.random() < 0.5 and not sensible:
        words += [draw.choice(["--jobs", "--seeds", "--by", "--optuna"]), draw.choice(VALUES)]
    return [*words, "--out", str(folder)], " ".join(words[1:])[:300]


def configuration(draw: random.Random, folder: Path) -> tuple[list[str], str]:
    """A changed copy of a run's or a comparison's configuration."""
    files = folder.parent / "configurations"
    if not files.exists():
        single = ["run", "synthetic:users=4", "fedprox+gel", "--rounds", "1", "--budget", "2:4"]
        here([*single, "--out", str(files / "one")])
        here([*single[:2], "ghbm:tau=2", "heterofl", *single[3:], "--seeds", "2", "--out", str(files / "many")])
    known = (files / draw.choice(["one", "many"]) / "config.json").read_bytes()
    for _ in range(draw.randint(1, 2)):
        known = value(known, draw)
    changed = folder.parent / "changed.json"
    changed.write_bytes(known)
    return ["run", "--config", str(changed), "--out", str(folder)], known.decode(errors="replace")[:600]


KINDS: dict[str, Callable[[random.Random, Path], tuple[list[str], str]]] = {
    "algorithms": grammar, "flags": flags, "sweeps": sweep, "configurations": configuration,
}  # fmt: skip


def fuzz(kind: str, seconds: float, folder: Path, seed: int = 0, cases: int | None = None) -> Counts:
    """Random input of a kind for so many seconds, or so many cases."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    draw, counts = random.Random(f"{kind} {seed}"), Counts(kind)
    end = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < end and (cases is None or counts.cases < cases):
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        words, shown = KINDS[kind](draw, out)
        ended, took = timed(words)
        judge(counts, shown, ended, took)
    return counts
