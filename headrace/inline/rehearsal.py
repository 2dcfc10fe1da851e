"""A reducer on records that are at hand: no channel, no sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.inline.decode import InlineDecoder
from headrace.inline.reducer import checked
from headrace.spark.decode import Decode
from headrace.spark.rehearsed import Rehearsed, rehearsed_batch
from headrace.spark.sinks.result import results_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.inline.reducer import ArrowReducer


def rehearse(
    reducer: ArrowReducer, table: pa.Table, decode: Decode | None = None, attempt: int = 1
) -> Rehearsed:
    """Run the reducer on the records as on one micro-batch, in this thread.

    Raises:
        ConfigError: the schema cannot be used.
        UndecodableRecordError: a value does not fit the schema.
        TypeError: it returned something else than a table or None.
        Exception: what it raised.
    """
    decoded = InlineDecoder(decode or Decode()).apply(table)
    result = reducer(decoded.table, rehearsed_batch(table, attempt))
    if isinstance(result, Mapping):
        return Rehearsed(None, decoded.skipped, results_of(result, checked))
    return Rehearsed(checked(result), decoded.skipped)
