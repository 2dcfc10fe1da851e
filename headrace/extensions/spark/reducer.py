"""The user's function: found by its import path, and sent to Python workers by value."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.core.errors import StartError
from headrace.core.imports import load_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from pyspark.sql import DataFrame

    from headrace.sinks.micro_batch import MicroBatch


class Reducer(Protocol):
    """A user's reducer: plain PySpark on the records of one micro-batch.

    Runs on a lane's thread. It may run any Spark action of its own, and may be run again on the
    same records after a failure, so what it does beside its result should bear repetition. The
    result goes to the sink; None stores the offsets only.
    """

    def __call__(
        self, df: DataFrame, batch: MicroBatch, /
    ) -> DataFrame | Mapping[str, DataFrame | None] | None:
        """Return what the sink is to store, or what each of its outputs is to, by their names."""
        ...


class OwnReducer(ABC):
    """A reducer that is made of the configuration, and is looked at before the first record."""

    @abstractmethod
    def __call__(self, df: DataFrame, batch: MicroBatch, /) -> DataFrame:
        """Return what the sink is to store."""

    @abstractmethod
    def check(self, frame: DataFrame) -> None:
        """Plan on a frame with the columns of every micro-batch.

        Raises:
            StartError: it cannot be used.
        """


def load_reducer(path: str) -> Reducer:
    """Import ``package.module:function``.

    Raises:
        ImportPathError: the path names nothing that can be called with (df, batch).
    """
    return cast("Reducer", load_callable(path, "df", "batch"))


def checked(result: object) -> DataFrame | None:
    """Return what a reducer returned.

    Raises:
        TypeError: it is neither a DataFrame nor None.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415 - checking a reducer's path needs no pyspark

    if result is None or isinstance(result, DataFrame):
        return result
    raise TypeError(
        f"the reducer returned a {type(result).__name__}; it must return a DataFrame, or None to "
        "store the offsets only"
    )


def send_by_value(function: Any) -> None:
    """Register the function's whole package to be pickled by value for Spark's Python workers.

    By reference, a worker imports the package itself: it may not find it, and a reused worker
    goes on with the code it imported first after the package was changed and loaded again.
    pyspark pickles with its own copy of cloudpickle, so that one has to know. Headrace itself is
    there, and goes by reference.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - checking a reducer's path needs no pyspark

    module = inspect.getmodule(function) or inspect.getmodule(type(function))
    if module is None or module.__name__ == "__main__":
        return  # pickled by value anyway
    package = module.__name__.partition(".")[0]
    if package == __name__.partition(".")[0]:
        return
    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    register(sys.modules.get(package, module))


if TYPE_CHECKING:
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
        task: Any = _task(self._function, batch, arrow_schema(kind))
        return df.mapInArrow(task, kind)

    def check(self, frame: DataFrame) -> None:  # noqa: ARG002 - any columns will do
        """Read the result's columns. Needs a session.

        Raises:
            StartError: they cannot be read.
        """
        try:
            kind: Any = StructType.fromDDL(self._result)
            arrow_schema(kind)
        except (PySparkException, ValueError, AttributeError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise StartError(
                f"processor.result {self._result!r} is not a list of columns: {reason}; write it "
                "as in 'name STRING, total BIGINT'"
            ) from error


def arrow_schema(kind: StructType) -> pa.Schema:
    """Return the columns as Arrow has them, with moments in UTC; pyspark 4.2 asks for the zone."""
    names_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if names_zone else {}
    return to_arrow_schema(kind, **zone)


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
