"""Copies of records as they pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.channel.taps import MOST_BYTES, MOST_TAPS, Tap, TapCounts, TapFilter, Taps
from headrace.core.errors import Refusal
from headrace.core.records import Batch, TopicPartition
from headrace.testing import FakeAssignment, FakeClock, FakeRecord
from tests.refusals import raises_refused

if TYPE_CHECKING:
    from collections.abc import Sequence

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(values: Sequence[bytes], partition: TopicPartition = P0, key: bytes = b"k") -> Batch:
    """Return a batch of records with one key."""
    records = [
        FakeRecord(
            topic_=partition.topic, partition_=partition.partition, offset_=n, key_=key, value_=each
        )
        for n, each in enumerate(values)
    ]
    return Batch(FakeAssignment(partition), 0, records, len(records), sum(map(len, values)))


def values(tap: Tap) -> list[bytes | None]:
    """Return the values that have come."""
    return [each.value for each in tap.take()]


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands."""
    return FakeClock()


def test_no_more_than_the_rate_is_copied(clock: FakeClock) -> None:
    """A second's worth at once, spread over the batch, and then as time allows."""
    tap = Tap(TapFilter(rate=4), "ann", clock)
    tap.offer(batch([b"%d" % n for n in range(100)]))
    assert values(tap) == [b"0", b"25", b"50", b"75"]
    tap.offer(batch([b"none"]))
    clock.advance(0.5)
    tap.offer(batch([b"a", b"b", b"c", b"d"]))
    assert values(tap) == [b"a", b"c"]
    assert tap.counts == TapCounts(passed=105, shown=6, over_rate=99)


def test_only_matching_records_are_copied(clock: FakeClock) -> None:
    """Records of the partition, or with the key, are copied."""
    of_partition = Tap(TapFilter(partition=P1), "ann", clock)
    with_key = Tap(TapFilter(key=b"x"), "ann", clock)
    for tap in (of_partition, with_key):
        tap.offer(batch([b"0"]))
        tap.offer(batch([b"1"], P1))
        tap.offer(batch([b"2"], P0, b"x"))
    assert values(of_partition) == [b"1"]
    assert values(with_key) == [b"2"]
    assert of_partition.counts == TapCounts(passed=1, shown=1)
    assert with_key.counts == TapCounts(passed=3, shown=1)


def test_a_large_batch_is_not_searched_for_a_key_to_its_end(clock: FakeClock) -> None:
    """The first thousand records are, and the others are counted."""
    tap = Tap(TapFilter(key=b"k", rate=1000), "ann", clock)
    tap.offer(batch([b""] * 2500))
    assert len(tap.take()) == 1000
    assert tap.counts == TapCounts(passed=2500, shown=1000, unseen=1500)


@pytest.mark.parametrize(("size", "kept"), [(1, 1000), (MOST_BYTES, 63), (MOST_BYTES + 9, 63)])
def test_records_that_are_not_fetched_are_dropped(clock: FakeClock, size: int, kept: int) -> None:
    """The queue is bounded in records and in bytes, and dropped records are counted."""
    tap = Tap(TapFilter(rate=1000), "ann", clock)
    for _ in range(2):
        tap.offer(batch([b"x" * size] * 1000))
        clock.advance(1)
    assert tap.counts.dropped == 2000 - kept
    found = tap.take()
    assert len(found) == kept
    assert {each.value_bytes for each in found} == {size}
    assert {len(each.value or b"") for each in found} == {min(size, MOST_BYTES)}
    tap.offer(batch([b"more"]))
    assert values(tap) == [b"more"]


def test_records_come_with_all_they_have(clock: FakeClock) -> None:
    """A record has its place, time, key, value, headers and attempt."""
    record = FakeRecord(
        topic_="t", partition_=1, offset_=7, key_=None, value_=None, headers_=[("h", None)],
        timestamp_=5,
    )  # fmt: skip
    tap = Tap(TapFilter(), "ann", clock)
    tap.offer(Batch(FakeAssignment(P1), 7, [record], 8, 0, attempt=3))
    (found,) = tap.take()
    assert (found.partition, found.offset, found.timestamp, found.attempt) == (P1, 7, 5, 3)
    assert (found.key, found.value, found.value_bytes) == (None, None, None)
    assert found.headers == (("h", None),)


def test_a_channel_has_so_many_taps_and_no_more(clock: FakeClock) -> None:
    """The refusal says whose they are; one that ends makes room; none is what delivery asks."""
    taps = Taps("main", clock)
    assert not taps
    opened = [taps.open(TapFilter(), f"user {n}") for n in range(MOST_TAPS)]
    assert taps
    with raises_refused(Refusal.TAP_REFUSED, match="user 2"):
        taps.open(TapFilter(), "ann")
    taps.close(opened[0])
    taps.close(opened[0])
    opened[0] = taps.open(TapFilter(), "ann")
    for tap in opened:
        taps.close(tap)
    assert not taps


def test_a_tap_that_fails_ends_and_nothing_else(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other taps get the batch, and its delivery is not affected."""
    taps = Taps("main", clock)
    bad, good = taps.open(TapFilter(), "bad"), taps.open(TapFilter(), "good")
    offer = Tap.offer

    def failing(self: Tap, given: Batch) -> None:
        if self is bad:
            raise RuntimeError("no")
        offer(self, given)

    monkeypatch.setattr(Tap, "offer", failing)
    taps.offer(batch([b"a"]))
    taps.offer(batch([b"b"]))
    assert values(good) == [b"a", b"b"]
    assert taps
    taps.close(good)
    assert not taps, "the bad one is still open"
