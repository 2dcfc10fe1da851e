"""What a channel is built from, and the building of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from headrace.channel.bounds import Bounds, Until
from headrace.channel.callbacks import Callbacks
from headrace.channel.commits import Committer
from headrace.channel.control import PartitionControl
from headrace.channel.dead_letters import DeadLetters
from headrace.channel.failures import FailurePolicy
from headrace.channel.fetcher import Fetcher
from headrace.channel.partition_manager import PartitionManager
from headrace.channel.pausing import DeliveryGate, PauseManager
from headrace.channel.scheduler import Scheduler
from headrace.channel.states import EndReason
from headrace.channel.supervision import CallbackWatchdog, LagWatchdog, ThreadWatchdog
from headrace.channel.topics import GroupSubscription, KnownTopics, TopicListener, TopicWatcher
from headrace.channel.workers import PartitionLoop, Workers
from headrace.config import refuses_late
from headrace.core.spans import NO_TRACER
from headrace.kafka.ports import CommitRefusal, NoDeadLetters
from headrace.processors.contract import keeps_own_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.failures import Backoff
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.pausing import PauseFile
    from headrace.channel.settings import LiveSettings
    from headrace.channel.skips import Skips
    from headrace.config import ChannelConfig
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.listener import Listener
    from headrace.core.clock import Clock, Deadline
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
    operator's are kept, while the configuration has them kept.
    """

    source: RecordSource
    store: OffsetStore
    catalog: TopicCatalog
    coordinator: Callable[[Listener], Coordinator]
    prefetch: int = 0
    pauses: PauseFile | None = None
    tracer: Tracer = NO_TRACER
    dead_letters: DeadLetterStore = field(default_factory=NoDeadLetters)
    reader: RecordReader = field(default_factory=NoDeadLetters)


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
    delivery_gate: DeliveryGate
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
        return owned.is_overdue(self.clock.monotonic())


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of one channel. The channel starts, stops and closes them, once each."""

    catalog: TopicCatalog
    store: OffsetStore
    delivery_gate: DeliveryGate
    pausing: PauseManager
    control: PartitionControl
    bounds: Bounds
    topics: KnownTopics
    manager: PartitionManager
    coordinator: Coordinator
    subscription: GroupSubscription
    topic_watcher: TopicWatcher
    fetcher: Fetcher
    committer: Committer
    dead_letters: DeadLetters
    workers: Workers
    watchdog: CallbackWatchdog
    lag_watchdog: LagWatchdog
    thread_watchdogs: tuple[ThreadWatchdog, ...]

    @property
    def heartbeats(self) -> tuple[Heartbeat, ...]:
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
            self.lag_watchdog,
            self.pausing,
        ):
            part.start()
        self.coordinator.start()
        for guard in self.thread_watchdogs:
            guard.start()

    def stop(self, deadline: Deadline) -> list[str]:
        """End the threads, once the coordinator has stopped; return what did not end in time."""
        left = []
        for name, part in (
            ("fetcher", self.fetcher),
            ("committer", self.committer),
            ("watchdog", self.watchdog),
            ("stall watch", self.lag_watchdog),
            ("pauses", self.pausing),
        ):
            if not part.stop(deadline):
                left.append(name)
        left += ["stall guard" for guard in self.thread_watchdogs if not guard.stop(deadline)]
        # a worker may hang in a callback, and then nothing would be left for those above
        return left + self.workers.stop(deadline)

    def close(self, deadline: Deadline) -> None:
        """Release what is open though nothing was started; harmless after ``stop``."""
        for part in (self.topic_watcher, self.fetcher, self.committer):
            part.stop(deadline)
        self.dead_letters.close()


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Frame:
    """What the parts of one channel are built with. ``fail`` stops the whole channel."""

    name: str
    settings: LiveSettings
    processor: BatchProcessor
    ports: ChannelPorts
    skips: Skips
    metrics: Metrics
    clock: Clock
    fail: Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class _Core:
    """What the other parts of one channel share: what is held, what comes in and what goes out."""

    frame: Frame
    delivery_gate: DeliveryGate
    topics: KnownTopics
    scheduler: Scheduler
    skips: Skips
    bounds: Bounds
    manager: PartitionManager
    coordinator: Coordinator
    fetcher: Fetcher
    committer: Committer
    dead_letters: DeadLetters


def assemble(frame: Frame, *, until: Until | None, unfinished: Callable[[str], None]) -> Assembly:
    """Build the parts of a channel; nothing is started, nobody is asked.

    ``unfinished`` is told what a release had to leave undone.
    """
    core = _core(frame, until)
    subscription = GroupSubscription(frame.settings.config, core.coordinator)
    workers = _workers(core, _partition_loop(core, unfinished))
    return Assembly(
        catalog=frame.ports.catalog,
        store=frame.ports.store,
        delivery_gate=core.delivery_gate,
        pausing=_pausing(core),
        control=_control(core),
        bounds=core.bounds,
        topics=core.topics,
        manager=core.manager,
        coordinator=core.coordinator,
        subscription=subscription,
        topic_watcher=_topic_watcher(core, subscription),
        fetcher=core.fetcher,
        committer=core.committer,
        dead_letters=core.dead_letters,
        workers=workers,
        watchdog=_watchdog(core, workers),
        lag_watchdog=_lag_watchdog(core),
        thread_watchdogs=_thread_watchdogs(core),
    )


def _core(frame: Frame, until: Until | None) -> _Core:
    processor, sink = frame.processor, frame.settings.config.sink
    # a custom processor has no sink by configuration, and may keep offsets by itself
    refuses = refuses_late(sink) if sink else keeps_own_offsets(processor)
    delivery_gate = DeliveryGate(next_batch_at=processor.next_batch_at, sink_refuses=refuses)
    topics = KnownTopics(frame.settings.config.subscription)
    scheduler = Scheduler(frame.clock)
    bounds = Bounds(until, frame.name, frame.clock, frame.fail)
    manager = _manager(frame, topics, scheduler, delivery_gate, bounds)
    coordinator = frame.ports.coordinator(manager)
    return _Core(
        frame=frame,
        delivery_gate=delivery_gate,
        topics=topics,
        scheduler=scheduler,
        skips=frame.skips,
        bounds=bounds,
        manager=manager,
        coordinator=coordinator,
        fetcher=_fetcher(frame, scheduler, manager),
        committer=_committer(frame, topics, scheduler, coordinator),
        dead_letters=_dead_letters(frame),
    )


def _manager(
    frame: Frame,
    topics: KnownTopics,
    scheduler: Scheduler,
    delivery_gate: DeliveryGate,
    bounds: Bounds,
) -> PartitionManager:
    return PartitionManager(
        name=frame.name,
        settings=frame.settings,
        topics=topics,
        copies=frame.processor.copies,
        scheduler=scheduler,
        delivery_gate=delivery_gate,
        bounds=bounds,
        metrics=frame.metrics,
        clock=frame.clock,
        fail=frame.fail,
    )


def _topic_watcher(core: _Core, subscription: GroupSubscription) -> TopicWatcher:
    frame, manager = core.frame, core.manager
    return TopicWatcher(
        core.topics,
        frame.ports.catalog,
        TopicListener(subscription.set_topics, manager.log_replaced, manager.topic_missing),
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _budget(frame: Frame, manager: PartitionManager) -> Callable[[], int]:
    prefetch, copies = frame.ports.prefetch, frame.processor.copies

    def memory() -> int:
        """Return what the client leaves, whose own queue keeps the size it was made with."""
        most = frame.settings.config.buffer.max_bytes
        return max(most - prefetch, most // 2)

    def planned() -> int:
        """Return what lets every partition have full batches in flight, and one more planned."""
        now = frame.settings.now
        batches = now.max_in_flight * copies + 1
        return max(1, len(manager.all())) * batches * now.limits.max_bytes

    return planned if frame.settings.config.by_reference else memory


def _fetcher(frame: Frame, scheduler: Scheduler, manager: PartitionManager) -> Fetcher:
    return Fetcher(
        frame.ports.source,
        budget=_budget(frame, manager),
        touch=scheduler.touch,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _committer(
    frame: Frame, topics: KnownTopics, scheduler: Scheduler, coordinator: Coordinator
) -> Committer:
    def lose(owned: OwnedPartition, refusal: CommitRefusal) -> None:
        """Let go of a partition of which the offset store says that it is somebody else's."""
        log.warning(
            "partition_superseded",
            channel=frame.name,
            topic=owned.partition.topic,
            partition=owned.partition.partition,
            epoch=owned.epoch,
            refusal=refusal.value,
        )
        owned.end(EndReason.LOST)
        if refusal is CommitRefusal.MEMBERSHIP:
            coordinator.rejoin(owned.claim)
        else:
            coordinator.released(owned.claim, clean=False)
        scheduler.touch(owned)

    return Committer(
        frame.ports.store,
        topics,
        interval=lambda: frame.settings.config.seconds_between_commits,
        touch=scheduler.touch,
        lose=lose,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _control(core: _Core) -> PartitionControl:
    return PartitionControl(
        core.frame.name,
        manager=core.manager,
        scheduler=core.scheduler,
        delivery_gate=core.delivery_gate,
        catalog=core.frame.ports.catalog,
        skips=core.skips,
    )


def _pausing(core: _Core) -> PauseManager:
    frame = core.frame
    return PauseManager(
        core.delivery_gate.pauses,
        manager=core.manager,
        committer=core.committer,
        coordinator=core.coordinator,
        settings=frame.settings,
        file=frame.ports.pauses,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _partition_loop(core: _Core, unfinished: Callable[[str], None]) -> PartitionLoop:
    """Return what a worker does."""
    frame = core.frame
    callbacks = Callbacks(frame.processor, frame.name, frame.metrics, frame.clock)
    return PartitionLoop(
        Parts(
            name=frame.name,
            settings=frame.settings,
            callbacks=callbacks,
            scheduler=core.scheduler,
            fetcher=core.fetcher,
            committer=core.committer,
            coordinator=core.coordinator,
            store=frame.ports.store,
            catalog=frame.ports.catalog,
            topics=core.topics,
            delivery_gate=core.delivery_gate,
            skips=core.skips,
            policy=_policy(core, callbacks),
            metrics=frame.metrics,
            tracer=frame.ports.tracer,
            clock=frame.clock,
            fail=frame.fail,
            unfinished=unfinished,
            held=core.manager.all,
        )
    )


def _dead_letters(frame: Frame) -> DeadLetters:
    return DeadLetters(
        frame.settings,
        store=frame.ports.dead_letters,
        reader=frame.ports.reader,
        catalog=frame.ports.catalog,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
    )


def _policy(core: _Core, callbacks: Callbacks) -> FailurePolicy:
    frame = core.frame
    return FailurePolicy(
        frame.settings,
        callbacks=callbacks,
        dead_letters=core.dead_letters,
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
    )


def _workers(core: _Core, partition_loop: PartitionLoop) -> Workers:
    frame, manager = core.frame, core.manager

    def run_once(owned: OwnedPartition) -> None:
        partition_loop.run_once(owned)
        if owned.final:
            manager.ended(owned)

    return Workers(
        count=frame.settings.config.workers,
        scheduler=core.scheduler,
        run_once=run_once,
        busy=lambda: any(owned.outstanding for owned in manager.all()),
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
    )


def _watchdog(core: _Core, workers: Workers) -> CallbackWatchdog:
    frame = core.frame
    return CallbackWatchdog(
        batch_timeout=lambda: frame.settings.config.batch_timeout,
        partitions=core.manager.all,
        scheduler=core.scheduler,
        workers=workers,
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
    )


def _thread_watchdogs(core: _Core) -> tuple[ThreadWatchdog, ...]:
    watched: dict[str, Heartbeat] = {
        "coordinator": core.coordinator,
        "committer": core.committer,
        "fetcher": core.fetcher,
    }
    return tuple(
        ThreadWatchdog(name, part, fail=core.frame.fail, channel=core.frame.name)
        for name, part in watched.items()
    )


def _lag_watchdog(core: _Core) -> LagWatchdog:
    frame = core.frame
    return LagWatchdog(
        partitions=core.manager.all,
        fetcher=core.fetcher,
        catalog=frame.ports.catalog,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )
