"""What the checksum of a checkpoint costs: a file of 1 GB, written with it and without it, in turns.

    python benchmarks/checkpoint.py [--gigabytes 1] [--pairs 5] [--folder DIR]

Without: `safetensors.torch.save_file` beside the place, fsync, rename, as before there was a checksum. With:
`files.write_tensors`, which does the same and computes a SHA-256 in a thread beside the write. The output has seconds
and their ratio, with / without, pair by pair and in the median. DIR should be on a disk, not in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch

from fedkeel.files import write_tensors


def without(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write and sync, no checksum."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    safetensors.torch.save_file(tensors, beside)
    with open(beside, "rb+") as written:
        os.fsync(written.fileno())
    os.replace(beside, file)


def seconds(write: object, file: Path, tensors: dict[str, torch.Tensor]) -> float:
    assert callable(write)
    begin = time.perf_counter()
    write(file, tensors)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    count = int(given.gigabytes * 1e9 / 4 / 8)
    tensors = {f"t{i}": torch.randn(count) for i in range(8)}
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        file, ratios = Path(made) / "state.safetensors", []
        for pair in range(given.pairs):
            ways = {"without": without, "with": lambda place, some: write_tensors(place, some, {"round": 1})}
            found = {
                name: seconds(ways[name], file, tensors) for name in (list(ways) if pair % 2 else list(ways)[::-1])
            }
            ratios.append(found["with"] / found["without"])
            print(f"without {found['without']:.2f} s, with {found['with']:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
