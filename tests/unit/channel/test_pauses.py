"""Pauses of a whole channel in memory: how they begin, what they do, and how they end."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from headrace.channel.pauses import Pause, PauseFile, PauseMode, PauseReason
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.core.errors import CommitFailedError, Refusal, StartError
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from tests.refusals import raises_refused
from tests.unit.channel.doubles import NotedOffsets
from tests.unit.channel.in_memory import P0, P1, committed, eventually, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch
    from headrace.processors import ChannelContext

IDS = GroupPaths("group").ids


def soon() -> Deadline:
    """Return when a test gives up."""
    return Deadline.after(PATIENCE)


class Braking(Recorder):
    """A processor that may pause itself."""

    def open(self, context: ChannelContext) -> None:
        """Keep the context."""
        self.context = context


def test_a_pause_commits_and_holds_until_every_reason_is_gone(broker: InMemoryBroker) -> None:
    """No record is delivered while any reason holds, and partitions are kept."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, commit_interval="1h")
    with running(channel):
        recorder.wait(lambda: len(recorder.delivered()) == 1 and "assigned" in recorder.names(1))
        channel.pause(by="me")
        channel.pause(PauseReason.DOWNSTREAM, by="the sink")
        assert channel.wait_paused(soon())
        assert ("pause", 5) in recorder.calls[0]
        assert {reading.state for reading in channel.partitions()} == {"paused"}
        broker.produce(P0, b"later")
        ended = channel.resume(by="me")
        assert ended is not None
        assert ended.by == "me"
        assert channel.resume(by="me") is None
        assert channel.wait_paused(soon())
        assert len(recorder.delivered()) == 1
        assert [pause.reason for pause in channel.pauses] == [PauseReason.DOWNSTREAM]
        channel.resume(PauseReason.DOWNSTREAM, by="the sink")
        recorder.wait(lambda: len(recorder.delivered()) == 2)
    assert recorder.names() == [
        "assigned", "batch", "processed", "pause", "resume", "batch", "processed", "terminated",
    ]  # fmt: skip


