"""A log that lost records before a channel's position."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from headrace.channel.bounds import Until
from headrace.core.clock import Deadline
from headrace.core.errors import LogTruncatedError, OffsetOutOfRangeError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.ports import Fetched, LogLook, StoredOffset
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from headrace.testing.broker import InMemoryCatalog
from tests.unit.channel.doubles import KnownLeaderSource, NotedCatalog, ReportingSource
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel

P0 = TopicPartition("events", 0)


class Watching(Recorder):
    """Keeps the errors that it is told of, besides."""

    def __init__(self) -> None:
        super().__init__(on_error=self._keep)
        self.raised: list[BaseException] = []

    def _keep(self, error: BaseException) -> None:
        self.raised.append(error)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with the topic ``events`` of one partition with ten records."""
    made = InMemoryBroker()
    made.create_topic("events")
    made.produce(P0, *[b"%d" % number for number in range(10)])
    return made


def read_all(broker: InMemoryBroker) -> None:
    """Read and commit all records as the group, and stop."""
    with running(in_memory_channel(Recorder(), broker)):
        assert broker.wait_committed("group", P0, 10, Deadline.after(PATIENCE))


def halted(recorder: Watching, channel: InboundKafkaChannel) -> LogTruncatedError:
    """Wait until the partition rests for what the processor was told, and return that."""
    recorder.wait(lambda: recorder.errors() == [LogTruncatedError])
    deadline = Deadline.after(PATIENCE)
    while (state := channel.partitions()[0].state) != "paused":
        assert not deadline.expired, state
    (error,) = recorder.raised
    assert isinstance(error, LogTruncatedError)
    return error


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("grown", [0, 8])
def test_a_log_that_lost_its_end_halts_the_partition(
    broker: InMemoryBroker, policy: str, grown: int
) -> None:
    """Whether it has grown past the offset again or not: nothing is read over, or again."""
    read_all(broker)
    broker.truncate(P0, 6)
    broker.produce(P0, *[b"new"] * grown)
    recorder = Watching()
    channel = in_memory_channel(recorder, broker, offset_out_of_range=policy)
    with running(channel):
        error = halted(recorder, channel)
        assert (error.position, error.high, error.end) == (10, 6 + grown, 6)
        assert "seek to 6" in (channel.partitions()[0].last_error or "")
    assert recorder.delivered() == []
    stored = broker.committed("group", P0)
    assert stored == StoredOffset(10, 2)
    assert stored is not None
    assert stored.leader_epoch == 0


def test_a_seek_accepts_what_stands_there_now(broker: InMemoryBroker) -> None:
    """The partition goes on from there without a resume, and the next start finds all well."""
    read_all(broker)
    broker.truncate(P0, 6)
    broker.produce(P0, *[b"new"] * 8)
    recorder, deadline = Watching(), Deadline.after(PATIENCE)
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        halted(recorder, channel)
        channel.seek(P0, 6, by="ann", deadline=deadline)
        assert not deadline.expired, "the commit was not told of"
        assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))
    assert recorder.delivered() == [(6, 14, 1)]
    again = Recorder()
    broker.produce(P0, b"more")
    with running(in_memory_channel(again, broker)):
        assert broker.wait_committed("group", P0, 15, Deadline.after(PATIENCE))
    assert again.delivered() == [(14, 15, 1)]


def test_a_processor_may_say_where_to_go_on(broker: InMemoryBroker) -> None:
    """The offset of the processor's answer is used if the broker has it."""
    read_all(broker)
    broker.truncate(P0, 6)
    broker.produce(P0, *[b"new"] * 8)
    recorder = Recorder()
    recorder.on_error = lambda _: BatchResponse.revert(offset=8)
    with running(in_memory_channel(recorder, broker)):
        assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))
    assert recorder.delivered() == [(8, 14, 1)]


def test_an_offset_without_an_epoch_is_compared_with_the_end(broker: InMemoryBroker) -> None:
    """An earlier version's: past the end the partition halts, before it nothing can be known."""
    store = broker.store("group")
    store.commit({P0: StoredOffset(10, 0)}, Deadline.after(PATIENCE))
    broker.truncate(P0, 6)
    recorder = Watching()
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        assert halted(recorder, channel).end is None
    broker.produce(P0, *[b"new"] * 8)
    with running(in_memory_channel(Recorder(), broker)):
        assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))


