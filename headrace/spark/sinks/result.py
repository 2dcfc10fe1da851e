"""What a reducer returned, in the two shapes that a sink is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from typing import TypeAlias

    from pyspark.sql import DataFrame

    #: A DataFrame is a plan: its job runs when a sink asks for the rows. A table has them already,
    #: and there need not be a Spark session.
    Result: TypeAlias = DataFrame | pa.Table


def columns_of(result: Result) -> list[str]:
    """Return the names of the columns. Runs nothing."""
    return list(result.column_names if isinstance(result, pa.Table) else result.columns)


def rows_of(result: Result) -> pa.Table:
    """Return the rows, in this process's memory. Blocks for the job of a DataFrame."""
    return result if isinstance(result, pa.Table) else result.toArrow()
