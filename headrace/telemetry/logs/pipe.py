"""The pipe: from all that logs, Python as well, to standard error."""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import sys
import threading
import warnings
from queue import SimpleQueue
from threading import Event, RLock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import structlog

from headrace.core.user_text import plain_error
from headrace.telemetry.logs.context import merge_bound
from headrace.telemetry.logs.levels import claim, forget_levels, is_library, set_level, take_over
from headrace.telemetry.logs.recent import Repeats, forget_events, keep

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from types import TracebackType

    from structlog.typing import EventDict, Processor, WrappedLogger

    from headrace.config import LoggingConfig


log = structlog.get_logger(__name__)

#: Lines of one kind within an interval: enough for what comes in small numbers by its nature.
BURST = 10

#: Lines of one library within an interval, whatever they say: many have numbers in their text.
LIBRARY_BURST = 50

#: The fields that say what an event is about. Two events are repeats where they agree in these.
_ABOUT = (
    "channel",
    "topic",
    "partition",
    "group",
    "member",
    "thread",
    "lane",
    "path",
    "table",
    "pattern",
    "transactional_id",
)

#: Events that are limited where they come from, or that belong together.
_LIMITED = frozenset({"kafka_client", "repeats_suppressed", "spark_log", "spark_output"})
_TOGETHER = frozenset({"config_pending", "partition_status", "stack_dump", "thread_stack"})

#: Events that answer for something, each for another thing: who changed what, which record is gone.
_RECORDS = frozenset({"admin_change", "skip_applied", "skip_requested", "skip_too_late"})

_FREE = _LIMITED | _TOGETHER | _RECORDS


