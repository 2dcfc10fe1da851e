"""Tasks that are not whole: what is held of them rests until the other claims are here."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from headrace.channel.pauses import Pause, PauseReason
from headrace.channel.states import EndReason
from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.pauses import Pauses
    from headrace.channel.topics import KnownTopics


class TaskGate:
    """Has the partitions of a task rest while one of them is not held, is paused, or is to end.

    In a channel that does not work in tasks nothing rests for that. Safe on any thread; does not
    block. ``held`` returns what is held of a partition at this moment.
    """

    def __init__(
        self,
        environment: ChannelEnvironment,
        pauses: Pauses,
        topics: KnownTopics,
        held: Callable[[TopicPartition], OwnedPartition | None],
    ) -> None:
        self._environment = environment
        self._pauses = pauses
        self._topics = topics
        self._held = held
        self._lock = Lock()
        self._resting: dict[TopicPartition, Pause] = {}

    def check(self, partitions: Iterable[TopicPartition]) -> list[OwnedPartition]:
        """Check the tasks of ``partitions``; return what now rests or goes on, and did not."""
        if not self._environment.config.together:
            return []
        changed: list[OwnedPartition] = []
        with self._lock:
            tasks: dict[int, set[TopicPartition]] = {}
            for partition in partitions:
                tasks.setdefault(partition.partition, set()).add(partition)
            topics = sorted(self._topics.counts())
            for number, named in tasks.items():
                task = [TopicPartition(topic, number) for topic in topics]
                changed += self._check_task(task)
                for partition in named.difference(task):
                    # its topic is none of the channel's any more
                    self._resume(partition)
            self._measure()
        return changed

    def _check_task(self, task: Sequence[TopicPartition]) -> list[OwnedPartition]:
        held = {p: owned for p in task if (owned := self._going_on(p)) is not None}
        missing = [partition for partition in task if partition not in held]
        for partition in missing:
            self._resume(partition)
        if missing:
            note = f"waits for {', '.join(map(str, missing))}"
            return [owned for partition, owned in held.items() if self._pause(partition, note)]
        paused = self._pauses.paused_besides(PauseReason.TASK).intersection(task)
        if not paused:
            return [owned for partition, owned in held.items() if self._resume(partition)]
        note = f"waits for {', '.join(map(str, sorted(paused)))}, which is paused"
        return [
            owned
            for partition, owned in held.items()
            if (self._resume(partition) if partition in paused else self._pause(partition, note))
        ]

    def _going_on(self, partition: TopicPartition) -> OwnedPartition | None:
        owned = self._held(partition)
        return None if owned is None or owned.life.ending is not EndReason.NONE else owned

    def _pause(self, partition: TopicPartition, note: str) -> bool:
        """Pause a partition; return whether it was not paused for its task."""
        before = self._resting.get(partition)
        if before is not None and before.note == note:
            return False
        since = self._environment.clock.time() if before is None else before.since
        pause = Pause(PauseReason.TASK, "headrace", since, partition=partition, note=note)
        self._resting[partition] = pause
        self._pauses.add(pause)
        return before is None

    def _resume(self, partition: TopicPartition) -> bool:
        """Resume a partition; return whether it was paused for its task."""
        pause = self._resting.pop(partition, None)
        return pause is not None and self._pauses.remove(pause)

    def _measure(self) -> None:
        metrics, labels = self._environment.metrics, (self._environment.name, "task")
        since = min((pause.since for pause in self._resting.values()), default=0.0)
        metrics.pauses.labels(*labels).set(len(self._resting))
        metrics.paused_since.labels(*labels).set(since)
