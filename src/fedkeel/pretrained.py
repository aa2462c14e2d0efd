"""A model that starts from the weights of a safetensors file, which holds names and numbers and nothing that runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from .errors import InputError
from .files import BLOCK, reading


def load_into(module: nn.Module, file: Path) -> None:
    """Put the tensors of a file into a module; refuses other names, other shapes and values that are not finite.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"weight": torch.ones(1, 2)}, Path(folder, "start.safetensors"))
    ...     load_into(module := nn.Linear(2, 1, bias=False), Path(folder, "start.safetensors"))
    >>> module.weight.tolist()
    [[1.0, 1.0]]
    """
    with reading(file, "safetensors"):
        found = load_file(file)
    own = module.state_dict()
    for name in own:
        if name not in found:
            raise InputError(f"{file} does not fit the model: it has no tensor '{name}'.")
    for name, value in found.items():
        if name not in own:
            raise InputError(f"{file} does not fit the model, which has no tensor '{name}'.")
        if value.shape != own[name].shape:
            shapes = f"is {tuple(value.shape)} in the file and {tuple(own[name].shape)} in the model"
            raise InputError(f"{file} does not fit the model: '{name}' {shapes}.")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{file} has values in '{name}' that are not finite.")
    module.load_state_dict(found)


def checksum_of(file: Path) -> str:
    """The checksum of a file's contents, by which a run knows the weights it started from."""
    sum = hashlib.sha256()
    with reading(file, "safetensors"), open(file, "rb") as content:
        while block := content.read(BLOCK):
            sum.update(block)
    return sum.hexdigest()
