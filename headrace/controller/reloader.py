"""The thread that owns desired and applied configuration."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import nullcontext
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.config import diff, load
from headrace.config.show import document
from headrace.config.watch import FileWatcher
from headrace.controller.applying import Applying
from headrace.controller.reports import ConfigStatus, Pending, ReloadOutcome, ReloadReport
from headrace.errors import ConfigError
from headrace.files import digest
from headrace.preflight import preflight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.config import Change, Config, ReloadConfig
    from headrace.controller.controller import KafkaController

log = structlog.get_logger(__name__)

#: Seconds until what may pass by itself is tried again, and the most that doubles to.
FIRST_RETRY, LAST_RETRY = 1.0, 60.0

#: Seconds that a watcher has to end in when it is to watch in another way.
WATCHER_STOP_TIMEOUT = 10.0

#: Who asks when the process has just started.
AT_START = "start"


@dataclass(frozen=True, slots=True)
class _Request:
    """Somebody wants the file read; ``report`` is for who waits."""

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
        self._applying = Applying(controller, self._stopping.is_set, clock)
        self._requests: Queue[_Request | None] = Queue()
        self._retry = FIRST_RETRY
        self._pending: tuple[Pending, ...] = ()
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
        """Take no further step; False if the one under way did not end by the deadline."""
        self._stopping.set()
        self._requests.put(None)
        return deadline.joined(self._thread)

    def request(self, by: str) -> None:
        """Have the file read and applied. Does not block."""
        self._requests.put(_Request(by))

    def reload(self, by: str, deadline: Deadline) -> ReloadReport:
        """Have the file read and applied, and return what came of it. Blocks until the deadline.

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
        """Say when the watching stalls, and when it goes on. Does not block; one thread at a time.

        Files on a mount whose server is away hang whoever reads them, this one's thread as well.
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
            # it may have changed since the process read it, and nobody watched
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
            problem = f"unexpected {type(error).__name__}: {error}; the log has more"
            report = self._reject(request.by, [problem])
        if request.by != AT_START or report.outcome is not ReloadOutcome.UNCHANGED:
            self._last = report
            self._measure(report)
            self._say(report)
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
        if by == AT_START and diff(self._controller.config, desired):
            # it may be half written: the watcher tells of it once it has been left alone
            self._files = dict.fromkeys(files, "")
            return ReloadReport(by, self._clock.time(), ReloadOutcome.UNCHANGED)
        self._problems = ()
        self._desired = desired
        self._retry = FIRST_RETRY
        applied = self._reconcile()
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
        """Take the steps again that may succeed by now."""
        self._retry = min(LAST_RETRY, 2 * self._retry)
        applied = self._reconcile()
        if applied:
            now = self._clock.time()
            outcome = ReloadOutcome.PARTLY if self._pending else ReloadOutcome.APPLIED
            self._say(ReloadReport("retry", now, outcome, (), applied, self._pending))
        self._controller.metrics.config_pending_changes.set(len(self._pending))

    def _reconcile(self) -> tuple[Change, ...]:
        """Take the steps to what is desired; return what they changed."""
        before: Config = self._controller.config
        recoded = self._applying.recoded()
        self._applying.reconcile(self._desired)
        left = self._applying.recoded()
        self._pending = self._find_pending(left)
        done = tuple(change for change in recoded if change not in left)
        return (*diff(before, self._controller.config), *done)

    def _find_pending(self, recoded: tuple[Change, ...]) -> tuple[Pending, ...]:
        since = {each.change.path: each.since for each in self._pending}
        reasons, now = self._applying.reasons, self._clock.time()
        return tuple(
            Pending(
                change,
                reasons.get(change.channel or change.effect.value, "not applied yet"),
                since.get(change.path, now),
            )
            for change in (*diff(self._controller.config, self._desired), *recoded)
        )

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
        if self._watcher is not None and self._watcher.settings != settings:
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

    def _say(self, report: ReloadReport) -> None:
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
