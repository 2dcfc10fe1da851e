"""Partitions of a task rest until all of them are held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.channel.bounds import Bounds
from headrace.channel.environment import ChannelEnvironment
from headrace.channel.partition_manager import PartitionManager
from headrace.channel.pauses import DeliveryGate, Pause, PauseReason
from headrace.channel.scheduler import Scheduler
from headrace.channel.settings import LiveSettings
from headrace.channel.states import PartitionState
from headrace.channel.topics import KnownTopics
from headrace.config import ChannelConfig
from headrace.coordinators.claims import Claim, LossReason
from headrace.coordinators.lease import Lease
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.ports import TopicInfo
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryZooKeeper
from headrace.testing.channel import QUICK, FakeClock, in_memory_channel, running
from tests.kinds import TasksConfig
from tests.unit.channel.in_memory import fail
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch

PAIR = ("orders", "payments")
TASKS = 3

places = st.builds(TopicPartition, st.sampled_from(PAIR), st.integers(0, TASKS - 1))


def partition(topic: str, number: int) -> TopicPartition:
    """Return a partition."""
    return TopicPartition(topic, number)


class GateMachine(RuleBasedStateMachine):
    """Claims that come and end in any order, without a worker that acts on them."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.gate = DeliveryGate()
        config = ChannelConfig.model_validate({**QUICK, "topics": PAIR, "processor": TasksConfig()})
        topics = KnownTopics(config.subscription)
        found = {topic: TopicInfo(topic, f"id-{topic}", TASKS) for topic in PAIR}
        topics.begin("cluster", found, dict.fromkeys(PAIR, TASKS))
        self.manager = PartitionManager(
            ChannelEnvironment("main", LiveSettings(config), self.metrics, self.clock, fail),
            bounds=Bounds(None, "main", self.clock, fail),
            delivery_gate=self.gate,
            processor=Recorder(),
            scheduler=Scheduler(self.clock),
            topics=topics,
        )
        self.claims: dict[TopicPartition, Claim] = {}
        self.ending: set[TopicPartition] = set()
        self.paused: dict[TopicPartition, Pause] = {}

    @rule(place=places)
    def pause(self, place: TopicPartition) -> None:
        """Pause a partition, held or not, as an operator."""
        pause = Pause(PauseReason.OPERATOR, "me", self.clock.time(), partition=place)
        self.paused[place] = pause
        self.gate.pauses.add(pause)
        self.manager.check_tasks()

    @rule(place=places)
    def resume(self, place: TopicPartition) -> None:
        """Resume a partition that an operator paused."""
        if place in self.paused:
            self.gate.pauses.remove(self.paused.pop(place))
            self.manager.check_tasks()

    @rule(place=places)
    def claim(self, place: TopicPartition) -> None:
        """Claim a partition that is not held."""
        if place not in self.claims:
            self.clock.advance(1.0)
            lease = Lease(60.0, self.clock, self.clock.monotonic())
            epoch = int(self.clock.monotonic())
            self.claims[place] = Claim(place, epoch, "me", 7, 1, lease)
            self.manager.claimed(self.claims[place])

    @rule(place=places)
    def ask_back(self, place: TopicPartition) -> None:
        """Ask for a partition."""
        if place in self.claims and place not in self.ending:
            self.ending.add(place)
            self.manager.release_requested(self.claims[place])

    @rule(place=places)
    def lose(self, place: TopicPartition) -> None:
        """Lose a claim, to be claimed again while what was is still there."""
        if place in self.claims:
            self.ending.discard(place)
            self.manager.claim_lost(self.claims.pop(place), LossReason.NODE_CHANGED)

    @rule(place=places)
    def end(self, place: TopicPartition) -> None:
        """End a partition, as a worker does with one that was asked for or lost."""
        owned = self.manager.held(place)
        if owned is not None:
            self.ending.discard(place)
            self.claims.pop(place, None)
            owned.life.become(PartitionState.LOST)
            self.manager.ended(owned)

    @invariant()
    def nothing_of_a_task_is_delivered_before_it_is_whole(self) -> None:
        """A held partition rests while another of its task is missing or paused, and names it."""
        held = self.claims.keys() - self.ending
        expected = {}
        for number in range(TASKS):
            task = [partition(topic, number) for topic in PAIR]
            missing = [str(part) for part in task if part not in held]
            paused = [part for part in task if part in self.paused]
            if missing:
                note = f"waits for {', '.join(missing)}"
                expected.update({part: note for part in task if part in held})
            elif paused:
                note = f"waits for {', '.join(map(str, paused))}, which is paused"
                expected.update({part: note for part in task if part not in paused})
        pauses = [each for each in self.gate.pauses.all() if each.reason is PauseReason.TASK]
        assert {pause.partition: pause.note for pause in pauses} == expected
        labels = {"channel": "main", "reason": "task"}
        shown = self.metrics.registry.get_sample_value("headrace_pauses", labels)
        assert (shown or 0) == len(expected)


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_a_paused_partition_rests_the_others_of_its_task() -> None:
    """They name it, and go on with it; other tasks do not rest."""
    machine = GateMachine()
    orders, payments = (partition(topic, 1) for topic in PAIR)
    for place in (orders, payments, *(partition(topic, 2) for topic in PAIR)):
        machine.claim(place)
    machine.pause(payments)
    machine.nothing_of_a_task_is_delivered_before_it_is_whole()
    (note,) = [each.note for each in machine.gate.pauses.all() if each.partition == orders]
    assert note == "waits for payments-1, which is paused"
    machine.resume(payments)
    assert machine.gate.pauses.all() == ()


