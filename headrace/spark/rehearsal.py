"""A reducer on records that are at hand, in Spark: no channel, no lane, no sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.spark.decode import Decode, Decoder, undecodable_in
from headrace.spark.failures import text_of
from headrace.spark.handover import HandOver
from headrace.spark.job_failures import failure_of
from headrace.spark.reducer import OwnReducer, checked, send_by_value
from headrace.spark.rehearsed import Rehearsed, rehearsed_batch
from headrace.spark.sinks.result import results_of, rows_of
from headrace.tables import merge

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.spark.reducer import Reducer

#: Into how many tasks the records are cut: more than one, so that a reducer meets its tasks.
_TASKS = 2


def rehearse(
    session: SparkSession,
    reducer: Reducer,
    table: pa.Table,
    decode: Decode | None = None,
    attempt: int = 1,
) -> Rehearsed:
    """Run the reducer on the records as on one micro-batch, in this thread. Blocks for the job.

    Raises:
        StartError: a query, or the columns of a result, cannot be planned.
        ConfigError: the schema cannot be used.
        UndecodableRecordError: a value does not fit the schema.
        ReducerError: Spark refused the reducer's plan, or the job failed.
        TypeError: it returned something else than a DataFrame or None.
        Exception: what its own Python code raised.
    """
    decoder, hand_over = Decoder(decode or Decode()), HandOver(session)
    if isinstance(reducer, OwnReducer):
        reducer.check(decoder.apply(hand_over.nothing()))
    else:
        send_by_value(reducer)
    frame = hand_over.data_frame(merge([table], _TASKS))
    try:
        result = reducer(decoder.apply(frame), rehearsed_batch(table, attempt))
        several = isinstance(result, Mapping)
        outputs = results_of(result, _rows) if several else None
        rows = None if several else _rows(result)
        skipped = decoder.skipped(frame) if decoder.counts_skipped else {}
    except (Py4JError, PySparkException) as error:
        text = text_of(error)
        raise (undecodable_in(text) or failure_of(error, text)) from error
    return Rehearsed(rows, skipped, outputs)


def _rows(result: object) -> pa.Table | None:
    found = checked(result)
    return None if found is None else rows_of(found)
