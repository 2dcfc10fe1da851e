"""The engine of a channel by key, and the watches over the calls of its user's code.

A fold is computed in this process, or in Spark's workers, which note and interrupt calls there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from headrace.core.call_watch import CallWatch
from headrace.core.extras import Extra, required
from headrace.extensions.arrow.engine import ArrowEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.keyed.tables import PartsRunner
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.extensions.spark.worker_calls import WorkerCalls
    from headrace.processors.engine import Engine
    from headrace.sinks.micro_batch import MicroBatch


class ReducesInParts(Protocol):
    """A function from a micro-batch's records to the table that the sink takes."""

    def __call__(self, table: pa.Table, batch: MicroBatch, /) -> pa.Table:
        """Return the table, computed in this thread."""
        ...

    def reduce(self, table: pa.Table, batch: MicroBatch, run: PartsRunner, tasks: int) -> pa.Table:
        """Return the table; ``run`` computes parts of it, up to ``tasks`` of them."""
        ...


class CodeWatches(NamedTuple):
    """The watches over the user's code: over calls in this process, and over those of the fold.

    ``workers`` is the part of the latter for the lane, None where the fold runs in this process.
    """

    here: CallWatch
    of_fold: CallWatch
    workers: WorkerCalls | None


def watch_code(engine: str, group: str, folder: Path | None) -> CodeWatches:
    """Return the watches of a channel, which notes its calls in ``folder``.

    Raises:
        StartError: the engine is Spark, which is not installed.
    """
    calls = CallWatch(None if folder is None else folder / "call")
    if engine == "arrow":
        return CodeWatches(calls, calls, None)
    with required(Extra.SPARK, f"the engine of group {group}"):
        from headrace.extensions.spark.worker_calls import WorkerCalls  # noqa: PLC0415 - an extra

    workers = WorkerCalls(calls, folder)
    # what is sent to a worker is a CallWatch there
    return CodeWatches(calls, cast("CallWatch", workers), workers)


def engine_of(  # noqa: PLR0917 - what an engine is made of
    group: str,
    spark: Callable[[], SparkRuntime],
    function: ReducesInParts,
    user_code: Callable[..., Any],
    decoder: CustomDecoder | None,
    watches: CodeWatches,
) -> Engine:
    """Return the engine that computes ``function``; Spark's workers are sent the user's code.

    Raises:
        StartError: the engine is Spark, which is not installed.
    """
    if watches.workers is None:
        return ArrowEngine(function, calls=watches.here)
    with required(Extra.SPARK, f"the engine of group {group}"):
        from headrace.extensions.spark.keyed import KeyedSparkEngine  # noqa: PLC0415 - an extra
        from headrace.extensions.spark.reducer import send_by_value  # noqa: PLC0415 - an extra

    if decoder is not None:
        send_by_value(decoder.factory)
    return KeyedSparkEngine(spark(), function.reduce, user_code, watches.workers)
