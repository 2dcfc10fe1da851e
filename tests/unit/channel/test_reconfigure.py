"""A channel that takes over new values while it runs: each one has to take effect."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.channel.pauses import PauseFile
from headrace.config import ChannelConfig, diff
from headrace.config.problems import fields
from headrace.config.reference import is_hot
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError
from headrace.core.records import TopicPartition
from headrace.kafka.errors import UnknownTopicError
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from headrace.testing.broker import InMemorySource
from headrace.testing.channel import QUICK
from tests.unit.channel.in_memory import P0, P1, committed, eventually, filled_broker, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.kafka.ports import Fetched

OTHER = TopicPartition("others", 0)


def soon() -> Deadline:
    """Return when a test gives up."""
    return Deadline.after(PATIENCE)


def change(channel: InboundKafkaChannel, **settings: Any) -> list[str]:
    """Reconfigure with ``settings`` over those of the tests; return what is different."""
    return reconfigured(channel, ChannelConfig.model_validate({**QUICK, **settings}))


def reconfigured(channel: InboundKafkaChannel, config: ChannelConfig) -> list[str]:
    """Apply ``config`` to the channel and return the changed paths."""
    changes = diff(channel.config, config, at=("channels", channel.name))
    if changes:
        channel.reconfigure(config, changes, soon())
    return [each.path for each in changes]


def test_batches_are_cut_as_configured_now(broker: InMemoryBroker) -> None:
    """New limits hold for the next batch, of partitions that are held already."""
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)) as channel:
        recorder.wait(lambda: bool(recorder.names(0)))
        changed = change(channel, batch={"max_records": 2, "linger": "20ms"})
        assert changed == ["channels.member.batch.max_records", "channels.member.batch.linger"]
        broker.produce(P0, *values(4))
        assert committed(broker, P0, 4)
        change(channel, batch={"max_bytes": 1, "max_records": 2, "linger": 0})
        broker.produce(P0, *values(2))
        assert committed(broker, P0, 6)
    sizes = [len(batch) for batch in recorder.batches]
    assert sizes == [2, 2, 1, 1]
    assert recorder.names(0).count("terminated") == 1
    assert recorder.names(0)[-1] == "terminated"


def test_a_batch_that_lingers_is_cut_as_soon_as_the_limit_falls(broker: InMemoryBroker) -> None:
    """A batch that waits under the former limit is checked again."""
    batch = {"max_records": 10, "linger": "1h"}
    with running(in_memory_channel(Recorder(), broker, batch=batch)) as channel:
        broker.produce(P0, *values(3))
        eventually(lambda: any(each.high_watermark == 3 for each in channel.partitions()))
        change(channel)
        assert committed(broker, P0, 3)


def test_a_new_idle_time_applies_to_idle_partitions(broker: InMemoryBroker) -> None:
    """A partition that was to be reported in an hour is reported at once."""
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)) as channel:
        recorder.wait(lambda: bool(recorder.names(0)))
        change(channel, idle_time="10ms")
        recorder.wait(lambda: "idle" in recorder.names(0))


def test_offsets_are_committed_as_often_as_configured_now(broker: InMemoryBroker) -> None:
    """The offset that waited for an hour is committed, and the next ones at each answer."""
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, commit_interval="1h")) as channel:
        broker.produce(P0, *values(3))
        recorder.wait(lambda: bool(recorder.delivered()))
        change(channel, commit_interval=0)
        assert committed(broker, P0, 3)
        broker.produce(P0, *values(3))
        assert committed(broker, P0, 6)


def test_the_periodic_advance_has_the_interval_configured_now(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer of a simple processor is the timer of commits."""
    simple = {"type": "simple", "auto_advance": "periodic"}
    slow = {**QUICK, "sink": "a:b", "processor": {**simple, "auto_advance_interval": "1h"}}
    monkeypatch.setattr("headrace.testing.channel.QUICK", slow)
    with running(in_memory_channel(Recorder(), broker)) as channel:
        broker.produce(P0, *values(3))
        change(channel, sink="a:b", processor={**simple, "auto_advance_interval": "20ms"})
        assert committed(broker, P0, 3)


