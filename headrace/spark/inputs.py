"""How records reach Spark: as columns that we hand over, or as ranges that Spark reads itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from headrace.references import OffsetRun
from headrace.spark import arrow
from headrace.spark.micro_batch import ranges_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.records import Batch, TopicPartition
    from headrace.spark.handover import HandOver

#: Seconds that an executor waits for records that are known to be there; Spark's own is 120.
_POLL_TIMEOUT = 30


class Input(Protocol):
    """One way of records into Spark."""

    def prepare(self, batch: Batch) -> Any:
        """Do what can be done for a batch without Spark. Any thread."""
        ...

    def frame(self, hand_over: HandOver, prepared: Sequence[Any], cores: int) -> DataFrame:
        """Return the records of prepared batches, with the columns of Spark's Kafka source.

        On the lane's thread. ``cores`` tasks at least share the work, where there is enough.
        """
        ...


class ByValue:
    """The channel fetched the records; they are handed over as Arrow columns."""

    def prepare(self, batch: Batch) -> pa.Table:
        """Turn the records into columns."""
        return arrow.table_of(batch)

    def frame(self, hand_over: HandOver, prepared: Sequence[pa.Table], cores: int) -> DataFrame:
        """Hand the columns over."""
        return hand_over.data_frame(arrow.merge(prepared, cores))


class ByReference:
    """The channel planned ranges; Spark's Kafka source reads them on the executors.

    ``properties`` are those of a Java client. ``group`` is the channel's: the source's consumers
    carry a name of their own behind it, always the same, because Spark keeps them by that name.
    They are assigned their partitions, and neither join the group nor commit.
    """

    def __init__(self, properties: Mapping[str, str], group: str) -> None:
        self._options = {
            **{f"kafka.{name}": value for name, value in properties.items()},
            "kafka.group.id": f"{group}-spark",
            "kafka.isolation.level": properties.get("isolation.level", "read_committed"),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafkaConsumer.pollTimeoutMs": str(_POLL_TIMEOUT * 1000),
        }

    def prepare(self, batch: Batch) -> Batch:
        """Leave the batch as it is."""
        return batch

    def frame(self, hand_over: HandOver, prepared: Sequence[Batch], cores: int) -> DataFrame:
        """Have Spark read the ranges when its job runs."""
        ranges = ranges_of(prepared)
        parts: dict[str, list[int]] = {}
        for each in ranges:
            parts.setdefault(each.topic, []).append(each.partition)
        reader = hand_over.session.read.format("kafka").options(
            **self._options,
            assign=json.dumps(parts),
            startingOffsets=_offsets({r.topic_partition: r.start for r in ranges}),
            endingOffsets=_offsets({r.topic_partition: r.next_offset for r in ranges}),
            minPartitions=str(cores),
        )
        frame = reader.load().select(*arrow.SCHEMA.names)
        left_out = _left_out(prepared)
        return frame if left_out is None else frame.where(left_out)


def _offsets(positions: Mapping[TopicPartition, int]) -> str:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in positions.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


def _left_out(batches: Sequence[Batch]) -> str | None:
    """Return the condition that keeps skipped records out, None where none is skipped."""
    conditions = []
    for batch in batches:
        if isinstance(batch.records, OffsetRun):
            continue
        kept = {record.offset() for record in batch.records}
        gone = [str(o) for o in range(batch.start, batch.next_offset) if o not in kept]
        topic, partition = batch.partition
        conditions.append(
            f"not (topic = '{topic}' and partition = {partition} and offset in ({', '.join(gone)}))"
        )
    return " and ".join(conditions) or None
