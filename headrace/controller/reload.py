"""Reloading: what differs, what has to be done about it, and the thread that does it."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.config import ReloadEffect, diff, load
from headrace.config.diff import adopt
from headrace.config.show import document
from headrace.config.watch import FileWatcher
from headrace.controller.engine_session import session_settings as engine_settings
from headrace.controller.preflight import preflight
from headrace.controller.reports import ConfigStatus, PendingChange, ReloadOutcome, ReloadReport
from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.errors import ConfigError, FatalError, HeadraceError, RetryableError, StartError
from headrace.core.files import digest
from headrace.core.user_text import describe_error
from headrace.formats.errors import UnknownSchemaError
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.clients import client_properties
from headrace.kafka.errors import KafkaUnavailableError, UnknownTopicError
from headrace.telemetry.logs.levels import set_level
from headrace.zookeeper.errors import ZooKeeperUnavailableError
from headrace.zookeeper.protocol import SessionState
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import session_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.channel.pauses import Pause
    from headrace.config import (
        ChannelConfig,
        Config,
        ConfigChange,
        KafkaConfig,
        ReloadConfig,
        ZooKeeperConfig,
    )
    from headrace.controller.controller import KafkaController
    from headrace.processors import BatchProcessor


class Action(Enum):
    """The action of one step, in the order in which steps are taken."""

    ADOPT = "adopt"
    """Record values that are read when they are needed."""
    STOP = "stop"
    """Stop a channel that was removed or is not enabled any more."""
    CONNECT = "connect"
    """Drain all channels, connect to ZooKeeper and Kafka again, and start the channels."""
    REBUILD_SPARK = "rebuild Spark"
    """Build the Spark session again."""
    ADJUST = "adjust"
    """Change a channel while it runs, by ``channel.Reconfiguration``."""
    RESTART = "restart"
    """Stop a channel and start it again."""
    START = "start"
    """Start a channel that did not run."""
    WAIT = "wait for a restart"
    """Nothing: only a restart of the process brings the values in."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done, or not, as a whole: for one channel, or with None for all."""

    action: Action
    channel: str | None
    changes: tuple[ConfigChange, ...]


def plan(applied: Config, desired: Config, changes: tuple[ConfigChange, ...]) -> tuple[Step, ...]:
    """Return the steps that make ``changes``, in their order.

    What is connected again brings the changes of all channels with it.
    """
    steps = [*_shared(changes)]
    if any(step.action is Action.CONNECT for step in steps):
        return _in_order(_with_channels(step, changes) for step in steps)
    names = dict.fromkeys(change.channel for change in changes if change.channel is not None)
    steps += (_of_channel(name, applied, desired, changes) for name in names)
    return _in_order(steps)


_SHARED = {
    ReloadEffect.IN_PLACE: Action.ADOPT,
    ReloadEffect.CONNECTION: Action.CONNECT,
    ReloadEffect.SPARK: Action.REBUILD_SPARK,
    ReloadEffect.PROCESS: Action.WAIT,
}


def _in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    order = list(Action)
    return tuple(sorted(steps, key=lambda step: order.index(step.action)))


def _shared(changes: tuple[ConfigChange, ...]) -> Iterator[Step]:
    for effect, action in _SHARED.items():
        found = tuple(c for c in changes if c.channel is None and c.effect is effect)
        if found:
            yield Step(action, None, found)


def _with_channels(step: Step, changes: tuple[ConfigChange, ...]) -> Step:
    if step.action is not Action.CONNECT:
        return step
    return Step(step.action, None, (*step.changes, *(c for c in changes if c.channel is not None)))


def _of_channel(
    name: str, applied: Config, desired: Config, changes: tuple[ConfigChange, ...]
) -> Step:
    mine = tuple(change for change in changes if change.channel == name)
    before, after = applied.channels.get(name), desired.channels.get(name)
    runs, shall = before is not None and before.enabled, after is not None and after.enabled
    if not runs or not shall:
        action = Action.STOP if runs else Action.START if shall else Action.ADOPT
    else:
        restart = any(change.effect is ReloadEffect.CHANNEL for change in mine)
        action = Action.RESTART if restart else Action.ADJUST
    return Step(action, name, mine)