def test_a_pause_is_not_acknowledged_before_it_is_true(broker: InMemoryBroker) -> None:
    """A pause waits for open batches and for the commit of their answers."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    store = broker.store("group")
    channel = in_memory_channel(recorder, broker, offset_store=store, commit_interval="10ms")
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1)
        channel.pause(by="me")
        assert not channel.wait_paused(Deadline.after(0.05))
        store.refuse = "not now"
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.wait(lambda: len(recorder.errors()) > 0)
        assert not channel.wait_paused(Deadline.after(0.05))
        store.refuse = None
        assert channel.wait_paused(soon())
        assert broker.committed("group", P0) is not None
        assert channel.partitions()[0].committed == 5


PAUSES: dict[str, Callable[[InboundKafkaChannel, Braking], object]] = {
    "channel": lambda channel, _: channel.pause(by="me"),
    "partition": lambda channel, _: channel.pause(by="me", partition=P0),
    "processor": lambda _, recorder: recorder.context.pause_control.pause("the sink is full"),
}


@pytest.mark.parametrize("pause", PAUSES.values(), ids=PAUSES)
def test_a_pause_waits_for_no_commit_interval(
    broker: InMemoryBroker, pause: Callable[[InboundKafkaChannel, Braking], object]
) -> None:
    """Answers after the pause began are committed at once, for any caller of the pause."""
    recorder = Braking()
    channel = in_memory_channel(recorder, broker, commit_interval="1h")

    def answer(batch: Batch) -> BatchResponse:
        if batch.partition == P0:
            pause(channel, recorder)
            # so the commit that the beginning asks for is over before this answer is given
            assert committed(broker, P1, 5)
        return BatchResponse.advance()

    recorder.answer = answer
    broker.produce(P1, *values(5))
    with running(channel):
        recorder.wait(lambda: len(recorder.delivered(1)) == 1)
        broker.produce(P0, *values(5))
        recorder.wait(lambda: len(recorder.delivered(0)) == 1)
        assert channel.wait_paused(soon())
        assert recorder.names(0) == ["assigned", "batch", "processed", "pause"]


def test_a_commit_refused_in_a_pause_is_tried_again_after_the_interval(
    broker: InMemoryBroker,
) -> None:
    """Without an interval between two attempts a broker that refuses would get one at a time."""
    recorder, store = Recorder(), NotedOffsets(broker)
    recorder.answer = lambda b: recorder.later(b) if b.partition == P0 else BatchResponse.advance()
    channel = in_memory_channel(
        recorder, broker, offset_store=store, commit_interval="1h", workers=1
    )
    broker.produce(P0, *values(5))
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1 and "assigned" in recorder.names(1))
        channel.pause(by="me", partition=P0)
        store.refuse = "not now"
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.wait(lambda: recorder.errors() == [CommitFailedError])
        broker.produce(P1, *values(5))
        # by the only worker, so that its turn with the refused commit is over
        recorder.wait(lambda: len(recorder.delivered(1)) == 1)
        # has all that is staged tried, by the only thread that commits: a third attempt is another
        channel.pause(by="me", partition=P1)
        eventually(lambda: (P1, 5) in store.asked)
        recorder.wait(lambda: recorder.errors() == [CommitFailedError] * 2)
        assert store.asked.count((P0, 5)) == 2
        store.refuse = None


def test_one_partition_is_paused_and_the_other_goes_on(broker: InMemoryBroker) -> None:
    """Only the partition that is named rests."""
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        recorder.wait(lambda: {"assigned"} <= set(recorder.names(0)) & set(recorder.names(1)))
        channel.pause(by="me", partition=P0, note="look at offset 0")
        assert channel.wait_paused(soon())
        broker.produce(P0, *values(5))
        broker.produce(P1, *values(5))
        assert committed(broker, P1, 5)
        assert recorder.delivered(0) == []
        channel.resume(by="me", partition=P0)
        assert committed(broker, P0, 5)
    assert "pause" not in recorder.names(1)


def test_everybody_has_a_pause_of_their_own(broker: InMemoryBroker) -> None:
    """One replaces and ends one's own; another person's takes their name, and is not shortened."""
    channel = in_memory_channel(Recorder(), broker)
    with running(channel):
        channel.pause(by="ann", until=time.time() + 7200, note="repair")
        channel.pause(by="bob", until=time.time() + 60)
        bobs = channel.pause(by="bob", until=time.time() + 90)
        assert [(pause.by, pause.note) for pause in channel.pauses] == [
            ("ann", "repair"),
            ("bob", ""),
        ]
        assert channel.resume(by="bob") == bobs
        with raises_refused(Refusal.PAUSED_BY_OTHERS, match="is paused by ann, and not by bob"):
            channel.resume(by="bob")
        assert channel.resume(by="bob", of="eve") is None
        assert channel.wait_paused(soon())
        ended = channel.resume(by="bob", of="ann")
        assert ended is not None
        assert ended.note == "repair"
        assert channel.resume(by="bob") is None
        assert channel.pauses == ()


@pytest.mark.parametrize("length", [7200.0, None])
def test_ones_own_pause_is_shortened_only_if_that_is_said(
    broker: InMemoryBroker, length: float | None
) -> None:
    """Two people of one login would end each other's pause sooner; a longer one comes in its place.

    Other scopes and other people's pauses are not looked at.
    """
    channel = in_memory_channel(Recorder(), broker)
    now = time.time()
    with running(channel):
        long = channel.pause(by="ann", until=length and now + length, note="repair")
        with raises_refused(Refusal.SHORTER_PAUSE, match=r"is paused by ann already, .*--shorten"):
            channel.pause(by="ann", until=now + 60)
        assert channel.pauses == (long,)
        channel.pause(by="ann", until=now + 60, partition=P0)
        channel.pause(by="bob", until=now + 60)
        assert channel.pause(by="ann", until=long.until).until == long.until
        assert channel.pause(by="ann").until is None
        shortened = channel.pause(by="ann", until=now + 60, shorten=True)
        assert shortened.until == now + 60
        assert shortened in channel.pauses


def test_a_processor_shortens_its_own_pause(broker: InMemoryBroker) -> None:
    """It knows by itself what it asked for: what it writes to may recover sooner."""
    recorder = Braking()
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        pause_control = recorder.context.pause_control
        pause_control.pause("full", seconds=7200)
        pause_control.pause("nearly free", seconds=60)
        (pause,) = channel.pauses
        assert pause.note == "nearly free"


def test_a_drain_lasts_until_its_holder_ends_it(broker: InMemoryBroker) -> None:
    """Another user's pause does not bring the partitions back."""
    channel = in_memory_channel(Recorder(), broker)
    with running(channel):
        channel.pause(by="ann", mode=PauseMode.DRAIN)
        channel.pause(by="bob")
        assert channel.wait_paused(soon())
        assert channel.partitions() == []
        channel.resume(by="ann")
        eventually(lambda: len(channel.partitions()) == 2)
        assert channel.wait_paused(soon())


