"""Whether two checkouts of fedkeel train the same models, bit for bit: for a change that must not alter any number.

    python benchmarks/same_bits.py OLD NEW [--only TEXT] [--rounds 4] [--keep FOLDER]

OLD and NEW are folders with src/fedkeel. Each is run by one process of its own, on one torch thread and without C.
Every recipe, alone and with GEL, and the combinations of same_bits_cases.py are trained for a few rounds: one client at
a time and in lockstep, in float32 and some in float64, with 1 to 4 steps per client, so that clients leave lockstep at
different steps. Compared are the status of the run, the final parameters, the buffers of the model and every column of
the history but the clock; `overhead_bytes` is only counted, because the headers of messages may change.

A line is printed for every case that is not identical: the largest difference relative to the largest number (of the
parameters, of a buffer) or to the number itself (of the history), and where it is. What one side refuses, the other
must refuse too. Cases that both refuse or in which both fail are listed at the end, by their reason. The exit code is 1
if a case differs by more than 1e-6 in float32 or 1e-12 in float64, or if a process dies. All cases take about five
minutes of processor time, half of it for each side; `--only` keeps those whose name contains the text, such as
"cnn batched" or "scaffold".
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
BOUNDS = {"float32": 1e-6, "float64": 1e-12}
CLOCK, HEADERS = ("wall_seconds",), "overhead_bytes"
Found = dict[str, Any]  # of one case: what it trained, or {"raised": one line}


def run_all(only: str, rounds: int, now: Path) -> dict[str, Found]:
    """Every case, with the fedkeel that this process imports. `now` names the one at work, should the process die."""
    from same_bits_cases import cases

    import fedkeel as fk

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results: dict[str, Found] = {}
    for case in cases():
        if only not in case.name:
            continue
        now.write_text(case.name)
        try:
            run = fk.train(
                case.task(), case.algorithm, case.world, rounds, dtype=getattr(torch, case.dtype), engine=case.engine(),
                eval_every=2, batch_size=case.batch_size,
            )  # fmt: skip
        except Exception as error:  # a refusal, or a failure that the other side should have too
            results[case.name] = {"raised": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            continue
        rows = [{name: value for name, value in row.items() if name not in CLOCK} for row in run.history]
        buffers = {name: buffer.clone() for name, buffer in run.model().named_buffers()}
        tensors = {"parameters": run.params.clone(), **buffers}
        results[case.name] = {"status": run.status, "tensors": tensors, "history": rows}
    return results


def apart(a: Any, b: Any) -> float:
    """The relative difference of two numbers; 0 if they are the same, or both NaN, or equal in some other way.

    >>> apart(2.0, 1.0), apart(None, None), apart(None, 1.0), apart(math.nan, math.nan)
    (0.5, 0.0, inf, 0.0)
    """
    numbers = all(isinstance(value, int | float) for value in (a, b))
    if a == b or (numbers and math.isnan(a) and math.isnan(b)):
        return 0.0
    if not numbers or not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def tensors_apart(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors over their largest number; 0 only if all bits are the same.

    >>> tensors_apart(torch.tensor([4.0, 0.0]), torch.tensor([4.0, 1.0]))
    0.25
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes():
        return 0.0
    a, b = a.double(), b.double()
    if not torch.equal(a.isfinite(), b.isfinite()) or not torch.equal(
        a[~a.isfinite()].isnan(), b[~b.isfinite()].isnan()
    ):
        return math.inf
    a, b = a[a.isfinite()], b[b.isfinite()]
    scale = max(float(a.abs().max()), float(b.abs().max())) if len(a) else 0.0
    # the sign of a zero, or of an infinite number, is a difference too, though of no size
    return max(float((a - b).abs().max()) / scale, sys.float_info.min) if scale else sys.float_info.min


def compare(old: Found, new: Found) -> tuple[float, str]:
    """The largest relative difference of a case, and where it is; headers are left out."""
    if "raised" in old or "raised" in new:
        words = [side.get("raised", "trains") for side in (old, new)]
        kinds = [text.split(":")[0] for text in words]
        return (0.0, "") if kinds[0] == kinds[1] else (math.inf, f"old: {words[0]}; new: {words[1]}")
    found = [(apart(old["status"], new["status"]), f"status {old['status']} and {new['status']}")]
    for name in old["tensors"].keys() | new["tensors"].keys():
        both = [side["tensors"].get(name) for side in (old, new)]
        found.append((math.inf if any(t is None for t in both) else tensors_apart(*both), name))
    if len(old["history"]) != len(new["history"]):
        found.append((math.inf, f"{len(old['history'])} and {len(new['history'])} rows"))
    for mine, yours in zip(old["history"], new["history"], strict=False):
        for name in (mine.keys() | yours.keys()) - {HEADERS}:
            far = apart(mine.get(name), yours.get(name))  # a column without a value is as good as none
            where = f"{name} of round {mine['round']}: {mine.get(name)} and {yours.get(name)}"
            found.append((far, where))
    return max(found)


def report(old: dict[str, Found], new: dict[str, Found]) -> int:
    """Print what differs; the exit code."""
    same = bad = headers = 0
    raised: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            print(f"{name}: only in {'old' if name in old else 'new'}")
            continue
        far, where = compare(old[name], new[name])
        same, bad = same + (far == 0), bad + (far > BOUNDS[name.split()[-1]])
        if far:
            print(f"{name}: {far:.2g} ({where})")
        if "raised" in old[name] and "raised" in new[name]:
            raised[old[name]["raised"]].append(name)
            if old[name]["raised"] != new[name]["raised"]:
                print(f"{name}: in other words; old: {old[name]['raised']}; new: {new[name]['raised']}")
        elif "raised" not in old[name] and "raised" not in new[name]:
            headers += [r[HEADERS] for r in old[name]["history"]] != [r[HEADERS] for r in new[name]["history"]]
    total = len(old.keys() & new.keys())
    count = sum(map(len, raised.values()))
    for words, names in sorted(raised.items()):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(f"both raise {words}\n    {', '.join(names[:3])}{more}")
    print(f"{HEADERS} differ in {headers} cases; {count} cases are raised by both; {bad} differ by more than allowed")
    print(f"{same} of {total} cases identical")
    return int(bad > 0 or not total)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="a folder for the results of both, old.pt and new.pt")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)  # this process is one of the two
    given = parser.parse_args(arguments)
    if given.write is not None:
        torch.save(run_all(given.only, given.rounds, given.write.with_suffix(".now")), given.write)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sides = {"old": given.old.resolve(), "new": given.new.resolve()}
        running: dict[str, subprocess.Popen[bytes]] = {}
        for side, checkout in sides.items():
            if not (checkout / "src" / "fedkeel").is_dir():
                parser.error(f"{checkout} has no src/fedkeel")
            paths = os.environ | {"PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{HERE}"}
            asked = [str(checkout), str(checkout), "--only", given.only, "--rounds", str(given.rounds)]
            command = [sys.executable, __file__, *asked, "--write", str(folder / f"{side}.pt")]
            running[side] = subprocess.Popen(command, env=paths)
        codes = {side: process.wait() for side, process in running.items()}
        for side in (side for side, code in codes.items() if code):
            now = folder / f"{side}.now"
            print(f"{side} ended with code {codes[side]} at: {now.read_text() if now.exists() else 'its start'}")
        if any(codes.values()):
            return 1
        return report(*(torch.load(folder / f"{side}.pt", weights_only=True) for side in sides))


if __name__ == "__main__":
    raise SystemExit(main())
