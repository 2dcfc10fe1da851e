"""What a channel is built from, and the building of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from headrace.channel.bounds import Bounds, Until
from headrace.channel.callbacks import Callbacks
from headrace.channel.commits import Committer
from headrace.channel.control import OperatorDesk
from headrace.channel.dead_letters import DeadLetters
from headrace.channel.failures import FailurePolicy
from headrace.channel.fetcher import Fetcher
from headrace.channel.holdings import Holdings
from headrace.channel.pausing import Gates, Pausing
from headrace.channel.scheduler import Scheduler
from headrace.channel.states import Ending
from headrace.channel.supervision import StallGuard, StallWatch, Watchdog
from headrace.channel.topics import KnownTopics, TopicListener, TopicWatcher, Wishes
from headrace.channel.workers import Turns, Workers
from headrace.config import refuses_late
from headrace.kafka.ports import NoDeadLetters, Refusal
from headrace.processors.contract import keeps_own_offsets
from headrace.spans import NO_TRACER

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.failures import Backoff
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.pausing import PauseFile
    from headrace.channel.settings import LiveSettings
    from headrace.channel.skips import Skips
    from headrace.clock import Clock, Deadline
    from headrace.config import ChannelConfig
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.listener import Listener
    from headrace.kafka.ports import (
        DeadLetterStore,
        OffsetStore,
        RecordReader,
        RecordSource,
        TopicCatalog,
    )
    from headrace.metrics import Metrics
    from headrace.processors import BatchProcessor
    from headrace.progress import Turning
    from headrace.spans import Tracer


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
    gates: Gates
    topics: KnownTopics
    scheduler: Scheduler
    skips: Skips
    bounds: Bounds
    holdings: Holdings
    coordinator: Coordinator
    fetcher: Fetcher
    committer: Committer
    dead_letters: DeadLetters


def assemble(frame: Frame, *, until: Until | None, unfinished: Callable[[str], None]) -> Assembly:
    """Build the parts of a channel; nothing is started, nobody is asked.

    ``unfinished`` is told what a release had to leave undone.
    """
    core = _core(frame, until)
    wishes = Wishes(frame.settings.config, core.coordinator)
    workers = _workers(core, _turns(core, unfinished))
    return Assembly(
        catalog=frame.ports.catalog,
        store=frame.ports.store,
        gates=core.gates,
        pausing=_pausing(core),
        desk=_desk(core),
        bounds=core.bounds,
        topics=core.topics,
        holdings=core.holdings,
        coordinator=core.coordinator,
        wishes=wishes,
        topic_watcher=_topic_watcher(core, wishes),
        fetcher=core.fetcher,
        committer=core.committer,
        dead_letters=core.dead_letters,
        workers=workers,
        watchdog=_watchdog(core, workers),
        stall_watch=_stall_watch(core),
        stall_guards=_stall_guards(core),
    )


def _core(frame: Frame, until: Until | None) -> _Core:
    processor, sink = frame.processor, frame.settings.config.sink
    # a custom processor has no sink by configuration, and may keep offsets by itself
    refuses = refuses_late(sink) if sink else keeps_own_offsets(processor)
    gates = Gates(wanted_at=processor.wanted_at, sink_refuses=refuses)
    topics = KnownTopics(frame.settings.config.subscription)
    scheduler = Scheduler(frame.clock)
    bounds = Bounds(until, frame.name, frame.clock, frame.fail)
    holdings = _holdings(frame, topics, scheduler, gates, bounds)
    coordinator = frame.ports.coordinator(holdings)
    return _Core(
        frame=frame,
        gates=gates,
        topics=topics,
        scheduler=scheduler,
        skips=frame.skips,
        bounds=bounds,
        holdings=holdings,
        coordinator=coordinator,
        fetcher=_fetcher(frame, scheduler, holdings),
        committer=_committer(frame, topics, scheduler, coordinator),
        dead_letters=_dead_letters(frame),
    )


def _holdings(
    frame: Frame, topics: KnownTopics, scheduler: Scheduler, gates: Gates, bounds: Bounds
) -> Holdings:
    return Holdings(
        name=frame.name,
        settings=frame.settings,
        topics=topics,
        copies=frame.processor.copies,
        scheduler=scheduler,
        gates=gates,
        bounds=bounds,
        metrics=frame.metrics,
        clock=frame.clock,
        fail=frame.fail,
    )


def _topic_watcher(core: _Core, wishes: Wishes) -> TopicWatcher:
    frame, holdings = core.frame, core.holdings
    return TopicWatcher(
        core.topics,
        frame.ports.catalog,
        TopicListener(wishes.topics_are, holdings.log_replaced, holdings.topic_missing),
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _budget(frame: Frame, holdings: Holdings) -> Callable[[], int]:
    prefetch, copies = frame.ports.prefetch, frame.processor.copies

    def memory() -> int:
        """Return what the client leaves, whose own queue keeps the size it was made with."""
        most = frame.settings.config.buffer.max_bytes
        return max(most - prefetch, most // 2)

    def planned() -> int:
        """Return what lets every partition have full batches in flight, and one more planned."""
        now = frame.settings.now
        batches = now.max_in_flight * copies + 1
        return max(1, len(holdings.all())) * batches * now.limits.max_bytes

    return planned if frame.settings.config.by_reference else memory


def _fetcher(frame: Frame, scheduler: Scheduler, holdings: Holdings) -> Fetcher:
    return Fetcher(
        frame.ports.source,
        budget=_budget(frame, holdings),
        touch=scheduler.touch,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _committer(
    frame: Frame, topics: KnownTopics, scheduler: Scheduler, coordinator: Coordinator
) -> Committer:
    def lose(owned: OwnedPartition, refusal: Refusal) -> None:
        """Let go of a partition of which the offset store says that it is somebody else's."""
        log.warning(
            "partition_superseded",
            channel=frame.name,
            topic=owned.partition.topic,
            partition=owned.partition.partition,
            epoch=owned.epoch,
            refusal=refusal.value,
        )
        owned.end(Ending.LOST)
        if refusal is Refusal.MEMBERSHIP:
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


