"""A whole channel on servers in memory: callbacks in order, answers, errors, pauses, stops."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.channel.lifecycle import ChannelState
from headrace.clock import Deadline
from headrace.errors import (
    BatchTimeoutError,
    InvalidResponseError,
    OffsetOutOfRangeError,
    SinkConflictError,
    StartError,
    UnknownTopicError,
)
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.records import TopicPartition
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.records import Batch

P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with the topic ``events`` of two partitions."""
    made = InMemoryBroker()
    made.create_topic("events", 2)
    return made


def values(count: int) -> list[bytes]:
    """Return so many values."""
    return [b"%d" % number for number in range(count)]


def committed(broker: InMemoryBroker, partition: TopicPartition, offset: int) -> bool:
    """Wait for a commit of the group."""
    return broker.wait_committed("group", partition, offset, Deadline.after(PATIENCE))


def test_records_are_delivered_in_order_and_committed(broker: InMemoryBroker) -> None:
    """A backlog comes in batches of max_records, end to start, and its end is committed."""
    broker.produce(P0, *values(25))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 25)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1), (20, 25, 1)]
    assert recorder.overlaps == 0


def test_callbacks_come_in_the_contract_s_order(broker: InMemoryBroker) -> None:
    """Assigned first, processed behind its batch, terminated last, close after everything."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        recorder.wait(lambda: "processed" in recorder.names())
    assert recorder.names() == ["assigned", "batch", "processed", "terminated"]
    assert recorder.names(1) == ["assigned", "terminated"]
    assert recorder.names(-1) == ["closed"]


def test_the_start_position_is_committed_before_the_first_delivery(
    broker: InMemoryBroker,
) -> None:
    """A revert then has somewhere to go, and a crash does not decide anew."""
    broker.produce(P0, *values(5))
    seen: list[StoredOffset | None] = []

    def answer(_: Batch) -> BatchResponse:
        seen.append(broker.committed("group", P0))
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with running(in_memory_channel(recorder, broker)):
        recorder.wait(lambda: bool(seen))
    assert seen[0] == StoredOffset(0, 1)


def test_a_group_goes_on_where_it_committed(broker: InMemoryBroker) -> None:
    """A restarted channel delivers nothing twice and claims with a higher epoch."""
    zookeeper = InMemoryZooKeeper()
    broker.produce(P0, *values(5))
    with running(in_memory_channel(Recorder(), broker, zookeeper=zookeeper)):
        assert committed(broker, P0, 5)
    broker.produce(P0, b"new")
    again = Recorder()
    with running(in_memory_channel(again, broker, zookeeper=zookeeper)):
        assert committed(broker, P0, 6)
    assert again.delivered() == [(5, 6, 1)]
    assert broker.committed("group", P0) == StoredOffset(6, 2)


def test_latest_starts_at_the_end(broker: InMemoryBroker) -> None:
    """With initial_offset latest a group without offsets reads only what comes."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, initial_offset="latest")):
        recorder.wait(lambda: "assigned" in recorder.names())
        broker.produce(P0, b"new")
        assert committed(broker, P0, 6)
    assert recorder.delivered() == [(5, 6, 1)]


def test_the_sink_s_offset_has_precedence(broker: InMemoryBroker) -> None:
    """Where the processor keeps offsets with its data, the group's commit follows them."""
    broker.produce(P0, *values(9))
    recorder = Recorder()
    recorder.stored[0] = 7
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 9)
    assert recorder.delivered() == [(7, 9, 1)]


def test_an_epoch_behind_the_committed_one_is_raised_above_it(broker: InMemoryBroker) -> None:
    """After ZooKeeper lost its data, commits still carry a higher epoch than before."""
    broker.store("group").commit({P0: StoredOffset(0, 41)}, Deadline.after(PATIENCE))
    broker.produce(P0, *values(3))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 3)
    assert broker.committed("group", P0) == StoredOffset(3, 42)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_commits_keep_the_order_of_batches(broker: InMemoryBroker, in_flight: int) -> None:
    """However futures complete, a batch's offset is stored after those before it."""
    broker.produce(P0, *values(20))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=in_flight)):
        recorder.wait(lambda: len(recorder.futures) == in_flight)
        recorder.futures[-1].set_result(BatchResponse.advance())
        if in_flight == 2:
            assert broker.committed("group", P0) == StoredOffset(0, 1)
            recorder.futures[0].set_result(BatchResponse.advance())
        else:
            recorder.wait(lambda: len(recorder.futures) == 2)
            recorder.futures[1].set_result(BatchResponse.advance())
        assert committed(broker, P0, 20)
    offsets = [stored.offset for partition, stored in broker.commits if partition == P0]
    assert offsets == sorted(offsets)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1)]