def require_topics(
    kafka: KafkaConfig, name: str, channel: ChannelConfig, deadline: Deadline
) -> None:
    """Check that the topics of a channel exist. Blocks until the deadline at most.

    Raises:
        KafkaUnavailableError: no broker answers.
        UnknownTopicError: one of them does not exist.
    """
    named = channel.subscription.names
    catalog = KafkaTopicCatalog(client_properties(kafka), channel.group)
    try:
        catalog.cluster_id(deadline)
        missing = sorted(set(named) - catalog.describe(named, deadline).keys())
    finally:
        catalog.close()
    if missing:
        raise UnknownTopicError(
            f"channel {name}: no topic {', '.join(missing)} on the broker; create it, or correct "
            f"channels.{name}.topics"
        )


def require_session(zookeeper: ZooKeeperConfig, deadline: Deadline) -> None:
    """Open a session and end it again. Blocks, for ``connect_timeout`` at most.

    Raises:
        ZooKeeperUnavailableError: no server lets us in.
        AccessDeniedError: the servers deny the chroot to us.
    """
    session = ZooKeeperSession(session_settings(zookeeper))
    try:
        session.start()
    finally:
        session.close(deadline)


log = structlog.get_logger(__name__)

#: Seconds in which brokers have to say which topics there are, as at a start.
LOOK_TIMEOUT = 15.0

#: Seconds in which the brokers have to answer a channel that starts.
START_TIMEOUT = 180.0

#: Seconds that running micro-batches have to end in before Spark is built again. While it is waited
#: for, no further one begins.
SPARK_TIMEOUT = 30.0


#: What passes by itself, so that a step is worth being tried again.
PASSING = (
    RetryableError,
    KafkaUnavailableError,
    ZooKeeperUnavailableError,
    UnknownTopicError,
    UnknownSchemaError,
)