def _has_workers(channel: InboundKafkaChannel, count: int) -> bool:
    prefix = f"{channel.name}-worker-"
    return count == sum(thread.name.startswith(prefix) for thread in threading.enumerate())


def test_there_are_as_many_workers_as_configured_now(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are added, and surplus ones end, while partitions stay."""
    monkeypatch.setattr("headrace.channel.workers.TAKE_TIMEOUT", 0.02)
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, member="counted")) as channel:
        for count in (5, 1, 3):
            reconfigured(channel, channel.config.model_copy(update={"workers": count}))
            eventually(partial(_has_workers, channel, count))
            end = broker.produce(P0, *values(3))
            assert committed(broker, P0, end)
    assert "lost" not in recorder.names(0)
    assert _has_workers(channel, 0)


def test_a_failing_batch_is_treated_as_configured_now(broker: InMemoryBroker) -> None:
    """One that was to be tried for ever is skipped, and backs off for as long as configured."""

    def fail(_: object) -> None:
        raise ValueError("no")

    recorder = Recorder(fail)
    waits = {"backoff": "1ms", "max_backoff": "1ms"}
    with running(in_memory_channel(recorder, broker, retry=waits)) as channel:
        broker.produce(P0, *values(3))
        recorder.wait(lambda: len(recorder.delivered()) >= 7)
        change(channel, retry={"attempts": 3, **waits}, rejects={"failing": "skip"})
        assert committed(broker, P0, 3)
        tries = len(recorder.delivered())
        change(channel, retry={"backoff": "1h", "max_backoff": "1h"})
        broker.produce(P0, *values(1))
        recorder.wait(lambda: len(recorder.delivered()) == tries + 1)
        eventually(lambda: any(p.state == "backing_off" for p in channel.partitions()))


def test_a_raised_max_in_flight_applies_at_once(broker: InMemoryBroker) -> None:
    """A second batch is delivered while the first one is open."""
    recorder = Recorder()
    recorder.answer = recorder.later
    batch = {"max_records": 1, "linger": 0}
    with running(in_memory_channel(recorder, broker, batch=batch)) as channel:
        broker.produce(P0, *values(5))
        recorder.wait(lambda: len(recorder.delivered()) == 1)
        change(channel, batch=batch, max_in_flight=3)
        recorder.wait(lambda: len(recorder.delivered()) == 3)
        recorder.answer = lambda _: BatchResponse.advance()
        for future in list(recorder.futures):
            future.set_result(BatchResponse.advance())
        assert committed(broker, P0, 5)


def test_an_answer_may_take_as_long_as_configured_now(broker: InMemoryBroker) -> None:
    """Batches delivered after the change have the new limit."""
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, batch_timeout="1h")) as channel:
        change(channel, batch_timeout="50ms")
        broker.produce(P0, *values(1))
        recorder.wait(lambda: len(recorder.delivered()) >= 2)
        recorder.answer = lambda _: BatchResponse.advance()
        assert committed(broker, P0, 1)


def test_a_partition_begins_where_configured_now() -> None:
    """``initial_offset`` counts when a partition is claimed."""
    broker = filled_broker()
    broker.create_topic("others")
    broker.produce(OTHER, *values(5))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)) as channel:
        assert committed(broker, P0, 10)
        change(channel, initial_offset="latest", topics=["events", "others"])
        assert committed(broker, OTHER, 5)
    assert not [batch for batch in recorder.batches if batch.partition == OTHER]


def test_reading_goes_on_out_of_range_where_configured_now() -> None:
    """The policy counts when the offset is found to be gone."""
    broker = filled_broker()
    recorder = Recorder()
    settings: dict[str, Any] = {"initial_offset": "earliest", "offset_out_of_range": "stop"}
    with running(in_memory_channel(recorder, broker, **settings)) as channel:
        assert committed(broker, P0, 10)
        change(channel, offset_out_of_range="latest")
        broker.skip(P0, 90)
        broker.expire(P0, 100)
        broker.produce(P0, *values(3))
        assert committed(broker, P0, 103)
        assert channel.failure is None


class CountingSource(InMemorySource):
    """Counts its fetches."""

    fetches = 0

    def fetch(self, timeout: float) -> Fetched:
        """Count, and fetch."""
        self.fetches += 1
        return super().fetch(timeout)


def has_waited_for_room(metrics: Metrics) -> bool:
    """Return whether the fetcher found its budget used up."""
    (fetcher,) = [time for time in metrics.thread_times() if time.role is ThreadRole.FETCHER]
    return fetcher.seconds()[ThreadActivity.BACK_PRESSURE] > 0


def test_memory_is_bounded_as_configured_now(broker: InMemoryBroker) -> None:
    """A channel whose buffer was full fetches more once it may hold more."""
    recorder, metrics, source = Recorder(), Metrics(), CountingSource(broker)
    recorder.answer = recorder.later
    batch = {"max_records": 1, "max_bytes": 10_000, "linger": 0}
    small: dict[str, Any] = {"batch": batch, "buffer": {"max_bytes": 20_000}}
    channel = in_memory_channel(recorder, broker, metrics=metrics, record_source=source, **small)
    with running(channel):
        broker.produce(P0, *[b"x" * 5_000] * 40)
        eventually(lambda: has_waited_for_room(metrics))
        fetches = source.fetches
        change(channel, batch=batch, buffer={"max_bytes": "1MiB"})
        eventually(lambda: source.fetches > fetches)
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[0].set_result(BatchResponse.advance())
        assert committed(broker, P0, 40)


def test_a_pause_lasts_as_long_as_configured_now(broker: InMemoryBroker) -> None:
    """A limit holds for a pause that has begun, too."""
    with running(in_memory_channel(Recorder(), broker)) as channel:
        channel.pause(by="me")
        assert channel.wait_paused(soon())
        change(channel, pause={"max_duration": "10ms"})
        eventually(lambda: channel.pauses == ())
        broker.produce(P0, *values(3))
        assert committed(broker, P0, 3)


def test_pauses_are_kept_as_configured_now(broker: InMemoryBroker, tmp_path: Path) -> None:
    """A pause that goes on is written down, and no longer kept when that is switched off."""
    file = PauseFile(tmp_path / "pauses.json")
    with running(in_memory_channel(Recorder(), broker, pauses=file)) as channel:
        channel.pause(by="me")
        assert file.load() == []
        change(channel, pause={"persist": True})
        assert [pause.by for pause in file.load()] == ["me"]
        change(channel)
        assert file.load() == []


def test_the_coordinator_has_the_pace_configured_now(broker: InMemoryBroker) -> None:
    """A member that was to wait an hour for its group to settle claims at once."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    slow = {"type": "dynamic", "rebalance_delay": "1h", "resync_interval": "1h"}
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, coordinator=slow)
    with running(channel):
        assert channel.partitions() == []
        change(channel)
        recorder.wait(lambda: bool(recorder.names(0)))


