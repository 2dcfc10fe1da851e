"""The process: from a configuration file to an exit code."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.channel.offset_stores import transactional_prefix
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.controller.preflight import preflight
from headrace.controller.reload import Reloader
from headrace.core.clock import Deadline
from headrace.core.errors import ConfigError, FatalError, StartError
from headrace.core.memory import GarbageCollector, limit_memory
from headrace.core.stacks import log_stacks, stack_of
from headrace.core.user_text import describe_error
from headrace.extensions.otel.exports import open_log_export, open_metrics_export
from headrace.kafka.broker_lines import warn_of_lost_marks
from headrace.kafka.clients import client_properties
from headrace.ops.admin.health import not_ready
from headrace.ops.admin.ports import LocalProcess, ProcessPhase
from headrace.service import Service
from headrace.signals import SIGNALS, StoppedEarlyError
from headrace.telemetry.logs import configure_logging, export_lines, flush, install_hooks
from headrace.telemetry.metrics import Metrics, MetricsServer, omit_creation_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from headrace.channel.bounds import Until
    from headrace.config import Config
    from headrace.extensions.otel.exports.export_queue import ExportQueue
    from headrace.signals import Signals
    from headrace.telemetry.metrics import PartitionSnapshot


log = structlog.get_logger(__name__)


class Diagnostics:
    """Logs what all threads and partitions are doing, on a thread of its own, when SIGUSR1 asks."""

    def __init__(self, partitions: Callable[[], Iterable[PartitionSnapshot]]) -> None:
        self._partitions = partitions
        self._asked = Event()
        self._thread = Thread(target=self._run, name="diagnostics", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self) -> None:
        """Request that it is logged, unless it already is. Any thread; does not block."""
        self._asked.set()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            self.dump()

    def dump(self) -> None:
        """Log one event for each thread, and one for each partition held."""
        log_stacks("SIGUSR1")
        for each in self._partitions():
            log.info("partition_status", **each.facts())


#: Seconds in which the brokers have to answer at the start; ZooKeeper and Spark have their own.
START_TIMEOUT = 180.0

#: Seconds after the start in which members have taken their partitions. Then READY is told all the
#: same: what is still missing is retried, and a supervisor would end the process for it.
READY_TIMEOUT = 90.0

#: Seconds that a stop may take after a failure for which the process must end. What hangs does not
#: answer in any time, and its ZooKeeper session, which keeps its partitions from others, ends
#: with the stop. What does not hang may finish a short batch.
FATAL_STOP_TIMEOUT = 6.0

#: Seconds that the admin API has to answer what it was asked, once all else has stopped.
ADMIN_CLOSE_TIMEOUT = 3.0

#: Seconds that the metrics have to be sent a last time, once all else has stopped.
EXPORT_CLOSE_TIMEOUT = 2.0

#: Seconds after which the main thread looks around, all the same.
_POLL_INTERVAL = 0.5

#: The same until the process is ready, which a caller waits for. A bounded run, which asks the
#: brokers at each turn, has none.
_START_POLL_INTERVAL = 0.05

#: Seconds in which the group's offsets have to be read, while no signal is heard.
_FINISH_TIMEOUT = 2.0


#: The part of a stop's time that a reload has to come to the end of its step.
RELOAD_SHARE = 0.3


class ExitCode(IntEnum):
    """The exit code of the process."""

    STOPPED = 0
    """Stopped cleanly: everything answered is committed, every claim given back. A bounded run that
    is complete ends with it, too.
    """

    BUG = 1
    """An error that Headrace did not foresee; the log has the traceback."""

    CONFIG = 2
    """The configuration cannot be used; standard error names each mistake."""

    NOT_STARTED = 3
    """Kafka, ZooKeeper, Java or the user's code could not be reached; nothing was claimed.

    Or the name is in use, or ZooKeeper denies access, at the start or later.
    """

    CHANNEL_FAILED = 4
    """A channel stopped: its policy says so, its processor failed for good, or a bounded run cannot
    be completed, because a topic was deleted or a batch keeps failing."""

    OVERRAN = 5
    """A stop did not end in time, or could not tell ZooKeeper; the log names what was left."""

    RESTART = 70
    """The process could not be trusted any more (callbacks hung, a thread failed, bookkeeping
    wrong) and has to be started again."""


#: Seconds in which a broker says at the start which requests it takes.
_BROKER_TIMEOUT = 5.0


def _warn_of_brokers(config: Config) -> None:
    """Warn of transactions on brokers that may lose their markers."""
    channels = [each for each in config.channels.values() if each.enabled]
    if any(transactional_prefix(each, config.instance_id) is not None for each in channels):
        warn_of_lost_marks(client_properties(config.kafka), Deadline.after(_BROKER_TIMEOUT))


def run(path: Path, until: Until | None = None) -> ExitCode:
    """Run until a signal, a failure or the end of a bounded run.

    Called on the main thread, which takes the signals.
    """
    try:
        config = load(path, also=preflight)
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"{problem}\n")
        return ExitCode.CONFIG
    limit_memory()
    configure_logging(config.logging)
    install_hooks()
    try:
        return _serve(path, config, until)
    except ConfigError as error:
        log.error("configuration_unusable", problems=error.problems)  # noqa: TRY400 - no traceback for a user's mistake
        return ExitCode.CONFIG
    except StartError as error:
        log.error("not_started", error=str(error), kind=type(error).__name__)  # noqa: TRY400 - no traceback for a user's mistake
        return ExitCode.NOT_STARTED
    except FatalError as error:
        log.error("must_restart", error=str(error))  # noqa: TRY400 - no traceback for a user's mistake
        return ExitCode.RESTART
    except Exception:
        log.exception("unexpected_error")
        return ExitCode.BUG


def _serve(path: Path, config: Config, until: Until | None) -> ExitCode:
    if config.admin.enabled:
        import headrace.ops.admin.server  # noqa: F401, PLC0415 - fastapi takes a while to import
    # the collector has rested during the imports, and what they made it need not look at later
    # either; the user's code comes after this
    gc.freeze()
    gc.enable()
    signals = SIGNALS
    signals.listen()
    signals.last_words = _last_words
    signals.serve(lambda: config.shutdown_timeout)
    process = LocalProcess(path, signals.ask)
    service = Service.from_environment()
    service.status("starting")
    omit_creation_times()
    metrics = Metrics()
    exported = _exported(config, metrics)
    server = _metrics_server(config, metrics)
    controller = KafkaController(config, metrics=metrics, until=until)
    reloader = Reloader(
        path, controller, around=partial(service.reloading, partial(_summary, controller))
    )
    signals.serve(lambda: controller.config.shutdown_timeout)
    signals.on(signal.SIGHUP, partial(reloader.request, "SIGHUP"))
    diagnostics = Diagnostics(controller.partitions)
    diagnostics.start()
    signals.on(signal.SIGUSR1, diagnostics.ask)
    # a second process of the name must not touch what the first one's commands find it by
    controller.take_name()
    try:
        with (
            GarbageCollector(controller.claims).running(),
            _admin(controller, process, None if controller.is_bounded else reloader),
        ):
            return _live(controller, reloader, process, signals, service)
    finally:
        if server is not None:
            server.close()
        if exported is not None:
            exported.close(Deadline.after(EXPORT_CLOSE_TIMEOUT))


def _exported(config: Config, metrics: Metrics) -> ExportQueue | None:
    """Start the export of log lines and metrics; return the queue of metrics, if any.

    Raises:
        StartError: OpenTelemetry cannot be imported.
    """
    logs = open_log_export(config)
    if logs is not None:
        logs.on_drop(metrics.telemetry_dropped.labels("logs").inc)
        export_lines(logs)
    exported = open_metrics_export(config, metrics)
    if exported is not None:
        exported.on_drop(metrics.telemetry_dropped.labels("metrics").inc)
    return exported


def _last_words(hung: bool) -> None:
    """Log the main thread's stack if a stop hung, and flush the log."""
    if hung:
        calls = stack_of(threading.main_thread().ident)
        log.error("shutdown_hung", signal=SIGNALS.asked, calls=calls)
    flush()