class RepeatFilter(logging.Filter):
    """Holds repeats back, and adds to the next line of the kind how many were ``repeated``.

    Limited are our own events from info to warning, and every line of a library. Errors of our
    own never are, because they may say why something ended; nor is what was asked for with
    debug, nor what the user's code logs. Kinds of which nothing more comes are summed up in
    ``repeats_suppressed`` as soon as anything is logged. Any thread.
    """

    def __init__(self, repeats: Repeats | None = None) -> None:
        super().__init__()
        self._repeats = repeats or Repeats(BURST)

    def after_fork_in_child(self) -> None:
        """Count again: another thread may have been counting at the fork."""
        self._repeats = Repeats(BURST)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is to be written."""
        if record.name == "root":
            claim(record)
            if not logging.getLogger(record.name).isEnabledFor(record.levelno):
                return False
        admitted = self._decide(record)
        for kind, count in self._repeats.over():
            _report(kind, count)
        return admitted

    def _decide(self, record: logging.LogRecord) -> bool:
        if is_library(record.name):
            return self._admit_library(record)
        event = _event(record)
        if event is None or not record.name.startswith("headrace"):
            return True
        if event.get("event") in _FREE or not logging.INFO <= record.levelno < logging.ERROR:
            return True
        about = tuple(str(event.get(name, "")) for name in _ABOUT)
        return self._admit(record, (record.name, event.get("event"), *about))

    def _admit_library(self, record: logging.LogRecord) -> bool:
        event = _event(record)
        if event is not None and event.get("event") in _FREE:
            return True
        library = record.name.partition(".")[0]
        if self._repeats.admit((library, "library_log"), LIBRARY_BURST) is None:
            return False
        return self._admit(record, (record.name, str(event.get("event") if event else record.msg)))

    def _admit(self, record: logging.LogRecord, kind: Hashable) -> bool:
        repeated = self._repeats.admit(kind)
        if repeated:
            record.repeated = repeated
        return repeated is not None


def _event(record: logging.LogRecord) -> dict[str, Any] | None:
    """Return the event of a line that came through structlog."""
    return record.msg if isinstance(record.msg, dict) else None


def _report(kind: Hashable, count: int) -> None:
    assert isinstance(kind, tuple)
    logger, event, *about = kind
    fields = {name: value for name, value in zip(_ABOUT, about, strict=False) if value}
    log.info("repeats_suppressed", of=event, source=logger, repeated=count, **fields)


#: Characters of lines that wait to be written, at most: some ten thousand lines.
MOST_WAITING = 4 * 1024 * 1024

#: Seconds that the last lines have to be written in, when the process ends.
FLUSH_TIMEOUT = 2.0


class LogExport(Protocol):
    """An export that takes the lines as well, as ``extensions.otel.exports``. Any thread."""

    def take(self, event: Mapping[str, Any], created: float) -> None:
        """Queue the fields of a line, which was logged at ``created``. Does not block."""

    def flush(self) -> None:
        """Wait until what was taken is sent, for two seconds at most."""

    def close(self) -> None:
        """Send what is left, for two seconds at most, and take nothing more."""


class StandardErrorHandler(logging.Handler):
    """Writes lines on a thread of its own, so that a slow reader delays no other thread.

    While MOST_WAITING characters wait, lines are dropped; ``log_lines_dropped`` says how many as
    soon as there is room again. Any thread; ``flush``, which the end of the interpreter calls, is
    the only method that waits. In a forked child, which may end at any moment without a flush,
    who logs writes the line itself, and waits for who reads.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._export: LogExport | None = None
        self._fields: logging.Formatter | None = None
        self._begin_queue()
        self._thread: Thread | None = Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def _begin_queue(self) -> None:
        self._queue: SimpleQueue[str | Event | None] = SimpleQueue()
        # what a finalizer logs may come in the middle of a line of the same thread's
        self._counting = RLock()
        self._added = self._dropped = 0
        self._taken = self._unwritten = self._reported = 0

    def after_fork_in_child(self) -> None:
        """Drop the thread, which a fork does not copy, and locks that others had taken."""
        self._begin_queue()
        self._thread = None

    # --- any thread -------------------------------------------------------------------------

    def export_to(self, export: LogExport) -> None:
        """Export each line that is written, too."""
        self._fields = _formatter(_handed_to(export))
        self._export = export

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a line without the lock of other handlers, under which a text may be made."""
        admitted = self.filter(record)
        if admitted:
            self.emit(record)
            if self._fields is not None:
                self._hand_over(record, self._fields)
        return bool(admitted)

    def _hand_over(self, record: logging.LogRecord, fields: logging.Formatter) -> None:
        try:
            fields.format(record)
        except Exception:  # noqa: BLE001 - as of a line
            self.handleError(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line to be written."""
        try:
            line = f"{self.format(record)}\n"
        except Exception:  # noqa: BLE001 - whatever the fields of the line raise
            self.handleError(record)
            return
        with self._counting:
            if self._thread is None:
                self._deliver(line)
                return
            is_full = self._added - self._taken >= MOST_WAITING
            if is_full and current_thread() is not self._thread:
                self._dropped += 1
                return
            self._added += len(line)
        self._queue.put(line)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging calls it
        """Log the name of the logger whose line cannot be formatted, without standard error."""
        if record.name != __name__:
            log.error("log_line_failed", source=record.name, exc_info=sys.exc_info()[1])

    def flush(self) -> None:
        """Wait until what was logged is written, or FLUSH_TIMEOUT is over."""
        if self._thread is not None and self._thread.is_alive():
            written = Event()
            self._queue.put(written)
            written.wait(FLUSH_TIMEOUT)
        if self._export is not None:
            self._export.flush()

    def close(self) -> None:
        """End the thread, after what waits."""
        self._queue.put(None)
        if self._export is not None:
            self._export.close()
        super().close()

    # --- its thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Event):
                item.set()
                continue
            self._deliver(item)
            self._taken += len(item)

    def _deliver(self, line: str) -> None:
        try:
            self._write(line)
        except (OSError, ValueError):
            # the other end is closed, or a disk is full, for a while or for good
            self._unwritten += 1
        else:
            self._report_dropped()

    def _write(self, line: str) -> None:
        if self._descriptor is None:
            self._stream.write(line)
            self._stream.flush()
            return
        # not through the stream: the end of the interpreter waits for its lock
        left = memoryview(line.encode("utf-8", "backslashreplace"))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [], 1.0)

    def _report_dropped(self) -> None:
        dropped = self._dropped + self._unwritten - self._reported
        if dropped and self._added - self._taken < MOST_WAITING / 2:
            self._reported += dropped
            log.error("log_lines_dropped", lines=dropped)


def _descriptor(stream: TextIO) -> int | None:
    """Return what the stream writes to, None where it only keeps what is written."""
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def flush() -> None:
    """Wait until what was logged is written, for FLUSH_TIMEOUT at most. Any thread."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def export_lines(export: LogExport) -> None:
    """Export the lines too that are written to standard error from now on.

    For the daemon, once, after ``configure_logging``.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StandardErrorHandler):
            handler.export_to(export)


