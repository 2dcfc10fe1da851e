"""Taking the steps of a plan, each as a whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.clock import Clock, Deadline
from headrace.config.diff import adopt
from headrace.controller.plan import Action, Step, plan
from headrace.controller.probing import require_session, require_topics
from headrace.errors import (
    ConfigError,
    FatalError,
    HeadraceError,
    KafkaUnavailableError,
    StartError,
    UnknownTopicError,
    ZooKeeperUnavailableError,
)
from headrace.logs.levels import set_level
from headrace.spark.factory import spark_channels, spark_settings
from headrace.zookeeper.protocol import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.channel.pauses import Pause
    from headrace.config import Change, ChannelConfig, Config
    from headrace.controller.controller import KafkaController
    from headrace.processors import BatchProcessor

log = structlog.get_logger(__name__)

#: Seconds in which brokers have to say which topics there are, as at a start.
LOOK_TIMEOUT = 15.0

#: Seconds in which the brokers have to answer a channel that starts.
START_TIMEOUT = 180.0

#: Seconds that running micro-batches have to end in before Spark is built anew. While it is waited
#: for, no further one begins.
SPARK_TIMEOUT = 30.0


class NotNowError(HeadraceError):
    """Something has to be back first; the step is taken then."""


#: What passes by itself, so that a step is worth being tried again.
PASSING = (NotNowError, KafkaUnavailableError, ZooKeeperUnavailableError, UnknownTopicError)


class Applying:
    """Brings a controller from the configuration that runs to another one. For one thread.

    ``reasons`` says after ``reconcile`` why something is not applied: by channel, or by the
    effect of what all channels share. ``passes`` tells whether another try may succeed.
    """

    def __init__(
        self, controller: KafkaController, stopping: Callable[[], bool], clock: Clock
    ) -> None:
        self.reasons: dict[str, str] = {}
        self.passes = False
        self._controller = controller
        self._stopping = stopping
        self._clock = clock
        self._pauses: dict[str, tuple[Pause, ...]] = {}

    def reconcile(self, desired: Config) -> None:
        """Take the steps to ``desired``; what fails holds up nothing else. Blocks."""
        self.reasons.clear()
        self.passes = False
        for step in plan(self._controller.config, desired, self.recoded()):
            try:
                self._require_time()
                self._take(step, desired)
            except FatalError as error:
                self._controller.fail(error)
                self._note(step, error)
            except HeadraceError as error:
                self._note(step, error)
            except Exception as error:
                log.exception("config_step_failed", action=step.action.value, channel=step.channel)
                self._note(step, HeadraceError(f"{type(error).__name__}: {error}"))

    def recoded(self) -> tuple[Change, ...]:
        """Return of which channels the code is not what they run. Blocks while files are read."""
        found = map(self._controller.code.change, tuple(self._controller.channels))
        return tuple(change for change in found if change is not None)

    def _note(self, step: Step, error: HeadraceError) -> None:
        self.passes = self.passes or isinstance(error, PASSING)
        for change in step.changes:
            self.reasons.setdefault(change.channel or change.effect.value, str(error))

    def _take(self, step: Step, desired: Config) -> None:
        name = step.channel or ""
        match step.action:
            case Action.ADOPT:
                if any(change.path == "logging.level" for change in step.changes):
                    set_level(desired.logging.level)
            case Action.STOP:
                self._require_zookeeper()
                self._close(name)
                # one of this name that comes some day is another channel
                del self._pauses[name]
            case Action.CONNECT:
                # says itself what runs, because a channel that did not start is none of it
                self._connect(desired)
                return
            case Action.REBUILD_SPARK:
                self._rebuild_spark(desired)
            case Action.ADJUST:
                channel = self._controller.channels[name]
                channel.reconfigure(desired.channels[name], self._after(LOOK_TIMEOUT))
                self._controller.code.note(name, desired.channels[name])
            case Action.RESTART:
                self._restart(name, desired.channels[name])
            case Action.START:
                self._start(name, desired.channels[name])
            case Action.WAIT:
                raise HeadraceError("the process has to be restarted for it")
        self._controller.config = adopt(self._controller.config, desired, step.changes)

    # --- channels ---------------------------------------------------------------------------

    def _start(self, name: str, channel: ChannelConfig) -> None:
        processor = self._controller.processor(name, channel)
        self._open(name, channel, processor)
        log.info("channel_started", channel=name)

    def _restart(self, name: str, channel: ChannelConfig) -> None:
        """Start a channel anew; what can be known to fail is found before it is stopped."""
        self._require_zookeeper()
        require_topics(self._controller.config.kafka, name, channel, self._after(LOOK_TIMEOUT))
        former, code = self._controller.config.channels[name], self._controller.code.forget(name)
        try:
            processor = self._controller.processor(name, channel)
        except BaseException:
            self._controller.code.restore(code)
            raise
        self._close(name)
        try:
            self._open(name, channel, processor)
        except (StartError, ConfigError) as error:
            log.error("channel_not_restarted", channel=name, error=str(error))  # noqa: TRY400 - the reason says it all
            self._controller.code.restore(code)
            if not self._stopping():
                self._go_back(name, former)
            raise
        log.info("channel_restarted", channel=name)

    def _go_back(self, name: str, former: ChannelConfig) -> None:
        """Let a channel run as before; where that fails too it is none of those that run."""
        try:
            self._open(name, former, self._controller.processor(name, former))
        except (StartError, ConfigError) as error:
            log.error("channel_not_running", channel=name, error=str(error))  # noqa: TRY400 - as above
            self._without(name)

    def _open(self, name: str, channel: ChannelConfig, processor: BatchProcessor) -> None:
        self._require_time()
        pauses = self._pauses.get(name, ())
        self._controller.open(name, channel, processor, self._after(START_TIMEOUT), pauses)
        self._pauses.pop(name, None)

    def _close(self, name: str) -> None:
        """Stop a channel, whose pauses are those of the channel that comes in its place."""
        self._require_time()
        channel = self._controller.channels[name]
        report = self._controller.close(name, self._after(self._controller.config.shutdown_timeout))
        # only now: somebody may have begun or ended one meanwhile
        self._pauses[name] = channel.pauses
        if not report.clean:
            log.warning("channel_stop_overran", channel=name, unfinished=list(report.left))

    def _without(self, name: str) -> None:
        config = self._controller.config
        rest = {other: c for other, c in config.channels.items() if other != name}
        self._controller.config = config.model_copy(update={"channels": rest})

    # --- connections ------------------------------------------------------------------------

    def _connect(self, desired: Config) -> None:
        """Connect anew, once it is known that somebody answers there."""
        controller, former = self._controller, self._controller.config
        enabled = {name: c for name, c in desired.channels.items() if c.enabled}
        processors = {name: controller.processor(name, c) for name, c in enabled.items()}
        for name, channel in enabled.items():
            require_topics(desired.kafka, name, channel, self._after(LOOK_TIMEOUT))
        moves = desired.zookeeper != former.zookeeper
        if moves:
            require_session(desired.zookeeper, self._after(desired.zookeeper.connect_timeout))
        self._require_time()
        deadline = self._after(former.shutdown_timeout)
        closed = dict(controller.channels)
        if left := controller.close_all(deadline).left:
            log.warning("channel_stop_overran", channel=None, unfinished=list(left))
        self._pauses |= {name: channel.pauses for name, channel in closed.items()}
        if moves:
            self._move(former, desired)
        shared = {"kafka": desired.kafka, "zookeeper": desired.zookeeper}
        controller.config = former.model_copy(update={**shared, "channels": desired.channels})
        self._open_all(enabled, processors)
        self.passes = self.passes or bool(self.recoded())
        log.info("connected_anew", channels=sorted(controller.channels))

    def _move(self, former: Config, desired: Config) -> None:
        """Take another ZooKeeper session, or the former one with the former channels."""
        deadline = self._after(former.shutdown_timeout)
        try:
            self._controller.replace_session(desired.zookeeper, deadline)
        except StartError as error:
            try:
                self._controller.replace_session(former.zookeeper, deadline)
            except StartError as second:
                raise FatalError(
                    f"there is no ZooKeeper session with the new section ({error}) and none with "
                    f"the former one ({second}), so no channel runs; the process has to be "
                    "restarted"
                ) from second
            enabled = {name: c for name, c in former.channels.items() if c.enabled}
            processors = {n: self._controller.processor(n, c) for n, c in enabled.items()}
            self._open_all(enabled, processors)
            raise

    def _open_all(
        self, channels: Mapping[str, ChannelConfig], processors: Mapping[str, BatchProcessor]
    ) -> None:
        """Start what can be started; the rest does not run, and says why."""
        for name, channel in channels.items():
            try:
                self._open(name, channel, processors[name])
            except (StartError, ConfigError) as error:
                log.error("channel_not_running", channel=name, error=str(error))  # noqa: TRY400 - as above
                self.passes = self.passes or isinstance(error, PASSING)
                self.reasons[name] = str(error)
                self._without(name)

    def _rebuild_spark(self, desired: Config) -> None:
        settings = spark_settings(desired.spark, spark_channels(desired))
        if not self._controller.replace_spark(settings, self._after(SPARK_TIMEOUT)):
            raise NotNowError("a micro-batch runs for long; Spark is built anew when it has ended")

    # --- helpers ----------------------------------------------------------------------------

    def _after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self._clock)

    def _require_time(self) -> None:
        """Begin nothing any more that the stop of the process would have to undo."""
        if self._stopping():
            raise NotNowError("the process stops")

    def _require_zookeeper(self) -> None:
        """Refuse to give partitions back while nobody could be told of it."""
        if self._controller.session.state is not SessionState.CONNECTED:
            raise NotNowError(
                "ZooKeeper does not answer, so partitions cannot be given back in order; "
                "it is applied when ZooKeeper is back"
            )
