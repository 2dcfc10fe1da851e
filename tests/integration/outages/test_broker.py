"""One broker that a group depends on alone: frozen, killed, and relied on to remember."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import CommitFailedError
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from tests.brokers import Broker
from tests.integration.channel.rig import CHANNEL, WAIT, Group, Notes, channel_of, eventually
from tests.integration.seen import metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.controller.controller import KafkaController
    from headrace.core.records import Batch
    from headrace.devstack import KafkaBroker
    from tests.integration.seen import Log

pytestmark = pytest.mark.slow


def test_a_failed_commit_is_told_counted_and_made_up_for(
    server: KafkaBroker, make_group: Callable[..., Group], zookeeper_hosts: str, log: Log
) -> None:
    """While the broker is frozen commits fail visibly; when it goes on, the offset is stored."""
    group = make_group(zookeeper_hosts, session_timeout=4, at=Broker(server.address))
    group.produce(10)
    frozen = Event()

    def answer(_: Batch) -> BatchResponse:
        assert frozen.wait(WAIT)
        return BatchResponse.advance()

    notes = Notes(answer)
    with group.running(notes) as controller:
        notes.wait_values(1)
        server.pause(Deadline.after(WAIT))
        frozen.set()
        notes.wait(lambda: bool(notes.errors))
        server.resume()
        eventually(lambda: group.offsets() == [10])
        eventually(lambda: _failed_commits(controller, group) == len(log.of("commit_failed")))
        log.expect("commit_failed", channel=CHANNEL, topic=group.topic, epoch=1, refusal="none")
        eventually(lambda: channel_of(controller).partitions()[0].committed == 10)
        group.produce(1, start=10)
        eventually(lambda: group.offsets() == [11])
        log.expect("late_commit_answer", group=group.name)
    for error in notes.errors:
        assert isinstance(error, CommitFailedError)
        assert 0 < error.offset <= 10
    assert notes.records[group.partition()] == list(range(11))
    assert notes.callbacks[group.partition()][-2:] == ["processed", "terminated"]


def test_brokers_that_are_all_away_cost_nothing(
    server: KafkaBroker,
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
) -> None:
    """Answers given meanwhile are committed afterwards, under the same epoch and without a gap.

    The failed commits and the topics that cannot be looked at are told, logged and counted.
    """
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.2)
    monkeypatch.setattr("headrace.channel.topics.REFRESH_TIMEOUT", 1.0)
    group = make_group(zookeeper_hosts, session_timeout=4, at=Broker(server.address))
    group.produce(10)
    may_answer = Event()

    def answer(_: Batch) -> BatchResponse:
        assert may_answer.wait(WAIT)
        return BatchResponse.advance()

    notes = Notes(answer)
    with group.running(notes) as controller:
        notes.wait_values(1)
        server.kill()
        may_answer.set()
        log.expect("kafka_client_error")
        log.says("commit_failed", "topic_metadata_unavailable")
        notes.wait(lambda: bool(notes.errors))
        assert metric(controller, "partitions", state="waiting") == 1
        server.start()
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        group.produce(10, start=10)
        eventually(lambda: group.stored() == [StoredOffset(20, 1)])
        eventually(lambda: _failed_commits(controller, group) == len(log.of("commit_failed")))
    assert {type(error) for error in notes.errors} == {CommitFailedError}
    assert notes.epochs[group.partition()] == [1]
    assert "lost" not in notes.callbacks[group.partition()]
    assert notes.records[group.partition()] == list(range(20))


def test_offsets_of_an_idle_partition_are_stored_again(
    make_group: Callable[..., Group], zookeeper_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the broker would forget it, the same offset is committed anew, and again."""
    monkeypatch.setattr("headrace.channel.commits.REFRESH_INTERVAL", 0.2)
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    with group.running(notes) as controller:
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        before = metric(controller, "commits_total", topic=group.topic)
        assert before is not None
        enough = before + 3
        eventually(lambda: (metric(controller, "commits_total", topic=group.topic) or 0) >= enough)
        assert group.stored() == [StoredOffset(10, 1)]
    assert notes.values.total() == 10


def test_topic_ids_are_those_that_kafka_writes(server: KafkaBroker) -> None:
    """In Kafka's own alphabet, as the broker has them beside its logs; half of them tell."""
    broker, deadline = Broker(server.address), Deadline.after(WAIT)
    topics = [broker.create_topic() for _ in range(20)]
    catalog = KafkaTopicCatalog({"bootstrap.servers": server.address}, "g")
    try:
        found = catalog.describe(topics, deadline)
    finally:
        catalog.close()
    ids = {topic: info.topic_id for topic, info in found.items()}
    files = {t: server.directory / "data" / f"{t}-0" / "partition.metadata" for t in topics}
    eventually(lambda: all(file.exists() for file in files.values()))
    written = {t: file.read_text(encoding="utf-8").splitlines() for t, file in files.items()}
    assert [t for t in topics if f"topic_id: {ids[t]}" not in written[t]] == []


def _failed_commits(controller: KafkaController, group: Group) -> float | None:
    return metric(controller, "commit_failures_total", topic=group.topic)
