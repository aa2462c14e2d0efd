"""Parquet, as dataset hubs serve it (needs pyarrow)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import damaged, reading
from .files import check_size, library, optional

ROWS = 1024  # read at a time, so that a promise of more than there is room for is noticed early


def parquet(path: Path, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """These columns of a parquet file, or of all `*.parquet` files of a folder, one after the other."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise damaged(path, "it holds no .parquet file")
    parts = [_columns(file, columns) for file in files]
    with reading(path, "parquet files with the same columns"):
        return {name: np.concatenate([part[name] for part in parts]) for name in columns}


def _columns(file: Path, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    with reading(file, "parquet"), open(file, "rb"):
        pass
    arrow, pyarrow = (
        optional(module, "pyarrow", "parquet", "Reading parquet") for module in ("pyarrow", "pyarrow.parquet")
    )
    with library(file, "parquet", arrow.ArrowException), pyarrow.ParquetFile(file) as content:
        names = content.schema_arrow.names
        if missing := [name for name in columns if names.count(name) != 1]:
            count = "two columns" if missing[0] in names else "no column"
            raise damaged(file, f"it has {count} '{missing[0]}' (it has {' '.join(', '.join(names).split()):.300})")
        check_size(file, 8 * len(columns) * content.metadata.num_rows, "its rows need")
        batches, held = [], 0
        for batch in content.iter_batches(ROWS, columns=list(columns), use_threads=False):
            batches.append(batch)
            held += batch.nbytes
            check_size(file, held, "its columns need")
        schema = arrow.schema([content.schema_arrow.field(name) for name in columns])
        table = arrow.Table.from_batches(batches, batches[0].schema if batches else schema)
        return {name: table.column(name).to_numpy(zero_copy_only=False) for name in columns}
