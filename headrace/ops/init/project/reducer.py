"""The reducer for the records of one micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark import MicroBatch


def reduce(table: pa.Table, batch: MicroBatch) -> pa.Table:  # noqa: ARG001 - the reducer's form
    """Return the number of flights and the largest delay of each carrier."""
    found = table.group_by("carrier").aggregate([("carrier", "count"), ("delay", "max")])
    return found.rename_columns(["carrier", "flights", "largest_delay"]).sort_by("carrier")
