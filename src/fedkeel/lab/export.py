"""A trained model as files that need no fedkeel: with the preparation of its inputs, for torch or ONNX.

For torch it is a program of `torch.export` (`model.pt2`): graph as JSON and weights as raw bytes. It loads without
pickle and without the class of the model, which safetensors and a module would need.
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import FederatedData
from ..data.read.files import optional
from ..errors import InputError, check, reason
from ..files import write_text
from ..inputs import logits_of
from ..run.checkpoint import read_config
from ..run.config import RunConfig, task_of
from ..run.training import Run, load
from ..task import Task
from .report.runs import Reader

KINDS = {"torch": "model.pt2", "onnx": "model.onnx"}
ABOUT, SCRIPT = "about.json", "predict.py"
TRIED = 4  # samples on which the exported model is compared with the trained one


class Complete(nn.Module):
    """A model with what makes its inputs, from raw inputs to scores."""

    def __init__(self, model: nn.Module, data: FederatedData, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype
        self.preparation = data.preparation
        self.names = [one.name for one in data.inputs.parts] if data.inputs is not None else [None]

    def forward(self, *inputs: Tensor) -> Tensor:
        first = inputs[0] if self.preparation is None else self.preparation.inputs(inputs[0])
        cast = [self._cast(one) for one in (first, *inputs[1:])]
        places = [one for one, name in zip(cast, self.names, strict=True) if name is None]
        named = {name: one for one, name in zip(cast, self.names, strict=True) if name is not None}
        scores: Tensor = logits_of(self.model(*places, **named))
        return scores

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value


def export(
    run: Run | str | os.PathLike[str], out: str | os.PathLike[str], to: str = "torch", task: Task | None = None
) -> Path:
    """Write the model of a run into a folder: `model.pt2` or `model.onnx`, `about.json`, and `predict.py` for tables.

    run: a run, or its directory. task: needed where the run's task was made in Python. The exported model is loaded
    again and compared with the trained one before this returns.

    >>> export("runs/first", "model", to="pickle")  # with to="torch" it gives the folder, in half a minute
    Traceback (most recent call last):
    fedkeel.errors.InputError: The 'to' parameter of export must be 'torch' or 'onnx'. Got 'pickle' instead.
    """
    check(to in KINDS, "export", "to", "'torch' or 'onnx'", to)
    if to == "onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            optional(name, name, "onnx", "Exporting to ONNX")
    folder = Path(out)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; name another folder.")
    run, task = _with_task(run, task)
    config = RunConfig.from_config(run.config)
    data = config.prepared(task).data
    model = Complete(run.model().cpu(), data, config.torch_dtype).eval()
    inputs = raw_inputs(data)
    folder.mkdir(parents=True, exist_ok=True)
    with _quietly():
        made = _save_torch if to == "torch" else _save_onnx
        exported = made(model, inputs, _names(data), folder / KINDS[to])
    with torch.no_grad():
        wanted = model(*inputs).numpy()
    if not np.allclose(exported, wanted, rtol=1e-4, atol=1e-5):
        raise InputError(f"The exported model differs from the trained one by {np.abs(exported - wanted).max():.2g}.")
    write_text(folder / ABOUT, json.dumps(about(run, data), indent=2) + "\n")
    if data.table is not None:
        write_text(folder / SCRIPT, (Path(__file__).parent / f"predict_{to}.py.txt").read_text(encoding="utf-8"))
    return folder


def _with_task(run: Run | str | os.PathLike[str], task: Task | None) -> tuple[Run, Task]:
    """A run, read from its directory where that is given, and its task."""
    else_do = "in Python: fk.export(DIR, OUT, task=task)"
    if isinstance(run, Run):
        return run, task or task_of(run.config, else_do)
    place = _only_run(Path(run))
    task = task or task_of(read_config(place), else_do)
    return load(place, task), task


def _only_run(folder: Path) -> Path:
    """The directory of the only run below this one."""
    groups = Reader().read([folder])
    places = [ran.folder for group in groups for ran in group.runs]
    if len(places) > 1:
        raise InputError(f"{folder} holds {len(places)} runs; name one of them, such as {places[0]}.")
    if not places:
        raise InputError(f"There is no run with a history in {folder}.")
    return places[0]


def raw_inputs(data: FederatedData) -> list[Tensor]:
    """A few samples as the exported model takes them: before scaling, each input of the model by itself."""
    if data.table is not None:
        return [data.table.raw["train"][:TRIED]]
    x = data.x[:TRIED]
    if data.inputs is not None:
        places, names = data.inputs.unpack(x)
        return [*places, *names.values()]
    return [x if data.scaling is None else data.scaling.raw(x)]


def _names(data: FederatedData) -> list[str]:
    if data.inputs is None:
        return ["rows" if data.table is not None else "x"]
    return [one.name or f"input_{place}" for place, one in enumerate(data.inputs.parts)]


def about(run: Run, data: FederatedData) -> dict[str, Any]:
    """What the exported model takes and gives, and where it comes from."""
    kept = ("fedkeel", "task", "algorithm", "rounds", "seed")
    last = {name: run.history.last(name) for name in ("accuracy", "client_accuracy", "client_accuracy_worst", "loss")}
    shapes = [list(one.shape[1:]) for one in raw_inputs(data)]
    types = [str(one.dtype).removeprefix("torch.") for one in raw_inputs(data)]
    listed = [
        {"name": name, "shape": shape, "dtype": kind}
        for name, shape, kind in zip(_names(data), shapes, types, strict=True)
    ]
    origin = {name: run.config[name] for name in kept} | {k: v for k, v in last.items() if v is not None}
    return {
        "inputs": listed,
        "preparation": None if data.preparation is None else data.preparation.plain(),
        "classes": data.class_names,
        "run": origin | {"task": without_folders(origin["task"])},
    }


def without_folders(task: str) -> str:
    """The name of a task with the bare names of its files: whoever gets the model need not see where they lay.

    >>> without_folders("csv:file=/home/ann/patients.csv,client=hospital")
    'csv:file=patients.csv,client=hospital'
    """
    return re.sub(r"=(/[^,]*)", lambda found: f"={Path(found[1]).name}", task)


def _shapes(inputs: list[Tensor]) -> dict[str, Any]:
    batch = torch.export.Dim.DYNAMIC
    return {"inputs": tuple({0: batch} for _ in inputs)}


def _save_torch(model: nn.Module, inputs: list[Tensor], names: list[str], file: Path) -> Any:
    try:
        program = torch.export.export(model, tuple(inputs), dynamic_shapes=_shapes(inputs))
    except Exception as error:  # whatever a user's forward does that cannot be followed
        raise InputError(f"torch.export cannot follow this model: {reason(error)}.") from error
    program.example_inputs = None  # the only part of the file that would be pickled
    torch.export.save(program, file)
    loaded: Any = torch.export.load(file).module()
    with torch.no_grad():
        return loaded(*inputs).numpy()


def _save_onnx(model: nn.Module, inputs: list[Tensor], names: list[str], file: Path) -> Any:
    runtime = optional("onnxruntime", "onnxruntime", "onnx", "Exporting to ONNX")
    try:
        torch.onnx.export(
            model, tuple(inputs), str(file), dynamo=True, dynamic_shapes=_shapes(inputs), input_names=names,
            output_names=["scores"], external_data=False, verbose=False,
        )  # fmt: skip
    except Exception as error:
        raise InputError(f"torch.onnx cannot follow this model: {reason(error)}.") from error
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    given = {one.name: value.numpy() for one, value in zip(session.get_inputs(), inputs, strict=True)}
    return session.run(None, given)[0]


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the remarks of the exporters about packages that are not here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
