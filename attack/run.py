"""`make attack`: kill, damage and fuzz fedkeel, and count what became of it.

    python attack/run.py                                  # 1,000 kills, 1,000 damages a file, an hour of fuzzing
    python attack/run.py --kills 20 --damages 20 --seconds 30
    python attack/run.py --only kill --seed 5

Exit code 1 if anything failed; the failures are listed, what failed is kept in --keep.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

SHARES = {"run": 0.6, "comparison": 0.2, "reproduce": 0.15, "sweep": 0.05}  # of the kills; a sweep starts slowly
PARTS = ("kill", "read", "harm", "fuzz")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def attack(given: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    """Every part; a row of counts for each kind.

    Kills and readers come first, because they fork: a child of a process in which torch has used several threads waits
    for ever for threads that it does not have.
    """
    rows: list[dict[str, Any]] = []

    def note(part: str, counts: Any) -> None:
        rows.append({"part": part, **vars(counts)})
        say(f"{part}: " + ", ".join(f"{k} {v}" for k, v in vars(counts).items() if k != "failures"))
        for failure in counts.failures:
            say(f"  FAILED {failure}")

    if "kill" in given.only:
        from kill import kill

        shares = {kind: SHARES[kind] for kind in given.kinds}
        for kind, share in shares.items():
            kills = max(1, round(share / sum(shares.values()) * given.kills))
            note("kill", kill(kind, kills, root / "kill" / kind, given.seed))
    if "read" in given.only:
        from read import fuzz_readers

        for counts in fuzz_readers(given.seconds / 5, root / "read", given.seed, given.cases):
            note("read", counts)
    if "harm" in given.only:
        from harm import COMMANDS, harm, prepare

        prepare(root / "harm")
        for kind in COMMANDS:
            for counts in harm(kind, given.damages, root / "harm", given.seed):
                note("harm", counts)
    if "fuzz" in given.only:
        from fuzz import KINDS, fuzz

        for kind in KINDS:
            seconds = given.seconds / (len(KINDS) + 1)  # the readers of data sets have as much
            note("fuzz", fuzz(kind, seconds, root / "fuzz" / kind, given.seed, given.cases))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--damages", type=int, default=1000, help="to the files of every name in a directory")
    parser.add_argument("--seconds", type=float, default=3600, help="of fuzzing")
    parser.add_argument("--cases", type=int, help="of each kind of fuzzing, at most")
    parser.add_argument("--kinds", nargs="+", choices=SHARES, default=list(SHARES), help="what is killed")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where to work; default a temporary directory")
    parser.add_argument("--json", type=Path, help="write the counts there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedkeel-attack-") as made:
        rows = attack(given, given.keep or Path(made))
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    failed = sum(len(row["failures"]) for row in rows)
    say(f"{failed} failures" if failed else "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
