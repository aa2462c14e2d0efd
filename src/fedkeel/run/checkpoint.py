"""What a run leaves behind: its state between rounds, its model, and how it ended.

A checkpoint is one file of tensors with a checksum over all of it, bound to its run: it has the run's configuration,
the identity of its data, its round, and the length and checksum of the history up to that round. The one before it is
kept. No pickle: nothing executes from a file.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..data import FederatedData
from ..engine.memory import Memories
from ..errors import InputError, StabilityWarning
from ..files import (
    BLOCK,
    CHECKSUM,
    check_tensors,
    damaged,
    prefix_checksum,
    read_json,
    reading,
    write_json,
    write_tensors,
)
from ..flat import FlatModel
from ..messages import Flights, flatten
from ..round import State
from ..version import __version__
from ..wire import from_bytes, to_bytes
from . import history as rows
from .folder import CHECKPOINTS, CONFIG, HISTORY, MARK, MODEL, OUTCOME, PREVIOUS, STATE
from .history import History

SAMPLED = 256  # blocks of a large array that its identity is taken from
PIECE = 2**16  # bytes of such a block


def environment() -> dict[str, Any]:
    """Versions and machine of this run."""
    return {
        "fedkeel": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{sys.platform} {platform.machine()}",
        "cores": os.cpu_count(),
    }


# Identity


@dataclass(frozen=True)
class Identity:
    """What a checkpoint is bound to: the run's configuration, as its file has it, and its data."""

    config: dict[str, Any]
    data: str

    def difference(self, about: dict[str, Any]) -> str | None:
        """How a checkpoint's own identity differs, in words."""
        theirs = about["config"]
        for name in self.config | theirs:
            if theirs.get(name) != self.config.get(name):
                return f"its {name} is {theirs.get(name)!r}, this run's is {self.config.get(name)!r}"
        return None if about["data"] == self.data else "it was trained on other data"


def identity_of(data: FederatedData) -> str:
    """A checksum of the data: of who holds how much, of shapes and types, and of up to 256 blocks of every array."""
    sum = hashlib.sha256(np.ascontiguousarray(data.offsets).view(np.uint8).data)
    for array in (data.x, data.y, *(data.test or ()), *(data.validation or ()), *(data.client_test or ())):
        sum.update(f"{tuple(array.shape)} {array.dtype}".encode())
        same = len(array) > 1 and array.stride(0) == 0  # one sample that stands for those on devices
        array = array[:1].clone(memory_format=torch.contiguous_format) if same else array
        whole = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in np.unique(np.linspace(0, max(0, len(whole) - PIECE), SAMPLED, dtype=np.int64)):
            sum.update(whole[start : start + PIECE].data)
    return sum.hexdigest()


# Between rounds


def save_state(folder: Path, state: State, memories: Memories, identity: Identity, history: dict[str, Any]) -> None:
    """Write the checkpoint of a state; `history` describes the rows up to it. The one before it is kept."""
    tensors: dict[str, Tensor] = {"x": state.x, "x0": state.x0}
    tensors |= {f"buffers/{name}": value for name, value in state.buffers.items()}
    tensors |= {f"optimizer/{name}": value for name, value in state.optimizer.items()}
    tensors |= {f"rules/{path}": value for path, value in flatten(state.rules).items()}
    tensors |= {f"memory/{path}": table[: len(memories)] for path, table in flatten(memories.tables).items()}
    tensors["clients"] = torch.tensor(list(memories.row), dtype=torch.int64)
    about = {"round": state.round, "totals": state.totals, "rules": list(state.rules), "history": history}
    about |= {"sim_seconds": state.sim_seconds}
    if state.flights.clients:
        tensors["flights"] = torch.frombuffer(bytearray(to_bytes(state.flights)), dtype=torch.uint8)
    newest = folder / STATE
    if newest.exists():
        os.replace(newest, folder / PREVIOUS)
    write_tensors(newest, tensors, about | {"config": identity.config, "data": identity.data})


def drop_state(folder: Path) -> None:
    """Remove the checkpoints, which a finished run does not need."""
    for file in (STATE, PREVIOUS):
        (folder / file).unlink(missing_ok=True)
    with suppress(OSError):  # not there, or not empty
        (folder / CHECKPOINTS).rmdir()


def newest_state(
    folder: Path, identity: Identity, population: int, device: str, mend: bool = False
) -> tuple[State, Memories, History]:
    """The newest checkpoint that is whole, with the history up to it; refuses one of another run.

    A damaged one is passed over for the one before it, with a warning. mend: the one before it takes its place, so that
    the next checkpoint does not push it out; the caller holds the lock.
    """
    problems: list[str] = []
    for file in (folder / STATE, folder / PREVIOUS):
        if not file.exists():
            continue
        try:
            about = check_tensors(file)
            with reading(file, "a checkpoint"):
                other = identity.difference(about)
                if other is None:
                    history = _history_until(folder, about)
                    state, memories = _load(file, about, population, device)
        except InputError as error:
            problems.append(str(error))
            continue
        if other is not None:
            raise InputError(f"{file} belongs to another run: {other}.")
        for problem in problems:
            text = f"{problem} The run goes on from the checkpoint before it, of round {state.round}."
            warnings.warn(text, StabilityWarning, stacklevel=3)
        if mend:
            os.replace(file, folder / STATE)
        return state, memories, history
    raise InputError(" ".join(problems) + f" No whole checkpoint is left in {folder}; start the run again.")


