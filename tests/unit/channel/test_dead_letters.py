"""A whole channel with a dead-letter topic."""

from __future__ import annotations

from random import Random
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from headrace.channel.states import ChannelState
from headrace.core.clock import Deadline
from headrace.core.errors import (
    ChannelFailedError,
    PoisonRecordError,
    RetryableError,
    SinkConflictError,
)
from headrace.core.records import offset_of
from headrace.kafka.errors import UnknownTopicError
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import (
    FakeRecord,
    InMemoryBroker,
    InMemoryDeadLetters,
    in_memory_channel,
    running,
)
from tests.metrics import value_of
from tests.unit.channel.in_memory import P0, committed, eventually, values
from tests.unit.channel.recorder import PATIENCE, Recorder
from tests.unit.channel.test_reconfigure import reconfigured

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch

DEAD = "events.dead"


@pytest.fixture
def letters(broker: InMemoryBroker) -> InMemoryDeadLetters:
    """A dead-letter topic that exists."""
    broker.create_topic(DEAD)
    return InMemoryDeadLetters()


def policy(attempts: int = 1, **limits: int | str) -> dict[str, Any]:
    """Return settings by which records are given up after so many attempts."""
    return {
        "retry": {"attempts": attempts, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "dead_letter", "topic": DEAD, **limits},
    }


def refusing(*poison: int, error: BaseException | None = None) -> Recorder:
    """Return a processor that fails with every batch that has one of these offsets."""

    def answer(batch: Batch) -> BatchResponse:
        if found := [o for o in map(offset_of, batch.records) if o in poison]:
            raise error or ValueError(f"cannot take {found[0]}")
        return BatchResponse.advance()

    return Recorder(answer)


def channel_of(
    recorder: Recorder, broker: InMemoryBroker, letters: InMemoryDeadLetters, **settings: Any
) -> InboundKafkaChannel:
    """Return a channel with that dead-letter topic."""
    return in_memory_channel(recorder, broker, dead_letters=letters, **(policy() | settings))


def standing(channel: InboundKafkaChannel) -> tuple[int, int]:
    """Return how many suspects and dead letters the status has of the first partition."""
    (found,) = [each for each in channel.partitions() if each.partition == 0]
    return found.suspect_records, found.dead_letters


@pytest.mark.parametrize("in_flight", [1, 3])
def test_offenders_go_to_the_topic_and_everything_else_is_processed(
    broker: InMemoryBroker, letters: InMemoryDeadLetters, in_flight: int
) -> None:
    """They are found in order; parts come one by one, also with several batches in flight."""
    broker.produce(P0, *values(30))
    recorder = refusing(3, 4, 17)
    with running(channel_of(recorder, broker, letters, max_in_flight=in_flight)):
        assert committed(broker, P0, 30)
    assert letters.said("offset") == ["3", "4", "17"]
    alone = [call for call in recorder.delivered() if call[1] == 4]
    assert alone == [(3, 4, alone[0][2])]
    passed = [call[1:] for call in recorder.calls[0] if call[0] == "passed over"]
    assert passed == [(3, 4), (4, 5), (17, 18)]
    assert recorder.overlaps == 0