def _live(
    controller: KafkaController,
    reloader: Reloader,
    process: LocalProcess,
    signals: Signals,
    service: Service,
) -> ExitCode:
    """Start, wait and stop."""
    failure: BaseException | None = None
    try:
        with signals.interrupting():
            controller.start(Deadline.after(START_TIMEOUT), before_clean_up=signals.calm)
        if not controller.is_bounded:
            reloader.start()
        _warn_of_brokers(controller.config)
        process.become(ProcessPhase.RUNNING)
        failure = _wait(controller, reloader, process, signals, service)
    except (StartError, StoppedEarlyError) as ending:
        # where the signal came while a library was in hand, that may have failed in its stead
        if signals.asked is None:
            raise
        failed = None if isinstance(ending, StoppedEarlyError) else str(ending)
        log.info("stopped_during_start", signal=signals.asked, failed=failed)
    process.become(ProcessPhase.STOPPING)
    return _stop(controller, reloader, failure, signals, service)


@contextmanager
def _admin(
    controller: KafkaController, process: LocalProcess, reloader: Reloader | None
) -> Iterator[None]:
    """Serve the admin API while the block runs, where there is one."""
    if not controller.config.admin.enabled:
        yield
        return
    from headrace.ops.admin.server import AdminServer  # noqa: PLC0415 - fastapi is imported where it is used

    server = AdminServer(controller, process, reloader)
    controller.reached_at(server.public_url)
    try:
        yield
    finally:
        server.close(Deadline.after(ADMIN_CLOSE_TIMEOUT))


