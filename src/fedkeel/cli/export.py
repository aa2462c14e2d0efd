"""`fedkeel export`: a trained model as files that need no fedkeel."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import install_command
from . import flags

EXAMPLES = f"""examples:
  fedkeel export runs/patients/scaffold/seed-0 --out readmitted
  fedkeel export runs/first/fedavgcm/seed-0 --to onnx --out first-onnx

The folder holds model.pt2 (torch.export; it loads without pickle and without the model's class) or model.onnx, with the
preparation of inputs inside; about.json, which says what the model takes and gives; and predict.py for tables. ONNX
needs {install_command("onnx")}"""


def add_command(commands: Any) -> None:
    """Add `export` to the command's parser."""
    made = flags.add_command(commands, "export", do, "a trained model as files for torch or ONNX", EXAMPLES)
    made.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        help="the directory of one run; of a comparison, that of one algorithm and seed",
    )
    made.add_argument(
        "--to", metavar="KIND", default="torch", choices=["torch", "onnx"], help="torch (default) or onnx"
    )
    made.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="where to write; must be empty or new")


def do(arguments: argparse.Namespace) -> int:
    """`fedkeel export DIR --to torch|onnx --out FOLDER`."""
    from ..lab.export import KINDS, SCRIPT, export

    folder = export(arguments.folder, arguments.out, arguments.to)
    print(
        f"{folder / KINDS[arguments.to]} gives the outputs of the trained model; {folder / 'about.json'} describes it"
    )
    if (folder / SCRIPT).exists():
        print(f"try it: python {folder / SCRIPT} ROWS.csv")
    return 0
