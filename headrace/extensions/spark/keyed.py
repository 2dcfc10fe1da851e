"""Keyed state through Spark: touched keys as opaque chunks, folded in its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from typing_extensions import override

from headrace.core.errors import (
    JobFailedError,
    JobTimeoutError,
    PoisonRecordError,
    ReducerError,
    RetryableError,
)
from headrace.core.records import TopicPartition
from headrace.core.tables import left_out, table_of
from headrace.extensions.spark.engine import SparkEngine
from headrace.extensions.spark.failures import failure_of, text_of
from headrace.extensions.spark.reducer import send_by_value
from headrace.sinks.channel_sink import Staged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.core.calls import Call
    from headrace.core.records import Batch
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.extensions.spark.worker_calls import WorkerCalls
    from headrace.sinks.channel_sink import ChannelSink
    from headrace.sinks.micro_batch import MicroBatch


class KeyedSparkEngine(SparkEngine):
    """Folds each micro-batch in one Spark job, without a shuffle: a chunk of keys for each slot.

    ``reduce`` makes chunks of records, says what folds them, which is sent to the workers, and
    takes what became of them; ``reducer``, which that calls, is sent with its package. The chunks
    are bytes to Spark: neither a plan nor rows of its own are made of them. ``calls`` is what the
    fold notes its calls in.
    """

    def __init__(
        self,
        runtime: SparkRuntime,
        reduce: Callable[..., pa.Table],
        reducer: Callable[..., Any],
        calls: WorkerCalls,
    ) -> None:
        super().__init__(runtime, reducer)
        self._reduce_rows = reduce
        self._calls = calls

    @override
    def open(self, channel: str) -> None:
        assert callable(self._reducer), "it was imported"
        send_by_value(self._reducer)
        self._runtime.start()
        self._enter(channel)

    @override
    def prepare(self, batch: Batch) -> pa.Table:
        return table_of(batch)

    @override
    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[pa.Table],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        self._calls.begin_job(seconds)
        try:
            return self._folded(micro_batch, prepared, seconds, sink)
        except JobTimeoutError as error:
            calls = None if error.call else self._calls.overdue()
            if not calls:
                raise
            named = ", and ".join(map(str, calls))
            raise JobTimeoutError(f"{error}; it was in a call for {named}") from error

    def _folded(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[pa.Table],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        with self._opened.job(micro_batch.id, seconds) as (_, share):
            table = pa.concat_tables(prepared)
            try:
                result = self._reduce_rows(table, micro_batch, self._run, share.tasks)
            except (Py4JError, PySparkException) as error:
                raise self._name_call(failure_of(error, text_of(error))) from error
            return Staged(sink.stage(micro_batch, result, _as_table), {}, left_out(result))

    def _name_call(self, failure: ReducerError) -> ReducerError:
        """Return a failure with the call that a worker ended in, where it did."""
        call = self._calls.ended(str(failure))
        if call is None:
            return failure
        # the key is found by its calls: dividing the batch would find nothing sooner
        return JobFailedError(f"a Python worker ended in a call for {call}: {failure}")

    def _run(
        self, fold: Callable[[pa.Table], pa.Table], parts: Sequence[pa.Table]
    ) -> list[pa.Table]:
        """Fold chunks in the workers, each in a task of its own."""
        payloads = [_to_bytes(part) for part in parts]
        context: Any = self._runtime.context
        task = _task(fold)
        found = context.parallelize(payloads, len(payloads)).map(task).collect()
        for each in found:
            if isinstance(each, _Failed) and each.call is not None:
                self._calls.note_interrupted(each.call)
        return [_result(each) for each in found]


def _as_table(result: object) -> pa.Table:
    assert isinstance(result, pa.Table), "the fold returns a table"
    return result


def _to_bytes(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    data: bytes = stream.getvalue().to_pybytes()
    return data


@dataclass(frozen=True, slots=True)
class _Failed:
    """The reason why a chunk was not folded, as it comes from a worker.

    ``record`` is topic, partition and offset of the one at fault, ``call`` the one that hung.
    """

    message: str
    record: tuple[str, int, int] | None = None
    call: Call | None = None


def _task(fold: Callable[[pa.Table], pa.Table]) -> Callable[[bytes], bytes | _Failed]:
    """Return what a worker does with a chunk. An error is told as what it is."""

    def run(payload: bytes) -> bytes | _Failed:
        try:
            return _to_bytes(fold(pa.ipc.open_stream(payload).read_all()))
        except PoisonRecordError as error:
            return _Failed(error.reason, (*error.partition, error.offset))
        except JobTimeoutError as error:
            return _Failed(str(error), call=error.call)
        except RetryableError as error:
            return _Failed(str(error))

    return run


def _result(found: bytes | _Failed) -> pa.Table:
    if isinstance(found, bytes):
        return pa.ipc.open_stream(found).read_all()
    if found.record is not None:
        topic, partition, offset = found.record
        raise PoisonRecordError(TopicPartition(topic, partition), offset, found.message)
    if found.call is not None:
        raise JobTimeoutError(found.message, found.call)
    raise JobFailedError(found.message)