def test_markers_behind_the_last_record_are_no_loss(broker: InMemoryBroker) -> None:
    """Readers do not see a leader's markers, so the position past them stays valid."""
    read_all(broker)
    broker.truncate(P0, 10)
    broker.skip(P0, 3)
    with running(in_memory_channel(Recorder(), broker)):
        assert broker.wait_committed("group", P0, 13, Deadline.after(PATIENCE))
    recorder = Recorder()
    broker.produce(P0, b"next")
    with running(in_memory_channel(recorder, broker)):
        assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))
    assert recorder.delivered() == [(13, 14, 1)]
    assert recorder.errors() == []


def buffered(channel: InboundKafkaChannel) -> int:
    """Return how many records the only partition has read ahead."""
    (reading,) = channel.partitions()
    return reading.buffered_records


def test_records_read_ahead_of_the_cut_are_dropped(broker: InMemoryBroker) -> None:
    """Delivered records are still in the log, so none is missed and the partition goes on."""
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, batch={"max_records": 4, "linger": 0})
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1)
        broker.truncate(P0, 6)
        broker.produce(P0, *[b"new"] * 8)
        # the two that are left behind the batch, and the new ones
        assert wait_for(lambda: buffered(channel) == 10, Deadline.after(PATIENCE))
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[0].set_result(BatchResponse.advance())
        assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))
    assert [call[:2] for call in recorder.delivered()][-1][1] == 14
    assert recorder.errors() == []


def test_another_topic_of_the_same_name_is_not_a_truncated_one(broker: InMemoryBroker) -> None:
    """It is read from its beginning, as its policy wants it."""
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert broker.wait_committed("group", P0, 10, Deadline.after(PATIENCE))
        broker.delete_topic("events")
        broker.create_topic("events")
        broker.produce(P0, b"new")
        recorder.wait(lambda: (0, 1, 1) in recorder.delivered())
    assert set(recorder.errors()) <= {OffsetOutOfRangeError}


@pytest.mark.parametrize("known", [True, False])
def test_a_sink_s_offset_is_checked_with_its_own_epoch(
    broker: InMemoryBroker, *, known: bool
) -> None:
    """It may be ahead of the group's; its epoch counts where the group's last owner stored one."""
    epoch = 0 if known else None
    stored = StoredOffset(3, 0, leader_epoch=epoch)
    broker.store("group").commit({P0: stored}, Deadline.after(PATIENCE))
    broker.truncate(P0, 6)
    broker.produce(P0, *[b"new"] * 8)
    recorder = Watching()
    recorder.stored, recorder.leader_epochs = {0: 10}, {0: 0}
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        if known:
            assert halted(recorder, channel).end == 6
        else:
            assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))


@pytest.mark.parametrize("left", [None, StoredOffset(3, 0, topic_id="former", leader_epoch=0)])
@pytest.mark.parametrize("grown", [0, 8])
def test_a_sink_s_epoch_counts_where_the_group_has_no_offset(
    broker: InMemoryBroker, left: StoredOffset | None, grown: int
) -> None:
    """It expired, or ZooKeeper was wiped, or it is a former topic's: nothing is read on unseen."""
    if left is not None:
        broker.store("group").commit({P0: left}, Deadline.after(PATIENCE))
    broker.truncate(P0, 6)
    broker.produce(P0, *[b"new"] * grown)
    recorder = Watching()
    recorder.stored, recorder.leader_epochs = {0: 10}, {0: 0}
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        assert halted(recorder, channel).end == 6
    assert recorder.delivered() == []
    stored = broker.committed("group", P0)
    assert stored is not None
    assert (stored.offset, stored.leader_epoch) == (10, 0)


def test_a_whole_log_is_read_on_where_the_group_has_no_offset(broker: InMemoryBroker) -> None:
    """Another leader alone is no reason to stop, and a sink without an offset is not asked."""
    broker.truncate(P0, 10)
    broker.produce(P0, *[b"new"] * 4)
    recorder = Watching()
    recorder.stored, recorder.leader_epochs = {0: 10}, {0: 0}
    with running(in_memory_channel(recorder, broker)):
        assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))
    assert recorder.delivered() == [(10, 14, 1)]
    fresh = Watching()
    fresh.leader_epochs = {0: 0}
    channel = in_memory_channel(fresh, broker, group="fresh", initial_offset="latest")
    with running(channel):
        assert broker.wait_committed("fresh", P0, 14, Deadline.after(PATIENCE))
    assert fresh.errors() == []


