"""A reducer on tables of Arrow that runs in Spark's Python workers, by ``mapInArrow``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import StartError
from headrace.spark.reducer import OwnReducer, send_by_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

    from headrace.spark.micro_batch import MicroBatch

    #: What Spark calls with the record batches of a task.
    Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class WorkerReducer(OwnReducer):
    """Calls a function with the part of a micro-batch that each task has.

    ``function`` gets a table and the micro-batch, and returns a table with the columns of
    ``result``, in Spark's DDL, or None for no rows.
    """

    def __init__(
        self, function: Callable[[pa.Table, MicroBatch], pa.Table | None], result: str
    ) -> None:
        self._function = function
        self._result = result
        send_by_value(function)

    def __call__(self, df: DataFrame, batch: MicroBatch, /) -> DataFrame:
        """Plan the calls; they run with the sink's job."""
        kind = cast("StructType", StructType.fromDDL(self._result))
        task: Any = _task(self._function, batch, to_arrow_schema(kind))
        return df.mapInArrow(task, kind)

    def check(self, frame: DataFrame) -> None:  # noqa: ARG002 - any columns will do
        """Read the result's columns. Needs a session.

        Raises:
            StartError: they cannot be read.
        """
        try:
            kind: Any = StructType.fromDDL(self._result)
            to_arrow_schema(kind)
        except (PySparkException, ValueError, AttributeError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise StartError(
                f"processor.result {self._result!r} is not a list of columns: {reason}; write it "
                "as in 'name STRING, total BIGINT'"
            ) from error


def _task(
    function: Callable[[pa.Table, MicroBatch], Any], batch: MicroBatch, schema: pa.Schema
) -> Task:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = list(batches)
        if not part:
            return
        found = function(pa.Table.from_batches(part), batch)
        if found is not None:
            yield from _fitted(found, schema).to_batches()

    return run


def _fitted(found: Any, schema: pa.Schema) -> pa.Table:
    """Return a result with the columns and types that were announced to Spark, which trusts it.

    Raises:
        TypeError: it is no table.
        ValueError: it has other columns, or values that do not fit.
    """
    if not isinstance(found, pa.Table):
        raise TypeError(
            f"the reducer returned a {type(found).__name__}; it must return a pyarrow.Table or None"
        )
    if sorted(found.column_names) != sorted(schema.names):
        raise ValueError(
            f"the reducer returned the columns {', '.join(found.column_names)}; processor.result "
            f"has {', '.join(schema.names)}"
        )
    return found.select(schema.names).cast(schema)
