"""One channel's way without Spark: records to a table, the reducer, the sink."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from headrace.core.errors import JobCancelledError
from headrace.core.tables import Decode, table_of
from headrace.inline.decode import InlineDecoder
from headrace.inline.reducer import checked, load_arrow_reducer
from headrace.sinks.engine import SinkEngine, Staged
from headrace.spark.failures import StuckReport
from headrace.telemetry.thread_time import ThreadActivity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.core.clock import Deadline
    from headrace.core.records import Batch
    from headrace.inline.reducer import ArrowReducer
    from headrace.sinks.contract import Sink
    from headrace.sinks.micro_batch import MicroBatch


log = structlog.get_logger(__name__)


class InlineLane:
    """Runs ``run_once`` again and again on one thread until it is stopped.

    ``run_once`` takes its own work and waits for a fraction of a second at most where there is
    none. An exception from it is logged and does not end the lane.
    """

    def __init__(self, name: str, run_once: Callable[[], None]) -> None:
        self.name = name
        self._run_once = run_once
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Event()
        self._report = StuckReport(name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread after its current turn; say whether it ended.

        A thread that does not end by ``deadline`` is left behind: nothing can interrupt a reducer.
        """
        self._stopping.set()
        return deadline.joined(self._thread)

    @contextmanager
    def job(self, group: str, seconds: float | None) -> Iterator[None]:
        """Run the block as ``group``, on the lane's thread.

        When a good part of ``seconds`` is over the log says where the thread is, unless the turn
        has ended by then.

        Raises:
            JobCancelledError: the lane stops.
        """
        if self._stopping.is_set():
            raise JobCancelledError(f"lane {self.name} stops")
        self._report.begin(group, seconds)
        yield

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception:
                log.exception("lane_failed", lane=self.name)
            finally:
                self._report.end()


class InlineEngine(SinkEngine):
    """Runs one channel's micro-batches on a thread of its own.

    ``reducer`` is an import path or the function itself. Lane and sink are the engine's own.
    """

    activity = ThreadActivity.PROCESS
    span = "reducer"

    def __init__(
        self, reducer: ArrowReducer | str, sink: Sink[Any], decode: Decode | None = None
    ) -> None:
        super().__init__(sink)
        self._reducer = reducer
        self._decode = decode or Decode()
        self._decoder: InlineDecoder | None = None
        self._lane: InlineLane | None = None

    def open(self, channel: str, run_once: Callable[[], None], commit: Callable[[], bool]) -> None:
        """Load the reducer, open the sink, have threads run ``run_once`` and ``commit``. Blocks.

        Raises:
            StartError: the reducer or the sink cannot be used.
            ConfigError: the decode schema cannot be used.
        """
        self._decoder = InlineDecoder(self._decode)
        if isinstance(self._reducer, str):
            self._function = load_arrow_reducer(self._reducer)
        else:
            self._function = self._reducer
        try:
            self._sink.open()
        except BaseException:
            self._sink.close()
            raise
        self._lane = InlineLane(f"inline-{channel}", run_once)
        self._lane.start()
        self._start_commits(channel, commit)

    def prepare(self, batch: Batch) -> pa.Table:
        """Turn a batch into columns. Any thread."""
        return table_of(batch)

    def stage(
        self, micro_batch: MicroBatch, tables: Sequence[pa.Table], seconds: float | None
    ) -> Staged:
        """Run the reducer, and stage what it returns. On the lane's thread.

        Nothing can interrupt the reducer; after half of ``seconds`` the log says where it is.

        Raises:
            JobCancelledError: the lane stops.
            UndecodableRecordError: a value does not fit the schema.
            TypeError: the reducer returned something else than a table or None.
            Exception: what the reducer raised.
        """
        assert self._lane is not None, "open comes first"
        assert self._decoder is not None
        with self._lane.job(micro_batch.id, seconds):
            decoded = self._decoder.apply(pa.concat_tables(tables))
            result = self.checked(self._function(decoded.table, micro_batch), checked)
            return Staged(self._sink.stage(micro_batch, result), decoded.skipped)

    def decode_as(self, decode: Decode) -> None:
        """Decode the next micro-batch in another way. Any thread; the schema is as before."""
        self._decoder = InlineDecoder(decode)

    def cancel(self, micro_batch_id: str) -> None:
        """Do nothing: what a reducer is at cannot be interrupted, and will not be committed."""

    def revive(self) -> None:
        """Do nothing: there is no JVM that could have died."""

    def close(self, deadline: Deadline) -> bool:
        """End the lane, the commits and the sink; say whether the threads ended in time."""
        ended = self._lane is None or self._lane.stop(deadline)
        return self._close_sink(deadline) and ended
