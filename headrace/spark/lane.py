"""A lane: the one long-lived thread that submits Spark jobs, and how they are cancelled."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JError

from headrace.errors import StartError
from headrace.spark.failures import JobCancelledError, JobTimeoutError, JvmDiedError
from headrace.spark.garbage import GARBAGE
from headrace.spark.handover import HandOver
from headrace.spark.stuck import StuckReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.clock import Deadline
    from headrace.spark.runtime import SparkRuntime
    from headrace.spark.slots import Share

log = structlog.get_logger(__name__)


class Lane:
    """Runs ``turn`` again and again on one thread until it is stopped.

    pyspark pins each Python thread to one of the JVM's, so job group, scheduler pool and active
    session belong to the lane for good. ``turn`` takes its own work, waits for a fraction of a
    second at most where there is none, and submits jobs inside :meth:`job`. An exception from
    ``turn`` is logged and does not end the lane.
    """

    def __init__(self, name: str, runtime: SparkRuntime, turn: Callable[[], None]) -> None:
        self.name = name
        self._runtime = runtime
        self._turn = turn
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._running: str | None = None
        self._cancelled = False
        self._overran = False
        self._ran = False
        self._generation = -1
        self._hand_over: HandOver | None = None
        self._session: Any = None
        self._shuffles: int | None = None
        self._report = StuckReport(name)

    def start(self) -> None:
        """Start the thread."""
        self._runtime.slots.enter(self)
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping.is_set()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread after its current turn, whose job is cancelled; say whether it ended.

        A thread that does not end by ``deadline`` is left behind: it is stuck in the reducer's
        own Python code, which nothing can interrupt.
        """
        self._stopping.set()
        with self._guard:
            group = self._running
        if group is not None:
            self.cancel(group)
        ended = deadline.joined(self._thread)
        self._runtime.slots.leave(self)
        return ended

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._runtime.turnstile.turn():
                    self._turn()
            except Exception:
                log.exception("lane_turn_failed", lane=self.name)
            finally:
                self._report.end()
            self._let_go()

    def _let_go(self) -> None:
        """Have the JVM free what the turn's jobs were given."""
        if self._ran:
            GARBAGE.collect()
        self._ran = False

    @contextmanager
    def job(self, group: str, seconds: float | None) -> Iterator[tuple[HandOver, Share]]:
        """Run the block's Spark jobs as ``group``; give it the lane's way in and share of slots.

        Called on the lane's thread. ``group`` must be new: Spark refuses the jobs of a cancelled
        one. The block's own exceptions pass through. When a good part of ``seconds`` is over the
        log says where the thread is, unless the turn has ended by then: with it the commit of
        what the jobs gave.

        Raises:
            JobCancelledError: :meth:`cancel` was called with this group, the lane stops, or Spark
                is gone while the process stops.
            JobTimeoutError: the block's jobs did not end in ``seconds``.
            JvmDiedError: Spark is gone; :meth:`revive` brings it back.
        """
        self._begin(group)
        timer = None
        if seconds is not None:
            timer = self._timer(seconds, self._overrun, group)
        self._report.begin(group, seconds)
        try:
            with self._runtime.slots.share(self) as share:
                yield self._prepare(group, share), share
        except Exception as error:
            self._translate(error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            with self._guard:
                self._running = None

    def _timer(self, seconds: float, call: Callable[[str], None], group: str) -> threading.Timer:
        timer = threading.Timer(seconds, call, [group])
        timer.name, timer.daemon = f"{self.name}-deadline", True
        timer.start()
        return timer

    def _begin(self, group: str) -> None:
        with self._guard:
            self._running, self._cancelled, self._overran = group, False, False
        self._ran = True
        if self._stopping.is_set():
            raise JobCancelledError(f"lane {self.name} stops")

    def _prepare(self, group: str, share: Share) -> HandOver:
        if self._hand_over is None or self._generation != self._runtime.generation:
            self._hand_over = None  # of a JVM that is gone, should there be no session yet
            self._generation = self._runtime.generation
            self._session = self._runtime.new_session()
            self._hand_over, self._shuffles = HandOver(self._session), None
            self._runtime.context.setLocalProperty("spark.scheduler.pool", self.name)
        self._shuffles = self._runtime.fit(self._session, self._shuffles, share)
        # Interrupting reaches tasks that wait for a Python worker, which Spark then kills; without
        # it both run on.
        self._runtime.context.setJobGroup(group, group, interruptOnCancel=True)
        return self._hand_over

    def _translate(self, error: Exception) -> None:
        """Raise what ``error`` means when it is not the reducer's or the data's."""
        with self._guard:
            cancelled, overran = self._cancelled, self._overran
        if overran:
            raise JobTimeoutError("the Spark job did not end in time and was cancelled") from error
        if cancelled:
            raise JobCancelledError("the Spark job was cancelled") from error
        if self._generation != self._runtime.generation or not self._runtime.is_usable():
            if self._runtime.is_retired:
                raise JobCancelledError("the process stops, and Spark is gone") from error
            raise JvmDiedError(f"Spark ended under the job: {type(error).__name__}") from error

    def revive(self) -> None:
        """Build Spark again after a JvmDiedError, unless another lane did. Blocks.

        Raises:
            StartError: it could not be built.
        """
        self._runtime.rebuild(self._generation)

    def cancel(self, group: str) -> None:
        """Cancel the jobs of ``group``, if it runs. Any thread; blocks for one call to the JVM."""
        with self._guard:
            if self._running != group:
                return
            self._cancelled = True
        self._cancel_in_spark(group)

    def _overrun(self, group: str) -> None:
        with self._guard:
            if self._running != group:
                return
            self._overran = True
        self._cancel_in_spark(group)

    def _cancel_in_spark(self, group: str) -> None:
        """Cancel what runs and what the group would still submit, as its planning may go on."""
        try:
            jvm_context = self._runtime.context._jsc.sc()  # noqa: SLF001 - no public way
            jvm_context.cancelJobGroupAndFutureJobs(group)
        except (Py4JError, OSError, StartError):
            log.warning("job_cancel_failed", lane=self.name, group=group, exc_info=True)
