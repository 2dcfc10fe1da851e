"""The parts of a channel, and in which order they start and stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.channel.bounds import Bounds
    from headrace.channel.committer import Committer
    from headrace.channel.dead_letters import DeadLetters
    from headrace.channel.desk import OperatorDesk
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.gates import Gates
    from headrace.channel.holdings import Holdings
    from headrace.channel.known_topics import KnownTopics
    from headrace.channel.pausing import Pausing
    from headrace.channel.stall import StallGuard
    from headrace.channel.stalls import StallWatch
    from headrace.channel.topics import TopicWatcher
    from headrace.channel.watchdog import Watchdog
    from headrace.channel.wishes import Wishes
    from headrace.channel.workers import Workers
    from headrace.clock import Deadline
    from headrace.coordinators.coordinator import Coordinator
    from headrace.kafka.ports import OffsetStore, TopicCatalog
    from headrace.progress import Turning


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of one channel. The channel starts, stops and closes them, once each."""

    catalog: TopicCatalog
    store: OffsetStore
    gates: Gates
    pausing: Pausing
    desk: OperatorDesk
    bounds: Bounds
    topics: KnownTopics
    holdings: Holdings
    coordinator: Coordinator
    wishes: Wishes
    topic_watcher: TopicWatcher
    fetcher: Fetcher
    committer: Committer
    dead_letters: DeadLetters
    workers: Workers
    watchdog: Watchdog
    stall_watch: StallWatch
    stall_guards: tuple[StallGuard, ...]

    @property
    def turning(self) -> tuple[Turning, ...]:
        """The parts whose threads should take turns as long as the channel runs."""
        return (self.coordinator, self.committer, self.fetcher)

    def start(self) -> None:
        """Start all threads; the coordinator, which brings the first claims, behind those."""
        for part in (
            self.topic_watcher,
            self.committer,
            self.fetcher,
            self.workers,
            self.watchdog,
            self.stall_watch,
            self.pausing,
        ):
            part.start()
        self.coordinator.start()
        for guard in self.stall_guards:
            guard.start()

    def stop(self, deadline: Deadline) -> list[str]:
        """End the threads, once the coordinator has stopped; return what did not end in time."""
        left = []
        for name, part in (
            ("fetcher", self.fetcher),
            ("committer", self.committer),
            ("watchdog", self.watchdog),
            ("stall watch", self.stall_watch),
            ("pauses", self.pausing),
        ):
            if not part.stop(deadline):
                left.append(name)
        left += ["stall guard" for guard in self.stall_guards if not guard.stop(deadline)]
        # a worker may hang in a callback, and then nothing would be left for those above
        return left + self.workers.stop(deadline)

    def close(self, deadline: Deadline) -> None:
        """Release what is open though nothing was started; harmless after ``stop``."""
        for part in (self.topic_watcher, self.fetcher, self.committer):
            part.stop(deadline)
        self.dead_letters.close()
