"""A channel's adapters, and the parts it is built of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from headrace.channel.beginning import GroupBeginning
from headrace.channel.bounds import Bounds, Until
from headrace.channel.callbacks import Callbacks
from headrace.channel.commits import Committer
from headrace.channel.control import PartitionControl, SeekControl
from headrace.channel.dead_letters import DeadLetters
from headrace.channel.delivery import Delivery
from headrace.channel.environment import ChannelEnvironment
from headrace.channel.failures import ErrorPolicy
from headrace.channel.fetcher import Fetcher
from headrace.channel.lasting_failures import LastingFailures
from headrace.channel.offset_reset import OffsetReset
from headrace.channel.partition_manager import PartitionManager
from headrace.channel.pause_manager import PauseManager
from headrace.channel.pauses import DeliveryGate
from headrace.channel.release import Releases
from headrace.channel.scheduler import Scheduler
from headrace.channel.start import PartitionStart
from headrace.channel.states import EndReason
from headrace.channel.supervision import CallbackWatchdog, LagWatchdog, ThreadWatchdog
from headrace.channel.taps import Taps
from headrace.channel.topics import GroupSubscription, KnownTopics, TopicWatcher
from headrace.channel.workers import PartitionLoop, Workers
from headrace.config import refuses_late
from headrace.core.spans import NO_TRACER
from headrace.kafka.ports import CommitRefusal, NoDeadLetters
from headrace.processors.contract import keeps_own_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.channel.pauses import PauseFile
    from headrace.channel.settings import LiveSettings
    from headrace.channel.skips import Skips
    from headrace.config import ChannelConfig
    from headrace.coordinators.begun_topics import BegunTopics
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.rebalance import Listener
    from headrace.core.clock import Clock, Deadline
    from headrace.core.records import TopicPartition
    from headrace.core.spans import Tracer
    from headrace.core.supervision import Heartbeat
    from headrace.kafka.ports import (
        DeadLetterStore,
        OffsetStore,
        RecordReader,
        RecordSource,
        TopicCatalog,
    )
    from headrace.processors import BatchProcessor
    from headrace.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class ChannelPorts:
    """The adapters of one channel, which owns all of them and closes them.

    ``prefetch`` is the part of the memory budget, in bytes, that the source fills by itself.
    ``coordinator`` builds the coordinator for the listener it is to tell. ``pauses`` is where the
    operator's are kept, while the configuration has them kept. ``begun`` is what the group began
    with. ``holder`` says whose transaction holds readers of a partition back, and may block.
    """

    source: RecordSource
    store: OffsetStore
    catalog: TopicCatalog
    coordinator: Callable[[Listener], Coordinator]
    begun: BegunTopics
    holder: Callable[[TopicPartition], str] = str
    prefetch: int = 0
    pauses: PauseFile | None = None
    tracer: Tracer = NO_TRACER
    dead_letters: DeadLetterStore = field(default_factory=NoDeadLetters)
    reader: RecordReader = field(default_factory=NoDeadLetters)


log = structlog.get_logger(__name__)


class ChannelRuntime:
    """Builds the parts of one channel; each gets the parts that it uses.

    The channel starts, stops and closes them, once each. ``fail`` stops the whole channel;
    ``unfinished`` names what releases had to leave undone. Building it starts nothing and sends
    nothing.
    """

    def __init__(
        self,
        name: str,
        settings: LiveSettings,
        processor: BatchProcessor,
        ports: ChannelPorts,
        *,
        skips: Skips,
        until: Until | None,
        metrics: Metrics,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        environment = ChannelEnvironment(name, settings, metrics, clock, fail)
        self.name = name
        self.settings = settings
        self.processor = processor
        self.store = ports.store
        self.catalog = ports.catalog
        self.tracer = ports.tracer
        self.skips = skips
        self.taps = Taps(name, clock)
        self.unfinished: list[str] = []
        self._prefetch = ports.prefetch

        sink = settings.config.sink
        # a custom processor has no sink by configuration, and may keep offsets by itself
        refuses = refuses_late(sink) if sink else keeps_own_offsets(processor)
        self.delivery_gate = DeliveryGate(
            next_batch_at=processor.next_batch_at, sink_refuses=refuses
        )
        self.topics = KnownTopics(settings.config.subscription)
        self.scheduler = Scheduler(clock)
        self.bounds = Bounds(until, name, clock, fail)
        self.manager = PartitionManager(
            environment,
            bounds=self.bounds,
            delivery_gate=self.delivery_gate,
            processor=self.processor,
            scheduler=self.scheduler,
            topics=self.topics,
        )
        self.coordinator = ports.coordinator(self.manager)
        self.subscription = GroupSubscription(settings.config, self.coordinator)
        self.topic_watcher = TopicWatcher(
            self.topics,
            self.catalog,
            subscription=self.subscription,
            manager=self.manager,
            begun=GroupBeginning(ports.begun, self.store, clock),
            channel=name,
            clock=clock,
            fail=fail,
            together=settings.config.together,
        )
        self.fetcher = Fetcher(
            ports.source,
            budget=self._budget,
            touch=self.scheduler.touch,
            metrics=metrics,
            channel=name,
            clock=clock,
            fail=fail,
        )
        self.committer = Committer(
            self.store,
            self.topics,
            interval=lambda: self.config.seconds_between_commits,
            touch=self.scheduler.touch,
            lose=self._drop_partition,
            metrics=metrics,
            channel=name,
            clock=clock,
            fail=fail,
        )
        self.dead_letters = DeadLetters(
            settings,
            store=ports.dead_letters,
            reader=ports.reader,
            catalog=self.catalog,
            metrics=metrics,
            channel=name,
            code=processor,
            clock=clock,
            fail=fail,
        )
        self.callbacks = Callbacks(processor, name, metrics, clock)
        self._lasting = LastingFailures(environment, is_bounded=until is not None)
        self.pause_manager = PauseManager(
            environment,
            ports.pauses,
            committer=self.committer,
            coordinator=self.coordinator,
            delivery_gate=self.delivery_gate,
            lasting=self._lasting,
            manager=self.manager,
        )
        self.policy = ErrorPolicy(
            environment,
            callbacks=self.callbacks,
            dead_letters=self.dead_letters,
            lasting=self._lasting,
            pause_manager=self.pause_manager,
        )
        self.control = PartitionControl(
            environment,
            catalog=self.catalog,
            delivery_gate=self.delivery_gate,
            manager=self.manager,
            scheduler=self.scheduler,
            skips=self.skips,
        )
        self.workers = Workers(
            count=settings.config.workers,
            scheduler=self.scheduler,
            run_once=self._partition_loop(environment).run_once,
            busy=self.manager.has_outstanding,
            fail=fail,
            metrics=metrics,
            channel=name,
        )
        self._callback_watchdog = CallbackWatchdog(
            batch_timeout=lambda: self.config.batch_timeout,
            partitions=self.manager.all,
            scheduler=self.scheduler,
            workers=self.workers,
            fail=fail,
            metrics=metrics,
            channel=name,
            clock=clock,
        )
        self.lag_watchdog = LagWatchdog(
            environment,
            catalog=self.catalog,
            fetcher=self.fetcher,
            manager=self.manager,
            holder=ports.holder,
        )
        #: The parts whose threads send heartbeats as long as the channel runs.
        self.heartbeats: dict[str, Heartbeat] = {
            "coordinator": self.coordinator,
            "committer": self.committer,
            "fetcher": self.fetcher,
        }
        self._thread_watchdogs = [
            ThreadWatchdog(what, part, fail=fail, channel=name)
            for what, part in self.heartbeats.items()
        ]

    def _partition_loop(self, environment: ChannelEnvironment) -> PartitionLoop:
        """Return what the workers run for a partition, built of parts that are there already."""
        delivery = Delivery(
            environment,
            callbacks=self.callbacks,
            catalog=self.catalog,
            committer=self.committer,
            coordinator=self.coordinator,
            fetcher=self.fetcher,
            policy=self.policy,
            lasting=self._lasting,
            scheduler=self.scheduler,
            skips=self.skips,
            taps=self.taps,
            tracer=self.tracer,
        )
        return PartitionLoop(
            environment,
            delivery=delivery,
            starts=PartitionStart(
                environment,
                callbacks=self.callbacks,
                catalog=self.catalog,
                committer=self.committer,
                coordinator=self.coordinator,
                fetcher=self.fetcher,
                manager=self.manager,
                lasting=self._lasting,
                scheduler=self.scheduler,
                store=self.store,
                topics=self.topics,
            ),
            releases=Releases(
                environment,
                delivery,
                callbacks=self.callbacks,
                committer=self.committer,
                coordinator=self.coordinator,
                fetcher=self.fetcher,
                topics=self.topics,
                unfinished=self.unfinished,
            ),
            offset_reset=OffsetReset(
                environment,
                callbacks=self.callbacks,
                catalog=self.catalog,
                committer=self.committer,
                fetcher=self.fetcher,
                topics=self.topics,
            ),
            seek_control=SeekControl(
                environment,
                callbacks=self.callbacks,
                catalog=self.catalog,
                committer=self.committer,
                delivery_gate=self.delivery_gate,
                fetcher=self.fetcher,
            ),
            callbacks=self.callbacks,
            committer=self.committer,
            coordinator=self.coordinator,
            delivery_gate=self.delivery_gate,
            manager=self.manager,
            scheduler=self.scheduler,
            skips=self.skips,
            topics=self.topics,
        )

    @property
    def config(self) -> ChannelConfig:
        """Return the channel's configuration at this moment."""
        return self.settings.config

    def _budget(self) -> int:
        """Return the bytes of records that the fetcher may have the partitions hold."""
        if self.config.by_reference:
            # every partition has full batches in flight, and one more planned
            now = self.settings.now
            batches = now.max_in_flight * self.processor.copies + 1
            return max(1, len(self.manager.all())) * batches * now.limits.max_bytes
        # what the client leaves, whose own queue keeps the size it was made with
        most = self.config.buffer.max_bytes
        return max(most - self._prefetch, most // 2)

    def _drop_partition(self, owned: OwnedPartition, refusal: CommitRefusal) -> None:
        """Drop a partition that belongs to another member according to the offset store."""
        log.warning("partition_superseded", **owned.life.log_fields, refusal=refusal.value)
        owned.life.end(EndReason.LOST)
        if refusal is CommitRefusal.MEMBERSHIP:
            self.coordinator.rejoin(owned.life.claim)
        else:
            self.coordinator.released(owned.life.claim, clean=False)
        self.scheduler.touch(owned)

    def start(self) -> None:
        """Start all threads; the coordinator, which brings the first claims, after those."""
        for part in (
            self.topic_watcher,
            self.committer,
            self.fetcher,
            self.workers,
            self._callback_watchdog,
            self.lag_watchdog,
            self.pause_manager,
            self.coordinator,
        ):
            part.start()
        for guard in self._thread_watchdogs:
            guard.start()

    def stop(self, deadline: Deadline) -> list[str]:
        """End the threads, once the coordinator has stopped; return what did not end in time."""
        left = []
        for name, part in (
            ("fetcher", self.fetcher),
            ("committer", self.committer),
            ("watchdog", self._callback_watchdog),
            ("stall watch", self.lag_watchdog),
            ("pauses", self.pause_manager),
        ):
            if not part.stop(deadline):
                left.append(name)
        left += ["stall guard" for guard in self._thread_watchdogs if not guard.stop(deadline)]
        # a worker may hang in a callback, and then nothing would be left for those above
        return left + self.workers.stop(deadline)

    def close(self, deadline: Deadline) -> None:
        """Release what is open though nothing was started; harmless after ``stop``."""
        for part in (self.topic_watcher, self.fetcher, self.committer):
            part.stop(deadline)
        self.dead_letters.close()
