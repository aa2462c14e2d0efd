"""Run directories: what is in them, written so that a crash at any moment leaves them readable.

    config.json           what was run, every value resolved
    environment.json      versions and machine
    history.jsonl         one row per round
    history.csv           the same as a table, when the run has ended or stopped
    model.safetensors     the model under its state_dict names, buffers included
    checkpoint/           the state between rounds, while rounds remain
    stop                  asks the run to stop after its round (the live page writes it); the run removes it

No pickle: tensors are safetensors, the rest is JSON. Files are written beside their place, then renamed.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..engine.memory import Memories
from ..errors import InputError
from ..flat import FlatModel
from ..messages import flatten, header
from ..round import State
from ..version import __version__

BLOCK = 2**22  # numbers written or read at a time
STATE, MODEL = Path("checkpoint", "state.safetensors"), Path("model.safetensors")
STOP = Path("stop")


def atomically(file: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then rename it to `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write(beside)
        with open(beside, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def write_json(file: Path, value: Any) -> None:
    """Write indented JSON."""

    def write(beside: Path) -> None:
        # A user's own part may hold any object; such a run is marked as not rerunnable, so its repr is enough.
        beside.write_text(json.dumps(value, indent=2, default=repr) + "\n")

    atomically(file, write)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{file} is not there.") from error
    except OSError as error:  # a folder, or a file without read permission
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{file} does not hold a configuration.")
    return value


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


def save_model(folder: Path, module: torch.nn.Module) -> None:
    """Write `model.safetensors` under the module's own names."""
    tensors = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    atomically(folder / MODEL, lambda f: safetensors.torch.save_file(tensors, f))


def load_model(folder: Path, model: FlatModel) -> None:
    """Read `model.safetensors` into an adopted model."""
    file = folder / MODEL
    if not file.exists():
        raise InputError(f"{file} is not there: the run has not ended; continue it with fedkeel resume {folder}.")
    model.module.load_state_dict(safetensors.torch.load_file(file))


def save_state(folder: Path, state: State, memories: Memories) -> None:
    """Write the checkpoint of a state."""
    tensors: dict[str, Tensor] = {"x": state.x, "x0": state.x0}
    tensors |= {f"buffers/{name}": value for name, value in state.buffers.items()}
    tensors |= {f"optimizer/{name}": value for name, value in state.optimizer.items()}
    tensors |= {f"rules/{path}": value for path, value in flatten(state.rules).items()}
    tensors |= {f"memory/{path}": table[: len(memories)] for path, table in flatten(memories.tables).items()}
    about: dict[str, Any] = {"round": state.round, "totals": state.totals}
    about |= {"clients": list(memories.row), "rules": list(state.rules)}
    atomically(folder / STATE, lambda f: _stream(f, tensors, {"fedkeel": json.dumps(about)}))


def _stream(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write safetensors block by block, as client memory may not fit into RAM, which the library's writer requires."""
    head, order = header(tensors, metadata)
    with open(file, "wb") as out:
        out.write(head)
        for name in order:
            for block in torch.split(tensors[name].detach().reshape(-1), BLOCK):
                out.write(block.cpu().contiguous().view(torch.uint8).numpy().data)


def ended(folder: Path) -> bool:
    """Whether the final model is written and the checkpoint removed; after a crash in between, rounds are replayed."""
    return (folder / MODEL).exists() and not (folder / STATE).exists()


def drop_state(folder: Path) -> None:
    """Remove the checkpoint, which a finished run does not need."""
    shutil.rmtree(folder / STATE.parent, ignore_errors=True)


def load_state(folder: Path, population: int, device: str) -> tuple[State, Memories]:
    """Read a checkpoint back."""
    with safetensors.safe_open(folder / STATE, "pt", device=device) as file:
        about = json.loads(file.metadata()["fedkeel"])
        names = list(file.keys())
        tensors = {name: file.get_tensor(name) for name in names if not name.startswith("memory/")}
        memories = Memories(population)
        clients = np.array(about["clients"], dtype=np.int64)
        for path in names:
            if not path.startswith("memory/"):
                continue
            _, slot, name = path.split("/")
            rows = file.get_slice(path)
            few = max(1, BLOCK // rows.get_shape()[1])
            for b in range(0, len(clients), few):
                memories.write(clients[b : b + few], {slot: {name: rows[b : b + few]}})

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    rules = {slot: under(f"rules/{slot}/") for slot in about["rules"]}
    x, x0 = tensors["x"], tensors["x0"]
    return State(x, x0, under("buffers/"), under("optimizer/"), rules, about["round"], about["totals"]), memories


def new_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that is not empty, or empty it if `overwrite`; refuse one that cannot be created."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not overwrite:
            what = "not empty" if folder.is_dir() else "a file"
            raise InputError(f"{folder} is {what}. Choose another --out, or add --overwrite.")
        if Path.cwd().is_relative_to(folder.resolve()):
            raise InputError(
                f"{folder} is the current folder or a parent of it, so it is not emptied. Choose another --out."
            )
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    above = next(place for place in (folder, *folder.parents) if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        what = "is not writable" if above.is_dir() else "is a file"
        raise InputError(f"Cannot create {folder}: {above} {what}. Choose another --out.")
