"""Compiled C: how it is built and called, and what a single layer needs to run by it."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...flat import FlatModel

# Infinities and NaN keep their meaning, since they show that a client diverged; LOOSE also allows sums in any order.
EXACT = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
LOOSE = (*EXACT, "-fassociative-math")
PATIENCE = 120  # seconds
TUNED = ("-march=native", "-mcpu=native", "-O3")  # of these the first that the compiler takes


class NoCompiler(RuntimeError):
    """There is no C compiler, or it fails; the message says why."""


def addresses(*parts: Tensor | None) -> list[int | None]:
    """The addresses of these tensors, which the caller must keep alive."""
    return [None if part is None else part.data_ptr() for part in parts]


def written(*names: str) -> str:
    """The C of these files, one after the other."""
    return "".join(files(__package__).joinpath(name).read_text() for name in names)


def build(text: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """What this C defines: compiled once for all arms and seeds."""
    compiler = os.environ.get("CC", "").strip() or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    made = "no C compiler found (cc, gcc or clang)" if compiler is None else _build(text, flags, compiler)
    if isinstance(made, str):
        raise NoCompiler(made)
    return made


@cache
def _build(text: str, flags: tuple[str, ...], compiler: str) -> ctypes.CDLL | str:
    """The library, or why there is none: what failed once is not tried again."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # where what is loaded cannot be removed
        source, made = Path(folder) / "source.c", Path(folder) / "made.so"
        source.write_text(text)
        for tuned in TUNED:
            asked = ("-O3", tuned, *flags, "-fPIC", "-shared", "-o", str(made), str(source), "-lm")
            try:
                done = subprocess.run(
                    [*shlex.split(compiler), *asked], capture_output=True, text=True, timeout=PATIENCE
                )
            except (OSError, ValueError):  # not there, not to be run, or no command line
                return f"the C compiler {compiler!r} does not run"
            except subprocess.TimeoutExpired:
                return f"the C compiler {compiler!r} did not finish within {PATIENCE} s"
            if done.returncode == 0:
                return ctypes.CDLL(str(made))
    lines = done.stderr.strip().splitlines() or ["no message"]
    return f"the C compiler {compiler!r} failed: {next((line for line in lines if 'error' in line), lines[0])}"


def inputs_of(
    find: Callable[[FlatModel], list[nn.Conv2d]], model: FlatModel, x: Tensor
) -> list[tuple[nn.Conv2d, Tensor]]:
    """The layers that are found in this model, with what each is given where the model is applied to x."""
    if not find(model):
        return []
    replica = model.replica()  # the hooks are put on a copy
    seen: list[tuple[nn.Conv2d, Tensor]] = []
    for layer in find(replica):
        layer.register_forward_pre_hook(lambda layer, given: seen.extend((layer, part) for part in given[:1]))
    replica.module.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        replica.module(x)
    return seen


def ordinary(*parts: Any) -> bool:
    """Whether these are tensors that C can read: single precision, in memory of their own."""
    return all(
        type(part) in (Tensor, nn.Parameter)
        and part.dtype == torch.float32
        and part.device.type == "cpu"
        and part.layout == torch.strided
        and not part.is_neg()  # a sign that is only noted
        for part in parts
    )