def test_an_added_topic_takes_nothing_away(broker: InMemoryBroker) -> None:
    """New partitions are claimed and begin as configured; the others are not interrupted."""
    broker.create_topic("others")
    broker.produce(OTHER, *values(3))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)) as channel:
        recorder.wait(lambda: bool(recorder.names(0)) and bool(recorder.names(1)))
        epochs = {reading.partition: reading.epoch for reading in channel.partitions()}
        assert change(channel, topics=["events", "^oth"]) == ["channels.member.topics"]
        assert committed(broker, OTHER, 3)
        assert len(channel.partitions()) == 3
        now = {r.partition: r.epoch for r in channel.partitions() if r.topic == "events"}
    assert now == epochs
    assert recorder.names(1).count("assigned") == 1


def test_a_removed_topic_takes_only_its_own_away(broker: InMemoryBroker) -> None:
    """The topic's partitions end committed and may return; the others are not interrupted."""
    broker.create_topic("others", 8)
    last = TopicPartition("others", 7)
    recorder = Recorder()
    both: dict[str, Any] = {"topics": ["events", "others"]}
    with running(in_memory_channel(recorder, broker, commit_interval="1h", **both)) as channel:
        eventually(lambda: len(channel.partitions()) == 10)
        broker.produce(last, *values(3))
        recorder.wait(lambda: bool(recorder.delivered(7)))
        change(channel, commit_interval="1h")
        recorder.wait(lambda: "terminated" in recorder.names(7))
        eventually(lambda: {r.topic for r in channel.partitions()} == {"events"})
        assert committed(broker, last, 3)
        broker.produce(P1, *values(2))
        recorder.wait(lambda: bool(recorder.delivered(1)))
        change(channel, **both)
        broker.produce(last, *values(2))
        recorder.wait(lambda: len(recorder.delivered(7)) == 2)
    assert recorder.delivered(7)[-1] == (3, 5, 1)
    assert "lost" not in recorder.names(7)


