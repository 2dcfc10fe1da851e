"""One channel's way through Spark: records to a table, the reducer's job, the sink."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import structlog
from py4j.finalizer import ThreadSafeFinalizer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.core.errors import EngineDiedError, JobCancelledError, JobTimeoutError, StartError
from headrace.core.tables import Decode
from headrace.sinks.engine import SinkEngine, Staged
from headrace.spark.arrow_to_spark import ArrowToSpark, ByValue
from headrace.spark.decode import Decoder, undecodable_in
from headrace.spark.failures import StuckReport, failure_of, text_of
from headrace.spark.reducer import OwnReducer, checked, load_reducer, send_by_value
from headrace.telemetry.thread_time import ThreadActivity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from headrace.core.clock import Deadline
    from headrace.core.records import Batch
    from headrace.sinks.contract import Sink
    from headrace.sinks.micro_batch import MicroBatch
    from headrace.spark.arrow_to_spark import Input
    from headrace.spark.reducer import Reducer
    from headrace.spark.runtime import SparkRuntime
    from headrace.spark.settings import Share


#: The collector's generations up to this one have what came into being since it last looked at all.
_YOUNG = 1

#: So many more of the JVM's objects than there have been are too many. Two busy lanes left two more
#: with each turn, and each of them may be a DataFrame with its records.
_MANY = 10

#: A look at everything takes a twentieth of the time at most: it holds all threads up, for about
#: 50 ms for each 250,000 objects of the process.
_PAUSE = 19


class JvmReferences:
    """Has the collector free what refers to objects of the JVM. Any thread; blocks for that.

    Each object of the JVM that a method was called on is part of a cycle here, and lives there
    until the collector finds it: a DataFrame with all its records. By itself the collector comes
    when enough Python objects were made, and records in columns are none: a heap of 1 GiB was full
    after 50 micro-batches of 20 MB.

    What a turn leaves is young, as long as the collector is relaxed for records, so the old objects
    need no look; unless another lane's turn ended meanwhile, whose look made old what was still in
    use. py4j's own list tells: it has every object of the JVM that is known here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._normal = 0
        self._not_before = 0.0

    def collect(self) -> None:
        """Look at the young objects, and at all of them where too many of the JVM's are left."""
        if not gc.isenabled():
            return
        gc.collect(_YOUNG)
        self._normal = min(self._normal, known())
        if known() <= self._normal + _MANY or not self._lock.acquire(blocking=False):
            return
        try:
            self._collect_all()
        finally:
            self._lock.release()

    def _collect_all(self) -> None:
        began = self._clock()
        if began < self._not_before:
            return
        gc.collect()
        ended = self._clock()
        self._normal = known()
        self._not_before = ended + _PAUSE * (ended - began)


def known() -> int:
    """Return how many objects of the JVM's are known here: it keeps all of them."""
    return len(ThreadSafeFinalizer.finalizers)


#: The process's: the collector concerns all of it.
GARBAGE = JvmReferences()


log = structlog.get_logger(__name__)


class Lane:
    """Runs ``run_once`` again and again on one thread until it is stopped.

    pyspark pins each Python thread to one of the JVM's, so job group, scheduler pool and active
    session belong to the lane for good. ``run_once`` takes its own work, waits for a fraction of
    a second at most where there is none, and submits jobs inside :meth:`job`. An exception from
    ``run_once`` is logged and does not end the lane.
    """

    def __init__(self, name: str, runtime: SparkRuntime, run_once: Callable[[], None]) -> None:
        self.name = name
        self._runtime = runtime
        self._run_once = run_once
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._running: str | None = None
        self._cancelled = False
        self._overran = False
        self._ran = False
        self._generation = -1
        self._hand_over: ArrowToSpark | None = None
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
                with self._runtime.job_gate.admitted():
                    self._run_once()
            except Exception:
                log.exception("lane_failed", lane=self.name)
            finally:
                self._report.end()
            self._let_go()

    def _let_go(self) -> None:
        """Have the JVM free what the turn's jobs were given."""
        if self._ran:
            GARBAGE.collect()
        self._ran = False

    @contextmanager
    def job(self, group: str, seconds: float | None) -> Iterator[tuple[ArrowToSpark, Share]]:
        """Run the block's Spark jobs as ``group``; give it the lane's way in and share of slots.

        Called on the lane's thread. ``group`` must be new: Spark refuses the jobs of a cancelled
        one. The block's own exceptions pass through. When a good part of ``seconds`` is over the
        log says where the thread is, unless the turn has ended by then: with it the commit of
        what the jobs gave.

        Raises:
            JobCancelledError: :meth:`cancel` was called with this group, the lane stops, or Spark
                is gone while the process stops.
            JobTimeoutError: the block's jobs did not end in ``seconds``.
            EngineDiedError: Spark is gone; :meth:`revive` brings it back.
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

    def _prepare(self, group: str, share: Share) -> ArrowToSpark:
        if self._hand_over is None or self._generation != self._runtime.generation:
            self._hand_over = None  # of a JVM that is gone, should there be no session yet
            self._generation = self._runtime.generation
            self._session = self._runtime.new_session()
            self._hand_over, self._shuffles = ArrowToSpark(self._session), None
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
            raise EngineDiedError(f"Spark ended under the job: {type(error).__name__}") from error

    def revive(self) -> None:
        """Build Spark again after an EngineDiedError, unless another lane did. Blocks.

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


