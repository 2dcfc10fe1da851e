"""What a reducer returned, in the two shapes that a sink is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
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


def results_of(
    returned: object, check: Callable[[object], Any], names: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the results that a reducer made for several outputs, each of them checked.

    ``names`` are those of the outputs, where they are known.

    Raises:
        TypeError: it is no mapping, has names of no outputs, or a result is none.
    """
    if not isinstance(returned, Mapping):
        raise TypeError(
            f"the reducer returned a {type(returned).__name__}; for several outputs it must return "
            "a dict of their names and results, or None to store the offsets only"
        )
    unknown = [name for name in returned if names is not None and name not in names]
    if unknown:
        raise TypeError(
            f"the reducer returned a result for {unknown[0]!r}, which is none of the outputs "
            f"{', '.join(names or ())}; name it in sink.outputs, or leave it out"
        )
    return {name: check(result) for name, result in returned.items()}
