"""InboundKafkaChannel: one member of one group, with its topics, its processor and its threads."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.backoff import Backoff
from headrace.channel.bounds import Bounds
from headrace.channel.callbacks import Callbacks
from headrace.channel.committer import Committer
from headrace.channel.fetcher import Fetcher
from headrace.channel.gates import Gates
from headrace.channel.holdings import Holdings
from headrace.channel.known_topics import KnownTopics
from headrace.channel.lifecycle import CHANNEL_TRANSITIONS, ChannelState, StopReport
from headrace.channel.parts import Parts
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
from headrace.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.config.wording import dotted
from headrace.errors import ConfigError, FatalError
from headrace.kafka.ports import Refusal
from headrace.processors import ChannelContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.bounds import Until
    from headrace.channel.partition import OwnedPartition
    from headrace.config import ChannelConfig, CoordinatorConfig
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.listener import Listener
    from headrace.kafka.ports import OffsetStore, RecordSource, TopicCatalog
    from headrace.metrics import Metrics, PartitionReading
    from headrace.processors import BatchProcessor

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelPorts:
    """What connects a channel to the world. The channel owns all of it and closes it.

    ``prefetch`` is the part of the memory budget, in bytes, that the source fills by itself.
    ``coordinator`` builds the coordinator for the listener it is to tell. ``commit_interval``, in
    seconds, replaces the configured one.
    """

    source: RecordSource
    store: OffsetStore
    catalog: TopicCatalog
    coordinator: Callable[[Listener], Coordinator]
    prefetch: int = 0
    commit_interval: float | None = None


class InboundKafkaChannel:
    """One member of one group.

    It owns partitions through its coordinator, cuts their records into batches, hands these to
    the processor on worker threads, and commits what the processor advances. With ``until`` each
    partition is read up to an offset that is fixed at the start. ``start``, ``reached_bounds`` and
    ``stop`` are for its owner, one after the other; everything else is safe on any thread.
    """

    def __init__(
        self,
        name: str,
        config: ChannelConfig,
        processor: BatchProcessor,
        ports: ChannelPorts,
        *,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
        on_failure: Callable[[InboundKafkaChannel, BaseException], None] | None = None,
        until: Until | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self._processor = processor
        self._metrics = metrics
        self._clock = clock
        self._on_failure = on_failure
        self._lock = Lock()
        self._state = ChannelState.NEW
        self._failure: BaseException | None = None
        self._unfinished: list[str] = []
        self._catalog = ports.catalog
        self._store = ports.store
        self._gates = Gates()
        self._bounds = Bounds(until, name, clock, self.fail)
        self._scheduler = Scheduler(clock)
        touch = self._scheduler.touch
        self._topics = KnownTopics(config.subscription)
        self._holdings = Holdings(
            name=name,
            config=config,
            topics=self._topics,
            copies=self._processor.copies,
            scheduler=self._scheduler,
            gates=self._gates,
            bounds=self._bounds,
            metrics=metrics,
            clock=clock,
            fail=self.fail,
        )
        self._coordinator: Coordinator = ports.coordinator(self._holdings)
        self._wishes = Wishes(config, self._coordinator)
        listener = TopicListener(
            self._wishes.topics_are, self._holdings.log_replaced, self._holdings.topic_missing
        )
        self._topic_watcher = TopicWatcher(
            self._topics, ports.catalog, listener, channel=name, clock=clock, fail=self.fail
        )
        self._fetcher = Fetcher(
            ports.source,
            budget=config.buffer.max_bytes - ports.prefetch,
            touch=touch,
            metrics=metrics,
            channel=name,
            clock=clock,
            fail=self.fail,
        )
        self._committer = Committer(
            ports.store,
            self._topics,
            interval=_either(ports.commit_interval, config.commit_interval),
            touch=touch,
            lose=self._superseded,
            metrics=metrics,
            channel=name,
            clock=clock,
            fail=self.fail,
        )
        self._turns = Turns(self._parts(ports))
        self._workers = Workers(
            count=config.workers,
            scheduler=self._scheduler,
            turn=self._turn,
            fail=self.fail,
            channel=name,
        )
        self._watchdog = Watchdog(
            batch_timeout=config.batch_timeout,
            partitions=self._holdings.all,
            scheduler=self._scheduler,
            workers=self._workers,
            fail=self.fail,
            metrics=metrics,
            channel=name,
            clock=clock,
        )
        self._stall_guards = [
            StallGuard(what, turning, fail=self.fail, channel=name)
            for what, turning in (
                ("coordinator", self._coordinator),
                ("committer", self._committer),
            )
        ]
        self._stalls = StallWatch(
            partitions=self._holdings.all,
            fetcher=self._fetcher,
            catalog=ports.catalog,
            metrics=metrics,
            channel=name,
            clock=clock,
            fail=self.fail,
        )

    def _parts(self, ports: ChannelPorts) -> Parts:
        config, name, metrics = self.config, self.name, self._metrics
        backoff = Backoff(config.on_error.backoff, config.on_error.max_backoff)
        callbacks = Callbacks(self._processor, name, metrics, self._clock)
        return Parts(
            name=name,
            config=config,
            callbacks=callbacks,
            scheduler=self._scheduler,
            fetcher=self._fetcher,
            committer=self._committer,
            coordinator=self._coordinator,
            store=ports.store,
            catalog=ports.catalog,
            topics=self._topics,
            gates=self._gates,
            backoff=backoff,
            policy=FailurePolicy(
                config.on_error,
                backoff=backoff,
                callbacks=callbacks,
                fail=self.fail,
                metrics=metrics,
                channel=name,
            ),
            metrics=metrics,
            clock=self._clock,
            fail=self.fail,
            unfinished=self._unfinished.append,
            held=self._holdings.all,
        )

    # --- what it is doing -----------------------------------------------------------------------

    @property
    def state(self) -> ChannelState:
        """What the channel is doing."""
        return self._state

    @property
    def failure(self) -> BaseException | None:
        """Why the channel failed, None while it has not."""
        return self._failure

    def partitions(self) -> list[PartitionReading]:
        """Return where each held partition stands at this moment."""
        return self._holdings.readings()

    # --- its life -------------------------------------------------------------------------------

    def start(self, deadline: Deadline) -> None:
        """Get the processor ready, look up the topics and join the group. Blocks.

        Raises:
            StartError: nothing was claimed; everything that had started is stopped again.
        """
        self._become(ChannelState.STARTING)
        try:
            self._processor.open(
                ChannelContext(self.name, self.config.group, self._metrics, self._clock)
            )
            self._topic_watcher.begin(deadline)
            self._bounds.fix(self._catalog, self._topics.counts(), deadline)
        except BaseException:
            self._become(ChannelState.STOPPING)
            self._close(deadline)
            self._become(ChannelState.STOPPED)
            raise
        self._metrics.watch_partitions(self.name, self._holdings.readings)
        self._become(ChannelState.RUNNING)
        for part in (
            self._topic_watcher,
            self._committer,
            self._fetcher,
            self._workers,
            self._watchdog,
            self._stalls,
        ):
            part.start()
        self._coordinator.start()
        for guard in self._stall_guards:
            guard.start()

    def reached_bounds(self, deadline: Deadline) -> bool:
        """Whether a bounded run is over: all partitions of the group are committed that far.

        Blocks until the deadline at most. False for a run without bounds.
        """
        own = {owned.partition: owned.committed for owned in self._holdings.all()}
        return self._bounds.reached(own, self._store, deadline)

    def stop(self, deadline: Deadline) -> StopReport:
        """Finish what is out, commit it, give every partition back and leave the group. Blocks.

        Ends by ``deadline``, whatever hangs; what was not finished stands in the report and will
        be delivered again to the next owner.
        """
        if self._state is ChannelState.STOPPED:
            return StopReport(())
        if self._state is ChannelState.NEW:
            self._close(deadline)
            self._become(ChannelState.STOPPED)
            return StopReport(())
        self._become(ChannelState.STOPPING)
        self._holdings.finish_by(deadline)
        self._unfinished.clear()
        claims = self._coordinator.stop(deadline)
        left = [*self._unfinished, *(f"{claim.partition}: claim" for claim in claims)]
        for name, part in (
            ("fetcher", self._fetcher),
            ("committer", self._committer),
            ("watchdog", self._watchdog),
            ("stall watch", self._stalls),
        ):
            if not part.stop(deadline):
                left.append(name)
        left += ["stall guard" for guard in self._stall_guards if not guard.stop(deadline)]
        # a worker may hang in a callback, and then nothing would be left for those above
        left += self._workers.stop(deadline)
        self._metrics.forget_partitions(self.name)
        left += self._close(deadline)
        self._become(ChannelState.STOPPED)
        return StopReport(tuple(left))

    def pause(self, reason: str) -> None:
        """Hold: deliver nothing more, commit what is answered, keep the partitions."""
        self._gates.pauses.add(reason)
        self._committer.flush()
        self._holdings.touch_all()
        log.info("channel_paused", channel=self.name, reason=reason)

    def resume(self, reason: str) -> None:
        """End the pause for ``reason``; delivery rests on while there are other reasons."""
        self._gates.pauses.remove(reason)
        self._holdings.touch_all()
        log.info("channel_resumed", channel=self.name, reason=reason)

    def replace_coordinator(self, coordinator: CoordinatorConfig) -> None:
        """Choose partitions in another way from now on; what stays ours goes on undisturbed.

        The group hears of it and moves what has to move. Any thread; does not block.

        Raises:
            ConfigError: it does not fit the channel, which goes on as before.
        """
        config = self.config.model_copy(update={"coordinator": coordinator})
        if problems := [f"{dotted(steps)} {rest}" for steps, rest in config.contradictions()]:
            raise ConfigError([f"channels.{self.name}.{problem}" for problem in problems])
        self.config = config
        self._wishes.share_as(config)
        log.info("coordinator_replaced", channel=self.name, type=coordinator.type)

    def fail(self, error: BaseException) -> None:
        """Note that the channel must not go on; its owner hears of the first reason only."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            if ChannelState.FAILED in CHANNEL_TRANSITIONS[self._state]:
                self._state = ChannelState.FAILED
        self._gates.pauses.add("failed")
        log.error("channel_failed", channel=self.name, error=f"{type(error).__name__}: {error}")
        if self._on_failure is not None:
            self._on_failure(self, error)

    def _superseded(self, owned: OwnedPartition, refusal: Refusal) -> None:
        """Let go of a partition of which the offset store says that it is somebody else's."""
        log.warning(
            "partition_superseded",
            channel=self.name,
            topic=owned.partition.topic,
            partition=owned.partition.partition,
            epoch=owned.epoch,
            refusal=refusal.value,
        )
        owned.end(Ending.LOST)
        if refusal is Refusal.MEMBERSHIP:
            self._coordinator.rejoin(owned.claim)
        else:
            self._coordinator.released(owned.claim, clean=False)
        self._scheduler.touch(owned)

    def _turn(self, owned: OwnedPartition) -> None:
        self._turns.turn(owned)
        if owned.final:
            self._holdings.ended(owned)

    def _close(self, deadline: Deadline) -> list[str]:
        """Release what ``start`` may have opened; return what could not be closed."""
        for part in (self._topic_watcher, self._fetcher, self._committer):
            part.stop(deadline)
        try:
            self._processor.close(deadline)
        except Exception as error:
            log.exception("processor_close_failed", channel=self.name)
            return [f"processor: close failed with {type(error).__name__}"]
        finally:
            self._catalog.close()
        return []

    def _become(self, state: ChannelState) -> None:
        with self._lock:
            if state not in CHANNEL_TRANSITIONS[self._state]:
                raise FatalError(f"channel {self.name} cannot go from {self._state} to {state}")
            self._state = state
        log.info("channel_state_changed", channel=self.name, state=state.value)


def _either(chosen: float | None, usual: float) -> float:
    return usual if chosen is None else chosen
