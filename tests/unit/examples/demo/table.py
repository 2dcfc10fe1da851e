"""A small made-up source and table for the demo's checks, and a made-up log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
from deltalake import write_deltalake

from examples.demo.reducer import COLUMNS
from headrace.extensions.delta.reader import TableCommit

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 60


def flights() -> pd.DataFrame:
    """Make up flights: three carriers, some delays and tail numbers null."""
    numbers = range(ROWS)
    made: pd.DataFrame = pd.DataFrame(
        {
            "row": list(numbers),
            "carrier": [["AA", "B6", "UA"][n % 3] for n in numbers],
            "origin": "JFK",
            "dest": ["LAX" if n % 2 else "IAH" for n in numbers],
            "year": 2013,
            "month": 1,
            "day": [n % 28 + 1 for n in numbers],
            "hour": [5 + n % 4 for n in numbers],
            "dep_delay": [None if n % 10 == 0 else float(n - 20) for n in numbers],
            "arr_delay": [None if n % 7 == 0 else float(n - 30) for n in numbers],
            "tailnum": [None if n % 9 == 0 else f"N{n}" for n in numbers],
        }
    )
    return made


def write(folder: Path, found: pd.DataFrame) -> Path:
    """Write a Delta table in two commits and return its folder."""
    schema = pa.Schema.from_pandas(flights()[list(COLUMNS)], preserve_index=False)
    for part in (found.iloc[::2], found.iloc[1::2]):
        rows = pa.Table.from_pandas(part[list(COLUMNS)], schema=schema, preserve_index=False)
        write_deltalake(folder, rows, mode="append")
    return folder


def commit(
    version: int, member: str | None, offsets: dict[int, int] | None = None, at: float = 0.0
) -> TableCommit:
    """Make up one version of the table. ``offsets`` are by partition."""
    named = {f"cluster/flights/topic/{n}": offset for n, offset in (offsets or {}).items()}
    return TableCommit(version, at, member, 0, named)