# --- whole channels ------------------------------------------------------------------------------


@pytest.fixture
def broker() -> InMemoryBroker:
    """Two topics of as many partitions."""
    found = InMemoryBroker()
    for topic in PAIR:
        found.create_topic(topic, TASKS)
    return found


class Watching(Recorder):
    """Notes which deliveries came while the channel held no whole task."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: InboundKafkaChannel | None = None
        self.halves: list[TopicPartition] = []
        self.seen: set[TopicPartition] = set()

    def on_next_batch(self, batch: Batch) -> Any:
        """Look who else of the task is held."""
        assert self.channel is not None
        held = {partition(each.topic, each.partition) for each in self.channel.partitions()}
        if any(partition(topic, batch.partition.partition) not in held for topic in PAIR):
            self.halves.append(batch.partition)
        self.seen.add(batch.partition)
        return super().on_next_batch(batch)


def tasked(
    recorder: Recorder, broker: InMemoryBroker, member: str, zookeeper: InMemoryZooKeeper
) -> InboundKafkaChannel:
    """Build a channel that works in tasks."""
    channel = in_memory_channel(
        recorder,
        broker,
        zookeeper=zookeeper,
        member=member,
        topics=PAIR,
        processor=TasksConfig(),
    )
    if isinstance(recorder, Watching):
        recorder.channel = channel
    return channel


def held(channel: InboundKafkaChannel) -> list[tuple[int, str]]:
    """Return what a channel holds."""
    return sorted((each.partition, each.topic) for each in channel.partitions())


def test_members_deliver_whole_tasks(broker: InMemoryBroker) -> None:
    """All records come while members join and leave, and none of a task that is held in part."""
    zookeeper = InMemoryZooKeeper()
    all_places = {partition(topic, n) for topic in PAIR for n in range(TASKS)}
    first, second = Watching(), Watching()
    a = tasked(first, broker, "a", zookeeper)
    b = tasked(second, broker, "b", zookeeper)
    with running(a):
        for place in all_places:
            broker.produce(place, b"1", b"2")
        first.wait(lambda: first.seen == all_places)
        with running(b):
            first.wait(lambda: sum("terminated" in first.names(n) for n in range(TASKS)) == 1)
            second.wait(lambda: any("assigned" in second.names(n) for n in range(TASKS)))
            for place in all_places:
                broker.produce(place, b"3")
            second.wait(lambda: len(second.seen) == len(PAIR))
            assert [topic for _, topic in held(b)] == list(PAIR)
            assert len({number for number, _ in held(b)}) == 1
            assert not a.pauses
            assert not b.pauses
    assert first.halves == second.halves == []


def test_a_half_waits_while_a_member_without_tasks_has_the_rest(broker: InMemoryBroker) -> None:
    """In a mixed group nothing of a half is delivered, and the status names the missing part."""
    zookeeper = InMemoryZooKeeper()
    all_places = {partition(topic, n) for topic in PAIR for n in range(TASKS)}
    first, second = Watching(), Recorder()
    a = tasked(first, broker, "a", zookeeper)
    b = in_memory_channel(second, broker, zookeeper=zookeeper, member="b", topics=PAIR)
    with running(a):
        with running(b):
            assert wait_for(
                lambda: bool(a.pauses) and len(held(b)) == TASKS, Deadline.after(PATIENCE)
            )
            for place in all_places:
                broker.produce(place, b"1")
            second.wait(lambda: sum(map(len, map(second.delivered, range(TASKS)))) == TASKS)
            waiting = {pause.partition: pause.note for pause in a.pauses}
            owned = {partition(topic, number) for number, topic in held(a)}
            assert waiting
            for half, note in waiting.items():
                assert half is not None
                (other,) = {partition(topic, half.partition) for topic in PAIR} - {half}
                assert (half in owned, other in owned) == (True, False)
                assert note == f"waits for {other}"
        first.wait(lambda: first.seen >= waiting.keys())
    assert first.halves == []


def test_a_channel_of_topics_with_other_numbers_does_not_start(broker: InMemoryBroker) -> None:
    """The error has the topics, their partitions, and what to do."""
    broker.create_topic("accounts", TASKS + 2)
    channel = in_memory_channel(
        Recorder(), broker, topics=[*PAIR, "accounts"], processor=TasksConfig()
    )
    with pytest.raises(
        StartError,
        match=r"channel member: its topics are not co-partitioned: accounts has 5 partitions, "
        r"orders 3, payments 3; .* with the rekey processor .* topics of 5 partitions",
    ):
        channel.start(Deadline.after(5))
    channel.stop(Deadline.after(5))
