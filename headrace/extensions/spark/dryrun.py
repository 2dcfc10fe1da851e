"""Trying Spark and a reducer without a channel, for the offline tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.core.clock import Deadline
from headrace.core.tables import Decode, merge
from headrace.core.undecodable import offsets_of
from headrace.extensions.spark.arrow_to_spark import ArrowToSpark
from headrace.extensions.spark.decode import Decoder
from headrace.extensions.spark.failures import failure_of, text_of
from headrace.extensions.spark.reducer import OwnReducer, checked, send_by_value
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.sinks.contract import results_of, rows_of
from headrace.sinks.micro_batch import DryRunBatch, dry_run_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.settings import SparkSettings


#: Seconds for the session's end.
_STOP = 20.0

_ROWS = 1000


@dataclass(frozen=True, slots=True)
class SparkCheck:
    """The findings of a trial session: its version, its tasks at once, the seconds to an answer."""

    version: str
    cores: int
    seconds: float


def installed() -> str:
    """Return the version of pyspark."""
    return str(pyspark.__version__)


def try_spark(settings: SparkSettings) -> SparkCheck:
    """Start a session, hand a micro-batch over, run Python on the executors, stop. Blocks.

    Raises:
        StartError: there is no session.
        Exception: what the job raised, as where the workers' Python is another one.
    """
    runtime, begin = SparkRuntime(replace(settings, warm_up=1)), perf_counter()
    try:
        runtime.start()
        # a worker has to be started for this, with the Python that reducers' functions run in
        counted = (
            runtime.context.parallelize(range(_ROWS), 1).map(lambda number: number + 1).count()
        )
        if counted != _ROWS:
            raise RuntimeError(f"a job counted {counted} rows instead of {_ROWS}")
        return SparkCheck(installed(), runtime.cores, perf_counter() - begin)
    finally:
        runtime.stop(Deadline.after(_STOP))


#: Into how many tasks the records are cut: more than one, so that a reducer meets its tasks.
_TASKS = 2


def dry_run(
    session: SparkSession,
    reducer: Reducer,
    table: pa.Table,
    decode: Decode | None = None,
    attempt: int = 1,
) -> DryRunBatch:
    """Run the reducer on the records as on one micro-batch, in this thread. Blocks for the job.

    Raises:
        StartError: a query, or the columns of a result, cannot be planned.
        ConfigError: the schema cannot be used.
        UndecodableRecordError: a value does not fit the schema.
        ReducerError: Spark refused the reducer's plan, or the job failed.
        TypeError: it returned something else than a DataFrame or None.
        Exception: what its own Python code raised.
    """
    decoder, to_spark = Decoder(decode or Decode()), ArrowToSpark(session)
    if isinstance(reducer, OwnReducer):
        reducer.check(decoder.apply(to_spark.nothing()))
    else:
        send_by_value(reducer)
    frame = to_spark.data_frame(merge([table], _TASKS))
    try:
        with decoder.decoded(frame) as decoded:
            result = reducer(decoded.frame, dry_run_batch(table, attempt))
            several = isinstance(result, Mapping)
            outputs = results_of(result, _rows) if several else None
            rows = None if several else _rows(result)
            skipped = {**decoded.skipped, **offsets_of(decoded.rejected)}
            return DryRunBatch(rows, skipped, outputs)
    except (Py4JError, PySparkException) as error:
        raise failure_of(error, text_of(error)) from error


def _rows(result: object) -> pa.Table | None:
    found = checked(result)
    return None if found is None else rows_of(found)
