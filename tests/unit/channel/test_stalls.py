"""What a channel does about a partition of which silently nothing comes any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from headrace.testing.broker import InMemorySource
from tests.unit.channel.in_memory import P0, P1, committed, filled_broker, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import TopicPartition


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let channels look all the time."""
    monkeypatch.setattr("headrace.channel.supervision.LOOK_INTERVAL", 0.02)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with a topic of two partitions, ten records in each."""
    return filled_broker()


def silence(channel: InboundKafkaChannel) -> InMemorySource:
    """Let the source forget a partition that it is to fetch."""
    source = channel._runtime.fetcher._source
    assert isinstance(source, InMemorySource)
    source._positions.pop(P0)
    return source


def stalls(channel: InboundKafkaChannel) -> float:
    """Return how often a stall was found."""
    return float(channel._metrics.stalls.labels(channel.name, "events")._value.get())


def levels(logs: Sequence[MutableMapping[str, object]]) -> list[object]:
    """Return how loudly stalls were reported."""
    return [event["log_level"] for event in logs if event["event"] == "partition_stalled"]


def test_a_stalled_partition_is_fetched_again(broker: InMemoryBroker) -> None:
    """Every record comes once, and the stall is counted and logged as a warning."""
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker)
    with running(channel), capture_logs() as logs:
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        silence(channel)
        broker.produce(P0, *values(10))
        assert committed(broker, P0, 20)
    assert stalls(channel) >= 1
    assert levels(logs)[0] == "warning"
    offsets = [r.offset() for b in recorder.batches if b.partition == P0 for r in b.records]
    assert offsets == list(range(20))


def test_a_stall_that_stays_is_reported_again_and_again(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where fetching anew does not help, each look says so as an error; others are not held up."""
    channel = in_memory_channel(Recorder(), broker)
    with running(channel), capture_logs() as logs:
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        monkeypatch.setattr(InMemorySource, "seek", lambda *_: None)
        silence(channel)
        for partition in (P0, P1):
            broker.produce(partition, *values(10))
        assert committed(broker, P1, 20)
        assert wait_for(lambda: levels(logs).count("error") >= 2, Deadline.after(PATIENCE))
    assert levels(logs)[0] == "warning"
    stored = broker.committed("group", P0)
    assert stored is not None
    assert stored.offset == 10


def test_a_reader_that_a_transaction_holds_back_is_told_once(broker: InMemoryBroker) -> None:
    """With who it is: all that is committed was read, and the log goes on."""
    channel = in_memory_channel(Recorder(), broker)
    runtime = channel._runtime
    asked, ask = list[object](), runtime.catalog.watermarks
    looks = list[object]()

    def committed_end(partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        looks.append(partition)
        low, end = ask(partition, deadline)
        return low, min(end, 10)

    def hold(partition: TopicPartition) -> str:
        asked.append(partition)
        return "held back by tx.1"

    runtime.catalog.watermarks = committed_end  # type: ignore[method-assign]
    runtime.lag_watchdog._holder = hold
    with running(channel), capture_logs() as logs:
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        silence(channel)
        broker.produce(P0, *values(10))
        assert wait_for(lambda: asked, Deadline.after(PATIENCE))
        looks.clear()
        assert wait_for(lambda: looks.count(P0) > 3, Deadline.after(PATIENCE))
        assert channel.held_back() == {P0: "held back by tx.1"}
    assert asked == [P0]
    (told,) = [each for each in logs if each["event"] == "partition_held_back"]
    assert (told["position"], told["end"], told["held_by"]) == (10, 20, "held back by tx.1")
    assert stalls(channel) == 1


def test_what_is_idle_or_waits_for_an_answer_is_no_stall(broker: InMemoryBroker) -> None:
    """Neither a partition at its end nor one whose batch is out is fetched anew."""
    recorder = Recorder()
    advance = BatchResponse.advance()
    recorder.answer = lambda batch: recorder.later(batch) if batch.partition == P0 else advance
    channel = in_memory_channel(recorder, broker)
    asked: list[object] = []
    catalog, ask = channel._runtime.catalog, channel._runtime.catalog.watermarks

    def noting(partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        asked.append(partition)
        return ask(partition, deadline)

    catalog.watermarks = noting  # type: ignore[method-assign]
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1)
        broker.produce(P0, *values(10))
        asked.clear()
        assert wait_for(lambda: asked.count(P1) > 3, Deadline.after(PATIENCE))
        assert P0 not in asked
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.answer = lambda _: advance
    assert stalls(channel) == 0
