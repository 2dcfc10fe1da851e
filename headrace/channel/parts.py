"""What the steps of a worker share: the channel's configuration and its other threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.backoff import Backoff
    from headrace.channel.callbacks import Callbacks
    from headrace.channel.committer import Committer
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.gates import Gates
    from headrace.channel.known_topics import KnownTopics
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.policy import FailurePolicy
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.settings import LiveSettings
    from headrace.channel.skips import Skips
    from headrace.clock import Clock
    from headrace.config import ChannelConfig
    from headrace.coordinators.coordinator import Coordinator
    from headrace.kafka.ports import OffsetStore, TopicCatalog
    from headrace.metrics import Metrics
    from headrace.spans import Tracer


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one channel, as its workers use them.

    ``fail`` stops the whole channel; ``unfinished`` notes what a release had to leave undone;
    ``held`` returns the partitions that are held now.
    """

    name: str
    settings: LiveSettings
    callbacks: Callbacks
    scheduler: Scheduler
    fetcher: Fetcher
    committer: Committer
    coordinator: Coordinator
    store: OffsetStore
    catalog: TopicCatalog
    topics: KnownTopics
    gates: Gates
    policy: FailurePolicy
    skips: Skips
    metrics: Metrics
    tracer: Tracer
    clock: Clock
    fail: Callable[[BaseException], None]
    unfinished: Callable[[str], None]
    held: Callable[[], list[OwnedPartition]]

    @property
    def config(self) -> ChannelConfig:
        """The channel's configuration at this moment."""
        return self.settings.now.config

    @property
    def backoff(self) -> Backoff:
        """How long to wait before something is tried again, as configured at this moment."""
        return self.settings.now.backoff

    def overdue(self, owned: OwnedPartition) -> bool:
        """Whether a release has used up its time."""
        return owned.release_by is not None and self.clock.monotonic() >= owned.release_by