def test_a_release_waits_as_long_as_configured_now(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that another member is to have is given back though its batch is still out."""
    monkeypatch.setattr("headrace.channel.partition_manager.COMMIT_TIMEOUT", 0.0)
    zookeeper, recorder, other = InMemoryZooKeeper(), Recorder(), Recorder()
    recorder.answer = recorder.later
    for partition in (P0, P1):
        broker.produce(partition, *values(3))
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, batch_timeout="1h")
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 2)
        change(channel, batch_timeout="1h", release_timeout="10ms")
        with running(in_memory_channel(other, broker, zookeeper=zookeeper, member="other")):
            other.wait(lambda: bool(other.delivered(1)))


def test_a_topic_that_is_not_there_changes_nothing(broker: InMemoryBroker) -> None:
    """The error names it, and the channel goes on with all its former values."""
    with running(in_memory_channel(Recorder(), broker)) as channel:
        before = channel.config
        with pytest.raises(UnknownTopicError, match=r"no topic missing on the broker"):
            change(channel, topics=["events", "missing"], workers=5)
        assert channel.config is before
        broker.produce(P0, *values(3))
        assert committed(broker, P0, 3)


def test_a_change_that_needs_a_restart_is_refused(broker: InMemoryBroker) -> None:
    """The fields are named, and nothing is changed."""
    with running(in_memory_channel(Recorder(), broker)) as channel:
        with pytest.raises(ConfigError, match=r"channels\.member\.group: the channel has to start"):
            change(channel, group="other", workers=7)
        assert channel.config.workers == ChannelConfig.model_validate(QUICK).workers


def test_a_change_is_logged_and_no_change_is_none(broker: InMemoryBroker) -> None:
    """The event names the fields; equal values say and do nothing."""
    with capture_logs() as logs, running(in_memory_channel(Recorder(), broker)) as channel:
        change(channel)
        change(channel, workers=3)
    said = [entry["changed"] for entry in logs if entry["event"] == "channel_reconfigured"]
    assert said == [["channels.member.workers"]]


#: Hot fields of a channel, and the tests that they take effect.
TESTED = {
    "batch": "test_batches_are_cut_as_configured_now",
    "buffer": "test_memory_is_bounded_as_configured_now",
    "batch_timeout": "test_an_answer_may_take_as_long_as_configured_now",
    "commit_interval": "test_offsets_are_committed_as_often_as_configured_now",
    "idle_time": "test_a_new_idle_time_applies_to_idle_partitions",
    "initial_offset": "test_a_partition_begins_where_configured_now",
    "max_in_flight": "test_a_raised_max_in_flight_applies_at_once",
    "offset_out_of_range": "test_reading_goes_on_out_of_range_where_configured_now",
    "retry": "test_a_failing_batch_is_treated_as_configured_now",
    "release_timeout": "test_a_release_waits_as_long_as_configured_now",
    "pause": "test_pauses_are_kept_as_configured_now",
    "workers": "test_there_are_as_many_workers_as_configured_now",
}


def test_every_hot_field_of_a_channel_is_tested() -> None:
    """A field that is declared hot has a test above; those of processors are tested with them."""
    hot = {name for name, field in fields(ChannelConfig) if is_hot(field)}
    assert hot == TESTED.keys()
    assert globals().keys() >= set(TESTED.values())