def _after_fork_in_child() -> None:
    """Restore logging in a child after a fork, when another thread may have held a lock."""
    forget_events()
    for handler in logging.getLogger().handlers:
        for each in (handler, *handler.filters):
            if isinstance(each, StandardErrorHandler | RepeatFilter):
                each.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def configure_logging(config: LoggingConfig) -> None:
    """Send everything to standard error as JSON lines, or in columns for people.

    Called once, before the first event; libraries and the user's code that log through
    ``logging`` take the same way. Who logs never waits for who reads. What a worker works for, and
    fields that the user's code binds with ``structlog.contextvars``, are in every line that the
    thread logs.
    """
    structlog.configure(
        processors=[
            _with_plain_error,
            keep,
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    former = list(logging.getLogger().handlers)
    logging.getLogger().handlers[:] = [_handler(config)]
    for handler in former:
        if isinstance(handler, StandardErrorHandler):
            handler.close()
    take_over()
    forget_levels()
    set_level(config.level)


#: What is done to each line, those of libraries too.
_SHARED: Sequence[Processor] = (
    merge_bound,
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def _handler(config: LoggingConfig) -> logging.Handler:
    """Return what writes the lines."""
    handler = StandardErrorHandler(sys.stderr)
    handler.addFilter(RepeatFilter())
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(_formatter(without_meta, *_renderers(config)))
    return handler


def _formatter(*processors: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), _name_library_lines, *_SHARED],
        processors=[_add_repeated, *processors],
    )


def _handed_to(export: LogExport) -> Processor:
    """Return what gives the fields of a line away, in place of a text."""

    def hand_over(logger: WrappedLogger, method: str, event: EventDict) -> str:
        created = event["_record"].created
        event = structlog.stdlib.ProcessorFormatter.remove_processors_meta(logger, method, event)
        export.take(structlog.processors.format_exc_info(logger, method, event), created)
        return ""

    return hand_over


def _name_library_lines(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Set a stable event name on a library's line, and keep its text as detail."""
    event.pop("color_message", None)  # uvicorn's text for terminals
    if is_library(event["_record"].name):
        event["detail"], event["event"] = event["event"], "library_log"
    return event


def _add_repeated(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add how many lines like this one were suppressed before it."""
    repeated = getattr(event["_record"], "repeated", 0)
    if repeated:
        event["repeated"] = repeated
    return event


def _renderers(config: LoggingConfig) -> list[Processor]:
    for_people = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    if for_people:
        # the renderer's own tracebacks show local variables, and with them what is secret
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _with_plain_error(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace a logged error by one that can be shown, whatever its own code does.

    First of all: what follows asks it for its class and its text.
    """
    given = event.get("exc_info")
    if given is None or given is False:
        return event
    if type(given) is tuple:
        error: Any = given[1]
    else:
        error = given if issubclass(type(given), BaseException) else sys.exc_info()[1]
    if issubclass(type(error), BaseException):  # isinstance would ask its own code
        shown = plain_error(error)
        if shown is not error:
            event["exc_info"] = (type(shown), shown, shown.__traceback__)
    return event


# --- what Python itself would write to standard error ---------------------------------------------


def install_hooks() -> None:
    """Log warnings, and exceptions that end a thread or cannot be caught.

    For the daemon, once, after ``configure_logging``. A crash of the interpreter itself, as by a
    fault in a C library, has Python write the stacks of all threads to standard error.
    """
    faulthandler.enable()
    # a warnings filter of the user's (python -W, PYTHONWARNINGS) stands as it is
    warnings.showwarning = _on_warning
    threading.excepthook = _on_thread_error
    sys.excepthook = _on_error
    sys.unraisablehook = _on_unraisable


def _on_warning(  # noqa: PLR0917 - as Python calls it
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Log a warning; Python hands each on once for the line that gives it."""
    log.warning(
        "python_warning", detail=str(message), category=category.__name__, at=f"{filename}:{lineno}"
    )


def _on_thread_error(arguments: threading.ExceptHookArgs) -> None:
    """Log what ended a thread; SystemExit is a way to end one."""
    if issubclass(arguments.exc_type, SystemExit):
        return
    name = arguments.thread.name if arguments.thread else "unknown"
    log.error("thread_died", thread=name, exc_info=_info(arguments))


def _on_error(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Log what ends the main thread."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    log.error("main_thread_died", exc_info=(kind, error, traceback))


def _on_unraisable(arguments: sys.UnraisableHookArgs) -> None:
    """Log what was raised where there is no caller, as in a finalizer."""
    log.warning("unraisable_error", where=repr(arguments.object), exc_info=_info(arguments))


def _info(
    arguments: threading.ExceptHookArgs | sys.UnraisableHookArgs,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    error = arguments.exc_value or arguments.exc_type()
    return arguments.exc_type, error, arguments.exc_traceback
