"""The Spark session of the process: built aside, warmed up, built again when its JVM dies."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Condition
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.controller.engine_session import SparkSnapshot
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.progress import Silence, children_at_work
from headrace.core.tables import SCHEMA, merge
from headrace.extensions.spark.arrow_to_spark import ArrowToSpark
from headrace.extensions.spark.gateway import Jvm, JvmLevels, forget_session
from headrace.extensions.spark.settings import FAR, Share, Slots, SparkSettings, local_cores
from headrace.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class JobGate:
    """Lets any number of lanes in at a time, and none while it is closed. Any thread.

    Once retired it lets everybody in, and can be closed no more.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self.is_closed = False
        self._is_retired = False

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Enter for the time of the block. Blocks while it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_retired or not self.is_closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, deadline: Deadline) -> bool:
        """Close the gate and wait until it is empty; if it is not in time, reopen, return False."""
        with self._changed:
            self.is_closed = True
            self._changed.wait_for(lambda: self._is_retired or not self._inside, deadline.remaining)
            if not self._is_retired and not self._inside:
                return True
        self.open()
        return False

    def retire(self) -> None:
        """Open the gate for good, to lanes and closing threads alike. Does not block."""
        with self._changed:
            self._is_retired = True
            self._changed.notify_all()

    def open(self) -> None:
        """Open the gate to lanes again."""
        with self._changed:
            self.is_closed = False
            self._changed.notify_all()


log = structlog.get_logger(__name__)

#: Rows of a dummy micro-batch: few enough to be cheap, many enough for every task to have some.
_WARM_UP_ROWS = 1000

_SHUFFLE = "spark.sql.shuffle.partitions"

#: Seconds between two looks at a session that is being built.
_LOOK = 1.0

#: Seconds that a session has to end in before its JVM is killed for the one that replaces it.
_END_TIMEOUT = 10.0


class _RetiredError(StartError):
    """No session is built any more."""


@dataclass(slots=True)
class _Attempt:
    """One try to build a session: what it waits for, and whether a thread still waits for it."""

    waits_for: str = "the JVM"
    abandoned: bool = False