def test_a_draining_pause_leaves_the_group_until_it_ends(broker: InMemoryBroker) -> None:
    """Partitions end in order and are another member's; afterwards the member takes part again."""
    zookeeper, recorder, other = InMemoryZooKeeper(), Recorder(), Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, member="a")
    broker.produce(P0, *values(5))
    with running(channel):
        assert committed(broker, P0, 5)
        channel.pause(by="me", mode=PauseMode.DRAIN)
        assert channel.wait_paused(soon())
        assert recorder.names()[-1] == "terminated"
        assert zookeeper.children(IDS) == []
        with running(in_memory_channel(other, broker, zookeeper=zookeeper, member="b")):
            broker.produce(P0, *values(5))
            assert committed(broker, P0, 10)
            channel.resume(by="me")
            eventually(lambda: len(channel.partitions()) == 1)
        eventually(lambda: len(channel.partitions()) == 2)
    assert other.delivered(0) == [(5, 10, 1)]


def test_a_drained_partition_is_another_members_while_it_lasts(broker: InMemoryBroker) -> None:
    """The member keeps the rest, and takes the partition again afterwards where it is its due."""
    zookeeper, recorder, other = InMemoryZooKeeper(), Recorder(), Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, member="a")
    with running(channel):
        eventually(lambda: len(channel.partitions()) == 2)
        channel.pause(by="me", mode=PauseMode.DRAIN, partition=P0)
        assert channel.wait_paused(soon())
        assert [reading.partition for reading in channel.partitions()] == [1]
        helper = in_memory_channel(other, broker, zookeeper=zookeeper, member="b")
        with running(helper):
            other.wait(lambda: "assigned" in other.names(0))
        channel.resume(by="me", partition=P0)
        eventually(lambda: len(channel.partitions()) == 2)


def test_a_pause_ends_by_itself(broker: InMemoryBroker) -> None:
    """At its own end, or when the longest time for pauses is over."""
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, pause={"max_duration": "200ms"})
    with running(channel):
        recorder.wait(lambda: "assigned" in recorder.names(0))
        pause = channel.pause(by="me", until=time.time() + 3600)
        assert pause.until is not None
        assert pause.until < time.time() + 60
        recorder.wait(lambda: "resume" in recorder.names(0))
        assert channel.pauses == ()


def test_a_processor_pauses_and_resumes_by_itself(broker: InMemoryBroker) -> None:
    """A processor's pause is separate: an operator's resume does not end it."""
    recorder = Braking()

    def answer(batch: Batch) -> BatchResponse:
        if batch.start == 0:
            recorder.context.pause_control.pause("the sink is full")
        return BatchResponse.advance()

    recorder.answer = answer
    broker.produce(P0, *values(20))
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        recorder.wait(lambda: "pause" in recorder.names(0))
        channel.resume(by="me")
        assert [(p.reason.value, p.note) for p in channel.pauses] == [
            ("downstream", "the sink is full")
        ]
        assert recorder.delivered() == [(0, 10, 1)]
        recorder.context.pause_control.resume()
        assert committed(broker, P0, 20)


KEPT = {"persist": True}


@pytest.mark.parametrize("mode", list(PauseMode))
def test_an_operators_pause_outlives_the_process_where_it_is_kept(
    broker: InMemoryBroker, tmp_path: Path, mode: PauseMode
) -> None:
    """The next start delivers nothing until the pause ends; a processor's pause is not kept."""
    file = PauseFile(tmp_path / "state" / "pauses.json")
    zookeeper = InMemoryZooKeeper()
    first = in_memory_channel(Recorder(), broker, zookeeper=zookeeper, pauses=file, pause=KEPT)
    with running(first):
        first.pause(by="me", mode=mode, note="until the table is mended")
        first.pause(PauseReason.DOWNSTREAM, by="processor", partition=P1)
        assert first.wait_paused(soon())
    broker.produce(P0, *values(5))
    recorder = Recorder()
    second = in_memory_channel(recorder, broker, zookeeper=zookeeper, pauses=file, pause=KEPT)
    with running(second):
        assert second.wait_paused(soon())
        [pause] = second.pauses
        assert (pause.by, pause.mode, pause.note) == ("me", mode, "until the table is mended")
        assert recorder.delivered() == []
        second.resume(by="me")
        assert committed(broker, P0, 5)
    assert file.load() == []


