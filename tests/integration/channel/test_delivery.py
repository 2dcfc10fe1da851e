from __future__ import annotations

import random
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import OffsetOutOfRangeError
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from tests.integration.channel.rig import WAIT, Group, Notes, channel_of, eventually
from tests.integration.seen import metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch
    from tests.integration.seen import Log


class Shuffler:
    """Answers batches in another order than they came in, on a thread of its own."""

    def __init__(self) -> None:
        self._open: SimpleQueue[Future[BatchResponse] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self, _: Batch) -> Future[BatchResponse]:
        """Promise an answer."""
        future: Future[BatchResponse] = Future()
        self._open.put(future)
        return future

    def stop(self) -> None:
        """End the thread."""
        self._open.put(None)
        self._thread.join(WAIT)

    def _run(self) -> None:
        chance = random.Random(7)
        while (first := self._open.get()) is not None:
            at_hand = [first]
            while not self._open.empty():
                following = self._open.get()
                if following is None:
                    return
                at_hand.append(following)
            chance.shuffle(at_hand)
            for future in at_hand:
                future.set_result(BatchResponse.advance())


def test_answers_out_of_order_cost_no_order_and_no_record(
    make_group: Callable[..., Group],
) -> None:
    """With two workers and two batches in flight each record comes once, in order, committed."""
    group, numbers = make_group(4), range(4)
    group.produce(2000, *numbers)
    shuffler = Shuffler()
    notes = Notes(shuffler.answer)
    with group.running(notes, workers=2, max_in_flight=2, batch={"max_records": 40, "linger": 0}):
        notes.wait_values(8000)
        eventually(lambda: group.offsets(*numbers) == [2000] * 4)
    shuffler.stop()
    for number in numbers:
        assert notes.records[group.partition(number)] == list(range(2000))
    assert set(notes.values.values()) == {1}


def test_offsets_carry_the_epoch(group: Group) -> None:
    """A committed offset can be read as the group's, with the claim's epoch in it."""
    group.produce(10)
    for epoch in (1, 2):
        notes = Notes()
        with group.running(notes):
            notes.wait(lambda notes=notes: bool(notes.assigned))  # type: ignore[misc]
            eventually(lambda epoch=epoch: group.stored() == [StoredOffset(10, epoch)])  # type: ignore[misc]
        assert notes.epochs[group.partition()] == [epoch]


def test_lag_ends_behind_transaction_markers(group: Group) -> None:
    """On a transactional topic the committed offset reaches the end, and lag is 0."""
    group.broker.transact(group.partition(), *[b"%d" % n for n in range(10)])
    group.broker.transact(group.partition(), b"never", commit=False)
    notes = Notes()
    with group.running(notes) as controller:
        eventually(lambda: group.offsets() == [13])
        eventually(lambda: _standing(channel_of(controller)) == [(13, 13)])
        assert metric(controller, "lag_records", topic=group.topic, partition=0) == 0
    assert notes.records[group.partition()] == list(range(10))


def test_latest_begins_behind_existing_records(group: Group) -> None:
    """With initial_offset latest, the start is committed first and old records do not come."""
    group.produce(5)
    notes = Notes()
    with group.running(notes, initial_offset="latest"):
        notes.wait(lambda: bool(notes.assigned))
        assert group.offsets() == [5]
        group.produce(3, start=5)
        notes.wait_values(3)
    assert notes.records[group.partition()] == [5, 6, 7]


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [5, 6, 7]), ("latest", [8])])
def test_a_deleted_position_follows_the_policy(
    group: Group, log: Log, policy: str, expected: list[int]
) -> None:
    """The processor is told which offset is gone, and reading goes on where the policy says."""
    group.produce(8)
    group.broker.commit(group.name, group.partition(), 2)
    group.broker.delete_before(group.partition(), 5)
    notes = Notes()
    with group.running(notes, offset_out_of_range=policy) as controller:
        notes.wait(lambda: bool(notes.errors))
        eventually(lambda: group.offsets() == [8])
        group.produce(1, start=8)
        eventually(lambda: group.offsets() == [9])
        reason = {"topic": group.topic, "reason": "out_of_range"}
        skipped = metric(controller, "skipped_records_total", **reason)
    assert skipped == expected[0] - 2
    where = {"topic": group.topic, "partition": 0, "position": 2, "target": expected[0]}
    log.expect("offset_out_of_range", channel="main", lost_records=skipped, **where)
    (error,) = notes.errors
    assert isinstance(error, OffsetOutOfRangeError)
    assert (error.position, error.low, error.high) == (2, 5, 8)
    assert notes.records[group.partition()] == [*expected, *([8] if 8 not in expected else [])]


