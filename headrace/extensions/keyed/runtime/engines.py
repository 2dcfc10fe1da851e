"""The engine of a channel by key that runs in Spark's workers, and the watch over calls there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.extras import Extra, required

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.core.call_watch import CallWatch
    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.extensions.spark.worker_calls import WorkerCalls
    from headrace.processors.engine import Engine


def watch_workers(group: str, calls: CallWatch, folder: Path | None) -> WorkerCalls:
    """Return the watch over calls in Spark's workers, which tells ``calls`` what hangs there.

    Raises:
        StartError: Spark is not installed.
    """
    with required(Extra.SPARK, f"the engine of group {group}"):
        from headrace.extensions.spark.worker_calls import WorkerCalls  # noqa: PLC0415 - an extra

    return WorkerCalls(calls, folder)


def spark_engine(  # noqa: PLR0917 - what an engine is made of
    group: str,
    spark: Callable[[], SparkRuntime],
    reduce: Callable[..., Any],
    user_code: Callable[..., Any],
    decoder: CustomDecoder | None,
    calls: WorkerCalls,
) -> Engine:
    """Return the engine that folds in Spark's workers; they are sent the user's code.

    Raises:
        StartError: Spark is not installed.
    """
    with required(Extra.SPARK, f"the engine of group {group}"):
        from headrace.extensions.spark.keyed import KeyedSparkEngine  # noqa: PLC0415 - an extra
        from headrace.extensions.spark.reducer import send_by_value  # noqa: PLC0415 - an extra

    if decoder is not None:
        send_by_value(decoder.factory)
    return KeyedSparkEngine(spark(), reduce, user_code, calls)