class SparkEngine(SinkEngine):
    """Runs one channel's micro-batches on one lane.

    ``reducer`` is an import path or the function itself. The runtime is shared and outlives the
    engine; sink and lane are the engine's own.
    """

    activity = ThreadActivity.SPARK
    span = "spark_job"

    def __init__(
        self,
        runtime: SparkRuntime,
        reducer: Reducer | str,
        sink: Sink[Any],
        decode: Decode | None = None,
        source: Input | None = None,
    ) -> None:
        super().__init__(sink)
        self._runtime = runtime
        self._reducer = reducer
        self._decode = decode or Decode()
        self._input = source or ByValue()
        self._decoder: Decoder | None = None
        self._lane: Lane | None = None

    def open(self, channel: str, run_once: Callable[[], None], commit: Callable[[], bool]) -> None:
        """Check all that can be checked, have threads run ``run_once`` and ``commit``. Blocks.

        Raises:
            StartError: the reducer, Spark or the sink cannot be used.
            ConfigError: the decode schema cannot be used.
        """
        if isinstance(self._reducer, str):
            self._function = load_reducer(self._reducer)
        else:
            self._function = self._reducer
        if not isinstance(self._function, OwnReducer):
            send_by_value(self._function)
        try:
            self._sink.open()
            self._runtime.start()
            self._decoder = Decoder(self._decode)
            hand_over = ArrowToSpark(self._runtime.new_session())
            self._input.check(hand_over)
            self._check_own(self._decoder, hand_over)
        except BaseException:
            self._sink.close()
            raise
        self._lane = Lane(f"spark-{channel}", self._runtime, run_once)
        self._lane.start()
        self._start_commits(channel, commit)

    def _check_own(self, decoder: Decoder, hand_over: ArrowToSpark) -> None:
        if isinstance(self._function, OwnReducer):
            self._function.check(decoder.apply(hand_over.nothing()))

    def decode_as(self, decode: Decode) -> None:
        """Decode the next micro-batch in another way. Any thread; the schema is as before."""
        self._decode = decode
        if self._decoder is not None:
            self._decoder = self._decoder.treating(decode.on_undecodable)

    def prepare(self, batch: Batch) -> Any:
        """Do what can be done for a batch without Spark. Any thread."""
        return self._input.prepare(batch)

    def stage(
        self, micro_batch: MicroBatch, prepared: Sequence[Any], seconds: float | None
    ) -> Staged:
        """Run the micro-batch's jobs up to, not including, the commit. On the lane's thread.

        Raises:
            UndecodableRecordError: a value does not fit the schema.
            ReducerError: the job failed; JobFailedError where no record can be to blame.
            JobCancelledError, JobTimeoutError, EngineDiedError: see :meth:`Lane.job`.
            Exception: what the reducer's own Python code raised.
        """
        assert self._lane is not None
        with self._lane.job(micro_batch.id, seconds) as (hand_over, share):
            # no name for the merged copy: it would be kept for as long as the reducer runs
            frame = self._input.frame(hand_over, prepared, share)
            try:
                return self._reduce(micro_batch, frame)
            except (Py4JError, PySparkException) as error:
                text = text_of(error)
                raise (undecodable_in(text) or failure_of(error, text)) from error

    def _reduce(self, micro_batch: MicroBatch, frame: DataFrame) -> Staged:
        decoder = self._decoder
        assert decoder is not None, "open comes first"
        result = self.checked(self._function(decoder.apply(frame), micro_batch), checked)
        staged = self._sink.stage(micro_batch, result)
        try:
            skipped = decoder.skipped(frame) if decoder.counts_skipped else {}
        except BaseException:
            self._sink.discard(staged)
            raise
        return Staged(staged, skipped)

    def cancel(self, micro_batch_id: str) -> None:
        """Cancel the micro-batch's jobs, if they run. On a thread of its own: does not block."""
        if self._lane is not None:
            name = f"{self._lane.name}-cancel"
            threading.Thread(
                target=self._lane.cancel, args=[micro_batch_id], name=name, daemon=True
            ).start()

    def revive(self) -> None:
        """Bring Spark back after an EngineDiedError. On the lane's thread; blocks.

        Raises:
            StartError: it could not be built.
        """
        assert self._lane is not None
        self._lane.revive()

    def close(self, deadline: Deadline) -> bool:
        """End the lane, the commits and the sink; say whether the threads ended in time."""
        ended = self._lane is None or self._lane.stop(deadline)
        return self._close_sink(deadline) and ended
