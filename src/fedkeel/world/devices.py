"""Devices: how fast clients compute, how good their networks are, how often they drop out and when they are there.

A fleet describes devices; `profiles` draws one for every client of a population, as columns of numbers, from
(seed, purpose, client) like every draw. Figures of the built-in fleets are in FLEETS, each with its source in SOURCES.
"""

from __future__ import annotations

import csv
import hashlib
import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import draws, grammar
from ..errors import InputError, brief, check, is_number, unknown
from ..ranges import FADING, POSITIVE, Range, keep
from .budget import Ints

Floats = NDArray[np.float64]

DISTRIBUTIONS = ("equal", "uniform", "lognormal", "halfnormal", "exponential")
DAY, HOUR = 86_400, 3_600  # seconds
NIGHT, NOON = 0.4, 0.1  # of diurnal devices, the share that is available at the best and at the worst time of the day
SECONDS = Range(1e-12, 1e9)
MEGABITS = Range(1e-6, 1e9)
LATENCY = Range(0, 1e6)
SPREAD = Range(0, 10)
BYTES = 1e6 / 8  # in a megabit


@dataclass(frozen=True)
class Profiles:
    """The devices of a population: a column per figure, a row per client, and no object per client."""

    seconds: Floats  # per gradient of one sample
    down: Floats  # bytes per second
    up: Floats
    latency: Floats  # seconds, each way
    dropout: Floats  # the probability to be lost in a round
    share: Floats  # the probability to be available; 1 is always; NaN is diurnal

    def available(self, clients: Ints, seed: int, round: int, now: float) -> NDArray[np.bool_]:
        """Which of these clients can be invited in this round, `now` seconds after the start.

        A share is drawn for each round, of diurnal devices for each hour: most are there at midnight, few at noon.
        """
        share = self.share[clients]
        diurnal = np.isnan(share)
        night = (1 + math.cos(2 * math.pi * now / DAY)) / 2
        share = np.where(diurnal, NOON + (NIGHT - NOON) * night, share)
        here = share >= 1
        for purpose, when, some in (
            ("available", round, ~here & ~diurnal),
            ("hour", int(now // HOUR), ~here & diurnal),
        ):
            if some.any():
                drawn = draws.generators(seed, purpose, when, clients[some])
                here[some] = [generator.random() for generator in drawn] < share[some]
        return here

    @cached_property
    def reliable(self) -> bool:
        """No client is ever lost."""
        return not self.dropout.any()

    @cached_property
    def always(self) -> bool:
        """Every client is available all the time."""
        return bool((self.share == 1).all())


def _share(available: Any) -> float | None:
    """The probability to be available, NaN for diurnal devices; None for what is not an availability."""
    named = {"always": 1.0, "diurnal": math.nan}
    if isinstance(available, str):
        return named.get(available)
    return float(available) if available in Range(1e-6, 1) else None


AVAILABLE = "'always', 'diurnal' or a share in [1e-6, 1]"


@dataclass(frozen=True)
class Fleet:
    """Devices whose speeds follow a distribution.

    seconds: per gradient of one sample, times a factor that is drawn for each client: 1 (equal), uniform in
    [1 - spread, 1 + spread], exp(spread N) (lognormal), 1 + spread |N| (halfnormal, as in FedBuff's simulations) or
    1 + spread E (exponential), where N is normal and E exponential. down, up: megabits per second, divided by another
    such factor, of `network_spread`. latency: seconds, each way. dropout: the probability that a client is lost in a
    round. available: "always", a share of the rounds, or "diurnal" (four times as many at midnight as at noon).

    >>> Fleet("lognormal", seconds=0.01, spread=0.5).profiles(3, seed=0).seconds.shape
    (3,)
    >>> str(fleet("phones:dropout=0"))
    'phones:dropout=0'
    """

    distribution: str = "equal"
    seconds: float = 0.01
    spread: float = 0.0
    down: float = 35.96
    up: float = 11.22
    network_spread: float = 0.0
    latency: float = 0.04
    dropout: float = 0.0
    available: str | float = "always"
    text: str | None = field(default=None, compare=False, repr=False)  # what it was made from

    def __post_init__(self) -> None:
        good = self.distribution in DISTRIBUTIONS
        check(good, self, "distribution", f"one of {', '.join(DISTRIBUTIONS)}", self.distribution)
        keep(self, SECONDS, "seconds")
        keep(self, MEGABITS, "down", "up")
        keep(self, LATENCY, "latency")
        keep(self, FADING, "dropout")
        keep(self, FADING if self.distribution == "uniform" else SPREAD, "spread", "network_spread")
        check(_share(self.available) is not None, self, "available", AVAILABLE, self.available)

    def profiles(self, population: int, seed: int) -> Profiles:
        """The devices of clients 0, 1, ...; more clients change none of those before them."""
        drawn = draws.uniforms(seed, "device", population)
        slower, weaker = self._factors(drawn[:, 0], self.spread), self._factors(drawn[:, 1], self.network_spread)
        equal = np.ones(population)
        down, up = self.down * BYTES / weaker, self.up * BYTES / weaker
        share = _share(self.available)
        assert share is not None
        return Profiles(
            self.seconds * slower, down, up, self.latency * equal, self.dropout * equal, share * equal
        )  # fmt: skip

    def _factors(self, drawn: Floats, spread: float) -> Floats:
        if self.distribution == "equal" or not spread:
            return np.ones(len(drawn))
        if self.distribution == "uniform":
            return 1 + spread * (2 * drawn - 1)
        if self.distribution == "exponential":
            return 1 - spread * np.log1p(-drawn)
        middle = np.maximum(drawn, 2.0**-54)  # a draw of 0 would be infinitely fast
        half = self.distribution == "halfnormal"
        normal: Floats = torch.special.ndtri(torch.from_numpy((1 + drawn) / 2 if half else middle)).numpy()
        return 1 + spread * normal if half else np.exp(spread * normal)

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        values = {one.name: getattr(self, one.name) for one in FIGURES}
        return grammar.write([(self.distribution, values)])


FIGURES = [one for one in fields(Fleet) if one.name not in ("distribution", "text")]
SPEEDTEST = "Ookla Speedtest Global Index, September 2020, global mean"
AT_SCALE = "Bonawitz et al. 2019, Towards federated learning at scale (arXiv 1902.01046)"
FLEETS: dict[str, Fleet] = {name: Fleet(name, spread=0.5 * (name != "equal")) for name in DISTRIBUTIONS} | {
    "phones": Fleet(
        "lognormal", seconds=0.02, spread=1.0, down=35.96, up=11.22, network_spread=0.7, latency=0.04, dropout=0.08,
        available="diurnal",
    ),
    "hospitals": Fleet(
        "lognormal", seconds=0.002, spread=0.5, down=85.73, up=45.74, network_spread=0.3, latency=0.021, dropout=0.01,
        available="always",
    ),
}  # fmt: skip
SOURCES: dict[str, dict[str, str]] = {
    "phones": {
        "distribution": "assumed: few devices are much slower than most",
        "seconds": "assumed: 50 samples a second, for a small convolutional network",
        "spread": "assumed: the slowest percent takes about 100 times as long as the fastest",
        "down": f"{SPEEDTEST}, mobile",
        "up": f"{SPEEDTEST}, mobile",
        "network_spread": "assumed",
        "latency": f"{SPEEDTEST}, mobile",
        "dropout": f"{AT_SCALE}: 6 % to 10 % of the devices drop out; this is the middle",
        "available": f"{AT_SCALE}: four times as many devices at the best hour as at the worst; the levels "
        f"{NIGHT:.0%} and {NOON:.0%} are assumed",
    },
    "hospitals": {
        "distribution": "assumed, as for phones",
        "seconds": "assumed: 500 samples a second, ten times a phone",
        "spread": "assumed: the slowest percent takes about 10 times as long as the fastest",
        "down": f"{SPEEDTEST}, fixed broadband",
        "up": f"{SPEEDTEST}, fixed broadband",
        "network_spread": "assumed",
        "latency": f"{SPEEDTEST}, fixed broadband",
        "dropout": "assumed: a site in a hundred fails in a round",
        "available": "assumed: servers run day and night",
    },
}


@dataclass(frozen=True, eq=False)
class Table:
    """Devices of a CSV file: a row per client, or with a column `share` a row per class of devices.

    Columns: seconds (per gradient of one sample), down and up (megabits per second), latency (seconds), and if wanted
    dropout (default 0) and available (default always). Classes are drawn for each client, in proportion to `share`.
    """

    file: Path
    columns: dict[str, Floats]
    digest: str

    @classmethod
    def read(cls, file: Path, digest: str = "") -> Table:
        """The devices of a file; refuses another file than that of this digest."""
        try:
            data = file.read_bytes()
            lines = list(csv.reader(data.decode("utf-8-sig").splitlines()))
        except (OSError, UnicodeError, csv.Error) as error:
            raise InputError(f"The fleet {file} cannot be read: {error}.") from error
        found = hashlib.sha256(data).hexdigest()[:16]
        if digest not in ("", found):
            raise InputError(f"The fleet {file} has changed since the run was started with it.")
        rows = [row for row in lines[1:] if row]
        if not rows:
            raise InputError(f"The fleet {file} has no devices: it needs a line of names and a line for each device.")
        heads = [name.strip().lower() for name in lines[0]]
        for name in heads:
            if name not in COLUMNS:
                raise unknown(f"column of {file}", name, COLUMNS)
        for name, default in COLUMNS.items():
            if default is None and name not in heads:
                raise InputError(f"The fleet {file} has no column {name}; it needs {', '.join(NEEDED)}.")
        if len(set(heads)) < len(heads):
            raise InputError(f"The fleet {file} has a column twice.")
        columns = {name: _column(file, rows, place, name) for place, name in enumerate(heads)}
        return cls(file.resolve(), columns, found)

    def profiles(self, population: int, seed: int) -> Profiles:
        """The devices of clients 0, 1, ..."""
        rows, known = np.arange(population), len(next(iter(self.columns.values())))
        if "share" in self.columns:
            until = np.cumsum(self.columns["share"])
            drawn = draws.uniforms(seed, "device", population)[:, 0]
            rows = np.minimum(np.searchsorted(until / until[-1], drawn, side="right"), known - 1)
        elif known != population:
            raise InputError(
                f"The fleet {self.file} has {known:,} devices for {population:,} clients; give one line per client, "
                "or a column share with a line per class of devices."
            )
        filled = {name: np.full(known, default) for name, default in COLUMNS.items() if default is not None}
        values = {name: column[rows] for name, column in (filled | self.columns).items()}
        down, up = values["down"] * BYTES, values["up"] * BYTES
        return Profiles(values["seconds"], down, up, values["latency"], values["dropout"], values["available"])

    def __str__(self) -> str:
        return f"{self.file}@{self.digest}"


COLUMNS: dict[str, float | None] = {  # of a file, with their defaults; None: it has to be there
    "seconds": None, "down": None, "up": None, "latency": None, "dropout": 0.0, "available": 1.0, "share": 1.0,
}  # fmt: skip
NEEDED = [name for name, default in COLUMNS.items() if default is None]
ALLOWED = {"seconds": SECONDS, "down": MEGABITS, "up": MEGABITS, "latency": LATENCY, "dropout": FADING}


def _column(file: Path, rows: list[list[str]], place: int, name: str) -> Floats:
    values = np.empty(len(rows))
    allowed = ALLOWED.get(name, POSITIVE)
    must = AVAILABLE if name == "available" else str(allowed)
    for number, row in enumerate(rows):
        text = row[place].strip() if place < len(row) else ""
        value = grammar.value_of(text)
        known = _share(value) if name == "available" else value if value in allowed else None
        if known is None:
            where = f"Line {number + 2} of the fleet {file}"
            raise InputError(f"{where}: {name} must be {must}. Got {brief(text)} instead.")
        values[number] = known
    return values


AnyFleet = Fleet | Table


def fleet(text: str) -> AnyFleet:
    """The fleet of a name, with figures of its own if wanted, or of a CSV file.

    >>> fleet("hospitals").down, fleet("lognormal:seconds=0.5,spread=2").seconds
    (85.73, 0.5)
    """
    path, _, digest = text.rpartition("@") if "@" in text else (text, "", "")
    if path.lower().endswith(".csv"):
        return Table.read(Path(path), digest)
    segments = grammar.parse(text)
    (name, given), names = segments[0], [one.name for one in FIGURES]
    if len(segments) > 1 or name not in FLEETS:
        raise unknown("fleet", text if len(segments) > 1 else name, [*FLEETS, "FILE.csv"])
    for key in given:
        if key not in names:
            raise unknown(f"figure of {name}", key, names)
    for key, value in given.items():
        if key != "available" and not is_number(value):
            raise InputError(f"The '{key}' of the fleet {name} must be a number. Got {brief(value)} instead.")
    return replace(FLEETS[name], **given, text=grammar.write(segments))
