"""The sink that runs the whole job and keeps nothing: for benchmarks and side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.spark.sinks.contract import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.sinks.contract import PartitionCommit
    from headrace.spark.sinks.result import Result


class NoopSink:
    """Computes every row of the result and drops it; the group's commit holds the offsets."""

    guarantee = Guarantee.NOT_KEPT

    def open(self) -> None:
        """Need nothing."""

    def stored_offset(self, identity: str) -> int | None:  # noqa: ARG002 - keeps no offsets
        """Return None: the group's commit holds the offsets."""
        return None

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> None:  # noqa: ARG002
        """Run the job into Spark's own no-op format; a table was computed already."""
        if result is not None and not isinstance(result, pa.Table):
            result.write.format("noop").mode("overwrite").save()

    def commit(self, staged: None, offsets: Sequence[PartitionCommit]) -> None:
        """Store nothing."""

    def discard(self, staged: None) -> None:
        """Hold nothing."""

    def close(self) -> None:
        """Hold nothing."""