#: response to the batch 10..20 (of 30, 0..10 advanced) -> next delivery, final commit of the group
MATRIX = {
    "continue": (BatchResponse.continue_(), (20, 30, 1), 30),
    "continue at 5": (BatchResponse.continue_(offset=5), (5, 15, 1), 30),
    "continue at 15": (BatchResponse.continue_(offset=15), (15, 20, 1), 30),
    "advance": (BatchResponse.advance(), (20, 30, 1), 30),
    "advance at 5": (BatchResponse.advance(offset=5), (5, 15, 1), 30),
    "advance at 15": (BatchResponse.advance(offset=15), (15, 20, 1), 30),
    "advance, commit 15": (BatchResponse.advance(commit_to=15), (20, 30, 1), 30),
    "revert": (BatchResponse.revert(), (10, 20, 1), 30),
    "revert to 12": (BatchResponse.revert(offset=12), (12, 20, 1), 30),
    "revert to 0": (BatchResponse.revert(offset=0), (0, 10, 1), 30),
    "small next": (BatchResponse.advance(max_records=3), (20, 23, 1), 30),
    "small again": (BatchResponse.revert(max_records=3), (10, 13, 1), 30),
    "wait": (BatchResponse.advance(wait=0.001), (20, 30, 1), 30),
}


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("case", MATRIX)
def test_each_response_has_its_effect_on_delivery_and_commit(
    broker: InMemoryBroker, case: str, in_flight: int
) -> None:
    """Whatever is answered, with one or two batches out, delivery goes on where it says."""
    expected: tuple[object, ...]
    response, expected, end = MATRIX[case]
    broker.produce(P0, *values(30))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=in_flight)):
        recorder.wait(lambda: bool(recorder.futures))
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.wait(lambda: len(recorder.futures) >= 1 + in_flight)
        before = 1 + in_flight
        withdrawn = recorder.futures[2:before]
        recorder.futures[1].set_result(response)
        if response.offset is None and response.request.value != "revert" and in_flight == 2:
            assert not any(future.cancelled() for future in withdrawn)
            expected = recorder.delivered()[2]
        else:
            recorder.wait(lambda: len(recorder.futures) > before)
            assert all(future.cancelled() for future in withdrawn)
            assert recorder.delivered()[before] == expected
        recorder.answer = lambda _: BatchResponse.advance()
        for future in recorder.futures:
            if not future.done():
                future.set_result(BatchResponse.advance())
        assert committed(broker, P0, end)
    assert expected in recorder.delivered()
    assert recorder.overlaps == 0


def test_a_next_size_applies_to_batches_cut_after_the_answer(broker: InMemoryBroker) -> None:
    """A batch that was out already keeps its size; the one after it has the one asked for."""
    broker.produce(P0, *values(40))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=2)):
        recorder.wait(lambda: len(recorder.futures) == 2)
        recorder.futures[0].set_result(BatchResponse.advance(max_records=4))
        recorder.wait(lambda: len(recorder.futures) == 3)
        assert recorder.delivered() == [(0, 10, 1), (10, 20, 1), (20, 24, 1)]
        recorder.answer = lambda _: BatchResponse.advance()
        for future in recorder.futures[1:]:
            future.set_result(BatchResponse.advance())
        assert committed(broker, P0, 40)