def test_a_start_at_another_leader_costs_one_question(broker: InMemoryBroker) -> None:
    """With a whole log, the next start compares the present leader's epoch."""
    read_all(broker)
    broker.truncate(P0, 10)
    with running(in_memory_channel(Recorder(), broker)):
        assert broker.wait_commit("group", P0, 2, Deadline.after(PATIENCE))
    stored = broker.committed("group", P0)
    assert stored is not None
    assert (stored.offset, stored.leader_epoch) == (10, 1)


def test_a_log_that_begins_past_the_position_is_not_truncated(
    broker: InMemoryBroker,
) -> None:
    """Records removed by retention are the policy's matter, as former leaders are unknown."""
    read_all(broker)
    broker.truncate(P0, 9)
    broker.produce(P0, *[b"new"] * 8)
    broker.expire(P0, 12)
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert broker.wait_committed("group", P0, 17, Deadline.after(PATIENCE))
    assert recorder.delivered() == [(12, 17, 1)]
    assert recorder.errors() == [OffsetOutOfRangeError]


class SilentCatalog(NotedCatalog):
    """Refuses to say which offsets there are while ``silent``."""

    silent = True

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Note the partition, and answer unless it is silent."""
        found = super().watermarks(partition, deadline)
        if self.silent:
            raise KafkaUnavailableError(f"no leader of {partition}")
        return found


#: So long that nothing is tried twice.
LONG = {"backoff": "1h", "max_backoff": "1h"}


def test_a_truncated_log_whose_leader_is_silent_holds_no_worker(broker: InMemoryBroker) -> None:
    """It is asked about again when its time has come, and can be given back until then."""
    read_all(broker)
    broker.truncate(P0, 6)
    catalog = SilentCatalog(broker)
    channel = in_memory_channel(Watching(), broker, topic_catalog=catalog, retry=LONG)
    channel.start(Deadline.after(PATIENCE))
    try:
        assert wait_for(lambda: catalog.asked, Deadline.after(PATIENCE))
    finally:
        assert channel.stop(Deadline.after(PATIENCE)).clean
    assert catalog.asked == [P0]


@pytest.mark.parametrize("paused", [True, False])
def test_delivery_waits_until_a_truncated_log_is_settled(
    broker: InMemoryBroker, *, paused: bool
) -> None:
    """The position may be out of range, and the log may grow past it meanwhile."""
    recorder, catalog = Watching(), SilentCatalog(broker)
    catalog.silent = False
    channel = in_memory_channel(
        recorder, broker, record_source=KnownLeaderSource(broker), topic_catalog=catalog
    )
    with running(channel):
        assert broker.wait_committed("group", P0, 10, Deadline.after(PATIENCE))
        catalog.asked.clear()
        catalog.silent = True
        if paused:
            channel.pause(by="ann")
        broker.truncate(P0, 6)
        assert wait_for(lambda: len(catalog.asked) > 1, Deadline.after(PATIENCE))
        broker.produce(P0, *[b"new"] * 8)
        asked = len(catalog.asked)
        assert wait_for(lambda: len(catalog.asked) > asked, Deadline.after(PATIENCE))
        assert recorder.delivered() == [(0, 10, 1)]
        catalog.silent = False
        error = halted(recorder, channel)
        assert (error.position, error.high, error.end) == (10, 14, 6)
    assert recorder.delivered() == [(0, 10, 1)]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_position_out_of_range_is_looked_at_with_its_epoch(
    broker: InMemoryBroker, *, ahead: bool
) -> None:
    """The log may have grown past it by then, and hold other records where it was read."""
    recorder = Watching()
    recorder.answer = recorder.later
    batch = {"max_records": 4 if ahead else 10, "linger": 0}
    source, catalog = KnownLeaderSource(broker), NotedCatalog(broker)
    channel = in_memory_channel(
        recorder, broker, record_source=source, topic_catalog=catalog, batch=batch
    )
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1)
        catalog.asked.clear()
        with broker.at_once():
            broker.truncate(P0, 6)
            broker.produce(P0, *[b"new"] * 8)
        assert wait_for(lambda: catalog.asked, Deadline.after(PATIENCE))
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[0].set_result(BatchResponse.advance())
        if ahead:
            assert broker.wait_committed("group", P0, 14, Deadline.after(PATIENCE))
        else:
            assert halted(recorder, channel).end == 6
    values = [record.value() for batch in recorder.batches for record in batch.records]
    assert values == [b"%d" % number for number in range(10)][: 6 if ahead else 10] + [b"new"] * (
        8 if ahead else 0
    )


def test_a_bounded_run_fails_at_a_log_that_lost_its_end(broker: InMemoryBroker) -> None:
    """It would wait for the partition without end."""
    read_all(broker)
    broker.truncate(P0, 6)
    broker.produce(P0, *[b"new"] * 8)
    failures: list[BaseException] = []
    channel = in_memory_channel(
        Watching(), broker, until=Until(), on_failure=lambda _, error: failures.append(error)
    )
    with running(channel):
        assert wait_for(lambda: bool(failures), Deadline.after(PATIENCE))
    assert [type(error) for error in failures] == [LogTruncatedError]


class LookingCatalog(InMemoryCatalog):
    """Looks at the log of P0 with the answers given, and then as any other."""

    def __init__(self, broker: InMemoryBroker, *answers: Future[LogLook]) -> None:
        super().__init__(broker)
        self.answers = list(answers)

    def look_at_log(self, partition: TopicPartition, position: int, epoch: int) -> Future[LogLook]:
        """Return the next answer."""
        if partition == P0 and self.answers:
            return self.answers.pop()
        return super().look_at_log(partition, position, epoch)


def failed(error: Exception) -> Future[LogLook]:
    """Return a look that has failed."""
    answer: Future[LogLook] = Future()
    answer.set_exception(error)
    return answer


def test_a_start_that_waits_for_a_leader_holds_no_worker(broker: InMemoryBroker) -> None:
    """The one worker starts the other partitions meanwhile, and this one can be given back."""
    broker.create_topic("events", 2)
    p1 = TopicPartition("events", 1)
    broker.produce(p1, *[b"1"] * 10)
    with running(in_memory_channel(Recorder(), broker)):
        for partition in (P0, p1):
            assert broker.wait_committed("group", partition, 10, Deadline.after(PATIENCE))
    for partition in (P0, p1):
        broker.produce(partition, b"more")
    recorder, look = Recorder(), Future[LogLook]()
    channel = in_memory_channel(
        recorder, broker, workers=1, topic_catalog=LookingCatalog(broker, look)
    )
    with running(channel):
        assert broker.wait_committed("group", p1, 11, Deadline.after(PATIENCE))
        assert recorder.delivered(0) == []
        look.set_result(LogLook(0))
        assert broker.wait_committed("group", P0, 11, Deadline.after(PATIENCE))
    assert recorder.delivered(0) == [(10, 11, 1)]
    again = in_memory_channel(Recorder(), broker, topic_catalog=LookingCatalog(broker, Future()))
    again.start(Deadline.after(PATIENCE))
    assert again.stop(Deadline.after(PATIENCE)).clean


def test_a_start_whose_look_fails_is_tried_again(broker: InMemoryBroker) -> None:
    """The check is repeated, and its error is readable meanwhile."""
    read_all(broker)
    broker.produce(P0, b"more")
    error = KafkaUnavailableError("no leader")
    catalog = LookingCatalog(broker, failed(error), failed(error))
    with running(in_memory_channel(Recorder(), broker, topic_catalog=catalog)):
        assert broker.wait_committed("group", P0, 11, Deadline.after(PATIENCE))
    assert catalog.answers == []


@pytest.mark.parametrize("first", [0, 5])
def test_a_batch_that_waits_for_a_retry_is_delivered_once_after_a_doubt(
    broker: InMemoryBroker, first: int
) -> None:
    """Each record comes again once, also those that the log has no more."""
    recorder = Recorder()
    recorder.raising["batch"] = ValueError("once")
    source, catalog = ReportingSource(broker), NotedCatalog(broker)
    channel = in_memory_channel(
        recorder, broker, record_source=source, topic_catalog=catalog, retry=LONG
    )
    with running(channel):
        recorder.wait(lambda: recorder.errors() == [ValueError])
        broker.expire(P0, first)
        catalog.asked.clear()
        source.report(Fetched(truncated=[(P0, None)]))
        assert wait_for(lambda: catalog.asked, Deadline.after(PATIENCE))
        broker.produce(P0, b"left out", b"more")
        assert wait_for(lambda: buffered(channel) == 2, Deadline.after(PATIENCE))
        # what fails is tried again at once, whichever record is skipped
        channel.skip(P0, 10, reason="to try again", by="ann", force=True)
        assert broker.wait_committed("group", P0, 12, Deadline.after(PATIENCE))
    values = [record.value() for batch in recorder.batches[1:] for record in batch.records]
    assert values == [*(b"%d" % number for number in range(10)), b"more"]