def _passes(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, passes by itself."""
    return error is not None and (isinstance(error, PASSING) or _passes(error.__cause__))


class ReloadRun:
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

    def reconcile(
        self, desired: Config, changes: tuple[ConfigChange, ...]
    ) -> tuple[ConfigChange, ...]:
        """Apply ``desired``; ``changes`` are its differences to what runs. Blocks.

        What fails holds up nothing else.

        Returns:
            the changes that run now, in their order.
        """
        self.reasons.clear()
        self.passes = False
        taken: list[ConfigChange] = []
        for step in plan(self._controller.config, desired, changes):
            try:
                self._require_time()
                self._take_step(step, desired)
                taken += step.changes
            except FatalError as error:
                self._controller.fail(error)
                self._note_failure(step, error)
            except HeadraceError as error:
                self._note_failure(step, error)
            except Exception as error:
                log.exception("config_step_failed", action=step.action.value, channel=step.channel)
                self._note_failure(step, HeadraceError(describe_error(error)))
        # of a channel that did not start with the connections nothing runs
        return tuple(c for c in changes if c in taken and c.channel not in self.reasons)

    def recoded(self) -> tuple[ConfigChange, ...]:
        """Return of which channels the code is not what they run. Blocks while files are read."""
        found = map(self._controller.code.change, tuple(self._controller.channels))
        return tuple(change for change in found if change is not None)

    def _note_failure(self, step: Step, error: HeadraceError) -> None:
        self.passes = self.passes or _passes(error)
        for change in step.changes:
            self.reasons.setdefault(change.channel or change.effect.value, str(error))

    def _take_step(self, step: Step, desired: Config) -> None:
        name = step.channel or ""
        match step.action:
            case Action.ADOPT:
                if any(change.path == "logging.level" for change in step.changes):
                    set_level(desired.logging.level)
            case Action.STOP:
                self._require_zookeeper()
                self._close_channel(name)
                # one of this name that comes some day is another channel
                del self._pauses[name]
            case Action.CONNECT:
                # says itself what runs, because a channel that did not start is none of it
                self._connect(desired, step.changes)
                return
            case Action.REBUILD_SPARK:
                self._rebuild_spark(desired)
            case Action.ADJUST:
                channel = self._controller.channels[name]
                deadline = self._deadline_in(LOOK_TIMEOUT)
                channel.reconfigure(desired.channels[name], step.changes, deadline)
                self._controller.code.note(name, desired.channels[name])
            case Action.RESTART:
                self._restart(name, desired.channels[name])
            case Action.START:
                self._start(name, desired.channels[name])
            case Action.WAIT:
                raise HeadraceError("the process has to be restarted for it")
        self._controller.adopt(adopt(self._controller.config, desired, step.changes))

    # --- channels ---------------------------------------------------------------------------

    def _start(self, name: str, channel: ChannelConfig) -> None:
        processor = self._controller.processor(name, channel)
        self._open_channel(name, channel, processor)
        log.info("channel_started", channel=name)

    def _restart(self, name: str, channel: ChannelConfig) -> None:
        """Start a channel again; what can be known to fail is found before it is stopped."""
        self._require_zookeeper()
        require_topics(
            self._controller.config.kafka, name, channel, self._deadline_in(LOOK_TIMEOUT)
        )
        former, code = self._controller.config.channels[name], self._controller.code.forget(name)
        try:
            processor = self._controller.processor(name, channel)
        except BaseException:
            self._controller.code.restore(code)
            raise
        self._close_channel(name)
        try:
            self._open_channel(name, channel, processor)
        except (StartError, ConfigError) as error:
            log.error("channel_not_restarted", channel=name, error=str(error))  # noqa: TRY400 - the reason says it all
            self._controller.code.restore(code)
            if not self._stopping():
                self._go_back(name, former)
            raise
        log.info("channel_restarted", channel=name)

    def _go_back(self, name: str, former: ChannelConfig) -> None:
        """Restart a channel as it ran before; if that fails too, it is no longer running."""
        try:
            self._open_channel(name, former, self._controller.processor(name, former))
        except (StartError, ConfigError) as error:
            log.error("channel_not_running", channel=name, error=str(error))  # noqa: TRY400 - the reason says it all
            self._adopt_without(name)

    def _open_channel(self, name: str, channel: ChannelConfig, processor: BatchProcessor) -> None:
        self._require_time()
        pauses = self._pauses.get(name, ())
        self._controller.open(name, channel, processor, self._deadline_in(START_TIMEOUT), pauses)
        self._pauses.pop(name, None)

    def _close_channel(self, name: str) -> None:
        """Stop a channel, whose pauses are those of the channel that comes in its place."""
        self._require_time()
        channel = self._controller.channels[name]
        report = self._controller.close(
            name, self._deadline_in(self._controller.config.shutdown_timeout)
        )
        # only now: an operator may have begun or ended one meanwhile
        self._pauses[name] = channel.pauses
        if not report.clean:
            log.warning("channel_stop_timed_out", channel=name, unfinished=list(report.left))

    def _adopt_without(self, name: str) -> None:
        config = self._controller.config
        rest = {other: c for other, c in config.channels.items() if other != name}
        self._controller.adopt(config.model_copy(update={"channels": rest}))

    # --- connections ------------------------------------------------------------------------

    def _connect(self, desired: Config, changes: tuple[ConfigChange, ...]) -> None:
        """Connect again, once it is known that a server answers there."""
        controller, former = self._controller, self._controller.config
        enabled = {name: c for name, c in desired.channels.items() if c.enabled}
        processors = {name: controller.processor(name, c, desired) for name, c in enabled.items()}
        for name, channel in enabled.items():
            require_topics(desired.kafka, name, channel, self._deadline_in(LOOK_TIMEOUT))
        moves = any(change.steps[0] == "zookeeper" for change in changes)
        if moves:
            require_session(desired.zookeeper, self._deadline_in(desired.zookeeper.connect_timeout))
        self._require_time()
        deadline = self._deadline_in(former.shutdown_timeout)
        closed = dict(controller.channels)
        if left := controller.close_all(deadline).left:
            log.warning("channel_stop_timed_out", channel=None, unfinished=list(left))
        self._pauses |= {name: channel.pauses for name, channel in closed.items()}
        if moves:
            self._move_session(former, desired)
        self._renew_spark(former, desired)
        shared = {
            "kafka": desired.kafka,
            "zookeeper": desired.zookeeper,
            "registry": desired.registry,
        }
        controller.adopt(former.model_copy(update={**shared, "channels": desired.channels}))
        self._open_all(enabled, processors)
        self.passes = self.passes or bool(self.recoded())
        log.info("clients_reconnected", channels=sorted(controller.channels))

    def _move_session(self, former: Config, desired: Config) -> None:
        """Switch to another ZooKeeper session, or back to the former one with its channels."""
        deadline = self._deadline_in(former.shutdown_timeout)
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
            self._open_again(former)
            raise

    def _renew_spark(self, former: Config, desired: Config) -> None:
        """Rebuild Spark where its JVM has to be told of another login, while no channel runs.

        Where it cannot be rebuilt, the channels go on with the former brokers.
        """
        if self._controller.spark is None:
            return
        moved = former.model_copy(update={"kafka": desired.kafka})
        if engine_settings(moved) == engine_settings(former):
            return
        try:
            self._rebuild_spark(moved)
        except (StartError, RetryableError):
            kept = former.model_copy(update={"zookeeper": desired.zookeeper})
            self._controller.adopt(kept)
            self._open_again(kept)
            raise

    def _open_again(self, config: Config) -> None:
        """Start all channels as they ran before."""
        enabled = {name: c for name, c in config.channels.items() if c.enabled}
        processors = {n: self._controller.processor(n, c) for n, c in enabled.items()}
        self._open_all(enabled, processors)

    def _open_all(
        self, channels: Mapping[str, ChannelConfig], processors: Mapping[str, BatchProcessor]
    ) -> None:
        """Start what can be started; the rest does not run, and says why."""
        for name, channel in channels.items():
            try:
                self._open_channel(name, channel, processors[name])
            except (StartError, ConfigError) as error:
                log.error("channel_not_running", channel=name, error=str(error))  # noqa: TRY400 - the reason says it all
                self.passes = self.passes or _passes(error)
                self.reasons[name] = str(error)
                self._adopt_without(name)

    def _rebuild_spark(self, desired: Config) -> None:
        settings = engine_settings(desired)
        if not self._controller.replace_spark(settings, self._deadline_in(SPARK_TIMEOUT)):
            raise RetryableError(
                "a micro-batch runs for long; Spark is built again when it has ended"
            )

    # --- helpers ----------------------------------------------------------------------------

    def _deadline_in(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self._clock)

    def _require_time(self) -> None:
        """Raise if the process stops, which would have to undo the next step."""
        if self._stopping():
            raise RetryableError("the process stops")

    def _require_zookeeper(self) -> None:
        """Refuse to release partitions while ZooKeeper cannot be told of it."""
        if self._controller.session.state is not SessionState.CONNECTED:
            raise RetryableError(
                "ZooKeeper does not answer, so partitions cannot be given back in order; "
                "it is applied when ZooKeeper is back"
            )


#: Seconds until what may pass by itself is tried again, and the most that doubles to.
FIRST_RETRY, LAST_RETRY = 1.0, 60.0

#: Seconds that a watcher has to end in when it is to watch in another way.
WATCHER_STOP_TIMEOUT = 10.0

#: Who asks when the process has just started.
AT_START = "start"


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to read the file; ``report`` is for the caller that waits."""

    by: str
    report: Future[ReloadReport] = field(default_factory=Future)


class Reloader:
    """Reads the file when asked, and brings the process to what it says.

    Between ``start`` and ``stop``, which are for the owner, its thread is the one that changes the
    controller's channels. Everything else is safe on any thread. ``around`` is entered for the
    time of each reload.
    """

    def __init__(
        self,
        path: Path,
        controller: KafkaController,
        *,
        clock: Clock = SYSTEM_CLOCK,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._path = path
        self._controller = controller
        self._clock = clock
        self._around = around
        self._desired = controller.config
        self._stopping = Event()
        self._applying = ReloadRun(controller, self._stopping.is_set, clock)
        self._requests: Queue[_Request | None] = Queue()
        self._retry = FIRST_RETRY
        self._left: tuple[ConfigChange, ...] = ()
        self._pending: tuple[PendingChange, ...] = ()
        self._problems: tuple[str, ...] = ()
        self._last: ReloadReport | None = None
        self._files: Mapping[Path, str] = {}
        self._watcher: FileWatcher | None = None
        self._stalled = False
        self._thread = Thread(target=self._run, name="reloader", daemon=True)

    # --- any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, once the controller has started."""
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """Stop after the current step; return False if it did not end by the deadline."""
        self._stopping.set()
        self._requests.put(None)
        return deadline.joined(self._thread)

    def request(self, by: str) -> None:
        """Request a reload of the file. Does not block."""
        self._requests.put(_Request(by))

    def reload(self, by: str, deadline: Deadline) -> ReloadReport:
        """Reload the file and return a report. Blocks until the deadline.

        What is not done by then goes on. ``by`` says who wants it.
        """
        if self._controller.is_bounded:
            problem = "a bounded run keeps the configuration that it began with"
            return ReloadReport(by, self._clock.time(), ReloadOutcome.REJECTED, (problem,))
        request = _Request(by)
        self._requests.put(request)
        try:
            return request.report.result(deadline.remaining)
        except FutureTimeoutError:
            return ReloadReport(by, self._clock.time(), ReloadOutcome.UNDER_WAY)

    def config_status(self) -> ConfigStatus:
        """Return how desired and applied configuration compare. Does not block."""
        return ConfigStatus(
            file=str(self._path),
            desired=document(self._desired),
            applied=document(self._controller.config),
            pending=self._pending,
            problems=self._problems,
            last=self._last,
        )

    def check_watch(self) -> None:
        """Log when the watching stalls, and when it continues. Does not block; one thread.

        Files on a mount whose server is away block their readers, this one's thread as well.
        """
        watcher = self._watcher
        seconds = None if watcher is None else watcher.stalled()
        if (seconds is not None) == self._stalled:
            return
        self._stalled = not self._stalled
        self._controller.metrics.config_watch_stalled.set(self._stalled)
        if watcher is not None and seconds is not None:
            files = sorted(map(str, self._files))
            log.warning(
                "config_watch_stalled",
                seconds=round(seconds, 1),
                files=files,
                calls=watcher.calls(),
            )
        else:
            log.info("config_watch_resumed")

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        if self._desired.reload.watch:
            # it may have changed since the process read it, without a watch
            self._serve(_Request(AT_START))
        while not self._stopping.is_set():
            try:
                request = self._requests.get(timeout=self._retry if self._applying.passes else None)
            except Empty:
                self._look_again()
                continue
            if request is not None:
                self._serve(request)
        self._watch(None)

    def _serve(self, request: _Request) -> None:
        try:
            # at the start a supervisor waits for that anyway
            with nullcontext() if request.by == AT_START else self._around():
                report = self._reload(request.by)
        except Exception as error:
            log.exception("config_reload_failed", by=request.by)
            problem = f"unexpected {describe_error(error)}; the log has more"
            report = self._reject(request.by, [problem])
        if request.by != AT_START or report.outcome is not ReloadOutcome.UNCHANGED:
            self._last = report
            self._measure(report)
            self._log_report(report)
        self._watch(self._controller.config.reload)
        request.report.set_result(report)

    def _reload(self, by: str) -> ReloadReport:
        files: dict[Path, str] = {}
        try:
            desired = load(
                self._path,
                reads=lambda path: files.update({path: digest(path)}),
                also=preflight,
            )
        except ConfigError as error:
            return self._reject(by, error.problems)
        finally:
            self._files = files
        changes = diff(self._controller.config, desired)
        if by == AT_START and changes:
            # it may be half written: the watcher tells of it once it has been left alone
            self._files = dict.fromkeys(files, "")
            return ReloadReport(by, self._clock.time(), ReloadOutcome.UNCHANGED)
        self._problems = ()
        self._desired = desired
        self._retry = FIRST_RETRY
        applied = self._reconcile_changes(changes)
        outcome = ReloadOutcome.APPLIED if applied else ReloadOutcome.UNCHANGED
        if self._pending:
            outcome = ReloadOutcome.PARTLY
        return ReloadReport(by, self._clock.time(), outcome, applied=applied, pending=self._pending)

    def _look_again(self) -> None:
        try:
            self._try_again()
        except Exception:
            log.exception("config_reload_failed", by="retry")

    def _try_again(self) -> None:
        """Retry the steps that may succeed by now."""
        self._retry = min(LAST_RETRY, 2 * self._retry)
        applied = self._reconcile_changes(self._left)
        if applied:
            now = self._clock.time()
            outcome = ReloadOutcome.PARTLY if self._pending else ReloadOutcome.APPLIED
            self._log_report(ReloadReport("retry", now, outcome, (), applied, self._pending))
        self._controller.metrics.config_pending_changes.set(len(self._pending))

    def _reconcile_changes(self, changes: tuple[ConfigChange, ...]) -> tuple[ConfigChange, ...]:
        """Make the changes, and those of code; return which run now, and note what is left."""
        run = self._applying
        applied = run.reconcile(self._desired, (*changes, *run.recoded()))
        recoded = run.recoded()
        self._left = diff(self._controller.config, self._desired)
        since = {each.change.path: each.since for each in self._pending}
        now = self._clock.time()
        self._pending = tuple(
            PendingChange(
                change,
                run.reasons.get(change.channel or change.effect.value, "not applied yet"),
                since.get(change.path, now),
            )
            for change in (*self._left, *recoded)
        )
        return tuple(change for change in applied if change not in recoded)

    def _reject(self, by: str, problems: list[str]) -> ReloadReport:
        self._problems = tuple(problems)
        return ReloadReport(
            by,
            self._clock.time(),
            ReloadOutcome.REJECTED,
            problems=self._problems,
            pending=self._pending,
        )

    def _watch(self, settings: ReloadConfig | None) -> None:
        """Watch the files as configured, and none without settings."""
        # a section without a change stays the object that it was
        if self._watcher is not None and self._watcher.settings is not settings:
            self._watcher.stop(Deadline.after(WATCHER_STOP_TIMEOUT, self._clock))
            self._watcher = None
        if self._watcher is None and settings is not None and settings.watch:
            self._watcher = FileWatcher(
                settings, self._read_files, lambda: self.request("watch"), self._clock
            )
            self._watcher.start()

    def _read_files(self) -> dict[Path, str]:
        """Return what is to be watched, with the digests of what was read or imported."""
        return {**self._files, **self._controller.code.files()}

    def _log_report(self, report: ReloadReport) -> None:
        if report.outcome is ReloadOutcome.REJECTED:
            problems = list(report.problems)
            log.error("config_rejected", by=report.by, file=str(self._path), problems=problems)
            return
        log.info("config_reloaded", by=report.by, applied=[c.path for c in report.applied])
        for each in report.pending:
            log.warning("config_pending", change=each.change.path, reason=each.reason)

    def _measure(self, report: ReloadReport) -> None:
        metrics = self._controller.metrics
        metrics.config_reloads.labels(report.outcome.value).inc()
        metrics.config_last_reload_success.set(report.outcome is not ReloadOutcome.REJECTED)
        metrics.config_pending_changes.set(len(self._pending))
        if report.outcome is not ReloadOutcome.REJECTED:
            metrics.config_last_reload_timestamp.set(report.at)
