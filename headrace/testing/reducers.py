"""Reducers in unit tests: records in, rows out, as from one micro-batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.core.clock import Deadline
from headrace.core.imports import load_callable
from headrace.core.records import TopicPartition
from headrace.core.tables import (
    SCHEMA,
    Decode,
    Decoding,
    OnUndecodable,
    Timestamps,
    merge,
    table_of,
)
from headrace.extensions.arrow.reducer import dry_run
from headrace.testing.records import FakeAssignment, FakeRecord, make_batch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self, TypeAlias

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.extensions.arrow.reducer import ArrowReducer
    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import DryRunBatch

    #: A record as a test gives it: a whole one, or a value; a mapping is a value in JSON.
    Given: TypeAlias = "FakeRecord | bytes | str | Mapping[str, Any] | None"
    Row: TypeAlias = dict[str, Any]

#: Seconds for a session's end.
_STOP = 20.0


def records_table(records: Iterable[Given]) -> pa.Table:
    """Return records as a reducer gets them: one table with the columns of every micro-batch.

    Offsets count up from 0 in each partition, except where a FakeRecord has one of its own. All
    are of ``events-0``, except where a FakeRecord says otherwise.
    """
    parts: dict[TopicPartition, list[FakeRecord]] = {}
    for given in records:
        record = _record(given)
        where = TopicPartition(record.topic_, record.partition_)
        parts.setdefault(where, []).append(record)
    batches = [make_batch(own, assignment=FakeAssignment(where)) for where, own in parts.items()]
    if not batches:
        return SCHEMA.empty_table()
    return merge([table_of(batch) for batch in batches], 1)


def reduce_arrow(
    reducer: ArrowReducer | str,
    records: Iterable[Given],
    *,
    schema: str | None = None,
    undecodable: str = "fail",
    timestamps: str = "iso",
    attempt: int = 1,
    output: str | None = None,
) -> list[Row]:
    """Run a reducer of type ``arrow`` on the records, and return its rows.

    ``reducer`` is the function, or its import path. None for a result is no rows. With ``schema``
    values are decoded from JSON, and ``undecodable`` and ``timestamps`` are as in a channel's
    configuration.

    A reducer for several outputs gives the rows that it has for ``output``.

    Raises:
        UndecodableRecordError: a value does not fit the schema.
        TypeError: it returned something else than a table or None.
        Exception: what the reducer raised.
    """
    function = _loaded(reducer, "table")
    decode = _decode(schema, undecodable, timestamps)
    return _rows(dry_run(function, records_table(records), decode, attempt), output)


class LocalSpark:
    """Runs reducers of type ``spark`` in a session of its own, or in one that is there already.

    A context manager, for a fixture of the whole test session: the JVM takes some seconds to
    start, and each reducer a fraction of one.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session
        self._runtime: SparkRuntime | None = None

    def __enter__(self) -> Self:
        """Start Spark, unless there is a session.

        Raises:
            StartError: there is no Java, or this process has a Spark context of its own.
        """
        if self._session is None:
            from headrace.extensions.spark.runtime import SparkRuntime  # noqa: PLC0415 - takes a second
            from headrace.extensions.spark.settings import short_lived  # noqa: PLC0415 - takes a second

            self._runtime = SparkRuntime(short_lived("local[2]"))
            self._runtime.start()
            self._session = self._runtime.session
        return self

    def __exit__(self, *_: object) -> None:
        if self._runtime is not None:
            self._runtime.stop(Deadline.after(_STOP))
            self._runtime = self._session = None

    def reduce(
        self,
        reducer: Reducer | str,
        records: Iterable[Given],
        *,
        schema: str | None = None,
        undecodable: str = "fail",
        timestamps: str = "iso",
        attempt: int = 1,
        output: str | None = None,
    ) -> list[Row]:
        """Run a reducer on the records, and return its rows.

        ``reducer`` is the function, or its import path. With ``schema`` values are decoded from
        JSON, and ``undecodable`` and ``timestamps`` are as in a channel's configuration. A reducer
        for several outputs gives the rows that it has for ``output``.

        Raises:
            UndecodableRecordError: a value does not fit the schema.
            ReducerError: Spark refused the reducer's plan, or the job failed.
            TypeError: it returned something else than a DataFrame or None.
            Exception: what the reducer raised.
        """
        function = _loaded(reducer, "df")
        decode = _decode(schema, undecodable, timestamps)
        return self._run(function, records, decode, attempt, output=output)

    def reduce_arrow(
        self,
        reducer: ArrowReducer | str,
        records: Iterable[Given],
        *,
        result: str,
        schema: str | None = None,
        undecodable: str = "fail",
        timestamps: str = "iso",
    ) -> list[Row]:
        """Run a function for Spark's workers on the records, in two tasks, and return its rows.

        ``result`` has the columns of its result, as in a channel's configuration.

        Raises:
            StartError: they cannot be read.
            UndecodableRecordError, ReducerError: as with :meth:`reduce`; what the function raises
                comes as a ReducerError.
        """
        from headrace.extensions.spark.reducer import WorkerReducer  # noqa: PLC0415 - imports pyspark

        function = _loaded(reducer, "table")
        decode = _decode(schema, undecodable, timestamps)
        return self._run(WorkerReducer(function, result), records, decode, 1)

    def query(
        self,
        sql: str,
        records: Iterable[Given],
        *,
        schema: str | None = None,
        undecodable: str = "fail",
        timestamps: str = "iso",
    ) -> list[Row]:
        """Run a query over the view ``batch`` on the records, and return its rows.

        Raises:
            StartError: it cannot be planned.
            UndecodableRecordError, ReducerError: as with :meth:`reduce`.
        """
        from headrace.extensions.spark.sql import SqlReducer  # noqa: PLC0415 - imports pyspark

        decode = _decode(schema, undecodable, timestamps)
        return self._run(SqlReducer(sql), records, decode, 1)

    def _run(
        self,
        function: Reducer,
        records: Iterable[Given],
        decode: Decode,
        attempt: int,
        *,
        output: str | None = None,
    ) -> list[Row]:
        from headrace.extensions.spark import dryrun  # noqa: PLC0415 - imports pyspark

        if self._session is None:
            raise RuntimeError("LocalSpark is not started; use it in a with statement")
        table = records_table(records)
        found = dryrun.dry_run(self._session, function, table, decode, attempt)
        return _rows(found, output)


def _loaded(reducer: object, first: str) -> Any:
    return load_callable(reducer, first, "batch") if isinstance(reducer, str) else reducer


def _decode(schema: str | None, undecodable: str, timestamps: str) -> Decode:
    kind = Decoding.NONE if schema is None else Decoding.JSON
    how = OnUndecodable(undecodable)
    return Decode(kind, schema, how, timestamps=Timestamps(timestamps))


def _record(given: Given) -> FakeRecord:
    if isinstance(given, FakeRecord):
        return given
    if isinstance(given, Mapping):
        return FakeRecord(value_=json.dumps(given).encode())
    return FakeRecord(value_=given.encode() if isinstance(given, str) else given)


def _rows(found: DryRunBatch, output: str | None) -> list[Row]:
    if (found.outputs is None) != (output is None):
        returned = "one result" if found.outputs is None else "several results"
        raise TypeError(f"the reducer returned {returned}, and output is {output!r}")
    table = found.rows if found.outputs is None else found.outputs.get(output or "")
    return [] if table is None else table.to_pylist()
