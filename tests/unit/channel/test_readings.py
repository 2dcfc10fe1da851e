"""The age of waiting records, as the metrics have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.channel.buffer import chunk_of
from headrace.channel.status import snapshot_of
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.thread_time import ThreadRole
from headrace.testing import InMemoryBroker, in_memory_channel, running
from headrace.testing.channel import FakeClock
from headrace.testing.records import TIMESTAMP, FakeRecord
from tests.unit.channel.in_memory import P0, committed, values
from tests.unit.channel.recorder import Recorder
from tests.unit.channel.test_partition import hand_out, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.core.records import Batch, Record
    from headrace.telemetry.metrics import PartitionSnapshot

#: When the first record of these tests was made, in seconds since the epoch.
MADE = TIMESTAMP / 1000


def ten_a_second(count: int) -> list[Record]:
    """Return records of which each is a tenth of a second younger than the one before it."""
    return [FakeRecord(offset_=n, timestamp_=TIMESTAMP + 100 * n) for n in range(count)]


def fetched(owned: OwnedPartition, records: list[Record], end: int) -> OwnedPartition:
    """Bring a partition to WAITING with records in its buffer, and an end of its log."""
    waiting(owned)
    owned.progress.high_watermark = end
    owned.progress.buffer.append(owned.progress.buffer.generation, chunk_of(records), 0.0)
    return owned


def lag(owned: OwnedPartition, now: float) -> float | None:
    """Return what the metrics say at ``now``, in seconds behind the first record."""
    return snapshot_of("main", owned, FakeClock(MADE + now)).lag_seconds


def test_the_lag_is_the_age_of_the_next_record(own: Callable[..., OwnedPartition]) -> None:
    """The oldest record that is not answered counts, in the buffer or handed out."""
    owned = fetched(own(), ten_a_second(20), 20)
    assert lag(owned, 5.0) == pytest.approx(5.0)
    item = hand_out(owned)
    assert lag(owned, 6.0) == pytest.approx(6.0)
    owned.progress.outstanding.clear()
    after = len(item.batch) * 0.1
    assert lag(owned, 7.0) == pytest.approx(7.0 - after)


def test_lag_is_zero_at_the_end_of_the_log(own: Callable[..., OwnedPartition]) -> None:
    """The lag is 0 when all records are answered, and none while the end is unknown."""
    owned = waiting(own())
    assert lag(owned, 5.0) is None
    owned.progress.high_watermark = 0
    assert lag(owned, 5.0) == 0.0


def test_a_clock_that_is_behind_makes_no_negative_lag(own: Callable[..., OwnedPartition]) -> None:
    """A record from the future has waited for no time."""
    assert lag(fetched(own(), ten_a_second(1), 1), -3.0) == 0.0


def test_a_record_without_a_timestamp_has_no_age(own: Callable[..., OwnedPartition]) -> None:
    """The lag is none without a timestamp."""
    record = FakeRecord(offset_=0, timestamp_=-1)
    assert lag(fetched(own(), [record], 1), 5.0) is None


@pytest.mark.parametrize(
    ("newest", "caught_up_at", "expected"),
    [(None, None, None), (2.0, None, 8.0), (2.0, 6.0, 4.0), (7.0, 6.0, 3.0), (None, 6.0, 4.0)],
)
def test_lag_is_bounded_by_the_last_fetch_and_the_last_end(
    own: Callable[..., OwnedPartition],
    newest: float | None,
    caught_up_at: float | None,
    expected: float | None,
) -> None:
    """The lag is the least that the last fetch and the last known end allow, else none."""
    owned = waiting(own())
    owned.progress.high_watermark = 100
    owned.progress.newest = None if newest is None else MADE + newest
    owned.progress.caught_up_at = None if caught_up_at is None else MADE + caught_up_at
    found = lag(owned, 10.0)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_a_channel_says_how_fresh_its_sink_is() -> None:
    """Once records are committed, the newest of them makes the freshness; their lag is over."""
    broker, metrics = InMemoryBroker(), Metrics()
    broker.create_topic("events", 1)
    channel = in_memory_channel(Recorder(), broker, metrics=metrics)
    with running(channel):
        broker.produce(P0, *values(10))
        assert committed(broker, P0, 10)
        reading = only(channel.partitions())
        assert reading.sink_seconds is not None
        assert reading.sink_seconds > 0


def test_a_record_waits_while_the_processor_has_it() -> None:
    """A batch that on_next_batch is still busy with lags, though no answer is outstanding yet."""
    broker = InMemoryBroker()
    broker.create_topic("events", 1)
    seen: list[float | None] = []

    def look(_: Batch) -> BatchResponse:
        seen.append(only(channel.partitions()).lag_seconds)
        return BatchResponse.advance()

    channel = in_memory_channel(Recorder(look), broker)
    with running(channel):
        broker.produce(P0, *values(10))
        assert committed(broker, P0, 10)
    assert seen[0] is not None
    assert seen[0] > 0


def test_every_thread_of_a_channel_accounts_for_its_time() -> None:
    """Fetcher, committer and workers have their series while the channel runs, and none after."""
    broker, metrics = InMemoryBroker(), Metrics()
    broker.create_topic("events", 1)
    channel = in_memory_channel(Recorder(), broker, metrics=metrics, workers=2)
    with running(channel):
        broker.produce(P0, *values(10))
        assert committed(broker, P0, 10)
        names = {(time.role, time.name) for time in metrics.thread_times()}
    assert names == {
        (ThreadRole.FETCHER, "fetcher"),
        (ThreadRole.COMMITTER, "committer"),
        (ThreadRole.WORKER, "worker-1"),
        (ThreadRole.WORKER, "worker-2"),
    }
    assert metrics.thread_times() == ()


def only(readings: list[PartitionSnapshot]) -> PartitionSnapshot:
    """Return the one reading there is."""
    (reading,) = readings
    return reading
