"""Letters of undecodable records, made in columns: each as it would be made by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channel.dead_letters import DeadLetters
from headrace.channel.settings import LiveSettings
from headrace.config import ChannelConfig
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import UndecodableRecordError
from headrace.core.letter_headers import Failure, LetterHeaders, Stage, shortened
from headrace.core.records import Batch, TopicPartition
from headrace.core.tables import Decode, Decoding, OnUndecodable
from headrace.core.undecodable import UndecodableRows
from headrace.extensions.arrow.decode import ArrowDecoder
from headrace.kafka.ports import DeadLetter
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeRecord, InMemoryBroker, InMemoryDeadLetters, records_table
from headrace.testing.channel import QUICK
from tests.unit.channel.conftest import owned_partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.letter_headers import LetterNames
    from headrace.core.records import Record
    from headrace.core.undecodable import Undecodable

DECODING = Decode(Decoding.JSON, "id INT, name STRING", OnUndecodable.DEAD_LETTER)

_headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)

#: Values of which most are malformed, in all that a record has.
_values = (
    st.none()
    | st.binary(max_size=30)
    | st.text(max_size=30).map(str.encode)
    | st.sampled_from([b'{"id": 1}', b'{"id": "x"}', b'{"id": 1e40}', b'{"name": "', b"[1]"])
)
_records = st.lists(
    st.builds(
        FakeRecord,
        partition_=st.integers(0, 2),
        offset_=st.integers(0, 3),  # how many are missing before it
        key_=st.none() | st.binary(max_size=4),
        value_=_values,
        headers_=st.none() | _headers,
        timestamp_=st.just(-1) | st.integers(0, 2_000_000_000_000),
    ),
    min_size=1,
    max_size=30,
)


def _numbered(records: list[FakeRecord]) -> list[FakeRecord]:
    """Return the records with offsets that rise in each partition."""
    ends: dict[int, int] = {}
    found = []
    for record in records:
        offset = ends.get(record.partition_, 0) + record.offset_
        ends[record.partition_] = offset + 1
        found.append(
            FakeRecord(
                partition_=record.partition_,
                offset_=offset,
                key_=record.key_,
                value_=record.value_,
                headers_=record.headers_,
                timestamp_=record.timestamp_,
            )
        )
    return found


def _batches(records: list[FakeRecord], cut: int) -> list[Batch]:
    """Return the records as batches of at most so many of one partition."""
    found = []
    for number in sorted({each.partition_ for each in records}):
        own = [each for each in records if each.partition_ == number]
        owned = owned_partition(number)
        for at in range(0, len(own), cut):
            part = own[at : at + cut]
            first, end = part[0].offset_, part[-1].offset_ + 1
            found.append(Batch(owned, first, [*part], end, 0, attempt=1 + at))
    return found


def _fail(error: BaseException) -> None:
    raise error


def _sent(
    found: Undecodable, batches: Sequence[Batch], names: LetterNames
) -> list[tuple[str, DeadLetter]]:
    """Return the letters that a channel sends for what was found in batches."""
    letters = InMemoryDeadLetters()
    rejects = {"topic": "dead", "max_consecutive": 1000, "max_per_thousand": 1000}
    config = {**QUICK, "rejects": {"failing": "dead_letter", "headers": names, **rejects}}
    sender = DeadLetters(
        LiveSettings(ChannelConfig.model_validate(config)),
        store=letters,
        reader=cast("Any", letters),
        catalog=InMemoryBroker().catalog(),
        metrics=Metrics(),
        channel="main",
        code=_sent,
        clock=SYSTEM_CLOCK,
        fail=_fail,
    )
    parts = [
        (batch, found[batch.partition].between(batch.start, batch.next_offset))
        for batch in batches
        if batch.partition in found
    ]
    sender.send_undecodable([(batch, part) for batch, part in parts if part])
    return letters.letters


def _letter(record: Record, reason: str, batch: Batch, names: LetterNames) -> DeadLetter:
    """Return the letter of one record, spelt out."""
    error = UndecodableRecordError(batch.partition, record.offset() or 0, reason)
    said = {
        "group": "group",
        "topic": "events",
        "topic_id": cast("Any", batch.assignment).life.topic_id or "",
        "partition": str(record.partition()),
        "offset": str(record.offset()),
        "timestamp": str(record.timestamp()[1]),
        "error": "UndecodableRecordError",
        "message": shortened(str(error)),
        "attempt": str(batch.attempt),
    }
    failure = Failure(str(error), error, Stage.VALUE, _sent)
    ours = LetterHeaders(names, "group").of(said, failure)
    return DeadLetter(record.key(), record.value(), [*(record.headers() or ()), *ours])


@pytest.mark.parametrize("names", ["headrace", "connect"])
@given(records=_records.map(_numbered), cut=st.integers(1, 9))
def test_letters_are_those_of_records_one_by_one(
    names: LetterNames, records: list[FakeRecord], cut: int
) -> None:
    """Key, value and all headers in their order, for any values, in any cut, in order."""
    decoded = ArrowDecoder(DECODING).apply(records_table(records)).rejected
    batches = _batches(records, cut)
    expected = []
    for batch in batches:
        found = decoded.get(batch.partition)
        reasons = {} if found is None else dict(zip(found.offsets, found.reasons, strict=True))
        for record in batch.records:
            reason = reasons.get(cast("FakeRecord", record).offset_)
            if reason is not None:
                expected.append(("dead", _letter(record, reason, batch, names)))
    if expected:
        assert _sent(decoded, batches, names) == expected
    assert len(expected) == sum(map(len, decoded.values()))


def test_rows_come_in_any_order() -> None:
    """Records of a partition are in the order of offsets, with their own values and reasons."""
    records = [
        FakeRecord(partition_=offset % 2, offset_=offset, value_=b"%d" % offset)
        for offset in (1, 3, 4, 5, 7, 9)
    ]
    table = records_table(records).take([5, 0, 3, 2, 4, 1])
    said = [str(offset) for offset in table.column("offset").to_pylist()]
    rows = UndecodableRows(table, said, lambda value, why: f"{value!r} {why}")
    assert {where.partition: found.offsets for where, found in rows.items()} == {
        1: [1, 3, 5, 7, 9],
        0: [4],
    }
    odd = rows[TopicPartition("events", 1)].between(2, 9)
    assert odd.offsets == [3, 5, 7]
    assert odd.rows.column("value").to_pylist() == [b"3", b"5", b"7"]
    assert odd.reasons == ["b'3' 3", "b'5' 5", "b'7' 7"]