def _metrics_server(config: Config, metrics: Metrics) -> MetricsServer | None:
    if config.metrics.port is None:
        return None
    try:
        server = MetricsServer(metrics, config.metrics.host, config.metrics.port)
    except OSError as error:
        raise StartError(
            f"metrics cannot be served on {config.metrics.host}:{config.metrics.port}: "
            f"{error.strerror}; choose another metrics.port, 0 for a free one, or null for none"
        ) from error
    log.info("metrics_served", host=config.metrics.host, port=server.port)
    return server


def _summary(controller: KafkaController) -> str:
    """Return in one line what the channels are doing."""
    return "; ".join(
        f"{name}: {channel.state.value}, {channel.partition_count} partitions"
        for name, channel in tuple(controller.channels.items())
    )


def _wait(
    controller: KafkaController,
    reloader: Reloader,
    process: LocalProcess,
    signals: Signals,
    service: Service,
) -> BaseException | None:
    """Wait for a signal, the end of a bounded run or the failure of a channel; return that."""
    ready_by: Deadline | None = Deadline.after(READY_TIMEOUT)
    while signals.asked is None:
        starts = ready_by is not None and not controller.is_bounded
        failure = controller.wait(_START_POLL_INTERVAL if starts else _POLL_INTERVAL)
        if failure is not None:
            return failure
        if controller.is_bounded and controller.finished(Deadline.after(_FINISH_TIMEOUT)):
            log.info("bounded_run_finished")
            return None
        process.beat()
        service.beat(controller.heartbeats())
        reloader.check_watch()
        if ready_by is not None and (ready_by.expired or not not_ready(controller, process)):
            service.ready(_summary(controller))
            ready_by = None
        elif service.supervised:
            service.status(_summary(controller))
    log.info("stopping", signal=signals.asked)
    return None


def _stop(
    controller: KafkaController,
    reloader: Reloader,
    failure: BaseException | None,
    signals: Signals,
    service: Service,
) -> ExitCode:
    fatal = isinstance(failure, FatalError)
    usual = controller.config.shutdown_timeout
    # the time of a stop that was asked for has begun then
    deadline = signals.end_by(
        Deadline.after(min(FATAL_STOP_TIMEOUT, usual) if fatal else usual),
        ExitCode.RESTART if fatal else ExitCode.OVERRAN,
    )
    reason = "as asked" if failure is None else f"after {describe_error(failure)}"
    with service.stopping(f"stopping {reason}", controller.heartbeats, deadline):
        controller.begin_stop()
        reloader.stop(Deadline.after(deadline.remaining * RELOAD_SHARE))
        report = controller.stop(deadline)
    if fatal:
        return ExitCode.RESTART
    if isinstance(failure, StartError):
        return ExitCode.NOT_STARTED
    if failure is not None:
        return ExitCode.CHANNEL_FAILED
    if not report.clean:
        log.error("shutdown_timed_out", unfinished=list(report.left))
        return ExitCode.OVERRAN
    return ExitCode.STOPPED
