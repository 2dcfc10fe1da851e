"""A partition that silently gets no more records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.kafka.errors import KafkaUnavailableError
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.doubles import NotedCatalog
from tests.unit.channel.in_memory import P0, P1, committed, filled_broker, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from headrace.core.records import TopicPartition
    from headrace.testing.broker import InMemorySource


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let channels look all the time."""
    monkeypatch.setattr("headrace.channel.supervision.LOOK_INTERVAL", 0.02)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with a topic of two partitions, ten records in each."""
    return filled_broker()


def silence(broker: InMemoryBroker, source: InMemorySource) -> None:
    """Let the source forget a partition that it is to fetch."""
    with broker.at_once():
        source.unassign([P0])


def stalls(metrics: Metrics) -> float | None:
    """Return how often a stall was found."""
    labels = {"channel": "member", "topic": "events"}
    return metrics.registry.get_sample_value("headrace_stalls_total", labels)


class CommittedCatalog(NotedCatalog):
    """Has the logs end at 10 for readers of committed records."""

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return the first offset and the end of what is committed."""
        low, end = super().watermarks(partition, deadline)
        return low, min(end, 10)


class AwayCatalog(NotedCatalog):
    """Has the leader of a partition not answer for a while."""

    away = False
    #: Looks that have no answer, one now and then.
    elections = 0

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return what the broker says, where it answers."""
        is_election = self.elections > 0 and self.asked.count(P0) % 2 == 1
        if partition == P0 and is_election:
            self.elections -= 1
            self.asked.append(P0)
        if partition == P0 and (self.away or is_election):
            raise KafkaUnavailableError("no answer in time")
        return super().watermarks(partition, deadline)


def levels(logs: Sequence[MutableMapping[str, object]]) -> list[object]:
    """Return how loudly stalls were reported."""
    return [event["log_level"] for event in logs if event["event"] == "partition_stalled"]


def test_a_stalled_partition_is_fetched_again(broker: InMemoryBroker) -> None:
    """Every record comes once, and the stall is counted and logged as a warning."""
    recorder, metrics, source = Recorder(), Metrics(), broker.source()
    channel = in_memory_channel(recorder, broker, metrics=metrics, record_source=source)
    with running(channel), capture_logs() as logs:
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        silence(broker, source)
        broker.produce(P0, *values(10))
        assert committed(broker, P0, 20)
    assert (stalls(metrics) or 0) >= 1
    assert levels(logs)[0] == "warning"
    offsets = [r.offset() for b in recorder.batches if b.partition == P0 for r in b.records]
    assert offsets == list(range(20))


def test_a_stall_that_a_refetch_does_not_end_is_reported_at_each_look(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check logs an error when fetching again did not help; other partitions go on."""
    source = broker.source()
    with (
        running(in_memory_channel(Recorder(), broker, record_source=source)),
        capture_logs() as logs,
    ):
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        monkeypatch.setattr(source, "seek", lambda *_: None)
        silence(broker, source)
        for partition in (P0, P1):
            broker.produce(partition, *values(10))
        assert committed(broker, P1, 20)
        assert wait_for(lambda: levels(logs).count("error") >= 2, Deadline.after(PATIENCE))
    assert levels(logs)[0] == "warning"
    stored = broker.committed("group", P0)
    assert stored is not None
    assert stored.offset == 10


def test_a_reader_that_a_transaction_holds_back_is_reported_once(broker: InMemoryBroker) -> None:
    """With who it is: all that is committed was read, and the log goes on."""
    asked = list[object]()

    def hold(partition: TopicPartition) -> str:
        asked.append(partition)
        return "held back by tx.1"

    metrics, source, catalog = Metrics(), broker.source(), CommittedCatalog(broker)
    channel = in_memory_channel(
        Recorder(),
        broker,
        metrics=metrics,
        record_source=source,
        topic_catalog=catalog,
        holder=hold,
    )
    with running(channel), capture_logs() as logs:
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        silence(broker, source)
        broker.produce(P0, *values(10))
        assert wait_for(lambda: asked, Deadline.after(PATIENCE))
        catalog.asked.clear()
        assert wait_for(lambda: catalog.asked.count(P0) > 3, Deadline.after(PATIENCE))
        assert channel.held_back() == {P0: "held back by tx.1"}
    assert asked == [P0]
    (told,) = [each for each in logs if each["event"] == "partition_held_back"]
    assert (told["position"], told["end"], told["held_by"]) == (10, 20, "held back by tx.1")
    assert stalls(metrics) == 1


def test_an_idle_or_unanswered_partition_is_not_stalled(
    broker: InMemoryBroker,
) -> None:
    """A partition at its end, or with an open batch, is not fetched again."""
    recorder = Recorder()
    advance = BatchResponse.advance()
    recorder.answer = lambda batch: recorder.later(batch) if batch.partition == P0 else advance
    metrics, catalog = Metrics(), NotedCatalog(broker)
    with running(in_memory_channel(recorder, broker, metrics=metrics, topic_catalog=catalog)):
        recorder.wait(lambda: len(recorder.futures) == 1)
        broker.produce(P0, *values(10))
        catalog.asked.clear()
        assert wait_for(lambda: catalog.asked.count(P1) > 3, Deadline.after(PATIENCE))
        assert P0 not in catalog.asked
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.answer = lambda _: advance
    assert not stalls(metrics)


def test_a_partition_whose_leader_does_not_answer_is_named(broker: InMemoryBroker) -> None:
    """It is told as long as that lasts, and other partitions are not."""
    catalog = AwayCatalog(broker)
    channel = in_memory_channel(Recorder(), broker, topic_catalog=catalog)
    with running(channel):
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        assert channel.unanswered() == ()
        catalog.away = True
        assert wait_for(lambda: channel.unanswered() == (P0,), Deadline.after(PATIENCE))
        catalog.away = False
        assert wait_for(lambda: channel.unanswered() == (), Deadline.after(PATIENCE))


def test_a_leader_that_moves_is_not_named(broker: InMemoryBroker) -> None:
    """One look without an answer is an election: the next one has it."""
    catalog = AwayCatalog(broker)
    channel = in_memory_channel(Recorder(), broker, topic_catalog=catalog)
    named: list[TopicPartition] = []
    with running(channel):
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        catalog.elections = 20

        def has_moved() -> bool:
            named.extend(channel.unanswered())
            return not catalog.elections

        assert wait_for(has_moved, Deadline.after(PATIENCE))
    assert named == []