def _desk(core: _Core) -> OperatorDesk:
    return OperatorDesk(
        core.frame.name,
        holdings=core.holdings,
        scheduler=core.scheduler,
        gates=core.gates,
        catalog=core.frame.ports.catalog,
        skips=core.skips,
    )


def _pausing(core: _Core) -> Pausing:
    frame = core.frame
    return Pausing(
        core.gates.pauses,
        holdings=core.holdings,
        committer=core.committer,
        coordinator=core.coordinator,
        settings=frame.settings,
        file=frame.ports.pauses,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _turns(core: _Core, unfinished: Callable[[str], None]) -> Turns:
    """Return what a worker does."""
    frame = core.frame
    callbacks = Callbacks(frame.processor, frame.name, frame.metrics, frame.clock)
    return Turns(
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
            gates=core.gates,
            skips=core.skips,
            policy=_policy(core, callbacks),
            metrics=frame.metrics,
            tracer=frame.ports.tracer,
            clock=frame.clock,
            fail=frame.fail,
            unfinished=unfinished,
            held=core.holdings.all,
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


def _workers(core: _Core, turns: Turns) -> Workers:
    frame, holdings = core.frame, core.holdings

    def turn(owned: OwnedPartition) -> None:
        turns.turn(owned)
        if owned.final:
            holdings.ended(owned)

    return Workers(
        count=frame.settings.config.workers,
        scheduler=core.scheduler,
        turn=turn,
        busy=lambda: any(owned.outstanding for owned in holdings.all()),
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
    )


def _watchdog(core: _Core, workers: Workers) -> Watchdog:
    frame = core.frame
    return Watchdog(
        batch_timeout=lambda: frame.settings.config.batch_timeout,
        partitions=core.holdings.all,
        scheduler=core.scheduler,
        workers=workers,
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
    )


def _stall_guards(core: _Core) -> tuple[StallGuard, ...]:
    watched: dict[str, Turning] = {
        "coordinator": core.coordinator,
        "committer": core.committer,
        "fetcher": core.fetcher,
    }
    return tuple(
        StallGuard(name, part, fail=core.frame.fail, channel=core.frame.name)
        for name, part in watched.items()
    )


def _stall_watch(core: _Core) -> StallWatch:
    frame = core.frame
    return StallWatch(
        partitions=core.holdings.all,
        fetcher=core.fetcher,
        catalog=frame.ports.catalog,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )
