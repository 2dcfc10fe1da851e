"""InboundKafkaChannel: one member of one group, with its topics, its processor and its threads."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.pause_manager import ProcessorPauseControl
from headrace.channel.pauses import Pause, PauseMode, PauseReason
from headrace.channel.runtime import ChannelRuntime
from headrace.channel.settings import LiveSettings
from headrace.channel.skips import Skips
from headrace.channel.states import CHANNEL_TRANSITIONS, ChannelState, StopReport
from headrace.channel.status import MemberSnapshot, member_reading
from headrace.config import ReloadEffect
from headrace.config.errors import dotted
from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.errors import ConfigError, FatalError, Refusal, RefusedError
from headrace.core.user_text import describe_error
from headrace.processors import ChannelContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from headrace.channel.bounds import Until
    from headrace.channel.events import SeekResult
    from headrace.channel.runtime import ChannelPorts
    from headrace.channel.skips import Skip
    from headrace.channel.taps import Tap, TapFilter
    from headrace.config import ChannelConfig, ConfigChange, CoordinatorConfig
    from headrace.core.positions import Replay, Target
    from headrace.core.records import TopicPartition
    from headrace.core.supervision import Heartbeat
    from headrace.processors import BatchProcessor
    from headrace.processors.contract import StateView
    from headrace.telemetry.metrics import Metrics, PartitionSnapshot, PoolSnapshot


log = structlog.get_logger(__name__)

#: What a channel that runs takes over without starting again.
WHILE_RUNNING = frozenset({ReloadEffect.IN_PLACE, ReloadEffect.SHARING, ReloadEffect.TOPICS})


class Reconfiguration:
    """Changes the settings of one channel, and tells the parts that have to do something then.

    What a part reads from the settings each time it needs it takes no telling. Any thread.
    """

    def __init__(self, runtime: ChannelRuntime) -> None:
        self._runtime = runtime
        self._lock = Lock()

    def apply(
        self, config: ChannelConfig, changes: Sequence[ConfigChange], deadline: Deadline
    ) -> None:
        """Apply ``config``; see ``InboundKafkaChannel.reconfigure``."""
        with self._lock:
            if beyond := [c.path for c in changes if c.effect not in WHILE_RUNNING]:
                raise ConfigError([f"{path}: the channel has to start again" for path in beyond])
            self._runtime.dead_letters.recheck(config, deadline)
            topics: AbstractContextManager[None] = nullcontext()
            if any(change.effect is ReloadEffect.TOPICS for change in changes):
                topics = self._runtime.topic_watcher.resubscribe(config.subscription, deadline)
            self._take_over(config, [change.path for change in changes], topics)

    def set_assignor(self, coordinator: CoordinatorConfig) -> None:
        """Share partitions in another way; see ``InboundKafkaChannel.replace_coordinator``."""
        with self._lock:
            config = self._runtime.settings.config.model_copy(update={"coordinator": coordinator})
            if found := [f"{dotted(steps)} {rest}" for steps, rest in config.conflicts()]:
                raise ConfigError([f"channels.{self._runtime.name}.{problem}" for problem in found])
            changed = [f"channels.{self._runtime.name}.coordinator"]
            self._take_over(config, changed, nullcontext())

    def _take_over(
        self, config: ChannelConfig, changed: list[str], topics: AbstractContextManager[None]
    ) -> None:
        # first: where it raises, nothing is taken over, and the next try finds the changes again
        with topics:
            self._runtime.processor.on_reconfigured(config)
        self._runtime.settings.replace(config)
        self._runtime.subscription.set_assignor(config)
        self._runtime.manager.check_tasks()
        self._runtime.workers.resize(config.workers)
        self._runtime.pause_manager.follow_settings()
        self._runtime.committer.flush()
        self._runtime.manager.touch_all()
        log.info("channel_reconfigured", channel=self._runtime.name, changed=changed)


class InboundKafkaChannel:
    """One member of one group.

    It owns partitions through its coordinator, cuts their records into batches, hands these to
    the processor on worker threads, and commits what the processor advances. With ``until`` each
    partition is read up to an offset that is fixed at the start. With ``skips`` it goes on leaving
    out what the channel did in whose place it comes. ``prepare``, ``start``, ``reached_bounds`` and
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
        skips: Skips | None = None,
    ) -> None:
        self.name = name
        self._settings = LiveSettings(config)
        self._processor = processor
        self._metrics = metrics
        self._clock = clock
        self._on_failure = on_failure
        self._life = Lock()
        self._lock = Lock()
        self._state = ChannelState.NEW
        self._failure: BaseException | None = None
        self._runtime = ChannelRuntime(
            name,
            self._settings,
            processor,
            ports,
            skips=skips or Skips(metrics, name),
            until=until,
            metrics=metrics,
            clock=clock,
            fail=self.fail,
        )
        self._reconfiguration = Reconfiguration(self._runtime)

    # --- what it is doing -----------------------------------------------------------------------

    @property
    def config(self) -> ChannelConfig:
        """Return the configuration it runs with."""
        return self._settings.config

    @property
    def state(self) -> ChannelState:
        """Return what the channel is doing."""
        return self._state

    @property
    def failure(self) -> BaseException | None:
        """Return the error that the channel failed with, None while it has not."""
        return self._failure

    @property
    def partition_count(self) -> int:
        """Return how many partitions are held at this moment."""
        return len(self._runtime.manager.all())

    def partitions(self) -> list[PartitionSnapshot]:
        """Return where each held partition stands at this moment, down to a running callback."""
        return self._runtime.manager.snapshots()

    def unanswered(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that wait for a leader that does not answer.

        Brokers may be away, or let no client in. Any thread; does not block.
        """
        return self._runtime.lag_watchdog.unanswered()

    def held_back(self) -> dict[TopicPartition, str]:
        """Return who holds back which partitions: transactions that do not end; see the log."""
        return self._runtime.lag_watchdog.held_back()

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the parts that send heartbeats, which a supervisor's watchdog asks about."""
        return tuple(self._runtime.heartbeats.values())

    @property
    def member(self) -> MemberSnapshot:
        """Return where this member stands with its group."""
        return member_reading(self._runtime.coordinator)

    @property
    def topics(self) -> dict[str, int]:
        """Return the topics as last seen, with their partition counts; none before the start."""
        return self._runtime.topics.counts()

    def deleted_topics(self) -> list[str]:
        """Return the topics that it names and that are not on the brokers any more, sorted."""
        return self._runtime.topics.deleted()

    @property
    def state_reader(self) -> StateView | None:
        """Return what reads the state that its processor keeps by key, None where it keeps none."""
        return self._processor.state_reader()

    @property
    def pool(self) -> PoolSnapshot | None:
        """Return what its processor's threads are doing, None where it has none or cannot say."""
        try:
            return self._processor.pool_snapshot()
        except Exception as error:  # noqa: BLE001 - of a user's processor; the scrape goes on
            reason = describe_error(error)
            log.warning("pool_unknown", channel=self.name, error=reason)
            return None

    def open_tap(self, wanted: TapFilter, by: str) -> Tap:
        """Copy the records that are handed to the processor from now on.

        ``by`` names the user in the log. The caller closes the tap. Does not block.

        Raises:
            RefusedError: the channel does not run, reads by reference, or has enough taps.
        """
        self._require_running()
        if self.config.by_reference:
            raise RefusedError(
                Refusal.TAP_REFUSED,
                f"the records of channel {self.name} do not pass through this process: its source "
                "is by_reference",
                value=self.name,
                next_step="read its topic with a consumer",
            )
        return self._runtime.taps.open(wanted, by)

    def close_tap(self, tap: Tap) -> None:
        """End a tap; harmless where it has ended. Does not block."""
        self._runtime.taps.close(tap)

    # --- its life -------------------------------------------------------------------------------

    def prepare(self, deadline: Deadline) -> None:
        """Get the processor ready, and look up the topics; nothing is claimed yet. Blocks.

        ``deadline`` is when the brokers are to have answered. The processor has a time of its own,
        as Spark has, by which that is put off.

        Raises:
            StartError: something is not there; what had been opened is closed again.
        """
        with self._life:
            self._prepare(deadline)

    def start(self, deadline: Deadline) -> None:
        """Join the group, once everything is prepared. Blocks for what ``prepare`` has not done.

        Raises:
            StartError: nothing was claimed; what had been opened is closed again.
        """
        with self._life:
            if self._state is ChannelState.NEW:
                self._prepare(deadline)
            self._metrics.watch_partitions(self.name, self._runtime.manager.snapshots)
            if (reader := self.state_reader) is not None:
                self._metrics.watch_state(self.name, reader.snapshot)
            self._metrics.watch_pool(self.name, lambda: self.pool)
            self._become(ChannelState.RUNNING)
            self._runtime.start()

    def _prepare(self, deadline: Deadline) -> None:
        patience = deadline.remaining
        self._become(ChannelState.STARTING)
        try:
            self._metrics.begin_channel(self.name)
            self._runtime.pause_manager.restore()
            self._processor.open(
                ChannelContext(
                    self.name,
                    self.config.group,
                    self._metrics,
                    self._clock,
                    ProcessorPauseControl(self._runtime.pause_manager, self._clock),
                    self._runtime.manager.touch_all,
                    ProcessorPauseControl(
                        self._runtime.pause_manager, self._clock, PauseReason.RESTORING
                    ),
                    self.fail,
                    ProcessorPauseControl(
                        self._runtime.pause_manager, self._clock, PauseReason.STATE
                    ),
                    self._runtime.dead_letters.send_undecodable,
                    self._runtime.coordinator.set_warm,
                )
            )
            brokers = Deadline.after(patience, self._clock)
            self._runtime.topic_watcher.begin(brokers)
            self._runtime.dead_letters.check(self.config, brokers)
            self._runtime.bounds.fix(self._runtime.catalog, self._runtime.topics.counts(), brokers)
        except BaseException:
            self._undo(Deadline.after(patience, self._clock))
            raise

    def _undo(self, deadline: Deadline) -> list[str]:
        """Close what was prepared, where nothing has begun; return what could not be closed."""
        self._become(ChannelState.STOPPING)
        left = self._close_parts(deadline)
        self._become(ChannelState.STOPPED)
        return left

    def reached_bounds(self, deadline: Deadline) -> bool:
        """Return whether a bounded run is over: all partitions of the group are committed that far.

        Blocks until the deadline at most. False for a run without bounds. Of a channel that comes
        after another one, to be asked once that is over: its bounds are fixed then.
        """
        runtime = self._runtime
        if runtime.bounds.fix_late(runtime.catalog, runtime.topics.counts(), deadline):
            runtime.manager.narrow_bounds()
        own = {owned.partition: owned.committed for owned in self._runtime.manager.all()}
        return self._runtime.bounds.reached(own, self._runtime.store, deadline)

    def stop(self, deadline: Deadline) -> StopReport:
        """Finish what is out, commit it, give every partition back and leave the group. Blocks.

        Ends by ``deadline``, whatever hangs; what was not finished stands in the report and will
        be delivered again to the next owner. Where another thread is starting or stopping it, that
        is waited for.
        """
        if not self._life.acquire(timeout=deadline.remaining):
            return StopReport(("the channel did not stop in time",))
        try:
            return self._stop(deadline)
        finally:
            self._life.release()

    def _stop(self, deadline: Deadline) -> StopReport:
        if self._state is ChannelState.STOPPED:
            return StopReport(())
        if self._state is ChannelState.NEW:
            self._close_parts(deadline)
            self._become(ChannelState.STOPPED)
            return StopReport(())
        if self._state is ChannelState.STARTING:
            return StopReport(tuple(self._undo(deadline)))
        self._become(ChannelState.STOPPING)
        self._runtime.manager.finish_by(deadline)
        self._runtime.unfinished.clear()
        claims = self._runtime.coordinator.stop(deadline)
        left = [*self._runtime.unfinished, *(f"{claim.partition}: claim" for claim in claims)]
        left += self._runtime.stop(deadline)
        self._metrics.forget_partitions(self.name)
        left += self._close_parts(deadline)
        self._become(ChannelState.STOPPED)
        return StopReport(tuple(left))

    def pause(
        self,
        reason: PauseReason = PauseReason.OPERATOR,
        *,
        by: str,
        mode: PauseMode = PauseMode.HOLD,
        partition: TopicPartition | None = None,
        until: float | None = None,
        note: str = "",
        shorten: bool = False,
    ) -> Pause:
        """Pause delivery, of the channel or of one partition. Does not block.

        ``by`` says who, ``note`` why; ``until`` is in seconds since the epoch. A pause of the same
        holder, reason and scope is replaced, by one that ends sooner only with ``shorten``; others
        go on beside it. ``wait_paused`` tells when it has its effect. Rebalances and new
        configuration are obeyed meanwhile.

        Raises:
            RefusedError: the one that is there goes on for longer, without ``shorten``.
        """
        return self._runtime.pause_manager.begin(
            reason, by=by, mode=mode, partition=partition, until=until, note=note, shorten=shorten
        )

    def take_over(self, pauses: Iterable[Pause]) -> None:
        """Adopt the operator's pauses from the channel that this one replaces.

        Before ``start``. A processor's own pauses end with it.
        """
        kept = [pause for pause in pauses if pause.reason is PauseReason.OPERATOR]
        if kept:
            self._runtime.pause_manager.take_over(kept)

    def resume(
        self,
        reason: PauseReason = PauseReason.OPERATOR,
        *,
        by: str,
        partition: TopicPartition | None = None,
        of: str | None = None,
    ) -> Pause | None:
        """End a pause and return it, None if there was none; others go on. Does not block.

        Of operators' pauses that of ``by`` ends, or that of ``of``. Of what fits nowhere all end,
        where no partition is named.

        Raises:
            RefusedError: others have such pauses, and ``by`` has none; ``of`` says whose ends.
        """
        return self._runtime.pause_manager.end(reason, by=by, partition=partition, of=of)

    def wait_paused(self, deadline: Deadline) -> bool:
        """Wait until all pauses have their effect; False if one has not by the deadline.

        Then nothing that is paused is in the processor's hands, what was answered is committed, and
        what is to be given back is another member's to take.
        """
        return self._runtime.pause_manager.wait(deadline)

    def seek(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        by: str,
        deadline: Deadline,
        replay: Replay | None = None,
    ) -> SeekResult:
        """Move a paused partition to ``offset``, in the group and in its sink. Blocks.

        Returns when that is committed. ``by`` says who; the log keeps it, and so does the history
        of a sink that has one. Where the sink's own offset moves back, ``replay`` says what becomes
        of its output: it can only stay (``APPEND``) while the channel runs.

        Raises:
            RefusedError: the partition is not held or not paused, the offset is not in the log,
                the sink's offset cannot be moved, or it was not done by the deadline.
            KafkaUnavailableError: the partition's leader does not say what it has.
        """
        self._require_running()
        return self._runtime.control.seek(
            partition, offset, by=by, deadline=deadline, replay=replay
        )

    def find(self, target: Target, partition: TopicPartition, deadline: Deadline) -> int:
        """Return the offset within the log that a target means for a paused partition. Blocks.

        Raises as ``seek`` does.
        """
        self._require_running()
        return self._runtime.control.find(target, partition, deadline)

    def skip(
        self, partition: TopicPartition, offset: int, *, reason: str, by: str, force: bool = False
    ) -> Skip:
        """Leave the record with exactly this offset out of the batches from now on.

        Takes effect without a pause; a batch that has failed is retried at once, without the
        record. Counted and logged once the commit is past it. Other members do not know of it:
        where the partition moves on before that, it is to be skipped there. Does not block.
        ``force``: also a record that is not in the batch that is out, or that failed.

        Raises:
            RefusedError: the partition is not held, or there is no such record to skip.
        """
        self._require_running()
        return self._runtime.control.skip(partition, offset, reason=reason, by=by, force=force)

    @property
    def skips(self) -> list[Skip]:
        """Return the records that are to be left out and that no commit is past yet."""
        return self._runtime.skips.all()

    def _require_running(self) -> None:
        if self._state is not ChannelState.RUNNING:
            raise RefusedError(
                Refusal.NOT_RUNNING,
                f"channel {self.name} is {self._state.value}",
                value=self.name,
                next_step="wait until it runs; a channel that failed needs a new start",
            )

    @property
    def pauses(self) -> tuple[Pause, ...]:
        """Return the pauses at this moment, the oldest first."""
        return self._runtime.pause_manager.all()

    def reconfigure(
        self, config: ChannelConfig, changes: Sequence[ConfigChange], deadline: Deadline
    ) -> None:
        """Apply ``config`` in place; ``changes`` are the differences to the running configuration.

        Hot values hold from the next time they are needed, and nothing is given back for them. A
        new coordinator and new topics move what has to move: partitions of topics that are not in
        ``config`` any more are given back. Any thread; blocks only for topics, until the deadline
        at most.

        Raises:
            ConfigError: a change needs a new start, so nothing was changed.
            UnknownTopicError: a topic that is new, or a new dead-letter topic, does not exist;
                nothing was changed.
            KafkaUnavailableError: no broker answered about the topics in time; nothing was changed.
        """
        self._reconfiguration.apply(config, changes, deadline)

    def replace_coordinator(self, coordinator: CoordinatorConfig) -> None:
        """Choose partitions in another way from now on; what stays ours goes on undisturbed.

        The group hears of it and moves what has to move. Any thread; does not block.

        Raises:
            ConfigError: it does not fit the channel, which goes on as before.
        """
        self._reconfiguration.set_assignor(coordinator)

    def fail(self, error: BaseException) -> None:
        """Mark the channel as failed; its owner gets the first reason only."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            if ChannelState.FAILED in CHANNEL_TRANSITIONS[self._state]:
                self._state = ChannelState.FAILED
        self._runtime.delivery_gate.pauses.add(
            Pause(PauseReason.ERROR, "headrace", self._clock.time(), note=str(error))
        )
        log.error("channel_failed", channel=self.name, error=describe_error(error))
        if self._on_failure is not None:
            self._on_failure(self, error)

    def _close_parts(self, deadline: Deadline) -> list[str]:
        """Release what ``start`` may have opened; return what could not be closed."""
        self._runtime.close(deadline)
        try:
            self._processor.close(deadline)
        except Exception as error:
            log.exception("processor_close_failed", channel=self.name)
            return [f"processor: close failed with {type(error).__name__}"]
        finally:
            self._runtime.catalog.close()
        return []

    def _become(self, state: ChannelState) -> None:
        with self._lock:
            if state not in CHANNEL_TRANSITIONS[self._state]:
                raise FatalError(f"channel {self.name} cannot go from {self._state} to {state}")
            self._state = state
        log.info("channel_state_changed", channel=self.name, state=state.value)
