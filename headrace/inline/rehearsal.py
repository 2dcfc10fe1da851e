"""A reducer on records that are at hand: no channel, no sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.inline.reducer import checked
from headrace.spark.rehearsed import Rehearsed, rehearsed_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.inline.reducer import ArrowReducer


def rehearse(reducer: ArrowReducer, table: pa.Table, attempt: int = 1) -> Rehearsed:
    """Run the reducer on the records as on one micro-batch, in this thread.

    Raises:
        TypeError: it returned something else than a table or None.
        Exception: what it raised.
    """
    return Rehearsed(checked(reducer(table, rehearsed_batch(table, attempt))))
