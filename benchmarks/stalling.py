"""Processing that never ends, for the memory benchmark."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event
from typing import TYPE_CHECKING

from headrace.processors import BatchProcessor, BatchResponse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.core.records import Batch
    from headrace.spark import MicroBatch

#: Seconds that a reducer hangs: longer than any run.
_LONG = 3600.0


class StalledProcessor(BatchProcessor):
    """Takes batches and answers none."""

    def on_next_batch(self, batch: Batch) -> Future[BatchResponse]:
        """Promise an answer that never comes."""
        del batch
        return Future()


def stalled_reducer(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Hang, as with a sink that takes nothing."""
    del batch
    Event().wait(_LONG)
    return df
