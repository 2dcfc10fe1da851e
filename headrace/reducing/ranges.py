"""A range of offsets as records: read from Kafka, and nothing committed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.clock import Deadline
from headrace.errors import KafkaUnavailableError
from headrace.kafka import KafkaRecordSource, KafkaTopicCatalog
from headrace.offsets.errors import RequestError
from headrace.records import Batch, Record, TopicPartition, offset_of
from headrace.tables import table_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

#: The name that the client goes by: it is assigned its partition, and neither joins nor commits.
_GROUP = "headrace-reduce"

#: Seconds that the brokers have to answer, and again for each lot of records.
_PATIENCE = 30.0
_TURN = 0.5

#: Bytes that the client may fetch ahead.
_PREFETCH = 32 << 20

_FORM = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d{1,9}):(?P<start>\d{1,18})-(?P<end>\d{1,18})")


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, ``end`` not included."""

    partition: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.partition} {self.start}-{self.end}"


def parse_range(text: str) -> Range | None:
    """Return the range that a text names, None where it is none.

    Raises:
        RequestError: it ends before it begins.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    partition = TopicPartition(match["topic"], int(match["partition"]))
    found = Range(partition, int(match["start"]), int(match["end"]))
    if found.end <= found.start:
        raise RequestError(
            [f"{text}: {found.end} is not behind {found.start}; give FROM-TO, TO not included"]
        )
    return found


@dataclass(frozen=True, slots=True)
class _Held:
    """Stands for an assignment, of which nobody knows but us."""

    partition: TopicPartition
    position: int
    identity: str = ""
    epoch: int = 0
    committed: int | None = None
    high_watermark: int | None = None
    transactional_id: str | None = None
    leader_epoch: int | None = None

    def is_current(self) -> bool:
        """Return True."""
        return True


def read_range(wanted: Range, properties: Mapping[str, Any]) -> pa.Table:
    """Return the records of a range. Blocks.

    They may be fewer than offsets: compaction and transactions leave gaps.

    Raises:
        RequestError: the broker does not have all of the range, or no record is in it.
        KafkaUnavailableError: no broker answered in time.
    """
    _require(wanted, properties)
    source = KafkaRecordSource(properties, _GROUP, _PREFETCH)
    try:
        source.assign({wanted.partition: wanted.start})
        records = _records(source, wanted)
    finally:
        source.close()
    if not records:
        raise RequestError([f"{wanted}: there is no record; compaction or retention took them"])
    size = sum(map(len, records))
    held = _Held(wanted.partition, wanted.end)
    return table_of(Batch(held, wanted.start, records, wanted.end, size))


def _require(wanted: Range, properties: Mapping[str, Any]) -> None:
    topic, number = wanted.partition
    catalog, deadline = KafkaTopicCatalog(properties, _GROUP), Deadline.after(_PATIENCE)
    known = catalog.describe([topic], deadline).get(topic)
    if known is None:
        raise RequestError([f"topic {topic} does not exist on the brokers"])
    if number >= known.partitions:
        raise RequestError(
            [f"topic {topic} has no partition {number}; it has {known.partitions}, from 0 on"]
        )
    low, high = catalog.watermarks(wanted.partition, deadline)
    if wanted.start < low or wanted.end > high:
        text = f"{wanted.partition} has the offsets {low}-{high}, the end not included"
        raise RequestError([f"{text}; choose within them"])


def _records(source: KafkaRecordSource, wanted: Range) -> list[Record]:
    """Fetch until the end is reached; time-out starts afresh with each lot of records."""
    found: list[Record] = []
    deadline = Deadline.after(_PATIENCE)
    while not deadline.expired:
        fetched = source.fetch(_TURN)
        for _, records in fetched.chunks:
            found += [record for record in records if offset_of(record) < wanted.end]
            if offset_of(records[-1]) >= wanted.end - 1:
                return found
            deadline = Deadline.after(_PATIENCE)
        if any(offset >= wanted.end for _, offset in fetched.ends):
            return found
    raise KafkaUnavailableError(
        f"{wanted}: no more records came for {_PATIENCE:.0f} s after {len(found)} of them; look "
        "whether the partition's leader is up"
    )