def test_a_deleted_position_may_stop_the_channel(group: Group) -> None:
    """With the policy stop the channel fails with the error and commits nothing."""
    group.produce(8)
    group.broker.commit(group.name, group.partition(), 2)
    group.broker.delete_before(group.partition(), 5)
    with group.running(Notes(), offset_out_of_range="stop") as controller:
        assert isinstance(controller.wait(WAIT), OffsetOutOfRangeError)
    assert group.offsets() == [2]


def test_a_new_partition_is_read_from_its_beginning(
    make_group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """A partition added while the channel runs begins at its first record, even with latest."""
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.2)
    group = make_group(1)
    notes = Notes()
    with group.running(notes, initial_offset="latest"):
        notes.wait(lambda: bool(notes.assigned))
        group.broker.add_partitions(group.topic, 2)
        eventually(lambda: _takes(group, 1))
        group.produce(2, 1, start=1)
        notes.wait_values(3)
    log.expect("partitions_changed", channel="main", partitions={group.topic: 2})
    log.expect("partition_claimed", topic=group.topic, partition=1, epoch=1)
    assert notes.records[group.partition(1)] == [0, 1, 2]


def _standing(channel: InboundKafkaChannel) -> list[tuple[int | None, int | None]]:
    """Return what is committed and the end, for each partition held."""
    return [(reading.committed, reading.high_watermark) for reading in channel.partitions()]


def _takes(group: Group, number: int) -> bool:
    """Whether a partition that was just added accepts a record."""
    try:
        group.produce(1, number)
    except Exception:  # noqa: BLE001 - the client does not know the partition yet
        return False
    return True


def test_memory_stays_within_the_budget(make_group: Callable[..., Group]) -> None:
    """With a backlog beyond it and a slow processor, at most one fetch is above the budget."""
    group, numbers = make_group(4), range(4)
    for number in numbers:
        group.broker.produce(group.partition(number), *[bytes(1000)] * 6000)
    budget, fetch = 8 << 20, 1000 * 1400
    unanswered: SimpleQueue[Future[BatchResponse]] = SimpleQueue()

    def answer(_: Batch) -> Future[BatchResponse]:
        future: Future[BatchResponse] = Future()
        unanswered.put(future)
        return future

    notes = Notes(answer)
    limits: dict[str, Any] = {
        "buffer": {"max_bytes": budget},
        "batch": {"max_records": 500, "max_bytes": budget // 2, "linger": 0},
    }
    peaks = [0]
    with group.running(notes, max_in_flight=2, **limits) as controller:
        channel = channel_of(controller)

        def all_came() -> bool:
            held = sum(reading.held_bytes for reading in channel.partitions())
            peaks.append(held)
            assert held <= budget + fetch
            while not unanswered.empty():
                unanswered.get().set_result(BatchResponse.advance())
            return notes.values.total() == 24_000

        eventually(lambda: len(notes.assigned) == 4 and unanswered.qsize() == 8)
        eventually(all_came)
        eventually(lambda: all_came() and group.offsets(*numbers) == [6000] * 4)
    assert max(peaks) > budget / 4