class SparkRuntime:
    """Spark as a process-wide service, shared by every channel.

    :meth:`start`, :meth:`rebuild` and :meth:`stop` may be called on any thread and block. pyspark
    replaces the handler of SIGINT when a context is built on the main thread; it is built on a
    thread of its own, so ours stays. ``generation`` rises with every JVM.
    """

    def __init__(self, settings: SparkSettings | None = None) -> None:
        self.settings = settings or SparkSettings()
        self.generation = 0
        self._lock = threading.RLock()
        self._jvm: Jvm | None = None
        self._has_tried = False
        self._session: SparkSession | None = None
        self._cores = 1
        self._levels = JvmLevels(self._view)
        self.job_gate = JobGate()
        self.slots = Slots()
        self._retired: Future[None] = Future()

    def start(self) -> None:
        """Build and warm up the session; does nothing when there is one.

        Raises:
            StartError: no session, as without Java 17, or none by the time that it had not worked
                for ``start_timeout``, or took three times as long; or the process
                has a Spark context that Headrace did not start.
        """
        with self._lock:
            if self._session is not None:
                return
            if SparkContext._active_spark_context is not None:  # noqa: SLF001 - no public way
                raise StartError(
                    "this process has a Spark context already, and Spark allows one; stop it, or "
                    "run this in a process of its own"
                )
            self._build()

    @property
    def session(self) -> SparkSession:
        """Return the root session; lanes take one of their own from :meth:`new_session`."""
        session = self._session
        if session is None:
            raise StartError("the Spark session is not started; call SparkRuntime.start first")
        return session

    @property
    def context(self) -> SparkContext:
        """Return the context all sessions share."""
        return self.session.sparkContext

    @property
    def cores(self) -> int:
        """Return how many tasks of a lane run at once, if nothing hangs and other lanes leave as
        many.
        """
        return self._cores

    @property
    def pid(self) -> int | None:
        """Return the process id of the JVM, None before the start."""
        return None if self._jvm is None else self._jvm.process.pid

    def snapshot(self) -> SparkSnapshot:
        """Return a snapshot. Any thread; does not block, and does not ask the JVM."""
        jvm = self._jvm
        return SparkSnapshot(
            running=self._session is not None and jvm is not None and jvm.is_running,
            pid=None if jvm is None else jvm.process.pid,
            generation=self.generation,
            cores=self._cores,
        )

    def new_session(self) -> SparkSession:
        """Return a session with SQL settings and temporary views of its own."""
        return self._derived(self.session)

    def _derived(self, root: SparkSession) -> SparkSession:
        session = root.newSession()
        if _SHUFFLE not in self.settings.effective():
            session.conf.set(_SHUFFLE, str(self._cores))
        return session

    def fit(self, session: SparkSession, former: int | None, share: Share) -> int | None:
        """Limit a session's shuffles to a share, as they were to ``former``; None at first.

        Not if the user or the reducer has chosen how many partitions they make, nor on a cluster.
        Return what they keep to now.
        """
        cores = local_cores(self.settings.master)
        if cores is None or _SHUFFLE in self.settings.properties:
            return None
        wanted = min(cores, share.tasks)
        if wanted != (former or cores) and session.conf.get(_SHUFFLE) == str(former or cores):
            session.conf.set(_SHUFFLE, str(wanted))
        return wanted

    def is_usable(self) -> bool:
        """Return whether jobs can run: the JVM lives, answers, and its context was not stopped."""
        jvm, session = self._jvm, self._session
        if jvm is None or session is None or not jvm.is_running:
            return False
        java_context: Any = session.sparkContext._jsc  # noqa: SLF001 - no public way
        if java_context is None:
            return False
        try:
            return not java_context.sc().isStopped()
        except (Py4JError, OSError):
            return False

    @property
    def is_retired(self) -> bool:
        """Return whether :meth:`retire` was called."""
        return self._retired.done()

    def retire(self) -> None:
        """Build no session from now on, and give up one that is being built. Does not block.

        Jobs go on in the session there is, until :meth:`stop`. Lanes that wait for another one
        find none, and their batches are withdrawn.
        """
        with suppress(InvalidStateError):
            self._retired.set_result(None)
        self.job_gate.retire()

    def rebuild(self, generation: int) -> None:
        """Replace the JVM of ``generation``; does nothing when another caller already did.

        Nor does it once retired.

        Raises:
            StartError: no session could be built; the next call tries again.
        """
        with self._lock:
            if generation != self.generation or self.is_retired:
                return
            log.warning(
                "spark_rebuild", generation=generation, pid=self.pid, exit_code=self._exit_code()
            )
            self._discard()
            with suppress(_RetiredError):
                self._build()

    def replace(self, settings: SparkSettings, deadline: Deadline) -> bool:
        """Build the session with other settings, between two micro-batches. Blocks.

        What the channels hold waits meanwhile. Where the new session cannot be built there is one
        with the former settings again.

        Returns:
            False if a micro-batch did not end by the deadline: nothing was changed.

        Raises:
            StartError: the new settings cannot be used, or the process stops.
        """
        if not self.job_gate.close(deadline):
            return False
        try:
            self._exchange(settings)
        finally:
            self.job_gate.open()
        return True

    def _exchange(self, settings: SparkSettings) -> None:
        with self._lock:
            former, self.settings = self.settings, settings
            if self._session is None:
                return
            log.info("spark_replaced", generation=self.generation, pid=self.pid)
            self._end_session(_END_TIMEOUT)
            try:
                self._build()
            except _RetiredError:
                raise
            except StartError as error:
                log.error("spark_not_replaced", error=str(error))  # noqa: TRY400 - the reason says it all
                self.settings = former
                self._build()
                raise

    def stop(self, deadline: Deadline) -> None:
        """End session and JVM. Running jobs fail. Kills the JVM when ``deadline`` is over."""
        if not self._lock.acquire(timeout=deadline.remaining):
            # a thread still builds it; without its JVM that comes to an end
            jvm = self._jvm
            if jvm is not None:
                jvm.close(0.0)
            return
        try:
            self._end_session(deadline.remaining)
        finally:
            self._lock.release()

    def _end_session(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        session, self._session = self._session, None
        if session is not None:
            _aside("spark-stop", session.stop, deadline.remaining)
        self._discard(deadline.remaining)

    def _view(self) -> Any:
        """Return pyspark's view of the JVM, None without one."""
        return None if self._jvm is None else self._jvm.gateway.jvm

    def _exit_code(self) -> int | None:
        """Return what the JVM ended with, negative for a signal; None while it runs."""
        return None if self._jvm is None else self._jvm.process.poll()

    def _discard(self, seconds: float = 0.0) -> None:
        logs.unlisten(self._levels)
        jvm, self._jvm, self._session = self._jvm, None, None
        if jvm is not None:
            jvm.close(seconds)
        if self._has_tried:
            # what another runtime of the process built is not ours to forget
            forget_session()

    def _build(self) -> None:
        begin = perf_counter()
        try:
            self._open_aside()
        except _RetiredError:
            self._discard()
            raise
        except Exception as error:
            self._discard()
            raise StartError(
                f"Spark did not start on {self.settings.master}: {error}; {_next_step(error)}"
            ) from error
        self.generation += 1
        logs.listen(self._levels)
        log.info(
            "spark_ready",
            master=self.settings.master,
            generation=self.generation,
            pid=self.pid,
            seconds=round(perf_counter() - begin, 2),
        )

    def _open_aside(self) -> None:
        """Run ``_open_session`` on a thread of its own, abandoned once retired or too late."""
        attempt = _Attempt()
        self._require_wanted(attempt)
        opened = _run_aside("spark-start", lambda: self._open_session(attempt))
        seconds = self.settings.start_timeout
        deadline = Deadline.after(FAR * seconds)
        silence = Silence(lambda: (attempt.waits_for, children_at_work()), seconds)
        while not wait([opened, self._retired], min(_LOOK, seconds), FIRST_COMPLETED).done:
            if deadline.expired or silence.is_over():
                break
        if opened.done():
            opened.result()
            return
        self._require_wanted(attempt)
        attempt.abandoned = True
        why = (
            f"not ready after {FAR * seconds:.0f} s, which is {FAR} times"
            if deadline.expired
            else f"not ready, and at no work for {seconds:.0f} s, which is"
        )
        raise TimeoutError(
            f"{why} spark.start_timeout; at the end it waited for {attempt.waits_for}"
        )

    def _require_wanted(self, attempt: _Attempt) -> None:
        if self.is_retired:
            raise _RetiredError("the process stops, so no Spark session is built any more")
        if attempt.abandoned:
            raise _RetiredError("this session was waited for too long, so it is not used any more")

    def _open_session(self, attempt: _Attempt) -> None:
        self._has_tried = True
        os.environ.update(self.settings.environment())
        jvm = Jvm(self.settings.effective())
        if not attempt.abandoned:
            self._jvm = jvm
        if self.is_retired or attempt.abandoned:
            # who waited for it may have gone before there was one to close
            jvm.close(0.0)
        self._require_wanted(attempt)
        attempt.waits_for = "the session"
        context = SparkContext(conf=jvm.conf, gateway=jvm.gateway)
        session = SparkSession(context)
        self._cores = context.defaultParallelism
        self._warm_up(self._derived(session), attempt)
        self._require_wanted(attempt)
        # a cluster's executors come while the first jobs wait for them
        self._cores = context.defaultParallelism
        self.slots.resize(self._cores, self.settings.slots)
        self._session = session

    def _warm_up(self, session: SparkSession, attempt: _Attempt) -> None:
        """Run dummy micro-batches the way the real ones go, until the JVM has compiled it."""
        rows = [{"key": b"%d" % (n % 100), "value": b"{}"} for n in range(_WARM_UP_ROWS)]
        table = merge([pa.Table.from_pylist(rows, schema=SCHEMA)], self._cores)
        to_spark = ArrowToSpark(session)
        for number in range(1, self.settings.warm_up + 1):
            attempt.waits_for = f"job {number} of the {self.settings.warm_up} that warm it up"
            frame = to_spark.data_frame(table).groupBy("key").count()
            frame.write.format("noop").mode("overwrite").save()


def _next_step(error: Exception) -> str:
    """Return what to do about a session that could not be built."""
    if isinstance(error, TimeoutError):
        return "see its output above, or raise that"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java" if not home else f"{home}/bin/java")
    if java is None:
        return "Java 17 or later must be on the PATH or in JAVA_HOME"
    return f"its output above says what is wrong; {java} must be Java 17 or later"


def _run_aside(name: str, call: Callable[[], None]) -> Future[None]:
    """Run ``call`` on a thread of its own; return what becomes of it."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


def _aside(name: str, call: Callable[[], None], seconds: float) -> None:
    """Run ``call`` on a thread of its own for ``seconds`` at most, and log how it failed."""
    outcome = _run_aside(name, call)
    try:
        outcome.result(seconds)
    except TimeoutError:
        log.warning("spark_call_timed_out", call=name, seconds=seconds)
    except Exception:
        log.warning("spark_call_failed", call=name, exc_info=True)
