"""The user's function on tables of Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

import pyarrow as pa

from headrace.core.imports import load_callable
from headrace.core.tables import Decode
from headrace.core.undecodable import offsets_of
from headrace.extensions.arrow.decode import ArrowDecoder
from headrace.sinks.contract import results_of
from headrace.sinks.micro_batch import DryRunBatch, dry_run_batch

if TYPE_CHECKING:
    from headrace.core.call_watch import CallWatch
    from headrace.sinks.micro_batch import MicroBatch


class ArrowReducer(Protocol):
    """A user's reducer: the records of one micro-batch in, the rows for the sink out.

    Runs on a lane's thread, one micro-batch of a channel at a time. It may be run again on the
    same records after a failure, so what it does beside its result should bear repetition. The
    result goes to the sink; None stores the offsets only.
    """

    def __call__(
        self, table: pa.Table, batch: MicroBatch, /
    ) -> pa.Table | Mapping[str, pa.Table | None] | None:
        """Return what the sink is to store, or what each of its outputs is to, by their names."""
        ...


def load_arrow_reducer(path: str) -> ArrowReducer:
    """Import ``package.module:function``.

    Raises:
        ImportPathError: the path names nothing that can be called with (table, batch).
    """
    return cast("ArrowReducer", load_callable(path, "table", "batch"))


class WatchedReducer:
    """Calls an :class:`ArrowReducer`, where ``calls`` may interrupt it and knows its batches."""

    def __init__(self, function: ArrowReducer, calls: CallWatch) -> None:
        self._function = function
        self._calls = calls

    def __call__(
        self, table: pa.Table, batch: MicroBatch, /
    ) -> pa.Table | Mapping[str, pa.Table | None] | None:
        """Return what the function returns.

        Raises:
            JobTimeoutError: it did not return in time.
        """
        ranges = ", ".join(
            f"offsets {each.start} to {each.next_offset - 1} of {each.topic}-{each.partition}"
            for each in batch.ranges
        )
        with self._calls.job():
            self._calls.call(-1, b"", ranges.encode())
            return self._function(table, batch)


def checked(result: object) -> pa.Table | None:
    """Return what a reducer returned.

    Raises:
        TypeError: it is neither a table nor None.
    """
    if result is None or isinstance(result, pa.Table):
        return result
    raise TypeError(
        f"the reducer returned a {type(result).__name__}; it must return a pyarrow.Table, or None "
        "to store the offsets only"
    )


def dry_run(
    reducer: ArrowReducer, table: pa.Table, decode: Decode | None = None, attempt: int = 1
) -> DryRunBatch:
    """Run the reducer on the records as on one micro-batch, in this thread.

    Raises:
        ConfigError: the schema cannot be used.
        UndecodableRecordError: a value does not fit the schema.
        TypeError: it returned something else than a table or None.
        Exception: what it raised.
    """
    decoded = ArrowDecoder(decode or Decode()).apply(table)
    result = reducer(decoded.table, dry_run_batch(table, attempt))
    skipped = {**decoded.skipped, **offsets_of(decoded.rejected)}
    if isinstance(result, Mapping):
        return DryRunBatch(None, skipped, results_of(result, checked))
    return DryRunBatch(checked(result), skipped)
