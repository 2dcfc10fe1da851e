"""Members that work in tasks, on real servers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.records import TopicPartition
from headrace.processors import BatchResponse
from tests.integration.channel.rig import CHANNEL, WAIT, Group, Notes, channel_of, eventually
from tests.kinds import TasksConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.core.records import Batch
    from tests.integration.seen import Log

TASKS = 3
RECORDS = 50


class Member:
    """A member of a group of two topics, and what it was delivered of tasks that it had in part."""

    def __init__(self, group: Group, topics: list[str], name: str) -> None:
        config = group.config(name, topics=topics)
        channel = config.channels[CHANNEL].model_copy(update={"processor": TasksConfig()})
        self.topics = topics
        self.halves: list[TopicPartition] = []
        self.notes = Notes(self._answer)
        self.controller = KafkaController(
            config.model_copy(update={"channels": {CHANNEL: channel}}),
            processors={CHANNEL: self.notes},
        )

    @contextmanager
    def running(self) -> Iterator[Member]:
        """Run the member; at the end it has to stop in order."""
        self.controller.start(Deadline.after(WAIT))
        try:
            yield self
        except BaseException:
            self.controller.stop(Deadline.after(5))
            raise
        assert self.controller.stop(Deadline.after(WAIT)).left == ()

    def task(self, number: int) -> set[TopicPartition]:
        """Return the partitions of a task."""
        return {TopicPartition(topic, number) for topic in self.topics}

    @property
    def held(self) -> set[TopicPartition]:
        """Return what the member holds."""
        found = channel_of(self.controller).partitions()
        return {TopicPartition(each.topic, each.partition) for each in found}

    @property
    def tasks(self) -> set[int]:
        """Return the tasks that are assigned in whole; all assigned partitions are of these."""
        assigned = self.notes.assigned
        whole = {n for n in range(TASKS) if self.task(n) <= assigned}
        return whole if len(assigned) == len(whole) * len(self.topics) else set()

    def _answer(self, batch: Batch) -> BatchResponse:
        if not self.task(batch.partition.partition) <= self.held:
            self.halves.append(batch.partition)
        return BatchResponse.advance()


@pytest.fixture
def group(make_group: Callable[..., Group]) -> Group:
    """A group with a topic of three partitions."""
    return make_group(TASKS)


@pytest.fixture
def topics(group: Group) -> list[str]:
    """Two topics of three partitions."""
    return sorted([group.topic, group.broker.create_topic(TASKS)])


def test_three_tasks_of_two_topics_are_shared_by_two_and_three_members(
    group: Group, topics: list[str]
) -> None:
    """Two members have 4 and 2 partitions, three have 2 each, and one task moves for that.

    Each record comes once, and none before its task is whole.
    """
    a, b, c = (Member(group, topics, name) for name in "abc")
    members = (a, b, c)

    def produce(start: int) -> None:
        for topic in topics:
            for number in range(TASKS):
                values = [b"%s-%d-%d" % (topic.encode(), number, start + n) for n in range(RECORDS)]
                group.broker.produce(TopicPartition(topic, number), *values)

    def total() -> int:
        return sum(member.notes.values.total() for member in members)

    whole = len(topics) * TASKS * RECORDS
    with a.running(), b.running():
        eventually(lambda: sorted(map(len, (a.tasks, b.tasks))) == [1, 2])
        assert sorted(map(len, (a.notes.assigned, b.notes.assigned))) == [2, 4]
        produce(0)
        eventually(lambda: total() == whole)
        before = {name: member.tasks for name, member in (("a", a), ("b", b))}
        with c.running():
            eventually(lambda: [len(member.tasks) for member in members] == [1, 1, 1])
            assert [len(member.notes.assigned) for member in members] == [2, 2, 2]
            assert (before["a"] - a.tasks) | (before["b"] - b.tasks) == c.tasks
            assert all(each.tasks <= before[name] for name, each in (("a", a), ("b", b)))
            produce(RECORDS)
            eventually(lambda: total() == 2 * whole)
            assert c.notes.values.total() == len(topics) * RECORDS
        eventually(lambda: len(a.tasks) + len(b.tasks) == TASKS)
    assert max((a.notes.values + b.notes.values + c.notes.values).values()) == 1
    assert [member.halves for member in members] == [[], [], []]


def test_a_lost_claim_gives_the_whole_task_back(group: Group, topics: list[str], log: Log) -> None:
    """An owner node that is deleted by hand costs the task, which is claimed again as a whole."""
    member = Member(group, topics, "a")
    with member.running():
        eventually(lambda: member.tasks == set(range(TASKS)))
        kept, lost = TopicPartition(topics[0], 1), TopicPartition(topics[1], 1)
        with group.zookeeper() as session:
            session.delete(group.paths.owner(lost))
        eventually(lambda: member.notes.epochs[lost] == [1, 2] == member.notes.epochs[kept])
        eventually(lambda: member.tasks == set(range(TASKS)))
        assert member.notes.epochs[TopicPartition(topics[0], 0)] == [1]
        group.broker.produce(kept, b"later")
        member.notes.wait(lambda: member.notes.records[kept] == [0])
    log.expect("release_requested", partition=str(kept))
    assert "lost" not in member.notes.callbacks[kept]


def test_topics_with_other_numbers_of_partitions_are_refused(group: Group) -> None:
    """The start ends with the topics and their numbers."""
    topics = [group.topic, group.broker.create_topic(TASKS + 1)]
    member = Member(group, topics, "a")
    with pytest.raises(StartError, match=f"{topics[1]} has 4 partitions, {topics[0]} 3"):
        member.controller.start(Deadline.after(WAIT))
    member.controller.stop(Deadline.after(WAIT))
