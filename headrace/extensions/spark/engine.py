"""One channel's way through Spark: records to a table, and the reducer's job."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import structlog
from py4j.finalizer import ThreadSafeFinalizer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.core.errors import EngineDiedError, JobCancelledError, JobTimeoutError, StartError
from headrace.core.tables import Decode, OnUndecodable
from headrace.extensions.spark.arrow_to_spark import ArrowToSpark, ByValue
from headrace.extensions.spark.decode import Decoder
from headrace.extensions.spark.failures import failure_of, text_of
from headrace.extensions.spark.persisted import Persisted, record
from headrace.extensions.spark.reducer import OwnReducer, checked, load_reducer, send_by_value
from headrace.sinks.channel_sink import Staged
from headrace.telemetry.thread_time import ThreadActivity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.core.records import Batch
    from headrace.extensions.spark.arrow_to_spark import SparkInput
    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.extensions.spark.settings import Share
    from headrace.sinks.channel_sink import ChannelSink
    from headrace.sinks.micro_batch import MicroBatch


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
        """Collect the young objects, and all of them if too many of the JVM's are left."""
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


class SparkJobs:
    """The part of Spark that belongs to one lane.

    pyspark pins each Python thread to one of the JVM's, so job group, scheduler pool and active
    session belong to the lane for good: :meth:`admitted`, :meth:`job` and :meth:`revive` are for
    that thread. ``name`` is its name, and the pool's.
    """

    def __init__(self, name: str, runtime: SparkRuntime) -> None:
        self.name = name
        self._runtime = runtime
        self._guard = threading.Lock()
        self._running: str | None = None
        self._closed = False
        self._cancelled = False
        self._overran = False
        self._ran = False
        self._generation = -1
        self._to_spark: ArrowToSpark | None = None
        self._session: Any = None
        self._shuffles: int | None = None

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Enter the session for the block; then free what its jobs got in the JVM."""
        try:
            with self._runtime.job_gate.admitted():
                yield
        finally:
            if self._ran:
                GARBAGE.collect()
            self._ran = False

    @contextmanager
    def job(self, group: str, seconds: float | None) -> Iterator[tuple[ArrowToSpark, Share]]:
        """Run the block's Spark jobs as ``group``; give it the way in and its share of slots.

        ``group`` must be new: Spark refuses the jobs of a cancelled one. The block's own
        exceptions pass through.

        Raises:
            JobCancelledError: :meth:`cancel` was called with this group, or :meth:`close`, or Spark
                is gone while the process stops.
            JobTimeoutError: the block's jobs did not end in ``seconds``.
            EngineDiedError: Spark is gone; :meth:`revive` brings it back.
        """
        self._begin_group(group)
        timer = None
        if seconds is not None:
            timer = self._timer(seconds, self._overrun, group)
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

    def _begin_group(self, group: str) -> None:
        with self._guard:
            if self._closed:
                raise JobCancelledError(f"lane {self.name} stops")
            self._running, self._cancelled, self._overran = group, False, False
        self._ran = True

    def _prepare(self, group: str, share: Share) -> ArrowToSpark:
        if self._to_spark is None or self._generation != self._runtime.generation:
            self._to_spark = None  # of a JVM that is gone, should there be no session yet
            self._generation = self._runtime.generation
            self._session = self._runtime.new_session()
            self._to_spark, self._shuffles = ArrowToSpark(self._session), None
            self._runtime.context.setLocalProperty("spark.scheduler.pool", self.name)
        self._shuffles = self._runtime.fit(self._session, self._shuffles, share)
        # Interrupting reaches tasks that wait for a Python worker, which Spark then kills; without
        # it both run on.
        self._runtime.context.setJobGroup(group, group, interruptOnCancel=True)
        return self._to_spark

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
        """Cancel the jobs of ``group``, if it runs, on a thread of its own. Any thread."""
        with self._guard:
            if self._running != group:
                return
            self._cancelled = True
        threading.Thread(
            target=self._cancel_in_spark, args=[group], name=f"{self.name}-cancel", daemon=True
        ).start()

    def close(self) -> None:
        """Cancel the jobs that run, and refuse others. Any thread."""
        with self._guard:
            self._closed, group = True, self._running
        if group is not None:
            self.cancel(group)

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


class SparkEngine:
    """Runs one channel's micro-batches as Spark jobs. An :class:`Engine`.

    ``reducer`` is an import path or the function itself. The runtime is shared and outlives the
    engine.
    """

    name: ClassVar = "spark"
    activity: ClassVar = ThreadActivity.SPARK
    span: ClassVar = "spark_job"

    def __init__(
        self,
        runtime: SparkRuntime,
        reducer: Reducer | str,
        decode: Decode | None = None,
        source: SparkInput | None = None,
    ) -> None:
        self._runtime = runtime
        self._reducer = reducer
        self._decode = decode or Decode()
        self._input = source or ByValue()
        self._decoder: Decoder | None = None
        self._jobs: SparkJobs | None = None

    def open(self, channel: str) -> None:
        if isinstance(self._reducer, str):
            self._function = load_reducer(self._reducer)
        else:
            self._function = self._reducer
        if not isinstance(self._function, OwnReducer):
            send_by_value(self._function)
        self._runtime.start()
        record()
        self._decoder = Decoder(self._decode)
        to_spark = ArrowToSpark(self._runtime.new_session())
        self._input.check(to_spark)
        if isinstance(self._function, OwnReducer):
            self._function.check(self._decoder.apply(to_spark.nothing()))
        self._enter(channel)

    def _enter(self, channel: str) -> None:
        self._jobs = SparkJobs(f"{self.name}-{channel}", self._runtime)
        self._runtime.slots.enter(self._jobs)

    def admitted(self) -> AbstractContextManager[None]:
        return self._opened.admitted()

    @property
    def _opened(self) -> SparkJobs:
        assert self._jobs is not None, "open comes first"
        return self._jobs

    def set_undecodable(self, undecodable: OnUndecodable) -> None:
        self._decode = replace(self._decode, on_undecodable=undecodable)
        if self._decoder is not None:
            self._decoder = self._decoder.treating(undecodable)

    def prepare(self, batch: Batch) -> Any:
        return self._input.prepare(batch)

    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[Any],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        """Run the micro-batch's jobs up to, not including, the commit.

        Of what a job fails with ReducerError is raised; JobFailedError where no record can be to
        blame.
        """
        with self._opened.job(micro_batch.id, seconds) as (to_spark, share):
            # no name for the merged copy: it would be kept for as long as the reducer runs
            frame = self._input.frame(to_spark, prepared, share)
            try:
                return self._reduce(micro_batch, frame, self._input.tables(prepared), sink)
            except (Py4JError, PySparkException) as error:
                raise failure_of(error, text_of(error)) from error

    def _reduce(
        self,
        micro_batch: MicroBatch,
        frame: DataFrame,
        tables: Sequence[pa.Table] | None,
        sink: ChannelSink,
    ) -> Staged:
        decoder = self._decoder
        assert decoder is not None, "open comes first"
        with decoder.decoded(frame, tables) as decoded:
            persisted = Persisted(self._runtime.context)
            with persisted.recording():
                returned = self._function(decoded.frame, micro_batch)
                kept = sink.stage(micro_batch, returned, checked)
            return Staged(
                kept, decoded.skipped, rejected=decoded.rejected, release=persisted.release
            )

    def cancel(self, micro_batch_id: str) -> None:
        self._opened.cancel(micro_batch_id)

    def revive(self) -> None:
        self._opened.revive()

    def close(self) -> None:
        if self._jobs is not None:
            self._jobs.close()
            self._runtime.slots.leave(self._jobs)