def _history_until(folder: Path, about: dict[str, Any]) -> History:
    """The rows up to a checkpoint, which are those it was written after."""
    file, known = folder / HISTORY, about["history"]
    if prefix_checksum(file, known["bytes"]) != known["sha256"]:
        raise damaged(file, f"its first {about['round'] + 1} rows are not those of the checkpoint")
    return rows.read(file, known["bytes"])


def _load(file: Path, about: dict[str, Any], population: int, device: str) -> tuple[State, Memories]:
    with safetensors.safe_open(file, "pt", device=device) as content:
        names = list(content.keys())
        tensors = {name: content.get_tensor(name) for name in names if not name.startswith("memory/")}
        memories = Memories(population)
        clients = tensors["clients"].cpu().numpy()
        for path in names:
            if not path.startswith("memory/"):
                continue
            _, slot, name = path.split("/")
            table = content.get_slice(path)
            few = max(1, BLOCK // table.get_shape()[1])
            for begin in range(0, len(clients), few):
                memories.write(clients[begin : begin + few], {slot: {name: table[begin : begin + few]}})

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    rules = {slot: under(f"rules/{slot}/") for slot in about["rules"]}
    x, x0 = tensors["x"], tensors["x0"]
    now, flights = about.get("sim_seconds", 0.0), Flights()  # version 0.1 had no time
    if "flights" in tensors:
        flights = from_bytes(tensors["flights"].cpu().numpy().tobytes(), device)
    known = about["round"], about["totals"], now, flights
    return State(x, x0, under("buffers/"), under("optimizer/"), rules, *known), memories


def has_state(folder: Path) -> bool:
    """Whether there is a checkpoint, whole or not."""
    return (folder / STATE).exists() or (folder / PREVIOUS).exists()


# The end


def save_model(folder: Path, module: torch.nn.Module) -> str:
    """Write `model.safetensors` under the module's own names; gives its checksum."""
    tensors = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    return write_tensors(folder / MODEL, tensors, {})


def check_model(folder: Path) -> None:
    """Compare the model of a finished run with its checksum and with the run's outcome; version 0.1 wrote neither."""
    if (folder / OUTCOME).exists():
        known = read_json(folder / OUTCOME).get("model")
        if check_tensors(folder / MODEL)[CHECKSUM] != known:
            raise damaged(folder / MODEL, "it is not the model this run ended with")


def load_model(folder: Path, model: FlatModel) -> None:
    """Read `model.safetensors` into an adopted model."""
    file = folder / MODEL
    if not file.exists():
        raise InputError(f"{file} is not there: the run has not ended; continue it with fedkeel resume {folder}.")
    check_model(folder)
    with reading(file, "the model of this run"):
        try:
            model.module.load_state_dict(safetensors.torch.load_file(file))
        except RuntimeError as error:  # other names or shapes
            raise damaged(file, " ".join(str(error).split())) from error


def save_outcome(folder: Path, status: str, history: dict[str, Any], model: str) -> None:
    """Write how the run ended; from here on it is finished."""
    config = read_json(folder / CONFIG)
    write_json(folder / OUTCOME, {"status": status, "history": history, "model": model, "config": config})


@dataclass(frozen=True)
class Known:
    """What a run's directory says; status is "done", "diverged" or "stopped"."""

    config: dict[str, Any]
    history: History
    status: str


def read_run(folder: Path) -> Known:
    """Read a run's directory and compare it with its checksums."""
    known = ended(folder)
    if known is not None:
        return known
    file = folder / HISTORY
    return Known(read_config(folder), rows.read(file) if file.exists() else History(), "stopped")


def ended(folder: Path) -> Known | None:
    """The same of a run that has ended; None if rounds are left, whoever stopped it. Its rows are not read then."""
    config, file = read_config(folder), folder / HISTORY
    if (folder / OUTCOME).exists():
        outcome = read_json(folder / OUTCOME)
        if not (folder / MODEL).exists():
            raise InputError(f"{folder / MODEL} is not there, although the run has ended.")
        with reading(folder / OUTCOME, "the outcome of a run"):
            status, known = str(outcome["status"]), outcome["history"]
            if outcome["config"] != config:
                raise damaged(folder / CONFIG, "it is not the configuration this run ended with")
            if prefix_checksum(file, known["bytes"]) != known["sha256"] or file.stat().st_size != known["bytes"]:
                raise damaged(file, "its rows are not those this run ended with")
        return Known(config, rows.read(file), status)
    if (folder / MARK).exists() or not (folder / MODEL).exists() or has_state(folder):
        return None
    history = rows.read(file)
    with reading(file, "the history of a run"):  # of version 0.1, which wrote no outcome
        last = history[-1]
        status = "diverged" if last["dropped"] and not last["clients"] else "done"
        return Known(config, history, status) if status != "done" or last["round"] == config["rounds"] else None


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration in a run's directory."""
    config = read_json(folder / CONFIG)
    if "algorithms" in config:
        raise InputError(f"{folder} holds a comparison; its runs are in the folders below, one per algorithm and seed.")
    return config
