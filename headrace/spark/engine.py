"""One channel's way through Spark: records to a table, the reducer's job, the sink."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.spark.decode import Decode, Decoder, undecodable_in
from headrace.spark.failures import text_of
from headrace.spark.handover import HandOver
from headrace.spark.inputs import ByValue
from headrace.spark.job_failures import failure_of
from headrace.spark.lane import Lane
from headrace.spark.reducer import OwnReducer, checked, load_reducer, send_by_value
from headrace.spark.sinking import SinkEngine, Staged
from headrace.thread_time import Activity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from headrace.clock import Deadline
    from headrace.records import Batch
    from headrace.spark.inputs import Input
    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.reducer import Reducer
    from headrace.spark.runtime import SparkRuntime
    from headrace.spark.sinks.contract import Sink


class SparkEngine(SinkEngine):
    """Runs one channel's micro-batches on one lane.

    ``reducer`` is an import path or the function itself. The runtime is shared and outlives the
    engine; sink and lane are the engine's own.
    """

    activity = Activity.SPARK
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

    def open(self, channel: str, turn: Callable[[], None], commit: Callable[[], bool]) -> None:
        """Check all that can be checked, then have threads run ``turn`` and ``commit``. Blocks.

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
            hand_over = HandOver(self._runtime.new_session())
            self._input.check(hand_over)
            self._check_own(self._decoder, hand_over)
        except BaseException:
            self._sink.close()
            raise
        self._lane = Lane(f"spark-{channel}", self._runtime, turn)
        self._lane.start()
        self._start_commits(channel, commit)

    def _check_own(self, decoder: Decoder, hand_over: HandOver) -> None:
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
            JobCancelledError, JobTimeoutError, JvmDiedError: see :meth:`Lane.job`.
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
        """Bring Spark back after a JvmDiedError. On the lane's thread; blocks.

        Raises:
            StartError: it could not be built.
        """
        assert self._lane is not None
        self._lane.revive()

    def close(self, deadline: Deadline) -> bool:
        """End the lane, the commits and the sink; say whether the threads ended in time."""
        ended = self._lane is None or self._lane.stop(deadline)
        return self._close_sink(deadline) and ended
