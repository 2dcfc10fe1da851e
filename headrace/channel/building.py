"""How the parts of a channel are put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from headrace.channel.assembly import Assembly
from headrace.channel.bounds import Bounds, Until
from headrace.channel.callbacks import Callbacks
from headrace.channel.committer import Committer
from headrace.channel.dead_letters import DeadLetters
from headrace.channel.desk import OperatorDesk
from headrace.channel.fetcher import Fetcher
from headrace.channel.gates import Gates
from headrace.channel.holdings import Holdings
from headrace.channel.known_topics import KnownTopics
from headrace.channel.parts import Parts
from headrace.channel.pausing import Pausing
from headrace.channel.policy import FailurePolicy
from headrace.channel.scheduler import Scheduler
from headrace.channel.stall import StallGuard
from headrace.channel.stalls import StallWatch
from headrace.channel.states import Ending
from headrace.channel.topics import TopicListener, TopicWatcher
from headrace.channel.turns import Turns
from headrace.channel.watchdog import Watchdog
from headrace.channel.wishes import Wishes
from headrace.channel.workers import Workers
from headrace.config import refuses_late
from headrace.kafka.ports import Refusal
from headrace.processors.contract import keeps_own_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.channel.ports import ChannelPorts
    from headrace.channel.settings import LiveSettings
    from headrace.channel.skips import Skips
    from headrace.clock import Clock
    from headrace.coordinators.coordinator import Coordinator
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
