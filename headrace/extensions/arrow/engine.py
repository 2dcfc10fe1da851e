"""One channel's way without Spark: records to a table, and the reducer."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.core.errors import JobCancelledError
from headrace.core.tables import Decode, OnUndecodable, left_out, table_of
from headrace.extensions.arrow.decode import ArrowDecoder
from headrace.extensions.arrow.reducer import checked, load_arrow_reducer
from headrace.sinks.channel_sink import Staged
from headrace.telemetry.thread_time import ThreadActivity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from headrace.core.call_watch import CallWatch
    from headrace.core.records import Batch
    from headrace.extensions.arrow.reducer import ArrowReducer
    from headrace.sinks.channel_sink import ChannelSink
    from headrace.sinks.micro_batch import MicroBatch


class ArrowEngine:
    """Runs one channel's micro-batches in this process. An :class:`Engine`.

    ``reducer`` is an import path or the function itself. ``calls`` interrupts it where it takes
    longer than a job may; without it nothing does.
    """

    name: ClassVar = "arrow"
    activity: ClassVar = ThreadActivity.PROCESS
    span: ClassVar = "reducer"

    def __init__(
        self,
        reducer: ArrowReducer | str,
        decode: Decode | None = None,
        calls: CallWatch | None = None,
    ) -> None:
        self._reducer = reducer
        self._calls = calls
        self._decode = decode or Decode()
        self._decoder: ArrowDecoder | None = None
        self._closed = False

    def open(self, channel: str) -> None:  # noqa: ARG002 - it has nothing of the channel's
        self._decoder = ArrowDecoder(self._decode)
        if isinstance(self._reducer, str):
            self._function = load_arrow_reducer(self._reducer)
        else:
            self._function = self._reducer

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, batch: Batch) -> pa.Table:
        return table_of(batch)

    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[pa.Table],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        if self._closed:
            raise JobCancelledError("the channel stops")
        assert self._decoder is not None, "open comes first"
        if self._calls is not None:
            self._calls.limit(seconds)
        decoded = self._decoder.apply(pa.concat_tables(prepared))
        returned = self._function(decoded.table, micro_batch)
        kept = sink.stage(micro_batch, returned, checked)
        return Staged(kept, decoded.skipped, left_out(returned), decoded.rejected)

    def set_undecodable(self, undecodable: OnUndecodable) -> None:
        self._decode = replace(self._decode, on_undecodable=undecodable)
        if self._decoder is not None:
            self._decoder = self._decoder.treating(undecodable)

    def cancel(self, micro_batch_id: str) -> None:
        """Return at once: the result of a cancelled job is not committed."""

    def revive(self) -> None:
        """Return at once: it lives as long as the process."""

    def close(self) -> None:
        self._closed = True
