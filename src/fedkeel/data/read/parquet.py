"""Parquet, as dataset hubs serve it (needs pyarrow)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import broken, optional, reading


def parquet(path: Path, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """These columns of a parquet file, or of all `*.parquet` files of a folder, one after the other."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise broken(path, "it holds no .parquet file")
    parts = [_columns(file, columns) for file in files]
    return {name: np.concatenate([part[name] for part in parts]) for name in columns}


def _columns(file: Path, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    with reading(file, "parquet"), open(file, "rb"):
        pass
    pyarrow = optional("pyarrow.parquet", "pyarrow", "parquet", "Reading parquet")
    with reading(file, "parquet"), pyarrow.ParquetFile(file) as content:
        names = content.schema_arrow.names
        if missing := [name for name in columns if name not in names]:
            raise broken(file, f"it has no column '{missing[0]}' (it has {', '.join(names)})")
        table = content.read(columns=list(columns))
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in columns}
