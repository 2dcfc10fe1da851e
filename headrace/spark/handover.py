"""The hand-over by value: an Arrow table becomes a DataFrame with one partition for each chunk.

This is what ``createDataFrame`` does with an Arrow table, less what is known beforehand: it asks
the JVM for five settings, looks its functions up by reflection, compares and casts schemas, and
fails on sliced chunks that hold lists. The calls below are pyspark's own and private, which is why
the pyspark line is pinned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.tables import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_SCHEMA_JSON = from_arrow_schema(SCHEMA).json()


class HandOver:
    """Hands tables to one session, on the thread that owns it."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        context: Any = session.sparkContext
        utils = context._jvm.PythonSQLUtils  # noqa: SLF001
        self._send = context._serialize_to_jvm  # noqa: SLF001
        self._read_file = utils.readArrowStreamFromFile
        self._read_socket = context._jvm.ArrowIteratorServer  # noqa: SLF001
        self._to_frame = utils.toDataFrame

    def nothing(self) -> DataFrame:
        """Return a DataFrame with the columns of every table and no rows."""
        return self.session.createDataFrame([], from_arrow_schema(SCHEMA))

    def data_frame(self, table: pa.Table) -> DataFrame:
        """Return the table as a DataFrame. Blocks while the JVM reads it, some ms for 10 MB."""
        batches = self._send(
            table.to_batches(), ArrowStreamSerializer(), self._read_file, self._read_socket
        )
        java_session: Any = self.session._jsparkSession  # noqa: SLF001
        return DataFrame(self._to_frame(batches, _SCHEMA_JSON, java_session), self.session)
