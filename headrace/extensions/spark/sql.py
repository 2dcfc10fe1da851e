"""A reducer in SQL: one query over the micro-batch as the view ``batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from headrace.core.errors import StartError
from headrace.extensions.spark.reducer import OwnReducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.sinks.micro_batch import MicroBatch

#: What a query calls the records of its micro-batch.
VIEW = "batch"


class SqlReducer(OwnReducer):
    """Runs one query on each micro-batch; see ``Reducer`` beside it."""

    def __init__(self, query: str) -> None:
        self._query = query

    def __call__(self, df: DataFrame, batch: MicroBatch | None = None, /) -> DataFrame:  # noqa: ARG002
        """Return the query's result, planned and not run."""
        return self._plan(df)

    def check(self, frame: DataFrame) -> None:
        """Plan the query on a frame with the columns of every micro-batch.

        Raises:
            StartError: it is not a query, or Spark knows something in it not.
        """
        try:
            _parse(frame, self._query)
            self._plan(frame)
        except PySparkException as error:
            raise StartError(
                f"processor.sql cannot be planned: {_reason(error)}; correct it. The records are "
                f"the view {VIEW} with the columns {', '.join(frame.columns)}"
            ) from error

    def _plan(self, frame: DataFrame) -> DataFrame:
        """Plan the query. The view is gone then, and with it what would keep the records."""
        session = frame.sparkSession
        frame.createOrReplaceTempView(VIEW)
        try:
            return session.sql(self._query)
        finally:
            session.catalog.dropTempView(VIEW)


def _parse(frame: DataFrame, query: str) -> None:
    """Refuse what is no query: a command would be run when it is planned."""
    session: Any = frame.sparkSession._jsparkSession  # noqa: SLF001 - there is no public parser
    session.sessionState().sqlParser().parseQuery(query)


def _reason(error: PySparkException) -> str:
    """Return the first line of what Spark says; the plan after it is long."""
    return str(error).strip().partition("\n")[0].rstrip(".")
