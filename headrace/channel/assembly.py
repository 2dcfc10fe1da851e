"""How the parts of a channel are put together, and in which order they start and stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from headrace.channel.bounds import Bounds, Until
from headrace.channel.callbacks import Callbacks
from headrace.channel.committer import Committer
from headrace.channel.desk import OperatorDesk
from headrace.channel.fetcher import Fetcher
from headrace.channel.gates import Gates
from headrace.channel.holdings import Holdings
from headrace.channel.known_topics import KnownTopics
from headrace.channel.parts import Parts
from headrace.channel.pausing import Pausing
from headrace.channel.policy import FailurePolicy
from headrace.channel.scheduler import Scheduler
from headrace.channel.skips import Skips
from headrace.channel.stall import StallGuard
from headrace.channel.stalls import StallWatch
from headrace.channel.states import Ending
from headrace.channel.topics import TopicListener, TopicWatcher
from headrace.channel.turns import Turns
from headrace.channel.watchdog import Watchdog
from headrace.channel.wishes import Wishes
from headrace.channel.workers import Workers
from headrace.kafka.ports import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.channel.ports import ChannelPorts
    from headrace.channel.settings import LiveSettings
    from headrace.clock import Clock, Deadline
    from headrace.coordinators.coordinator import Coordinator
    from headrace.kafka.ports import OffsetStore, TopicCatalog
    from headrace.metrics import Metrics
    from headrace.processors import BatchProcessor
    from headrace.progress import Turning

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Frame:
    """What the parts of one channel are built with. ``fail`` stops the whole channel."""

    name: str
    settings: LiveSettings
    processor: BatchProcessor
    ports: ChannelPorts
    metrics: Metrics
    clock: Clock
    fail: Callable[[BaseException], None]


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


def assemble(frame: Frame, *, until: Until | None, unfinished: Callable[[str], None]) -> Assembly:
    """Build the parts of a channel; nothing is started, nobody is asked.

    ``unfinished`` is told what a release had to leave undone.
    """
    gates, topics = Gates(), KnownTopics(frame.settings.config.subscription)
    scheduler = Scheduler(frame.clock)
    bounds = Bounds(until, frame.name, frame.clock, frame.fail)
    holdings = _holdings(frame, topics, scheduler, gates, bounds)
    coordinator = frame.ports.coordinator(holdings)
    wishes = Wishes(frame.settings.config, coordinator)
    fetcher = _fetcher(frame, scheduler)
    committer = _committer(frame, topics, scheduler, coordinator)
    shared = {"scheduler": scheduler, "fetcher": fetcher, "committer": committer}
    shared |= {"coordinator": coordinator, "topics": topics, "gates": gates}
    skips = Skips(frame.metrics, frame.name)
    turns = _turns(frame, **shared, skips=skips, unfinished=unfinished, held=holdings.all)
    workers = _workers(frame, scheduler, turns, holdings)
    return Assembly(
        catalog=frame.ports.catalog,
        store=frame.ports.store,
        gates=gates,
        pausing=_pausing(frame, gates, holdings, committer, coordinator),
        desk=OperatorDesk(
            frame.name,
            holdings=holdings,
            scheduler=scheduler,
            gates=gates,
            catalog=frame.ports.catalog,
            skips=skips,
        ),
        bounds=bounds,
        topics=topics,
        holdings=holdings,
        coordinator=coordinator,
        wishes=wishes,
        topic_watcher=_topic_watcher(frame, topics, wishes, holdings),
        fetcher=fetcher,
        committer=committer,
        workers=workers,
        watchdog=_watchdog(frame, holdings, scheduler, workers),
        stall_watch=_stall_watch(frame, holdings, fetcher),
        stall_guards=(
            StallGuard("coordinator", coordinator, fail=frame.fail, channel=frame.name),
            StallGuard("committer", committer, fail=frame.fail, channel=frame.name),
            StallGuard("fetcher", fetcher, fail=frame.fail, channel=frame.name),
        ),
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


def _topic_watcher(
    frame: Frame, topics: KnownTopics, wishes: Wishes, holdings: Holdings
) -> TopicWatcher:
    return TopicWatcher(
        topics,
        frame.ports.catalog,
        TopicListener(wishes.topics_are, holdings.log_replaced, holdings.topic_missing),
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _fetcher(frame: Frame, scheduler: Scheduler) -> Fetcher:
    prefetch = frame.ports.prefetch

    def budget() -> int:
        """Return what the client leaves, whose own queue keeps the size it was made with."""
        most = frame.settings.config.buffer.max_bytes
        return max(most - prefetch, most // 2)

    return Fetcher(
        frame.ports.source,
        budget=budget,
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


def _pausing(
    frame: Frame, gates: Gates, holdings: Holdings, committer: Committer, coordinator: Coordinator
) -> Pausing:
    return Pausing(
        gates.pauses,
        holdings=holdings,
        committer=committer,
        coordinator=coordinator,
        settings=frame.settings,
        file=frame.ports.pauses,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )


def _turns(frame: Frame, **others: Any) -> Turns:
    """Return what a worker does; ``others`` are the parts that it shares with other threads."""
    callbacks = Callbacks(frame.processor, frame.name, frame.metrics, frame.clock)
    return Turns(
        Parts(
            name=frame.name,
            settings=frame.settings,
            callbacks=callbacks,
            store=frame.ports.store,
            catalog=frame.ports.catalog,
            policy=_policy(frame, callbacks),
            metrics=frame.metrics,
            tracer=frame.ports.tracer,
            clock=frame.clock,
            fail=frame.fail,
            **others,
        )
    )


def _policy(frame: Frame, callbacks: Callbacks) -> FailurePolicy:
    return FailurePolicy(
        frame.settings,
        callbacks=callbacks,
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
    )


def _workers(frame: Frame, scheduler: Scheduler, turns: Turns, holdings: Holdings) -> Workers:
    def turn(owned: OwnedPartition) -> None:
        turns.turn(owned)
        if owned.final:
            holdings.ended(owned)

    return Workers(
        count=frame.settings.config.workers,
        scheduler=scheduler,
        turn=turn,
        busy=lambda: any(owned.outstanding for owned in holdings.all()),
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
    )


def _watchdog(frame: Frame, holdings: Holdings, scheduler: Scheduler, workers: Workers) -> Watchdog:
    return Watchdog(
        batch_timeout=lambda: frame.settings.config.batch_timeout,
        partitions=holdings.all,
        scheduler=scheduler,
        workers=workers,
        fail=frame.fail,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
    )


def _stall_watch(frame: Frame, holdings: Holdings, fetcher: Fetcher) -> StallWatch:
    return StallWatch(
        partitions=holdings.all,
        fetcher=fetcher,
        catalog=frame.ports.catalog,
        metrics=frame.metrics,
        channel=frame.name,
        clock=frame.clock,
        fail=frame.fail,
    )