def test_waiting_holds_one_partition_and_no_other(broker: InMemoryBroker) -> None:
    """While one partition waits for an hour, the other goes on with the only worker."""
    broker.produce(P0, *values(20))
    broker.produce(P1, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        return BatchResponse.advance(wait=3600 if batch.partition == P0 else 0)

    recorder = Recorder(answer)
    with running(in_memory_channel(recorder, broker, workers=1)):
        assert committed(broker, P1, 20)
        assert committed(broker, P0, 10)
    assert recorder.delivered(0) == [(0, 10, 1)]


FAILURES = [ValueError("no"), SystemExit(3), KeyboardInterrupt(), MemoryError()]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failed_batch_comes_again_and_others_go_on(
    broker: InMemoryBroker, error: BaseException
) -> None:
    """Whatever on_next_batch raises: told once, same first offset again, nothing skipped."""
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    failed = Event()

    def answer(batch: Batch) -> BatchResponse:
        if batch.partition == P0 and not failed.is_set():
            failed.set()
            raise error
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
        assert committed(broker, P1, 5)
    assert recorder.delivered(0) == [(0, 5, 1), (0, 5, 2)]
    assert recorder.errors(0) == [type(error)]
    assert recorder.errors(1) == []


def test_a_failed_future_comes_again(broker: InMemoryBroker) -> None:
    """A future's exception is a failure of its batch; the batch behind it is withdrawn."""
    broker.produce(P0, *values(20))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=2)):
        recorder.wait(lambda: len(recorder.futures) == 2)
        recorder.futures[0].set_exception(ValueError("no"))
        recorder.wait(lambda: len(recorder.futures) == 4)
        assert recorder.futures[1].cancelled()
        for future in recorder.futures[2:]:
            future.set_result(BatchResponse.advance())
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1), (0, 10, 2), (10, 20, 1)]


def test_none_is_an_error_and_never_a_skip(broker: InMemoryBroker) -> None:
    """A processor that forgets to answer gets the batch again."""
    broker.produce(P0, *values(5))
    answers: list[object] = [None, BatchResponse.advance()]
    recorder = Recorder(lambda _: answers.pop(0))
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
    assert recorder.errors() == [InvalidResponseError]
    assert recorder.delivered() == [(0, 5, 1), (0, 5, 2)]


def test_an_impossible_commit_is_an_error(broker: InMemoryBroker) -> None:
    """Committing what was not delivered is refused and the batch comes again."""
    broker.produce(P0, *values(5))
    answers = [BatchResponse.advance(commit_to=6), BatchResponse.advance()]
    recorder = Recorder(lambda _: answers.pop(0))
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
    assert recorder.errors() == [InvalidResponseError]


def test_on_exception_may_skip_a_batch(broker: InMemoryBroker) -> None:
    """An explicit advance as the answer to an error passes over the batch and commits that."""
    broker.produce(P0, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        if batch.start == 0:
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer, on_error=lambda _: BatchResponse.advance())
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1)]
    assert "processed" in recorder.names()


@pytest.mark.parametrize("callback", ["assigned", "processed", "idle", "pause", "resume"])
def test_an_error_in_any_other_callback_is_told_and_harms_nothing(
    broker: InMemoryBroker, callback: str
) -> None:
    """on_exception hears of it, and both partitions go on to the end."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.raising[callback] = ValueError(callback)
    channel = in_memory_channel(recorder, broker, idle_time="10ms")
    with running(channel):
        recorder.wait(lambda: {"idle"} <= set(recorder.names(0)) & set(recorder.names(1)))
        channel.pause("test")
        recorder.wait(lambda: "pause" in recorder.names(0) and "pause" in recorder.names(1))
        channel.resume("test")
        recorder.wait(lambda: "resume" in recorder.names(0) and "resume" in recorder.names(1))
        broker.produce(P0, b"more")
        broker.produce(P1, b"more")
        assert committed(broker, P0, 6)
        assert committed(broker, P1, 1)
    assert recorder.errors(0) + recorder.errors(1) == [ValueError]


@pytest.mark.parametrize("callback", ["exception", "terminated"])
def test_errors_in_the_last_resorts_are_logged_and_the_channel_stops_in_order(
    broker: InMemoryBroker, callback: str
) -> None:
    """on_exception failing falls back to the policy; termination failing still releases."""
    broker.produce(P0, *values(5))
    answers: list[object] = [None, BatchResponse.advance()]
    recorder = Recorder(lambda _: answers.pop(0))
    recorder.raising[callback] = ValueError(callback)
    channel = in_memory_channel(recorder, broker)
    channel.start(Deadline.after(PATIENCE))
    assert committed(broker, P0, 5)
    assert channel.stop(Deadline.after(PATIENCE)).clean


def test_idle_is_told_once_until_records_come_again(broker: InMemoryBroker) -> None:
    """One callback an episode, however long it lasts."""
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, idle_time="10ms")):
        recorder.wait(lambda: recorder.names().count("idle") == 1)
        broker.produce(P0, b"a")
        recorder.wait(lambda: recorder.names().count("idle") == 2)
    names = [name for name in recorder.names() if name != "processed"]
    assert names == ["assigned", "idle", "batch", "idle", "terminated"]


def test_a_future_that_nobody_completes_times_out(broker: InMemoryBroker) -> None:
    """The batch is withdrawn, told as BatchTimeoutError, and delivered again."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, batch_timeout="50ms")):
        recorder.wait(lambda: len(recorder.futures) >= 2)
        recorder.answer = lambda _: BatchResponse.advance()
        assert committed(broker, P0, 5)
    assert recorder.errors()[0] is BatchTimeoutError
    assert recorder.futures[0].cancelled()


def test_a_hung_callback_stops_no_other_partition(broker: InMemoryBroker) -> None:
    """With the only worker hung, its thread is replaced and its partition is lost, then retaken."""
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    hang, release = Event(), Event()

    def answer(batch: Batch) -> BatchResponse:
        if batch.partition == P0 and not hang.is_set():
            hang.set()
            release.wait(PATIENCE)
        return BatchResponse.advance()

    recorder = Recorder(answer)
    channel = in_memory_channel(recorder, broker, workers=1, batch_timeout="50ms")
    try:
        with running(channel):
            recorder.wait(hang.is_set)
            assert committed(broker, P1, 5)
            recorder.wait(lambda: "lost" in recorder.names(0))
            release.set()
            assert broker.committed("group", P0) == StoredOffset(0, 1)
    finally:
        release.set()
    assert channel.failure is None


def test_too_many_hung_callbacks_fail_the_channel(broker: InMemoryBroker) -> None:
    """After max_abandoned threads the process has to be restarted, and the reason names where."""
    broker.create_topic("events", 4)
    for number in range(4):
        broker.produce(TopicPartition("events", number), b"x")
    release = Event()

    def answer(_: Batch) -> BatchResponse:
        release.wait(PATIENCE)
        return BatchResponse.advance()

    channel = in_memory_channel(Recorder(answer), broker, workers=4, batch_timeout="50ms")
    channel.start(Deadline.after(PATIENCE))
    try:
        deadline = Deadline.after(PATIENCE)
        while channel.failure is None and not deadline.expired:
            release.wait(0.01)
        assert "the process has to be restarted" in str(channel.failure)
        assert channel.state is ChannelState.FAILED
    finally:
        release.set()
        channel.stop(Deadline.after(PATIENCE))


def test_skip_passes_over_a_batch_after_its_attempts(broker: InMemoryBroker) -> None:
    """on_error skip: max_attempts deliveries, then on, and the offset is committed."""
    broker.produce(P0, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        if batch.start == 0:
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    policy = {"policy": "skip", "max_attempts": 3, "backoff": "1ms", "max_backoff": "1ms"}
    with running(in_memory_channel(recorder, broker, on_error=policy)):
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (0, 10, 2), (0, 10, 3), (10, 20, 1)]
    assert ("passed over", 0, 10) in recorder.calls[0]


def test_a_batch_that_the_sink_cannot_pass_over_is_not_skipped(broker: InMemoryBroker) -> None:
    """Where the sink's own offset does not move, skipping would only be undone: try again."""
    broker.produce(P0, *values(5))

    def answer(batch: Batch) -> BatchResponse:
        if batch.attempt < 3:
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    recorder.raising["passed over"] = OSError("sink is down")
    policy = {"policy": "skip", "max_attempts": 2, "backoff": "1ms", "max_backoff": "1ms"}
    with running(in_memory_channel(recorder, broker, on_error=policy)):
        assert committed(broker, P0, 5)
    assert recorder.delivered() == [(0, 5, 1), (0, 5, 2), (0, 5, 3)]


def test_stop_fails_the_channel_after_its_attempts(broker: InMemoryBroker) -> None:
    """on_error stop: the channel fails with the processor's error and commits nothing of it."""
    broker.produce(P0, *values(5))

    def answer(_: Batch) -> BatchResponse:
        raise ValueError("poison")

    recorder = Recorder(answer)
    policy = {"policy": "stop", "max_attempts": 2, "backoff": "1ms", "max_backoff": "1ms"}
    channel = in_memory_channel(recorder, broker, on_error=policy)
    with running(channel):
        deadline = Deadline.after(PATIENCE)
        while channel.failure is None and not deadline.expired:
            Event().wait(0.005)
    assert isinstance(channel.failure, ValueError)
    assert broker.committed("group", P0) == StoredOffset(0, 1)
    assert recorder.delivered() == [(0, 5, 1), (0, 5, 2)]


def test_a_sink_conflict_goes_on_where_the_sink_stands(broker: InMemoryBroker) -> None:
    """The position follows the sink's stored offset, and so does the group's commit."""
    broker.produce(P0, *values(20))
    recorder = Recorder()

    def answer(batch: Batch) -> BatchResponse:
        if not recorder.stored:
            recorder.stored[0] = 14
            raise SinkConflictError(batch.partition, batch.start, 14)
        return BatchResponse.advance()

    recorder.answer = answer
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (14, 20, 1)]
    assert StoredOffset(14, 1) in [stored for _, stored in broker.commits]


@pytest.mark.parametrize(("policy", "first"), [("earliest", (50, 60, 1)), ("latest", None)])
def test_an_offset_out_of_range_is_told_and_reset(
    broker: InMemoryBroker, policy: str, first: tuple[int, int, int] | None
) -> None:
    """Retention overtook the group: the policy decides where reading goes on."""
    broker.produce(P0, *values(60))
    broker.expire(P0, 50)
    broker.store("group").commit({P0: StoredOffset(5, 0)}, Deadline.after(PATIENCE))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, offset_out_of_range=policy)):
        recorder.wait(lambda: OffsetOutOfRangeError in recorder.errors())
        broker.produce(P0, b"new")
        assert committed(broker, P0, 61)
    assert recorder.delivered()[0] == (first or (60, 61, 1))


def test_a_processor_may_choose_where_to_go_on_after_out_of_range(
    broker: InMemoryBroker,
) -> None:
    """An offset in the answer to OffsetOutOfRangeError has precedence over the policy."""
    broker.produce(P0, *values(60))
    broker.expire(P0, 50)
    broker.store("group").commit({P0: StoredOffset(5, 0)}, Deadline.after(PATIENCE))
    recorder = Recorder(on_error=lambda _: BatchResponse.continue_(offset=55))
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 60)
    assert recorder.delivered() == [(55, 60, 1)]


def test_a_gap_at_the_end_is_committed(broker: InMemoryBroker) -> None:
    """Transaction markers behind the last record are passed, so that lag reaches 0."""
    broker.produce(P0, *values(5))
    broker.skip(P0, 2)
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 7)
        broker.skip(P0, 1)
        assert committed(broker, P0, 8)
        broker.produce(P0, b"next")
        assert committed(broker, P0, 9)
    assert recorder.batches[-1].start in {7, 5}


def test_commit_failures_are_told_and_tried_again(broker: InMemoryBroker) -> None:
    """A refused commit is told to the processor; the next interval stores it."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, commit_interval="20ms")
    with running(channel):
        assert committed(broker, P0, 5)
        broker.down = True
        broker.produce(P0, b"x")
        broker.down = False
        assert committed(broker, P0, 6)


def test_a_pause_commits_and_holds_until_every_reason_is_gone(broker: InMemoryBroker) -> None:
    """Hold: nothing is delivered while any reason stands, and partitions are kept."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, commit_interval="1h")
    with running(channel):
        recorder.wait(lambda: len(recorder.delivered()) == 1)
        channel.pause("operator")
        channel.pause("downstream")
        recorder.wait(lambda: ("pause", 5) in recorder.calls[0])
        broker.produce(P0, b"later")
        channel.resume("operator")
        assert {reading.state for reading in channel.partitions()} <= {"paused", "waiting"}
        assert len(recorder.delivered()) == 1
        channel.resume("downstream")
        recorder.wait(lambda: len(recorder.delivered()) == 2)
    assert recorder.names() == [
        "assigned", "batch", "processed", "pause", "resume", "batch", "processed", "terminated",
    ]  # fmt: skip


def test_stop_waits_for_open_answers_and_commits_them(broker: InMemoryBroker) -> None:
    """A batch that is out is answered, committed and told as processed before termination."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, commit_interval="1h")
    channel.start(Deadline.after(PATIENCE))
    recorder.wait(lambda: bool(recorder.futures))
    recorder.futures[0].set_result(BatchResponse.advance())
    assert channel.stop(Deadline.after(PATIENCE)).clean
    assert broker.committed("group", P0) == StoredOffset(5, 1)
    assert recorder.names() == ["assigned", "batch", "processed", "terminated"]


def test_stop_ends_by_its_deadline_and_says_what_was_left(broker: InMemoryBroker) -> None:
    """An answer that never comes costs its batch, not the stop; nothing is committed for it."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker)
    channel.start(Deadline.after(PATIENCE))
    recorder.wait(lambda: bool(recorder.futures))
    report = channel.stop(Deadline.after(0.5))
    assert report.left == ("events-0: 1 unanswered batch from offset 0",)
    assert channel.state is ChannelState.STOPPED
    assert recorder.futures[0].cancelled()
    assert broker.committed("group", P0) == StoredOffset(0, 1)


def test_two_members_share_and_one_takes_over(broker: InMemoryBroker) -> None:
    """Clean join and leave: each record once, over both members together."""
    zookeeper = InMemoryZooKeeper()
    first, second = Recorder(), Recorder()
    one = in_memory_channel(first, broker, zookeeper=zookeeper, member="one")
    with running(one):
        first.wait(lambda: "assigned" in first.names(0) and "assigned" in first.names(1))
        two = in_memory_channel(second, broker, zookeeper=zookeeper, member="two")
        with running(two):
            second.wait(lambda: any("assigned" in second.names(n) for n in (0, 1)))
            for partition in (P0, P1):
                broker.produce(partition, *values(20))
            assert committed(broker, P0, 20)
            assert committed(broker, P1, 20)
        for partition in (P0, P1):
            broker.produce(partition, *values(5))
        assert committed(broker, P0, 25)
        assert committed(broker, P1, 25)
    for number in (0, 1):
        offsets = [span for recorder in (first, second) for span in recorder.delivered(number)]
        assert sum(end - begin for begin, end, _ in offsets) == 25  # type: ignore[operator]


def test_a_lost_session_ends_every_partition_and_begins_again(broker: InMemoryBroker) -> None:
    """Expiry: on_partition_lost, then a new claim that goes on from the committed offset."""
    zookeeper = InMemoryZooKeeper()
    session = zookeeper.session()
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, session=session)
    with running(channel):
        assert committed(broker, P0, 5)
        session.expire()
        recorder.wait(lambda: "lost" in recorder.names(0))
        broker.produce(P0, *values(5))
        assert committed(broker, P0, 10)
    assert recorder.delivered() == [(0, 5, 1), (5, 10, 1)]
    stored = broker.committed("group", P0)
    assert stored is not None
    assert stored.epoch == 2


def test_while_zookeeper_is_silent_nothing_is_delivered(broker: InMemoryBroker) -> None:
    """Suspended within the lease: batches are kept, and delivery goes on without a re-read."""
    zookeeper = InMemoryZooKeeper()
    session = zookeeper.session()
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, session=session)
    with running(channel):
        recorder.wait(lambda: "assigned" in recorder.names(0) and "assigned" in recorder.names(1))
        session.suspend()
        deadline = Deadline.after(PATIENCE)
        while {r.state for r in channel.partitions()} != {"suspended"} and not deadline.expired:
            Event().wait(0.005)
        broker.produce(P0, *values(5))
        assert recorder.delivered() == []
        session.resume()
        assert committed(broker, P0, 5)
    assert recorder.delivered() == [(0, 5, 1)]
    assert recorder.names()[:2] == ["assigned", "exception"]
    assert "lost" not in recorder.names()


def test_an_unknown_topic_is_named_and_nothing_is_claimed(broker: InMemoryBroker) -> None:
    """The start fails with the topic's name; processor and clients are closed again."""
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, topics=["evnets"])
    with pytest.raises(UnknownTopicError, match="no topic evnets"):
        channel.start(Deadline.after(PATIENCE))
    assert channel.state is ChannelState.STOPPED
    assert recorder.names(-1) == ["closed"]


def test_an_unreachable_broker_is_a_start_error(broker: InMemoryBroker) -> None:
    """The start does not hang and leaves nothing behind."""
    broker.down = True
    channel = in_memory_channel(Recorder(), broker)
    with pytest.raises(StartError):
        channel.start(Deadline.after(PATIENCE))
    assert channel.stop(Deadline.after(PATIENCE)).clean