def test_a_batch_is_tried_again_before_it_is_divided(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """retry.attempts deliveries of the whole; then each part's attempts go on from there."""
    broker.produce(P0, *values(4))
    recorder = refusing(2)
    with running(channel_of(recorder, broker, letters, **policy(3))):
        assert committed(broker, P0, 4)
    assert recorder.delivered() == [
        *[(0, 4, 1), (0, 4, 2), (0, 4, 3)],
        *[(0, 2, 4), (2, 4, 4), (2, 3, 5), (3, 4, 5)],
    ]
    assert letters.said("attempt") == ["5"]


def test_a_record_is_in_doubt_where_nothing_was_answered_before_it(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """The first of its batch, and one right behind a letter, get attempts of their own."""
    broker.produce(P0, *values(4))
    recorder = refusing(0, 1, 3)
    with running(channel_of(recorder, broker, letters, **policy(2))):
        assert committed(broker, P0, 4)
    assert recorder.delivered() == [
        *[(0, 4, 1), (0, 4, 2), (0, 2, 3)],
        *[(0, 1, 4), (0, 1, 5), (1, 2, 4), (1, 2, 5)],
        *[(2, 4, 3), (2, 3, 4), (3, 4, 4)],
    ]
    assert letters.said("attempt") == ["5", "5", "4"]


def test_a_named_record_is_looked_for_nowhere(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """Records before the named one are delivered, then it alone, without further attempts."""
    broker.produce(P0, *values(8))
    recorder = refusing(5, error=PoisonRecordError(P0, 5, "a field is missing"))
    with running(channel_of(recorder, broker, letters, **policy(9))):
        assert committed(broker, P0, 8)
    assert recorder.delivered() == [(0, 8, 1), (0, 5, 2), (5, 6, 2), (6, 8, 2)]
    assert letters.said("error") == ["PoisonRecordError"]
    assert letters.said("message") == ["events-0: record at offset 5: a field is missing"]


def test_a_letter_is_the_record_and_says_where_it_comes_from(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """Key, value and headers are kept, also none; ours come behind them."""
    own: list[tuple[str, bytes | None]] = [("trace", b"1"), ("trace", None)]
    broker.produce(P0, FakeRecord(key_=b"k", value_=b"v", headers_=own, timestamp_=1234))
    broker.produce(P0, None)
    with running(channel_of(refusing(0, 1), broker, letters)):
        assert committed(broker, P0, 2)
    (topic, first), (_, second) = letters.letters
    assert (topic, first.key, first.value) == (DEAD, b"k", b"v")
    assert list(first.headers) == [
        *own,
        ("headrace.group", b"group"),
        ("headrace.topic", b"events"),
        ("headrace.topic_id", b"id-1"),
        ("headrace.partition", b"0"),
        ("headrace.offset", b"0"),
        ("headrace.timestamp", b"1234"),
        ("headrace.error", b"ValueError"),
        ("headrace.message", b"cannot take 0"),
        ("headrace.attempt", b"2"),
    ]
    assert (second.key, second.value) == (None, None)
    assert len(second.headers) == len(first.headers) - len(own)


def test_a_letter_says_it_under_kafka_connects_names(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """Behind the record's own headers, with the error, its traceback and the processor's class."""
    broker.produce(P0, FakeRecord(key_=b"k", value_=b"v", headers_=[("own", b"1")]))
    with running(channel_of(refusing(0), broker, letters, **policy(headers="connect"))):
        assert committed(broker, P0, 1)
    ((_, letter),) = letters.letters
    assert next(iter(letter.headers)) == ("own", b"1")
    found = dict(letter.headers)
    said = {name: found[f"__connect.errors.{name}"] for name in ("topic", "offset", "stage")}
    assert said == {"topic": b"events", "offset": b"0", "stage": b"TASK_PUT"}
    assert found["__connect.errors.connector.name"] == b"group"
    assert found["__connect.errors.class.name"] == b"tests.unit.channel.recorder.Recorder"
    assert found["__connect.errors.exception.class.name"] == b"ValueError"
    assert b"cannot take 0" in (found["__connect.errors.exception.stacktrace"] or b"")
    assert "headrace.topic" not in found


def test_a_failure_of_the_environment_is_never_given_up(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """The whole batch comes again far beyond retry.attempts, until the cause is gone."""
    broker.produce(P0, *values(4))

    def answer(batch: Batch) -> BatchResponse:
        if batch.attempt < 6:
            raise RetryableError("the service is away")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with running(channel_of(recorder, broker, letters)):
        assert committed(broker, P0, 4)
    assert recorder.delivered() == [(0, 4, attempt) for attempt in range(1, 7)]
    assert letters.letters == []


def test_an_outage_in_between_does_not_condemn_a_record(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """A suspect that fails for another reason comes again as it is."""
    broker.produce(P0, *values(2))
    outage = [TimeoutError("too slow"), ConnectionError("away")]

    def answer(batch: Batch) -> BatchResponse:
        if len(batch) == 1 and outage:
            raise outage.pop()
        if batch.next_offset == 2:
            raise ValueError("poison")
        return BatchResponse.advance()

    with running(channel_of(Recorder(answer), broker, letters)):
        assert committed(broker, P0, 2)
    assert letters.said("offset") == ["1"]


def test_an_offset_is_committed_after_its_letter_is_stored(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """While the topic refuses letters, the record comes again and its offset is not committed."""
    broker.produce(P0, *values(3))
    letters.refuse = "no broker"
    recorder = refusing(1)
    with running(channel_of(recorder, broker, letters)) as channel:
        recorder.wait(lambda: len([c for c in recorder.delivered() if c[:2] == (1, 2)]) > 3)
        stored = broker.committed("group", P0)
        assert stored is not None
        assert stored.offset == 1
        eventually(lambda: standing(channel) == (2, 0))
        letters.refuse = None
        assert committed(broker, P0, 3)
        assert standing(channel) == (0, 1)
    assert letters.said("offset") == ["1"]


def test_a_sink_that_does_not_move_has_the_record_sent_again(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """At least once: the same letter twice, and each time key and origin are the same."""
    broker.produce(P0, *values(3))
    recorder = refusing(1)
    recorder.raising["passed over"] = OSError("sink is down")
    with running(channel_of(recorder, broker, letters)):
        assert committed(broker, P0, 3)
    assert letters.said("offset") == ["1", "1"]


def test_a_sink_that_stands_elsewhere_is_followed(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """An offset that another writer stored in the sink wins over the record to be skipped."""
    broker.produce(P0, *values(20))
    recorder = refusing(1)
    recorder.stored[0] = 0

    def stored_by_another(batch: Batch) -> None:
        recorder.stored[0] = 15
        raise SinkConflictError(batch.partition, 1, 15)

    recorder.pass_over = stored_by_another  # type: ignore[method-assign]
    with running(channel_of(recorder, broker, letters)):
        assert committed(broker, P0, 20)
    assert recorder.delivered()[-1][0] == 15


@pytest.mark.parametrize("limit", [{"max_consecutive": 3}, {"max_per_thousand": 3}])
def test_too_many_stop_the_channel(
    broker: InMemoryBroker, letters: InMemoryDeadLetters, limit: dict[str, int]
) -> None:
    """Records beyond the limit are neither produced nor committed."""
    broker.produce(P0, *values(20))
    channel = channel_of(refusing(*range(20)), broker, letters, **policy(1, **limit))
    with running(channel):
        deadline = Deadline.after(PATIENCE)
        while channel.failure is None and not deadline.expired:
            Event().wait(0.005)
        assert isinstance(channel.failure, ChannelFailedError)
        assert "4 records" in str(channel.failure)
        assert channel.state is ChannelState.FAILED
    assert letters.said("offset") == ["0", "1", "2"]
    stored = broker.committed("group", P0)
    assert stored is not None
    assert stored.offset == 3


@pytest.mark.parametrize("deliver", ["batch", "record"])
def test_a_ratio_of_thirty_percent_stops_the_channel_after_a_few_hundred_records(
    broker: InMemoryBroker, letters: InMemoryDeadLetters, deliver: str
) -> None:
    """The limit stops the channel before all records had their attempts, which take minutes.

    A batch that is delivered again unchanged has waited for a back-off.
    """
    bad = {offset for offset in range(1000) if Random(offset).random() < 0.3}
    tried: list[tuple[int, int]] = []

    def answer(batch: Batch) -> BatchResponse:
        tried.append((batch.start, len(batch)))
        for index, offset in enumerate(map(offset_of, batch.records)):
            if offset not in bad:
                continue
            if deliver == "batch" or len(batch) == 1:
                raise ValueError(f"cannot take {offset}")
            if index == 0:
                return BatchResponse.revert(offset=batch.start, max_records=1)
            return BatchResponse.advance(offset=offset, max_records=1)
        return BatchResponse.advance()

    broker.produce(P0, *values(1000))
    channel = channel_of(Recorder(answer), broker, letters, **policy(5), batch={"max_records": 100})
    with running(channel):
        eventually(lambda: channel.state is ChannelState.FAILED)
    assert "101 records within 1000 offsets (max_per_thousand: 100)" in str(channel.failure)
    assert len(letters.letters) == 100
    assert 250 < int(letters.said("offset")[-1]) < 400
    waits = len(tried) - len(set(tried))
    assert waits < 60


def test_a_pause_in_between_loses_no_suspect(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """Delivery rests between two parts and goes on with the next."""
    broker.produce(P0, *values(8))
    held, go_on = Event(), Event()

    def answer(batch: Batch) -> BatchResponse:
        if len(batch) == 4:
            held.set()
            assert go_on.wait(PATIENCE)
        if any(offset_of(record) == 6 for record in batch.records):
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with running(channel_of(recorder, broker, letters)) as channel:
        assert held.wait(PATIENCE)
        channel.pause(by="test")
        go_on.set()
        assert channel.wait_paused(Deadline.after(PATIENCE))
        channel.resume(by="test")
        assert committed(broker, P0, 8)
    assert letters.said("offset") == ["6"]
    assert [c[:2] for c in recorder.delivered()][:3] == [(0, 8), (0, 4), (4, 8)]


def test_an_operators_skip_takes_a_suspect_out(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """A record that is left out by hand is not sent; what is left of its part is delivered."""
    broker.produce(P0, *values(4))
    letters.refuse = "no broker"
    recorder = refusing(2)
    with running(channel_of(recorder, broker, letters)) as channel:
        recorder.wait(lambda: (2, 3) in [call[:2] for call in recorder.delivered()])
        channel.skip(P0, 2, reason="known", by="test")
        assert committed(broker, P0, 4)
    assert letters.letters == []


def test_a_changed_policy_holds_for_suspects(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """From dead_letter to retry the record stays; back again with another topic it goes there."""
    broker.produce(P0, *values(2))
    broker.create_topic("other.dead")
    letters.refuse = "no broker"
    recorder = refusing(1)
    channel = channel_of(recorder, broker, letters)
    with running(channel):
        recorder.wait(lambda: (1, 2) in [call[:2] for call in recorder.delivered()])
        _reconfigure(channel, {"retry": {"backoff": "1ms"}, "rejects": {}})
        letters.refuse = None
        seen = len(recorder.delivered())
        recorder.wait(lambda: len(recorder.delivered()) > seen + 2)
        assert letters.letters == []
        with pytest.raises(UnknownTopicError, match=r"no dead-letter topic no\.such"):
            _reconfigure(channel, policy(topic="no.such"))
        _reconfigure(channel, policy(topic="other.dead"))
        assert committed(broker, P0, 2)
    assert [topic for topic, _ in letters.letters] == ["other.dead"]


def _reconfigure(channel: InboundKafkaChannel, fields: dict[str, Any]) -> None:
    config = type(channel.config).model_validate({**channel.config.model_dump(), **fields})
    reconfigured(channel, config)


def test_the_topic_has_to_exist(broker: InMemoryBroker) -> None:
    """A channel does not start without it, and its store is closed all the same."""
    letters = InMemoryDeadLetters()
    channel = channel_of(Recorder(), broker, letters)
    hint = r"no dead-letter topic events\.dead on the broker; did you mean events\?"
    with pytest.raises(UnknownTopicError, match=hint):
        channel.start(Deadline.after(PATIENCE))
    assert letters.closed
    assert broker.committed("group", P0) is None


def test_letters_and_divisions_are_counted(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """Both by topic; and the skipped records' metric is none of theirs."""
    broker.produce(P0, *values(4))
    metrics = Metrics()
    channel = channel_of(refusing(1), broker, letters, metrics=metrics)
    with running(channel):
        assert committed(broker, P0, 4)
        assert value_of(metrics.dead_lettered.labels("member", "events")) == 1
        assert value_of(metrics.bisections.labels("member", "events")) == 2
        eventually(lambda: broker.committed("group", P0) == StoredOffset(4, 1))