def test_kept_pauses_come_back_as_they_were(tmp_path: Path) -> None:
    """Every field is kept."""
    file = PauseFile(tmp_path / "pauses.json")
    pauses = [
        Pause(PauseReason.OPERATOR, "a", 1.5, 7.0, PauseMode.DRAIN, P1, "because"),
        Pause(PauseReason.OPERATOR, "b", 2.0),
    ]
    file.save(pauses)
    assert file.load() == pauses
    assert [path.name for path in tmp_path.iterdir()] == ["pauses.json"]


def test_pauses_that_a_former_version_kept_are_read(tmp_path: Path) -> None:
    """It had one pause of an operator for each scope, with who began it."""
    usual = {"reason": "operator", "since": 1.5, "until": None, "mode": "hold", "note": "n"}
    kept = [
        {**usual, "by": "ann@mill", "partition": None},
        {**usual, "by": "bob", "partition": ["events", 1]},
    ]
    (tmp_path / "pauses.json").write_text(json.dumps({"version": 1, "pauses": kept}))
    assert PauseFile(tmp_path / "pauses.json").load() == [
        Pause(PauseReason.OPERATOR, "ann@mill", 1.5, note="n"),
        Pause(PauseReason.OPERATOR, "bob", 1.5, partition=P1, note="n"),
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "pauses": [{}]}'])
def test_a_file_that_cannot_be_read_stops_the_start(
    broker: InMemoryBroker, tmp_path: Path, text: str
) -> None:
    """Delivery despite a pause may do harm; the message says what to do."""
    (tmp_path / "pauses.json").write_text(text, encoding="utf-8")
    channel = in_memory_channel(
        Recorder(), broker, pauses=PauseFile(tmp_path / "pauses.json"), pause=KEPT
    )
    with pytest.raises(StartError, match=r"pauses\.json cannot be read .*delete the file"):
        channel.start(soon())


def test_pauses_are_in_the_metrics(broker: InMemoryBroker) -> None:
    """How many there are of each reason, and since when."""
    metrics = Metrics()
    channel = in_memory_channel(Recorder(), broker, metrics=metrics)

    def value(name: str) -> float | None:
        labels = {"channel": "member", "reason": "operator"}
        return metrics.registry.get_sample_value(f"headrace_{name}", labels)

    with running(channel):
        before = time.time()
        channel.pause(by="me")
        channel.pause(by="me", partition=P0)
        assert value("pauses") == 2
        assert before <= (value("paused_since_timestamp_seconds") or 0) <= time.time()
        channel.resume(by="me")
        channel.resume(by="me", partition=P0)
        assert value("pauses") == 0
        assert value("paused_since_timestamp_seconds") == 0


def test_a_pause_that_ends_while_zookeeper_is_away_ends_for_the_processor_too(
    broker: InMemoryBroker,
) -> None:
    """It hears of the pause once and of its end once, however long the session was suspended."""
    recorder, zookeeper = Recorder(), InMemoryZooKeeper()
    session = zookeeper.session()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, session=session)
    with running(channel):
        all_are(channel, "waiting")
        channel.pause(by="ann")
        assert channel.wait_paused(soon())
        session.suspend()
        all_are(channel, "suspended")
        channel.resume(by="ann")
        session.resume()
        broker.produce(P0, b"a")
        assert committed(broker, P0, 1)
    names = [name for name in recorder.names(0) if name in {"pause", "resume", "batch"}]
    assert names == ["pause", "resume", "batch"]


def test_a_pause_that_begins_while_zookeeper_is_away_commits_when_it_is_back(
    broker: InMemoryBroker,
) -> None:
    """The delayed commit does not wait for the commit interval."""
    recorder, zookeeper = Recorder(), InMemoryZooKeeper()
    session = zookeeper.session()
    channel = in_memory_channel(
        recorder, broker, zookeeper=zookeeper, session=session, commit_interval="1h"
    )
    with running(channel):
        all_are(channel, "waiting")
        broker.produce(P0, *values(5))
        eventually(lambda: has_answered(channel, 5))
        session.suspend()
        all_are(channel, "suspended")
        channel.pause(by="ann")
        assert not channel.wait_paused(Deadline.after(0.05))
        session.resume()
        assert channel.wait_paused(soon())
        assert channel.partitions()[0].committed == 5


def has_answered(channel: InboundKafkaChannel, offset: int) -> bool:
    """Return whether P0 was answered up to an offset, which is not committed yet."""
    (first, _) = channel.partitions()
    return (first.position, first.outstanding_batches) == (offset, 0)


def all_are(channel: InboundKafkaChannel, state: str) -> None:
    """Wait until both partitions are in a state."""
    eventually(lambda: [each.state for each in channel.partitions()] == [state] * 2)
